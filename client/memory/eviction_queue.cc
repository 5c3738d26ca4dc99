#include "client/memory/eviction_queue.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "base/mapping.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {
namespace {

// First in, first out: a ring.
class FifoQueue final : public EvictionQueue {
 public:
  FifoQueue(Mapping memory, size_t entries)
      : memory_(std::move(memory)), ring_(reinterpret_cast<uintptr_t*>(memory_.data())), capacity_(entries) {}

  size_t size() const override { return size_; }
  size_t capacity() const override { return capacity_; }
  void Add(uintptr_t page) override {
    CHECK_LT(size_, capacity_);
    ring_[(head_ + size_++) % capacity_] = page;
  }
  size_t Take(uintptr_t* pages, size_t max) override {
    const size_t count = std::min(max, size_);
    for (size_t i = 0; i < count; ++i) pages[i] = ring_[(head_ + i) % capacity_];
    head_ = (head_ + count) % capacity_;
    size_ -= count;
    return count;
  }
  void RemoveIf(const std::function<bool(uintptr_t)>& gone) override {
    size_t kept = 0;
    for (size_t i = 0; i < size_; ++i) {
      const uintptr_t page = ring_[(head_ + i) % capacity_];
      if (!gone(page)) ring_[(head_ + kept++) % capacity_] = page;
    }
    size_ = kept;
  }

 private:
  const Mapping memory_;
  uintptr_t* const ring_;
  const size_t capacity_;
  size_t head_ = 0;
  size_t size_ = 0;
};

class RandomQueue final : public EvictionQueue {
 public:
  RandomQueue(Mapping memory, size_t entries)
      : memory_(std::move(memory)), pages_(reinterpret_cast<uintptr_t*>(memory_.data())), capacity_(entries) {}

  size_t size() const override { return size_; }
  size_t capacity() const override { return capacity_; }
  void Add(uintptr_t page) override {
    CHECK_LT(size_, capacity_);
    pages_[size_++] = page;
  }
  size_t Take(uintptr_t* pages, size_t max) override {
    const size_t count = std::min(max, size_);
    for (size_t i = 0; i < count; ++i) {
      // xorshift64 (Marsaglia, 2003)
      state_ ^= state_ << 13;
      state_ ^= state_ >> 7;
      state_ ^= state_ << 17;
      const size_t at = state_ % size_;
      pages[i] = pages_[at];
      pages_[at] = pages_[--size_];
    }
    return count;
  }
  void RemoveIf(const std::function<bool(uintptr_t)>& gone) override {
    size_ = static_cast<size_t>(std::remove_if(pages_, pages_ + size_, gone) - pages_);
  }

 private:
  const Mapping memory_;
  uintptr_t* const pages_;
  const size_t capacity_;
  size_t size_ = 0;
  uint64_t state_ = 0x9E3779B97F4A7C15;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EvictionQueue>> EvictionQueue::New(Policy policy, size_t entries) {
  NRAM_ASSIGN_OR_RETURN(Mapping memory, Mapping::Anonymous(RoundUp(entries * sizeof(uintptr_t), 4096)));
  if (policy == Policy::kRandom) return std::make_unique<RandomQueue>(std::move(memory), entries);
  // The evictor gives second chances; the order is the same.
  return std::make_unique<FifoQueue>(std::move(memory), entries);
}

}  // namespace nram
