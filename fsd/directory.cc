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

Directory::Node* Directory::NewNode(absl::string_view name, InodeNumber inode, uint64_t cookie) {
  CHECK(!name.empty() && name.size() <= UINT8_MAX && inode <= UINT32_MAX);
  auto* const node = static_cast<Node*>(malloc(offsetof(Node, text) + name.size()));
  if (node == nullptr) throw std::bad_alloc();
  node->cookie = cookie;
  node->inode = static_cast<uint32_t>(inode);
  node->length = static_cast<uint8_t>(name.size());
  memcpy(node->text, name.data(), name.size());
  return node;
}

void Directory::Insert(absl::string_view name, InodeNumber inode) {
  Node* const node = NewNode(name, inode, next_cookie_++);
  CHECK(by_name_.insert(node).second) << "two entries of one name";
  by_cookie_.push_back(reinterpret_cast<Slot>(node));
}

void Directory::Replace(absl::string_view name, InodeNumber inode) {
  Node* const node = Get(name);
  CHECK(node != nullptr);
  node->inode = static_cast<uint32_t>(inode);
}

void Directory::Rename(absl::string_view name, absl::string_view new_name) {
  const auto it = by_name_.find(name);
  CHECK(it != by_name_.end());
  Node* const old = *it;
  Node* const node = NewNode(new_name, old->inode, old->cookie);
  by_name_.erase(it);
  CHECK(by_name_.insert(node).second) << "two entries of one name";
  *SlotOf(old) = reinterpret_cast<Slot>(node);
  free(old);
}

void Directory::Erase(absl::string_view name) {
  const auto it = by_name_.find(name);
  CHECK(it != by_name_.end());
  Node* const node = *it;
  by_name_.erase(it);
  *SlotOf(node) = node->cookie << 1 | 1;
  free(node);
  while (!by_cookie_.empty() && (by_cookie_.back() & 1) != 0) by_cookie_.pop_back();
  // If most slots are empty, close them up. The erased entries have paid for the moves.
  if (by_cookie_.size() > 2 * by_name_.size() + 16 || by_cookie_.capacity() > 4 * by_name_.size() + 64) {
    std::erase_if(by_cookie_, [](Slot at) { return (at & 1) != 0; });
    by_cookie_.shrink_to_fit();
    by_name_.rehash(0);
  }
}

std::vector<Directory::Slot>::const_iterator Directory::AtLeast(uint64_t cookie) const {
  return std::lower_bound(by_cookie_.begin(), by_cookie_.end(), cookie,
                          [](Slot slot, uint64_t value) { return CookieOf(slot) < value; });
}

Directory::Slot* Directory::SlotOf(const Node* node) {
  Slot* const slot = &by_cookie_[static_cast<size_t>(AtLeast(node->cookie) - by_cookie_.begin())];
  CHECK_EQ(*slot, reinterpret_cast<Slot>(node));
  return slot;
}

bool Directory::Next(uint64_t cookie, Entry* entry) const {
  auto it = cookie == 0 ? by_cookie_.end() : AtLeast(cookie);
  while (it != by_cookie_.begin()) {
    const Slot slot = *--it;
    if ((slot & 1) != 0) continue;
    const Node* const node = reinterpret_cast<const Node*>(slot);
    *entry = {node->cookie, node->inode, node->name()};
    return true;
  }
  return false;
}

}  // namespace nram
