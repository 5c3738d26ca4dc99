#ifndef NRAM_FSD_MEMORY_BOUND_H_
#define NRAM_FSD_MEMORY_BOUND_H_

#include <atomic>
#include <cstdint>
#include <functional>

#include "base/sync.h"

namespace nram {

// The memory that this process has allocated and not freed, as its heap counts it. Looks at all free pieces of the
// heap, so it may take milliseconds.
uint64_t HeapBytes();

// Bounds the daemon's own memory: names, attributes, and the bookkeeping of data in the daemon and in the pool's
// client, such as spans and the versions of sealed pages. Operations that will take more of it ask first, with an
// estimate. Now and then the bound looks at the heap, which knows the truth, freed memory included. Thread-safe.
// Blocks as HeapBytes does, seldom: while there is room, once for each 64th of the bound.
class MemoryBound {
 public:
  // `bytes_max` 0: no bound. `heap_bytes` and `now_ns` are for tests.
  explicit MemoryBound(uint64_t bytes_max, std::function<uint64_t()> heap_bytes = HeapBytes,
                       std::function<int64_t()> now_ns = nullptr);

  // False: there is no room for about `bytes` more. Freed memory counts again within a tenth of a second.
  bool TryGrow(uint64_t bytes);
  // 0: no bound.
  uint64_t max() const { return max_; }

 private:
  static constexpr int64_t kLookAgainMs = 100;
  static constexpr uint64_t kLooks = 64;

  const uint64_t max_;
  const std::function<uint64_t()> heap_bytes_;
  const std::function<int64_t()> now_ns_;
  std::atomic<uint64_t> used_{0};     // at the last look, and the requests since
  std::atomic<uint64_t> look_at_{0};  // the use from which on to look again

  Mutex mu_;  // no other lock is taken while it is held
  bool full_ ABSL_GUARDED_BY(mu_) = false;
  int64_t looked_ns_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace nram

#endif  // NRAM_FSD_MEMORY_BOUND_H_
