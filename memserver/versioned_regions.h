#ifndef NRAM_MEMSERVER_VERSIONED_REGIONS_H_
#define NRAM_MEMSERVER_VERSIONED_REGIONS_H_

#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"
#include "base/sync.h"
#include "base/units.h"
#include "memserver/lease_table.h"
#include "memserver/region_names.h"

namespace nram {

// The regions of a server that have versions: which of them has work that is due, and which one's oldest version yields
// first. A region costs nothing here while nothing happens to its versions. Thread-safe. Its lock is taken after a
// shard's.
class VersionedRegions {
 public:
  // The cost of a region's places in both orders: nodes of trees that are half full, and a share of the nodes above.
  static constexpr uint64_t kBytesPerRegion = 48 + 64;

  // `leases` tells the time, and must outlive the object.
  explicit VersionedRegions(const LeaseTable* leases) : leases_(leases) {}
  VersionedRegions(const VersionedRegions&) = delete;

  // A region's places. Its region's lock guards it.
  class Place {
   public:
    Place() = default;
    Place(const Place&) = delete;
    ~Place() { Leave(); }
    // The other functions do nothing before this. `all` must outlive the place.
    void Join(VersionedRegions* all, const StoredKey& key);
    void Leave();
    // When its oldest version yields: before those of all higher stamps. nullopt: it has none. `is_held`: not for the
    // sake of other tenants.
    void SetAge(std::optional<uint64_t> stamp, bool is_held);
    // It is to be looked at then, or earlier.
    void Wake(int64_t at_ns);
    void WakeNow() { Wake(all_ == nullptr ? 0 : all_->leases_->NowNs()); }
    // It is looked at.
    void SetAwake();

   private:
    VersionedRegions* all_ = nullptr;
    StoredKey key_;
    std::optional<uint64_t> stamp_;
    bool is_held_ = false;
    int64_t due_ns_ = kNever;
  };

  // Takes a region that is to be looked at: the caller calls SetAwake under its lock. nullopt: none is due.
  std::optional<StoredKey> TakeDue();
  // The region whose oldest version yields first: of the tenant `of`, or of all but `not_of`. `held`: held ones, too.
  struct Which {
    std::optional<TenantNumber> of, not_of;
    bool held = false;
  };
  std::optional<StoredKey> Oldest(const Which& which) const;

 private:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();
  using Ages = absl::btree_set<std::pair<uint64_t, uint64_t>>;  // stamps and ids
  using Due = std::tuple<int64_t, TenantNumber, uint64_t>;

  const LeaseTable* const leases_;
  mutable Mutex mu_;
  absl::btree_map<TenantNumber, std::array<Ages, 2>> ages_ ABSL_GUARDED_BY(mu_);  // those not held, and held ones
  absl::btree_set<Due> due_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_VERSIONED_REGIONS_H_
