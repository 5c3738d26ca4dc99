#ifndef NRAM_FSD_INODE_TABLE_H_
#define NRAM_FSD_INODE_TABLE_H_

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <ctime>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "absl/strings/string_view.h"
#include "fsd/directory.h"
#include "fsd/namespace.h"
#include "fsd/xattrs.h"

namespace nram {

// The entry of a LocalNamespace for one inode. Not thread-safe.
struct Inode {
  enum Time { kAccess, kModify, kChange, kTimes };
  struct DirectoryNode {
    explicit DirectoryNode(InodeNumber above) : parent(above) {}
    InodeNumber parent;
    Directory entries;
  };
  using Content = std::variant<std::monostate, std::unique_ptr<DirectoryNode>, std::unique_ptr<FileBody>,
                               std::unique_ptr<std::string>>;  // of a symbolic link: its target

  int64_t seconds[kTimes];
  uint32_t nanoseconds[kTimes];
  mode_t mode = 0;  // 0: the slot is free
  uid_t uid;
  gid_t gid;
  uint32_t link_count;
  uint32_t rdev;
  uint32_t lookups;
  uint32_t generation;  // counts the inodes that have had the slot
  std::unique_ptr<Xattrs> xattrs;
  Content content;

  // Each null unless the inode is of that kind. A regular file has a body once it was asked for.
  DirectoryNode* directory() const { return Get<DirectoryNode>(); }
  FileBody* body() const { return Get<FileBody>(); }
  const std::string* target() const { return Get<std::string>(); }

  void SetTime(Time which, const timespec& time) {
    seconds[which] = time.tv_sec;
    nanoseconds[which] = static_cast<uint32_t>(time.tv_nsec);
  }
  timespec GetTime(Time which) const { return {seconds[which], nanoseconds[which]}; }
  // One lookup more. Beyond the counter's end the inode stays for good.
  void AddLookup() { lookups += lookups != UINT32_MAX; }
  void DropSetId(SetIdBits set_id);
  // Null if there is none of that name.
  const std::string* FindXattr(absl::string_view name) const {
    return xattrs == nullptr ? nullptr : xattrs->Find(name);
  }
  // The memory that attributes and the target of a link count for.
  size_t TextBytes() const;
  // `generation_base`: of the daemon.
  void Fill(InodeNumber number, uint32_t generation_base, InodeAttr* attr) const;

 private:
  template <typename Kind>
  Kind* Get() const {
    const auto* const kind = std::get_if<std::unique_ptr<Kind>>(&content);
    return kind == nullptr ? nullptr : kind->get();
  }
};
static_assert(sizeof(Inode) == 88, "docs/semantics.md says how much memory an inode takes");

// The inodes by number, in slots that are used again. An inode stays where it is while it lives. Not thread-safe.
class InodeTable {
 public:
  // Null if no inode has that number.
  Inode* Get(InodeNumber number) const;
  // A free slot, whose generation is one more than before. The caller sets all other fields; `mode` makes the inode.
  Inode* Add(InodeNumber* number);
  // Frees the inode's slot.
  void Remove(InodeNumber number);
  template <typename Visit>
  void ForEach(const Visit& visit) {
    for (const auto& block : blocks_) {
      for (Inode& inode : *block) visit(&inode);
    }
  }

 private:
  static constexpr size_t kInodesPerBlock = 1024;
  using Block = std::array<Inode, kInodesPerBlock>;

  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<uint32_t> free_;
  uint64_t slots_used_ = 1;  // number 0 is none
};

}  // namespace nram

#endif  // NRAM_FSD_INODE_TABLE_H_
