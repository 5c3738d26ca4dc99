#ifndef NRAM_CLIENT_MEMORY_COUNTERS_H_
#define NRAM_CLIENT_MEMORY_COUNTERS_H_

#include <atomic>
#include <cstdint>

namespace nram {

// The counters of nram_stats; nram.h explains them.
struct Counters {
  using Count = std::atomic<uint64_t>;
  Count faults{0};
  Count write_faults{0};
  Count hits{0};
  Count zero_pages{0};
  Count fetched_bytes{0};
  Count prefetched_bytes{0};
  Count prefetch_wasted_bytes{0};
  Count written_bytes{0};
  Count evicted_pages{0};
  Count lost_pages{0};
  Count wait_ns{0};

  static void Add(Count* count, uint64_t what) { count->fetch_add(what, std::memory_order_relaxed); }
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_COUNTERS_H_
