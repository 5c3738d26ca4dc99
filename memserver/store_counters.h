#ifndef NRAM_MEMSERVER_STORE_COUNTERS_H_
#define NRAM_MEMSERVER_STORE_COUNTERS_H_

#include <atomic>
#include <cstdint>

namespace nram {

// Counts of a server's work and of its data (docs/stats.md).
struct StoreCounters {
  std::atomic<uint64_t> reads{0}, writes{0}, trims{0}, bytes_read{0}, bytes_written{0}, zero_chunks_elided{0};
  std::atomic<uint64_t> refused_full{0}, refused_stale{0}, regions_collected{0};
  std::atomic<int64_t> regions{0}, pages{0}, chunks{0};
};

inline void Count(std::atomic<uint64_t>* counter, uint64_t by = 1) {
  counter->fetch_add(by, std::memory_order_relaxed);
}

}  // namespace nram

#endif  // NRAM_MEMSERVER_STORE_COUNTERS_H_
