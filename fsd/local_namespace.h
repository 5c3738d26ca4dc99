#ifndef NRAM_FSD_LOCAL_NAMESPACE_H_
#define NRAM_FSD_LOCAL_NAMESPACE_H_

// A namespace in this process's memory, under one lock: an operation takes about a microsecond, a FUSE round trip ten
// or more, so that the lock is not what limits.

#include <map>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/sync.h"
#include "fsd/acl.h"
#include "fsd/namespace.h"

namespace nram {

class LocalNamespace : public Namespace {
 public:
  explicit LocalNamespace(LocalNamespaceOptions options);
  // Buries the bodies of all inodes that there are.
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
  enum Time { kAccess, kModify, kChange, kTimes };
  struct Xattrs {
    void Set(absl::string_view name, std::string value);
    void Erase(absl::string_view name);
    std::map<std::string, std::string, std::less<>> values;
    size_t text_bytes = 0;  // TextCost of each
  };

  struct DirectoryNode {
    explicit DirectoryNode(InodeNumber above) : parent(above) {}
    InodeNumber parent;
    Directory entries;
  };
  using Content = std::variant<std::monostate, std::unique_ptr<DirectoryNode>, std::unique_ptr<FileBody>,
                               std::unique_ptr<std::string>>;  // of a symbolic link: its target

  struct Inode {
    int64_t seconds[kTimes];
    uint32_t nanoseconds[kTimes];
    mode_t mode = 0;  // 0: the slot is free
    uid_t uid;
    gid_t gid;
    uint32_t link_count;
    uint32_t rdev;
    uint32_t lookups;
    uint32_t generation;  // of whoever has the slot, or had it last
    std::unique_ptr<Xattrs> xattrs;
    Content content;

    DirectoryNode* directory() const {
      const auto* node = std::get_if<std::unique_ptr<DirectoryNode>>(&content);
      return node == nullptr ? nullptr : node->get();
    }
  };
  static_assert(sizeof(Inode) == 88, "docs/semantics.md says how much memory an inode takes");
  static constexpr size_t kInodesPerBlock = 1024;
  using Block = std::array<Inode, kInodesPerBlock>;

  // All need the lock.
  Inode* Get(InodeNumber number) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  Errno GetDirectory(InodeNumber number, Inode** inode) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // A directory, and an entry in it; ENOENT.
  Errno FindEntry(InodeNumber parent, absl::string_view name, Inode** directory, InodeNumber* number) const
      ABSL_SHARED_LOCKS_REQUIRED(mu_);
  // A directory that lives and has no such entry; EEXIST.
  Errno FindRoom(InodeNumber parent, absl::string_view name, Inode** directory) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void Fill(InodeNumber number, const Inode& inode, InodeAttr* attr) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  Errno NewInode(InodeNumber parent, mode_t mode, const Caller& caller, InodeNumber* number)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Enter(Inode* directory, absl::string_view name, InodeNumber number, InodeAttr* attr)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // One more; beyond what the counter holds, the inode stays for good.
  static void AddLookup(Inode* inode) { inode->lookups += inode->lookups != UINT32_MAX; }
  // Frees the inode if it has neither name nor lookup.
  void ReleaseIfUnused(InodeNumber number, Inode* inode) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes a name away that pointed to it.
  void DropName(InodeNumber number, Inode* inode) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Errno CheckReplaceable(const Inode& moved, const Inode& present) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  bool IsAncestor(InodeNumber above, InodeNumber below) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  void Touch(Inode* inode, std::initializer_list<Time> times) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void SetTime(Inode* inode, Time which, const timespec& time);
  static timespec GetTime(const Inode& inode, Time which) { return {inode.seconds[which], inode.nanoseconds[which]}; }
  static void DropSetId(Inode* inode, SetIdBits set_id);
  // Memory for what people may store in names' company: attributes, and where symbolic links point to. ENOSPC.
  static size_t TextCost(size_t bytes) { return bytes + 128; }  // with what holds it
  static size_t TextBytes(const Inode& inode);
  Errno TakeText(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool AccessIsRecent(const Inode& inode) const ABSL_SHARED_LOCKS_REQUIRED(mu_);
  const std::string* FindXattr(const Inode& inode, absl::string_view name) const ABSL_SHARED_LOCKS_REQUIRED(mu_);

  const LocalNamespaceOptions options_;
  const uint32_t first_generation_;  // by chance, so that nobody's handles are good for the next daemon's files

  mutable SharedMutex mu_;
  std::vector<std::unique_ptr<Block>> blocks_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mu_);
  uint64_t slots_used_ ABSL_GUARDED_BY(mu_) = 1;  // number 0 is none
  uint64_t inodes_ ABSL_GUARDED_BY(mu_) = 0;      // and names beyond the first of each, as tmpfs counts them
  uint64_t text_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace nram

#endif  // NRAM_FSD_LOCAL_NAMESPACE_H_
