#include "client/memory/eviction_queue.h"

#include <glog/logging.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/mapping.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {
namespace {

// First in, first out: a list of blocks. A ring over all entries would in time touch all of its memory, though only a
// few are used.
class FifoQueue final : public EvictionQueue {
 public:
  static constexpr size_t kBlock = 8192;  // entries
  static constexpr size_t kBlockBytes = kBlock * sizeof(uintptr_t);
  // The first and the last block may hold one entry each.
  static constexpr size_t BlocksFor(size_t entries) { return entries / kBlock + 2; }

  FifoQueue(Mapping memory, size_t entries) : memory_(std::move(memory)), capacity_(entries) {
    blocks_.resize(BlocksFor(entries));
    free_.reserve(BlocksFor(entries));
  }

  size_t size() const override { return size_; }
  size_t capacity() const override { return capacity_; }
  size_t memory_bytes() const override { return (used_ + free_.size() - trimmed_) * kBlockBytes; }
  void Add(uintptr_t page) override {
    CHECK_LT(size_, capacity_);
    if (head_ + size_ == used_ * kBlock) AddBlock();
    at(size_++) = page;
  }
  size_t Take(uintptr_t* pages, size_t max) override {
    const size_t count = std::min(max, size_);
    for (size_t i = 0; i < count; ++i) pages[i] = at(i);
    head_ += count;
    size_ -= count;
    for (; head_ >= kBlock; head_ -= kBlock) {
      free_.push_back(blocks_[first_]);
      first_ = (first_ + 1) % blocks_.size();
      --used_;
    }
    FreeTail();
    return count;
  }
  void RemoveIf(const std::function<bool(uintptr_t)>& gone) override {
    size_t kept = 0;
    for (size_t i = 0; i < size_; ++i) {
      const uintptr_t page = at(i);
      if (!gone(page)) at(kept++) = page;
    }
    size_ = kept;
    FreeTail();
  }
  void Trim() override {
    for (; trimmed_ < free_.size(); ++trimmed_) {
      madvise(memory_.data() + free_[trimmed_] * kBlockBytes, kBlockBytes, MADV_DONTNEED);
    }
  }

 private:
  uintptr_t& at(size_t i) {
    const size_t block = blocks_[(first_ + (head_ + i) / kBlock) % blocks_.size()];
    return reinterpret_cast<uintptr_t*>(memory_.data() + block * kBlockBytes)[(head_ + i) % kBlock];
  }
  void AddBlock() {
    uint32_t block = fresh_;
    if (free_.empty()) {
      ++fresh_;
    } else {
      block = free_.back();
      free_.pop_back();
      trimmed_ = std::min(trimmed_, free_.size());
    }
    blocks_[(first_ + used_++) % blocks_.size()] = block;
  }
  void FreeTail() {
    if (size_ == 0) head_ = 0;
    while (used_ * kBlock >= head_ + size_ + kBlock) free_.push_back(blocks_[(first_ + --used_) % blocks_.size()]);
  }

  const Mapping memory_;
  const size_t capacity_;
  std::vector<uint32_t> blocks_;  // a ring: those in use, in order
  size_t first_ = 0;              // in blocks_
  size_t used_ = 0;               // blocks
  std::vector<uint32_t> free_;    // used before; the first `trimmed_` of them are not resident
  size_t trimmed_ = 0;
  uint32_t fresh_ = 0;  // the first block that was never used
  size_t head_ = 0;     // in the first block
  size_t size_ = 0;
};

class RandomQueue final : public EvictionQueue {
 public:
  RandomQueue(Mapping memory, size_t entries)
      : memory_(std::move(memory)), pages_(reinterpret_cast<uintptr_t*>(memory_.data())), capacity_(entries) {}

  size_t size() const override { return size_; }
  size_t capacity() const override { return capacity_; }
  size_t memory_bytes() const override { return touched_ * sizeof(uintptr_t); }
  void Add(uintptr_t page) override {
    CHECK_LT(size_, capacity_);
    pages_[size_++] = page;
    touched_ = std::max(touched_, size_);
  }
  void Trim() override {
    const size_t used = RoundUp(size_ * sizeof(uintptr_t), 4096);
    const size_t touched = RoundUp(touched_ * sizeof(uintptr_t), 4096);
    if (used < touched) madvise(memory_.data() + used, touched - used, MADV_DONTNEED);
    touched_ = size_;
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
  size_t touched_ = 0;  // entries
  uint64_t state_ = 0x9E3779B97F4A7C15;
};

}  // namespace

absl::StatusOr<std::unique_ptr<EvictionQueue>> EvictionQueue::New(Policy policy, size_t entries) {
  if (policy == Policy::kRandom) {
    NRAM_ASSIGN_OR_RETURN(Mapping memory, Mapping::Untouched(RoundUp(entries * sizeof(uintptr_t), 4096)));
    return std::make_unique<RandomQueue>(std::move(memory), entries);
  }
  // The evictor gives second chances; the order is the same.
  NRAM_ASSIGN_OR_RETURN(Mapping memory, Mapping::Untouched(FifoQueue::BlocksFor(entries) * FifoQueue::kBlockBytes));
  return std::make_unique<FifoQueue>(std::move(memory), entries);
}

}  // namespace nram
