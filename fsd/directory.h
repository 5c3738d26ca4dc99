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

// The entries of one directory, found by name and listed by cookie. A new entry's cookie is larger than all before it;
// an entry keeps its cookie while it lives, also when its name changes. A listing goes from the largest cookie down, so
// what comes while it is under way is behind it: every listing ends, and sees each entry that stays, renamed or not,
// exactly once. About 60 bytes an entry with a name of ten.
//
// Not thread-safe.
class Directory {
 public:
  // Cookies below are for the caller's own entries, "." and "..".
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

  // 0 if there is none.
  InodeNumber Find(absl::string_view name) const;
  // There must be none of that name; 1 to 255 bytes.
  void Insert(absl::string_view name, InodeNumber inode);
  // These must find `name`. All but Erase keep the cookie.
  void Replace(absl::string_view name, InodeNumber inode);
  // There must be no `new_name`; 1 to 255 bytes.
  void Rename(absl::string_view name, absl::string_view new_name);
  void Erase(absl::string_view name);

  // The entry that a listing sees after the one with `cookie`: the next smaller. 0: the listing's first. False if there
  // is none. A walk over all is linear.
  bool Next(uint64_t cookie, Entry* entry) const;

 private:
  // In one allocation with the name behind it.
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
  // A pointer to a node; or, where one was erased, its cookie with the lowest bit set, until enough of these have come
  // together to close them up.
  using Slot = uintptr_t;
  static uint64_t CookieOf(Slot slot) { return (slot & 1) != 0 ? slot >> 1 : reinterpret_cast<Node*>(slot)->cookie; }

  static Node* NewNode(absl::string_view name, InodeNumber inode, uint64_t cookie);
  Node* Get(absl::string_view name) const;
  // The first slot whose cookie is not smaller.
  std::vector<Slot>::const_iterator AtLeast(uint64_t cookie) const;
  Slot* SlotOf(const Node* node);

  absl::flat_hash_set<Node*, Hash, Equal> by_name_;
  std::vector<Slot> by_cookie_;  // the last is an entry's
  uint64_t next_cookie_ = kFirstCookie;
};

}  // namespace nram

#endif  // NRAM_FSD_DIRECTORY_H_
