#ifndef NRAM_FSD_LOCAL_NAMESPACE_H_
#define NRAM_FSD_LOCAL_NAMESPACE_H_

// A namespace in this process's memory, under one lock. The lock is no limit: an operation takes about a microsecond, a
// FUSE round trip ten or more.

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "base/sync.h"
#include "fsd/inode_table.h"
#include "fsd/namespace.h"

namespace nram {

class LocalNamespace : public Namespace {
 public:
  explicit LocalNamespace(LocalNamespaceOptions options);
  // Buries the bodies of all inodes.
  ~LocalNamespace() override;

  Errno Lookup(InodeNumber parent, absl::string_view name, InodeAttr* attr) override;
  void Forget(InodeNumber inode, uint64_t count) override;
  Errno GetAttr(InodeNumber inode, InodeAttr* attr) override;
  Errno SetAttr(InodeNumber inode, const AttrChange& change, InodeAttr* attr) override;
  void TouchAccess(InodeNumber inode) override;
  bool TouchData(InodeNumber inode, SetIdBits set_id) override;
  Errno Create(InodeNumber parent, absl::string_view name, mode_t mode, dev_t rdev, const Caller& caller,
               InodeAttr* attr) override;
  Errno CreateUnnamed(InodeNumber parent, mode_t mode, const Caller& caller, InodeAttr* attr) override;
  Errno Symlink(InodeNumber parent, absl::string_view name, absl::string_view target, const Caller& caller,
                InodeAttr* attr) override;
  Errno ReadLink(InodeNumber inode, std::string* target) override;
  Errno Link(InodeNumber inode, InodeNumber parent, absl::string_view name, InodeAttr* attr) override;
  Errno Unlink(InodeNumber parent, absl::string_view name) override;
  Errno RemoveDirectory(InodeNumber parent, absl::string_view name) override;
  Errno Rename(InodeNumber parent, absl::string_view name, InodeNumber new_parent, absl::string_view new_name,
               unsigned flags) override;
  Errno List(InodeNumber directory, uint64_t cookie, bool look_up, Emit emit) override;
  Errno GetXattr(InodeNumber inode, absl::string_view name, std::string* value) override;
  Errno SetXattr(InodeNumber inode, absl::string_view name, absl::string_view value, int flags,
                 bool drop_set_group_id) override;
  Errno ListXattr(InodeNumber inode, std::string* names) override;
  Errno RemoveXattr(InodeNumber inode, absl::string_view name, bool drop_set_group_id) override;
  Errno Body(InodeNumber inode, FileBody** body) override;
  NamespaceUsage Usage() const override;

 private:
  // ESTALE, ENOTDIR.
  Errno GetDirectory(InodeNumber number, Inode** inode) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // A directory, and an entry in it; ENOENT.
  Errno FindEntry(InodeNumber parent, absl::string_view name, Inode** directory, InodeNumber* number) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // A directory that lives and has no such entry; EEXIST.
  Errno FindRoom(InodeNumber parent, absl::string_view name, Inode** directory) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // An inode without a name or a lookup, under the parent's set-group-id and default ACL; 0 is no parent. ENOSPC.
  Errno NewInode(InodeNumber parent, mode_t mode, const Caller& caller, InodeNumber* number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives the inode a name there, and counts a lookup.
  void Enter(Inode* directory, absl::string_view name, InodeNumber number, InodeAttr* attr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Frees the inode if it has neither name nor lookup.
  void ReleaseIfUnused(InodeNumber number, Inode* inode) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The inode has lost a name.
  void DropName(InodeNumber number, Inode* inode) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether a rename of `moved` may replace `present`. ENOTDIR, EISDIR, ENOTEMPTY.
  Errno CheckReplaceable(const Inode& moved, const Inode& present) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool IsAncestor(InodeNumber above, InodeNumber below) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void Touch(Inode* inode, std::initializer_list<Inode::Time> times) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Gives the body of a regular file away, if there is one.
  void BuryBody(Inode* inode);
  // Counts memory for texts that users store beside names: attributes and the targets of symbolic links. ENOSPC.
  Errno TakeText(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sets an attribute and counts its memory. ENOSPC: nothing has changed.
  Errno StoreXattr(Inode* inode, absl::string_view name, absl::string_view value) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False if there is no such attribute.
  bool EraseXattr(Inode* inode, absl::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // True if mounts with "relatime" would not note another access.
  bool AccessIsRecent(const Inode& inode) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const LocalNamespaceOptions options_;
  const uint32_t first_generation_;  // random: no file handle is good for the next daemon's files

  // Taken before the lock of a file's pages: FileBody's methods and `bury` run under it.
  mutable SharedMutex mu_;
  InodeTable table_ ABSL_GUARDED_BY(mu_);     // and all that its inodes hold
  uint64_t inodes_ ABSL_GUARDED_BY(mu_) = 0;  // and names beyond the first of each, as tmpfs counts them
  uint64_t text_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace nram

#endif  // NRAM_FSD_LOCAL_NAMESPACE_H_
