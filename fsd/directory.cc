#include "fsd/directory.h"

#include <glog/logging.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>

namespace nram {

Directory::~Directory() {
  for (Node* node : by_name_) free(node);
}

Directory::Node* Directory::Get(absl::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : *it;
}

InodeNumber Directory::Find(absl::string_view name) const {
  const Node* const node = Get(name);
  return node == nullptr ? 0 : node->inode;
}

void Directory::Insert(absl::string_view name, InodeNumber inode) {
  CHECK(!name.empty() && name.size() <= UINT8_MAX && inode <= UINT32_MAX);
  auto* const node = static_cast<Node*>(malloc(offsetof(Node, text) + name.size()));
  if (node == nullptr) throw std::bad_alloc();
  node->cookie = next_cookie_++;
  node->inode = static_cast<uint32_t>(inode);
  node->length = static_cast<uint8_t>(name.size());
  memcpy(node->text, name.data(), name.size());
  CHECK(by_name_.insert(node).second) << "two entries of one name";
  by_cookie_.push_back(reinterpret_cast<Slot>(node));
}

void Directory::Replace(absl::string_view name, InodeNumber inode) {
  Node* const node = Get(name);
  CHECK(node != nullptr);
  node->inode = static_cast<uint32_t>(inode);
}

void Directory::Erase(absl::string_view name) {
  const auto it = by_name_.find(name);
  CHECK(it != by_name_.end());
  Node* const node = *it;
  by_name_.erase(it);
  Slot& slot = by_cookie_[IndexAfter(node->cookie - 1)];
  CHECK_EQ(slot, reinterpret_cast<Slot>(node));
  slot = node->cookie << 1 | 1;
  free(node);
  while (first_ < by_cookie_.size() && (by_cookie_[first_] & 1) != 0) ++first_;
  // Most slots are empty: close up. Each entry that is moved pays for one that was erased.
  if (by_cookie_.size() > 2 * by_name_.size() + 16) {
    std::erase_if(by_cookie_, [](Slot at) { return (at & 1) != 0; });
    by_cookie_.shrink_to_fit();
    by_name_.rehash(0);
    first_ = 0;
  }
}

size_t Directory::IndexAfter(uint64_t cookie) const {
  const auto it = std::upper_bound(by_cookie_.begin() + static_cast<ptrdiff_t>(first_), by_cookie_.end(), cookie,
                                   [](uint64_t value, Slot slot) { return value < CookieOf(slot); });
  return static_cast<size_t>(it - by_cookie_.begin());
}

bool Directory::Next(uint64_t cookie, Entry* entry) const {
  for (size_t i = IndexAfter(cookie); i < by_cookie_.size(); ++i) {
    if ((by_cookie_[i] & 1) != 0) continue;
    const Node* const node = reinterpret_cast<const Node*>(by_cookie_[i]);
    *entry = {node->cookie, node->inode, node->name()};
    return true;
  }
  return false;
}

}  // namespace nram
