#ifndef NRAM_FSD_NAMESPACE_H_
#define NRAM_FSD_NAMESPACE_H_

// Names, attributes and extended attributes of a filesystem; no data, no FUSE. A namespace that several machines share
// can follow behind this seam; LocalNamespace is in this process's memory.

#include <sys/stat.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "fsd/directory.h"
#include "fsd/errno.h"

namespace nram {

inline constexpr InodeNumber kRootInode = 1;
inline constexpr size_t kNameBytesMax = 255;
inline constexpr uint32_t kLinksMax = 1u << 30;

// The data of one regular file, as its inode sees it. The class that stores the data derives from it.
class FileBody {
 public:
  virtual ~FileBody() = default;
  virtual uint64_t size() const = 0;
  virtual uint64_t blocks() const = 0;  // that it takes, of 512 bytes
};

// The user that asks: new files belong to him.
struct Caller {
  uid_t uid = 0;
  gid_t gid = 0;
  mode_t umask = 0;
};

// The answer of stat(2) for an inode. The generation tells it from other inodes that had its number; the root's is 0.
struct InodeAttr : stat {
  InodeAttr() : stat{} {}
  uint32_t generation = 0;
};

// The fate of an inode's set-id bits when its data or owner changes. A stranger neither belongs to the file's group nor
// may keep the bits regardless (CAP_FSETID): his change clears the set-group-id bit even if the group may not execute.
enum class SetIdBits { kKeep, kDropByMember, kDropByStranger };

// A change of an inode's attributes. Not of its size, which belongs to the data.
struct AttrChange {
  std::optional<mode_t> mode;
  std::optional<uid_t> uid;
  std::optional<gid_t> gid;
  std::optional<timespec> atime, mtime, ctime;  // ctime: now unless given
  SetIdBits set_id = SetIdBits::kKeep;
};

struct NamespaceUsage {
  uint64_t inodes = 0;
  uint64_t inodes_max = 0;
};

// Thread-safe. Nothing blocks but on its lock, for microseconds.
//
// An inode lives while it has a name or the kernel knows it. Each success that hands out the attributes behind a name
// (Lookup, Create, Link, an entry of List) is one more lookup; Forget takes lookups back. Operations on inodes that do
// not live fail with ESTALE; names longer than 255 bytes with ENAMETOOLONG; names in other inodes than directories with
// ENOTDIR. Nothing here checks permissions: the kernel does, by the attributes that it is given.
class Namespace {
 public:
  virtual ~Namespace() = default;

  // ENOENT. "." is the inode itself, of whatever kind, and ".." the directory above it; ESTALE if the inode has lost
  // its last name.
  virtual Errno Lookup(InodeNumber parent, absl::string_view name, InodeAttr* attr) = 0;
  // Takes back `count` lookups.
  virtual void Forget(InodeNumber inode, uint64_t count) = 0;

  virtual Errno GetAttr(InodeNumber inode, InodeAttr* attr) = 0;
  virtual Errno SetAttr(InodeNumber inode, const AttrChange& change, InodeAttr* attr) = 0;
  // Notes the time of an access to a file, as seldom as mounts with "relatime" do.
  virtual void TouchAccess(InodeNumber inode) = 0;
  // Notes the time of a change of the data. True if that has cleared set-id bits.
  virtual bool TouchData(InodeNumber inode, SetIdBits set_id) = 0;

  // Makes a regular file, directory, FIFO, socket or device node, as `mode` says, under the parent's set-group-id and
  // default ACL. EEXIST, ENOSPC (too many inodes). ENOENT: the parent was removed.
  virtual Errno Create(InodeNumber parent, absl::string_view name, mode_t mode, dev_t rdev, const Caller& caller,
                       InodeAttr* attr) = 0;
  // A regular file without a name; Link may give it one.
  virtual Errno CreateUnnamed(InodeNumber parent, mode_t mode, const Caller& caller, InodeAttr* attr) = 0;
  virtual Errno Symlink(InodeNumber parent, absl::string_view name, absl::string_view target, const Caller& caller,
                        InodeAttr* attr) = 0;
  virtual Errno ReadLink(InodeNumber inode, std::string* target) = 0;
  virtual Errno Link(InodeNumber inode, InodeNumber parent, absl::string_view name, InodeAttr* attr) = 0;
  // EISDIR.
  virtual Errno Unlink(InodeNumber parent, absl::string_view name) = 0;
  // ENOTDIR, ENOTEMPTY.
  virtual Errno RemoveDirectory(InodeNumber parent, absl::string_view name) = 0;
  // `flags` is 0, RENAME_NOREPLACE or RENAME_EXCHANGE; others are EINVAL.
  virtual Errno Rename(InodeNumber parent, absl::string_view name, InodeNumber new_parent, absl::string_view new_name,
                       unsigned flags) = 0;

  // Calls `emit` for the entries after `cookie` ("." is 1, ".." 2) until it returns false. With `look_up`, each entry
  // for which it returned true counts one lookup, but for "." and "..".
  using Emit = absl::FunctionRef<bool(absl::string_view name, const InodeAttr& attr, uint64_t cookie)>;
  virtual Errno List(InodeNumber directory, uint64_t cookie, bool look_up, Emit emit) = 0;

  // `flags`: 0, XATTR_CREATE or XATTR_REPLACE. ENODATA, EEXIST, ENOSPC (more than kXattrBytesMax on one inode).
  // SetXattr of system.posix_acl_access sets the mode that the ACL implies; with `drop_set_group_id` it clears that
  // bit. So does RemoveXattr, which succeeds if there is no ACL. The limit counts 128 bytes for each attribute beside
  // its name and value. Within it there are more names than listxattr(2) can tell of (64 KiB), and few enough to free
  // an inode in a moment.
  static constexpr size_t kXattrBytesMax = 1 << 20;
  virtual Errno GetXattr(InodeNumber inode, absl::string_view name, std::string* value) = 0;
  virtual Errno SetXattr(InodeNumber inode, absl::string_view name, absl::string_view value, int flags,
                         bool drop_set_group_id) = 0;
  // The names, each with a NUL behind it.
  virtual Errno ListXattr(InodeNumber inode, std::string* names) = 0;
  virtual Errno RemoveXattr(InodeNumber inode, absl::string_view name, bool drop_set_group_id) = 0;

  // The data of a regular file. It is made when first asked for and stays while the inode lives. EISDIR; EINVAL: the
  // inode is neither file nor directory.
  virtual Errno Body(InodeNumber inode, FileBody** body) = 0;

  virtual NamespaceUsage Usage() const = 0;
};

struct LocalNamespaceOptions {
  uint64_t inodes_max = UINT32_MAX - 1;
  mode_t root_mode = 0755;
  uid_t root_uid = 0;
  gid_t root_gid = 0;
  // Whether a read notes the time.
  bool touch_files = true;
  bool touch_directories = true;
  // The clock; the system's if null.
  std::function<timespec()> now;
  // Asked before names and attributes take about so much more memory; false: ENOSPC. Null: they may.
  std::function<bool(uint64_t bytes)> may_grow;
  // Makes a file's body; must be set if Body is called.
  std::function<std::unique_ptr<FileBody>()> make_body;
  // Takes the bodies of inodes that have ceased to live, under the namespace's lock. Null: they are destroyed then.
  std::function<void(std::unique_ptr<FileBody>)> bury;
};

std::unique_ptr<Namespace> NewLocalNamespace(LocalNamespaceOptions options);

}  // namespace nram

#endif  // NRAM_FSD_NAMESPACE_H_
