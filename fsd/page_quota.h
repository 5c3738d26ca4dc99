#ifndef NRAM_FSD_PAGE_QUOTA_H_
#define NRAM_FSD_PAGE_QUOTA_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace nram {

// The pages that a mount's files may have, and how many of them are left. Thread-safe; without locks.
class PageQuota {
 public:
  explicit PageQuota(uint64_t pages_max)
      : pages_max_(std::min<uint64_t>(pages_max, INT64_MAX)), pages_left_(static_cast<int64_t>(pages_max_)) {}

  uint64_t max() const { return pages_max_; }
  uint64_t left() const { return static_cast<uint64_t>(std::max<int64_t>(pages_left_.load(), 0)); }

  // All of them or, false, none.
  bool TryTake(uint64_t pages) {
    int64_t left = pages_left_.load();
    do {
      if (left < 0 || static_cast<uint64_t>(left) < pages) return false;
    } while (!pages_left_.compare_exchange_weak(left, left - static_cast<int64_t>(pages)));
    return true;
  }
  void Return(uint64_t pages) { pages_left_ += static_cast<int64_t>(pages); }

 private:
  const uint64_t pages_max_;
  std::atomic<int64_t> pages_left_;
};

}  // namespace nram

#endif  // NRAM_FSD_PAGE_QUOTA_H_
