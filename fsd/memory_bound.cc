#include "fsd/memory_bound.h"

#include <glog/logging.h>
#include <malloc.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/units.h"

// The sanitizers' heap, where there is one.
extern "C" size_t __sanitizer_get_current_allocated_bytes() __attribute__((weak));

namespace nram {

uint64_t HeapBytes() {
  if (__sanitizer_get_current_allocated_bytes != nullptr) return __sanitizer_get_current_allocated_bytes();
  const struct mallinfo2 info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

MemoryBound::MemoryBound(uint64_t bytes_max, std::function<uint64_t()> heap_bytes, std::function<int64_t()> now_ns)
    : max_(bytes_max),
      heap_bytes_(std::move(heap_bytes)),
      now_ns_(now_ns ? std::move(now_ns) : [] { return MonotonicNs(); }) {}

bool MemoryBound::TryGrow(uint64_t bytes) {
  if (max_ == 0) return true;
  if (used_.fetch_add(bytes, std::memory_order_relaxed) + bytes <= look_at_.load(std::memory_order_relaxed))
    return true;
  MutexLock lock(&mu_);
  if (used_ <= look_at_) return true;  // another thread has looked
  const int64_t now_ns = now_ns_();
  if (!full_ || now_ns - looked_ns_ >= kLookAgainMs * kNsPerMs) {
    const uint64_t used = heap_bytes_() + bytes;
    used_ = used;
    look_at_ = std::min(max_, used + max_ / kLooks);
    full_ = used > max_;
    looked_ns_ = now_ns;
    if (full_) {
      LOG_EVERY_N(WARNING, 100) << "this daemon has allocated " << FormatByteSize(used) << " and may have "
                                << FormatByteSize(max_) << " (--memory): new files, names, attributes and pages are "
                                << "refused (ENOSPC) until some are deleted";
    }
  }
  if (full_) used_ -= bytes;
  return !full_;
}

}  // namespace nram
