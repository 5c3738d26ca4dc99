#ifndef NRAM_CLIENT_POOL_BOUNDED_H_
#define NRAM_CLIENT_POOL_BOUNDED_H_

// Containers that allocate once, before memory is short. Neither is thread-safe.

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

namespace nram {

// A queue with two ends. Until Reserve it is full.
template <typename T>
class BoundedQueue {
 public:
  BoundedQueue() = default;
  ~BoundedQueue() {
    Clear();
    if (capacity_ > 0) std::allocator<T>().deallocate(slots_, capacity_);
  }
  BoundedQueue(const BoundedQueue&) = delete;
  BoundedQueue& operator=(const BoundedQueue&) = delete;

  // Once.
  void Reserve(size_t capacity) {
    CHECK_EQ(capacity_, 0u);
    slots_ = std::allocator<T>().allocate(capacity);
    capacity_ = capacity;
  }

  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  bool full() const { return size_ == capacity_; }

  // Not if it is full.
  void PushBack(T value) {
    CHECK(!full());
    std::construct_at(At(size_), std::move(value));
    ++size_;
  }
  void PushFront(T value) {
    CHECK(!full());
    std::construct_at(At(capacity_ - 1), std::move(value));
    first_ = (first_ + capacity_ - 1) % capacity_;
    ++size_;
  }
  // Not if it is empty.
  T PopFront() {
    CHECK(!empty());
    T value = std::move(*At(0));
    std::destroy_at(At(0));
    first_ = (first_ + 1) % capacity_;
    --size_;
    return value;
  }
  void Clear() {
    while (!empty()) (void)PopFront();
  }

 private:
  T* At(size_t place) const { return slots_ + (first_ + place) % capacity_; }

  T* slots_ = nullptr;
  size_t capacity_ = 0;
  size_t first_ = 0;
  size_t size_ = 0;
};

// A set of hashes of 64 bits: things with the same hash are the same to it. Until Reserve it is full.
class BoundedHashSet {
 public:
  // Once.
  void Reserve(size_t most) {
    CHECK(slots_.empty());
    most_ = most;
    slots_.resize(std::bit_ceil(2 * most));  // half empty: places are near
  }

  bool full() const { return size_ == most_; }
  // False: it is there already, or the set is full.
  bool Insert(uint64_t hash) {
    if (full()) return false;
    uint64_t& slot = slots_[Find(hash)];
    if (slot != 0) return false;
    slot = Key(hash);
    ++size_;
    return true;
  }
  bool Contains(uint64_t hash) const { return size_ > 0 && slots_[Find(hash)] != 0; }
  void Erase(uint64_t hash) {
    if (!Contains(hash)) return;
    --size_;
    size_t hole = Find(hash);
    slots_[hole] = 0;
    // The entries behind it must still be found: the next one that may stand in the hole is moved there, which makes
    // another hole.
    for (size_t at = Next(hole); slots_[at] != 0; at = Next(at)) {
      const size_t home = Home(slots_[at]);
      const bool stays = hole < at ? home > hole && home <= at : home > hole || home <= at;
      if (stays) continue;
      slots_[hole] = std::exchange(slots_[at], 0);
      hole = at;
    }
  }
  void Clear() {
    if (size_ > 0) std::fill(slots_.begin(), slots_.end(), 0);
    size_ = 0;
  }

 private:
  static uint64_t Key(uint64_t hash) { return std::max<uint64_t>(hash, 1); }  // 0: a slot without any
  size_t Home(uint64_t key) const { return key & (slots_.size() - 1); }
  size_t Next(size_t slot) const { return (slot + 1) & (slots_.size() - 1); }
  // The slot that has it, or else would.
  size_t Find(uint64_t hash) const {
    size_t slot = Home(Key(hash));
    while (slots_[slot] != 0 && slots_[slot] != Key(hash)) slot = Next(slot);
    return slot;
  }

  size_t most_ = 0;
  size_t size_ = 0;
  std::vector<uint64_t> slots_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_BOUNDED_H_
