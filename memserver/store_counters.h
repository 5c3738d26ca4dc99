#ifndef NRAM_MEMSERVER_STORE_COUNTERS_H_
#define NRAM_MEMSERVER_STORE_COUNTERS_H_

#include <algorithm>
#include <atomic>
#include <cstdint>

namespace nram {

// The holdings of versions of regions (adr/0019): all of a server's, or of a tenant's.
struct VersionTotals {
  std::atomic<int64_t> versions{0};  // that have a name
  // The bytes that they take and would give if all yielded: the frames of their deltas, and a little for each.
  std::atomic<int64_t> bytes{0};
  std::atomic<int64_t> held_bytes{0};  // of regions whose oldest version is held: not for other tenants
  std::atomic<uint64_t> seals{0}, yielded{0};  // so far

  uint64_t yieldable_bytes() const { return static_cast<uint64_t>(std::max<int64_t>(bytes, 0)); }
  // Of those, the ones that yield before a version that is held does.
  uint64_t unheld_bytes() const { return static_cast<uint64_t>(std::max<int64_t>(bytes - held_bytes, 0)); }
  // Of the server's totals, the bytes that do not yield to a tenant with the totals `own`: others hold them.
  uint64_t BarredFrom(const VersionTotals& own) const {
    return static_cast<uint64_t>(std::max<int64_t>(held_bytes - own.held_bytes, 0));
  }
  // The others.
  uint64_t YieldableTo(const VersionTotals& own) const {
    const uint64_t all = yieldable_bytes();
    return all - std::min(all, BarredFrom(own));
  }
};

// Counts of a server's work and of its data (docs/stats.md).
struct StoreCounters {
  std::atomic<uint64_t> reads{0}, writes{0}, trims{0}, bytes_read{0}, bytes_written{0}, zero_chunks_elided{0};
  std::atomic<uint64_t> refused_full{0}, refused_stale{0}, regions_collected{0};
  std::atomic<int64_t> regions{0}, pages{0}, chunks{0};  // pages and chunks: without those that versions alone have
  VersionTotals versions;
};

inline void Count(std::atomic<uint64_t>* counter, uint64_t by = 1) {
  counter->fetch_add(by, std::memory_order_relaxed);
}

}  // namespace nram

#endif  // NRAM_MEMSERVER_STORE_COUNTERS_H_
