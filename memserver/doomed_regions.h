#ifndef NRAM_MEMSERVER_DOOMED_REGIONS_H_
#define NRAM_MEMSERVER_DOOMED_REGIONS_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "base/sync.h"
#include "memserver/lease_table.h"
#include "memserver/store_counters.h"
#include "memserver/stored_region.h"

namespace nram {

// A region that is in no table any more. Its memory is still taken.
using Doomed = std::unique_ptr<StoredRegion>;

// Frees regions in steps, so that no request waits until a large one is free. Thread-safe.
class DoomedRegions {
 public:
  // Pointers are not owned and must outlive the object.
  DoomedRegions(LeaseTable* leases, StoreCounters* counters) : leases_(leases), counters_(counters) {}
  DoomedRegions(const DoomedRegions&) = delete;
  // Frees the regions that FreeLater has kept.
  ~DoomedRegions();

  // Frees StoredRegion::kSpansPerStep spans at most. True: the region is free, and *doomed is null.
  bool FreeStep(Doomed* doomed);
  // Frees the whole region.
  void Free(Doomed doomed);
  // Keeps the region for FreeSome. Null: does nothing.
  void FreeLater(Doomed doomed);
  // Frees the regions that FreeLater has kept, until `until_ns` at most, but at least a step. True: none is left. One
  // thread at a time.
  bool FreeSome(int64_t until_ns);

 private:
  LeaseTable* const leases_;
  StoreCounters* const counters_;

  Mutex free_some_mu_;  // taken before mu_
  Mutex mu_;
  std::vector<Doomed> later_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_DOOMED_REGIONS_H_
