#ifndef NRAM_FSD_DIRECTORY_H_
#define NRAM_FSD_DIRECTORY_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"

namespace nram {

using InodeNumber = uint64_t;

// The entries of one directory, found by name and listed by cookie. A new entry has a larger cookie than all before it.
// An entry keeps its cookie while it lives, also when its name changes. A listing goes from the largest cookie down, so
// entries that come meanwhile are behind it: every listing ends, and sees each entry that stays, renamed or not,
// exactly once. An entry with a name of ten bytes takes about 60.
//
// Not thread-safe.
class Directory {
 public:
  // Smaller cookies are for the caller's own entries, "." and "..".
  static constexpr uint64_t kFirstCookie = 3;

  struct Entry {
    uint64_t cookie;
    InodeNumber inode;
    absl::string_view name;  // valid until the directory changes
  };

  Directory() = default;
  ~Directory();
  Directory(const Directory&) = delete;
  Directory& operator=(const Directory&) = delete;

  size_t size() const { return by_name_.size(); }
  bool empty() const { return by_name_.empty(); }

  // 0: there is none.
  InodeNumber Find(absl::string_view name) const;
  // The directory must have no entry of that name, which has 1 to 255 bytes.
  void Insert(absl::string_view name, InodeNumber inode);
  // The directory must have an entry `name`. All but Erase keep the cookie.
  void Replace(absl::string_view name, InodeNumber inode);
  // The directory must have no entry `new_name`, which has 1 to 255 bytes.
  void Rename(absl::string_view name, absl::string_view new_name);
  void Erase(absl::string_view name);

  // The entry that a listing sees after the one with `cookie`: the next smaller; after 0, its first. False: there is
  // none. A walk over all entries takes linear time.
  bool Next(uint64_t cookie, Entry* entry) const;

 private:
  // The name lies behind the node, in one allocation.
  struct Node {
    uint64_t cookie;
    uint32_t inode;
    uint8_t length;
    char text[1];
    absl::string_view name() const { return {text, length}; }
  };
  struct Hash {
    using is_transparent = void;
    size_t operator()(absl::string_view name) const { return absl::Hash<absl::string_view>()(name); }
    size_t operator()(const Node* node) const { return (*this)(node->name()); }
  };
  struct Equal {
    using is_transparent = void;
    static absl::string_view Name(absl::string_view name) { return name; }
    static absl::string_view Name(const Node* node) { return node->name(); }
    template <typename A, typename B>
    bool operator()(const A& a, const B& b) const {
      return Name(a) == Name(b);
    }
  };
  // A pointer to a node. If the node was erased: its cookie, shifted, with the lowest bit set. When there are many of
  // those, the slots are closed up.
  using Slot = uintptr_t;
  static uint64_t CookieOf(Slot slot) { return (slot & 1) != 0 ? slot >> 1 : reinterpret_cast<Node*>(slot)->cookie; }

  static Node* NewNode(absl::string_view name, InodeNumber inode, uint64_t cookie);
  Node* Get(absl::string_view name) const;
  // The first slot whose cookie is at least `cookie`.
  std::vector<Slot>::const_iterator AtLeast(uint64_t cookie) const;
  Slot* SlotOf(const Node* node);

  absl::flat_hash_set<Node*, Hash, Equal> by_name_;
  std::vector<Slot> by_cookie_;  // by rising cookie; the last slot has a node
  uint64_t next_cookie_ = kFirstCookie;
};

}  // namespace nram

#endif  // NRAM_FSD_DIRECTORY_H_
