#ifndef NRAM_MEMSERVER_REGION_LISTS_H_
#define NRAM_MEMSERVER_REGION_LISTS_H_

// The ids of regions in order, by lease and by tenant: a look at the regions of one costs nothing for those of others.
// The locks here are taken after a shard's. The caller charges the memory of an entry.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "base/sync.h"
#include "base/units.h"
#include "memserver/lease_table.h"
#include "memserver/tenant.h"

namespace nram {

// Thread-safe.
class LeaseRegions {
 public:
  // The cost of an entry: its place in a node of a tree that is half full, and a share of the nodes above.
  static constexpr uint64_t kEntryBytes = 48;

  // False: it is listed already.
  bool Add(LeaseId lease, RegionId id) {
    MutexLock lock(&mu_);
    return entries_.emplace(Raw(lease), Raw(id)).second;
  }
  // False: it was not listed.
  bool Remove(LeaseId lease, RegionId id) {
    MutexLock lock(&mu_);
    return entries_.erase({Raw(lease), Raw(id)}) > 0;
  }
  // A list of regions that a lease holds something of is charged to its tenant. Hold: false if there is no room.
  bool Hold(const Lease& lease, RegionId id) {
    if (!Add(lease.id, id) || lease.tenant->account.ChargeIndex(kEntryBytes)) return true;
    Remove(lease.id, id);
    return false;
  }
  void Release(const Lease& lease, RegionId id) {
    if (Remove(lease.id, id)) lease.tenant->account.ReleaseIndex(kEntryBytes);
  }
  // The lease's regions with an id of at least `from`, in order, `limit` at most.
  std::vector<RegionId> Next(LeaseId lease, uint64_t from, size_t limit) const {
    std::vector<RegionId> ids;
    MutexLock lock(&mu_);
    for (auto it = entries_.lower_bound({Raw(lease), from}); it != entries_.end() && ids.size() < limit; ++it) {
      if (it->first != Raw(lease)) break;
      ids.push_back(RegionId{it->second});
    }
    return ids;
  }
  // The lease with the lowest id above `after` that has a region. nullopt: there is none.
  std::optional<LeaseId> NextLease(LeaseId after) const {
    MutexLock lock(&mu_);
    const auto it = entries_.upper_bound({Raw(after), ~uint64_t{0}});
    return it == entries_.end() ? std::nullopt : std::optional(LeaseId{it->first});
  }

 private:
  mutable Mutex mu_;
  absl::btree_set<std::pair<uint64_t, uint64_t>> entries_ ABSL_GUARDED_BY(mu_);
};

// Thread-safe.
class TenantRegions {
 public:
  static constexpr uint64_t kEntryBytes = 21;  // as above

  void Add(TenantNumber tenant, RegionId id) {
    MutexLock lock(&mu_);
    ids_[tenant].insert(Raw(id));
  }
  void Remove(TenantNumber tenant, RegionId id) {
    MutexLock lock(&mu_);
    if (const auto it = ids_.find(tenant); it != ids_.end()) it->second.erase(Raw(id));
  }
  // The tenant's regions with an id of at least `from`, in order, `limit` at most.
  std::vector<RegionId> Next(TenantNumber tenant, uint64_t from, size_t limit) const {
    std::vector<RegionId> ids;
    MutexLock lock(&mu_);
    const auto of = ids_.find(tenant);
    if (of == ids_.end()) return ids;
    for (auto it = of->second.lower_bound(from); it != of->second.end() && ids.size() < limit; ++it) {
      ids.push_back(RegionId{*it});
    }
    return ids;
  }

 private:
  mutable Mutex mu_;
  absl::flat_hash_map<TenantNumber, absl::btree_set<uint64_t>> ids_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_REGION_LISTS_H_
