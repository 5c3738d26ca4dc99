#include "memserver/region_table.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "base/plant.h"
#include "base/status.h"

namespace nram {
namespace {

absl::Status CreationError(Reason reason, RegionId id) {
  switch (reason) {
    case Reason::kOk:
      return absl::OkStatus();
    case Reason::kRegionExists:
      return absl::AlreadyExistsError(absl::StrCat("region ", FormatId(Raw(id)), " exists"));
    case Reason::kFull:
      return absl::ResourceExhaustedError("the server is full");
    case Reason::kDraining:
      return absl::FailedPreconditionError("the server is draining and accepts no new regions");
    default:
      return absl::FailedPreconditionError("the lease has ended");
  }
}

}  // namespace

RegionTable::~RegionTable() {
  for (Shard& shard : shards_) {
    WriterLock lock(&shard.mu);
    for (auto& [id, region] : shard.regions) doomed_.Free(std::move(region));
    shard.regions.clear();
  }
}

Reason RegionTable::Create(Lease* lease, RegionId id, uint32_t epoch, bool gc, bool sealed) {
  for (int turn = 0;; ++turn) {
    Reason reason;
    {
      Shard& at = shard(id);
      WriterLock lock(&at.mu);
      reason = CreateLocked(&at, lease, nullptr, id, epoch, gc, sealed, /*named=*/false);
    }
    if (reason != Reason::kFull) return reason;
    if (turn == kYieldTurns || lease->tenant->regions.is_full() ||
        !YieldVersions(*lease->tenant, RegionBytes(sealed))) {
      Count(&counters_.refused_full);
      return reason;
    }
  }
}

Reason RegionTable::CreateLocked(Shard* at, Lease* lease, Payment* payment, RegionId id, uint32_t epoch, bool gc,
                                 bool sealed, bool named) {
  // The region is listed first, and under the lock. CollectLease looks at the list after the lease has ended, and then
  // takes the lock. So either CollectLease sees this region, or this thread sees that the lease has ended.
  lease->regions.fetch_add(1);
  const bool is_added = owned_.Add(lease->id, id);
  Reason reason = lease->live() ? Reason::kOk : Reason::kLeaseEnded;
  if (reason == Reason::kOk && draining_ && !(payment != nullptr && payment->pays()) && !named) {
    reason = Reason::kDraining;
  }
  auto it = at->regions.end();
  if (reason == Reason::kOk) {
    bool inserted = false;
    std::tie(it, inserted) = at->regions.try_emplace(StoredKey{id, lease->tenant->number}, nullptr);
    if (!inserted) reason = Reason::kRegionExists;
  }
  if (reason == Reason::kOk) {
    Tenant* const tenant = lease->tenant;
    QuotaShare share(tenant->regions.Take() ? &tenant->regions : nullptr);
    if (share.taken() && leases_->Charge(lease) && tenant->account.ChargeIndex(RegionBytes(sealed), payment)) {
      share.Keep();
    } else {
      at->regions.erase(it);
      reason = Reason::kFull;
    }
  }
  if (reason != Reason::kOk) {
    if (is_added) owned_.Remove(lease->id, id);
    leases_->Unname(lease);
    return reason;
  }
  listed_.Add(lease->tenant->number, id);
  it->second = std::make_unique<StoredRegion>(lease->tenant, sealed);
  it->second->lease = lease->id;
  it->second->epoch = epoch;
  it->second->gc = gc;
  it->second->named = named;
  counters_.regions.fetch_add(1);
  return Reason::kOk;
}

absl::Status RegionTable::CreateNamed(Lease* lease, RegionId id, uint32_t epoch, bool gc, RegionManifest manifest,
                                      bool sealed) {
  const uint64_t bytes = RegionBytes(sealed) + RegionNames::CostBytes(manifest);
  for (int turn = 0;; ++turn) {
    absl::Status status = CreateNamedOnce(lease, id, epoch, gc, manifest, sealed);
    if (!absl::IsResourceExhausted(status)) return status;
    if (turn == kYieldTurns || lease->tenant->regions.is_full() || !YieldVersions(*lease->tenant, bytes)) {
      Count(&counters_.refused_full);
      return status;
    }
  }
}

absl::Status RegionTable::CreateNamedOnce(Lease* lease, RegionId id, uint32_t epoch, bool gc, RegionManifest manifest,
                                          bool sealed) {
  const bool named = !manifest.name.empty();
  Doomed undone;
  absl::Status status;
  {
    Shard& at = shard(id);
    WriterLock lock(&at.mu);
    // The error about the name goes first; Add looks again.
    if (named && names_.Find(lease->tenant->number, manifest.name) != RegionId{0}) {
      return absl::AlreadyExistsError(absl::StrCat("a region named \"", manifest.name, "\" exists"));
    }
    status = CreationError(CreateLocked(&at, lease, nullptr, id, epoch, gc, sealed, named), id);
    if (!status.ok() || !named) return status;
    status = names_.Add(lease->tenant, id, std::move(manifest));
    if (status.ok()) return status;
    // No thread has seen the region: the shard's lock was held all the time.
    undone = TakeOut(&at.regions, at.regions.find({id, lease->tenant->number}));
  }
  doomed_.Free(std::move(undone));
  return status;
}

Reason RegionTable::CheckOwner(const StoredRegion& region, const Lease& lease, uint32_t epoch) {
  if (region.epoch != epoch) {
    Count(&counters_.refused_stale);
    return Reason::kStaleEpoch;
  }
  if (region.lease != lease.id) return Reason::kNotOwner;
  return lease.live() ? Reason::kOk : Reason::kLeaseEnded;
}

Doomed RegionTable::TakeOut(Regions* regions, Regions::iterator it) {
  const StoredKey key = it->first;
  Doomed region = std::move(it->second);
  regions->erase(it);
  if (region->named) names_.Forget(key);
  owned_.Remove(region->lease, key.id);
  listed_.Remove(key.tenant, key.id);
  if (region->versions != nullptr) region->versions->place()->Leave();
  return region;
}

Reason RegionTable::Unlink(Lease* lease, RegionId id, uint32_t epoch, Doomed* doomed) {
  Shard& at = shard(id);
  WriterLock lock(&at.mu);
  const StoredKey key{id, lease->tenant->number};
  const auto it = at.regions.find(key);
  if (it == at.regions.end()) return Reason::kUnknownRegion;
  if (const Reason reason = CheckOwner(*it->second, *lease, epoch); reason != Reason::kOk) return reason;
  *doomed = TakeOut(&at.regions, it);
  return Reason::kOk;
}

Reason RegionTable::Destroy(Lease* lease, RegionId id, uint32_t epoch) {
  Doomed doomed;
  const Reason reason = Unlink(lease, id, epoch, &doomed);
  doomed_.Free(std::move(doomed));
  return reason;
}

absl::StatusOr<bool> RegionTable::DestroyByControl(LeaseId lease_id, const StoredKey& key, bool force,
                                                   const std::optional<ViewBound>& bound) {
  Doomed region;
  {
    Shard& at = shard(key.id);
    WriterLock lock(&at.mu);
    const auto it = at.regions.find(key);
    if (it == at.regions.end()) return false;
    const auto owner = leases_->Find(it->second->lease);
    if (!force && it->second->lease != lease_id && owner != nullptr && owner->live()) {
      return absl::FailedPreconditionError(
          absl::StrCat("region ", FormatId(Raw(key.id)), " is in use by ", owner->client_name));
    }
    if (bound.has_value()) {
      const RegionManifest manifest = names_.Manifest(key, /*with_lists=*/false);
      if (it->second->epoch > bound->epoch ||
          std::pair(manifest.view_epoch, manifest.view) > std::pair(bound->epoch, bound->view)) {
        return absl::FailedPreconditionError(
            absl::StrCat("region ", FormatId(Raw(key.id)), " has a newer epoch or view"));
      }
    }
    region = TakeOut(&at.regions, it);
  }
  doomed_.Free(std::move(region));
  return true;
}

absl::StatusOr<RegionDescription> RegionTable::Attach(Lease* lease, const StoredKey& key, uint32_t epoch, bool force,
                                                      const std::string& seal) {
  if (lease == nullptr) return AttachOnce(nullptr, key, epoch, force, seal);
  absl::StatusOr<RegionDescription> description;
  NRAM_RETURN_IF_ERROR(WithRoom(*lease->tenant, LeaseTable::kBytesMax, [&] {
    description = AttachOnce(lease, key, epoch, force, seal);
    return description.status();
  }));
  return description;
}

absl::StatusOr<RegionDescription> RegionTable::AttachOnce(Lease* lease, const StoredKey& key, uint32_t epoch,
                                                          bool force, const std::string& seal) {
  Shard& at = shard(key.id);
  WriterLock lock(&at.mu);
  const auto it = at.regions.find(key);
  if (it == at.regions.end()) return absl::NotFoundError(absl::StrCat("no region ", FormatId(Raw(key.id))));
  StoredRegion* region = it->second.get();
  if (lease != nullptr) {
    // The region is listed first, as in CreateLocked.
    lease->regions.fetch_add(1);
    const bool is_added = owned_.Add(lease->id, key.id);
    auto undo = absl::MakeCleanup([&] {
      if (is_added) owned_.Remove(lease->id, key.id);
      leases_->Unname(lease);
    });
    const auto owner = leases_->Find(region->lease);
    if (!lease->live()) return absl::FailedPreconditionError("the lease has ended");
    if (!force && owner != nullptr && owner.get() != lease && owner->live()) {
      return absl::FailedPreconditionError(
          absl::StrCat("region ", FormatId(Raw(key.id)), " is in use by ", owner->client_name));
    }
    if (epoch <= region->epoch) {
      return absl::AbortedError(absl::StrCat("region ", FormatId(Raw(key.id)), " is already at epoch ", region->epoch));
    }
    if (!leases_->Charge(lease, owner.get())) return absl::ResourceExhaustedError("the server is full");
    if (region->named) NRAM_RETURN_IF_ERROR(names_.SetOwner(key, seal));
    std::move(undo).Cancel();
    if (region->lease != lease->id) owned_.Remove(region->lease, key.id);
    if (owner != nullptr) leases_->Unname(owner.get());
    region->lease = lease->id;
    region->epoch = epoch;
    region->kept_bytes = 0;
    if (region->versions != nullptr) region->versions->HasOwner();
  }
  return Describe(key, *region, /*with_lists=*/true);
}

absl::Status RegionTable::SetView(const Lease& lease, RegionId id, uint32_t epoch, uint64_t view,
                                  const std::vector<uint64_t>& incarnations, uint32_t left_in_order) {
  return WithRoom(*lease.tenant, incarnations.size() * sizeof incarnations[0], [&]() -> absl::Status {
    Shard& at = shard(id);
    WriterLock lock(&at.mu);
    const StoredKey key{id, lease.tenant->number};
    const auto it = at.regions.find(key);
    if (it == at.regions.end()) return absl::NotFoundError(absl::StrCat("no region ", FormatId(Raw(id))));
    if (CheckOwner(*it->second, lease, epoch) != Reason::kOk) {
      return absl::FailedPreconditionError(absl::StrCat("region ", FormatId(Raw(id)), " has another owner"));
    }
    return names_.SetView(key, epoch, view, incarnations, left_in_order);
  });
}

RegionDescription RegionTable::Describe(const StoredKey& key, const StoredRegion& region, bool with_lists) const {
  RegionDescription description;
  description.id = key.id;
  description.lease = region.lease;
  description.epoch = region.epoch;
  description.gc = region.gc;
  description.sealed = region.index.sealed();
  const auto lease = leases_->Find(region.lease);
  description.orphan = lease == nullptr || !lease->live();
  if (lease != nullptr) description.owner_name = lease->client_name;
  description.stored_bytes = region.chunks * kChunkBytes;
  description.spans = region.index.spans();
  if (region.versions != nullptr) {
    description.newest_version = region.versions->newest();
    description.version_bytes = region.versions->chunks() * kChunkBytes;
  }
  if (region.named) description.manifest = names_.Manifest(key, with_lists);
  return description;
}

std::vector<RegionId> RegionTable::FirstOrphans(TenantNumber tenant, uint64_t from, size_t limit) const {
  const LeaseTable::IdSet live = leases_->LiveIds();
  std::vector<RegionId> ids;  // a heap of the lowest ones, the highest of them first
  for (auto lease = owned_.NextLease(LeaseId{0}); lease.has_value(); lease = owned_.NextLease(*lease)) {
    if (live.contains(Raw(*lease))) continue;
    const std::shared_ptr<Lease> owner = leases_->Find(*lease);
    if (owner == nullptr || owner->tenant->number != tenant) continue;
    const std::vector<RegionId> its = owned_.Next(*lease, from, limit);
    Count(&looked_at_, its.size());
    for (const RegionId id : its) {
      if (ids.size() == limit && id >= ids.front()) break;
      if (ids.size() == limit) {
        std::pop_heap(ids.begin(), ids.end());
        ids.pop_back();
      }
      ids.push_back(id);
      std::push_heap(ids.begin(), ids.end());
    }
  }
  std::sort_heap(ids.begin(), ids.end());
  return ids;
}

std::vector<RegionDescription> RegionTable::List(TenantNumber tenant, uint64_t from, size_t limit, bool orphans_only,
                                                 bool named_only, uint64_t* next) const {
  std::vector<RegionDescription> result;
  uint64_t go_on = limit > 0 ? from : 0;
  // Loops while regions are left out, or were destroyed since they were listed.
  for (bool more = limit > 0; more && result.empty();) {
    // One more than is wanted tells whether there are more.
    std::vector<RegionId> ids =
        orphans_only ? FirstOrphans(tenant, go_on, limit + 1) : listed_.Next(tenant, go_on, limit + 1);
    more = ids.size() > limit;
    go_on = more ? Raw(ids.back()) : 0;
    if (more) ids.pop_back();
    Count(&looked_at_, ids.size());
    for (const RegionId id : ids) {
      const Shard& at = shard(id);
      ReaderLock lock(&at.mu);
      const auto it = at.regions.find({id, tenant});
      if (it == at.regions.end() || (named_only && !it->second->named)) continue;
      result.push_back(Describe(it->first, *it->second, /*with_lists=*/false));
    }
  }
  if (next != nullptr) *next = go_on;
  return result;
}

absl::StatusOr<std::vector<RegionTable::ListedSpan>> RegionTable::ListSpans(const StoredKey& key, uint64_t from_span,
                                                                            size_t limit) const {
  const Shard& at = shard(key.id);
  ReaderLock lock(&at.mu);
  const auto it = at.regions.find(key);
  if (it == at.regions.end()) return absl::NotFoundError(absl::StrCat("no region ", FormatId(Raw(key.id))));
  std::vector<ListedSpan> spans;
  it->second->index.VisitSpans(from_span, [&](uint64_t span, SpanGeneration generation) {
    spans.push_back({span, generation});
    return spans.size() < limit;
  });
  return spans;
}

bool RegionTable::VisitSome(const LeaseRegions& list, const Lease& lease, uint64_t* from,
                            absl::FunctionRef<void(Regions* regions, Regions::iterator it)> visit) const {
  const std::vector<RegionId> ids = list.Next(lease.id, *from, kLooksPerStep);
  Count(&looked_at_, ids.size());
  for (const RegionId id : ids) {
    Shard& at = shard(id);
    WriterLock lock(&at.mu);
    if (const auto it = at.regions.find({id, lease.tenant->number}); it != at.regions.end()) visit(&at.regions, it);
  }
  // The highest id of all is the last one.
  if (ids.size() < kLooksPerStep || ids.back() == RegionId{~uint64_t{0}}) return false;
  *from = Raw(ids.back()) + 1;
  return true;
}

bool RegionTable::CollectStep(const Lease& lease, CollectProgress* progress) {
  if (!progress->released) {
    progress->released = !lease.may_hold || ReleaseHolds(lease, &progress->from);
    if (!progress->released) return false;
    progress->from = 0;
  }
  if (NRAM_PLANTED(lease_end_keeps_regions)) return true;
  const int64_t now_ns = leases_->NowNs();
  return !VisitSome(owned_, lease, &progress->from, [&](Regions* regions, Regions::iterator it) {
    StoredRegion* const region = it->second.get();
    // The lease may have been granted anew meanwhile.
    if (region->lease != lease.id || lease.live()) return;
    // The time without an owner begins.
    if (region->versions != nullptr) region->versions->HasOwner();
    const bool stays = region->StaysAlone(now_ns);
    if (!progress->all && (!region->gc || stays)) return;
    doomed_.FreeLater(TakeOut(regions, it));
    Count(&counters_.regions_collected);
  });
}

void RegionTable::CollectLease(const Lease& lease) {
  for (CollectProgress progress; !CollectStep(lease, &progress);) {
  }
}

bool RegionTable::CollectSome(const WorkBound& bound, uint64_t steps_max) {
  for (uint64_t steps = 0; steps < steps_max; ++steps) {
    if (steps > 0 && bound.is_over()) break;
    std::optional<EndedLeases::Ended> ended = ended_.Take();
    if (!ended.has_value()) return true;
    if (!CollectStep(*ended->lease, &ended->progress)) ended_.PutBack(*std::move(ended));
  }
  return ended_.empty();
}

uint64_t RegionTable::StoredBytes(const Lease& lease) const {
  uint64_t chunks = 0;
  const auto add = [&](Regions*, Regions::iterator it) {
    chunks += it->second->lease == lease.id ? it->second->chunks : 0;
  };
  for (uint64_t from = 0; VisitSome(owned_, lease, &from, add);) {
  }
  return chunks * kChunkBytes;
}

RegionTable::Dropped RegionTable::DropOrphans(uint64_t bytes) {
  Dropped dropped;
  for (auto id = owned_.NextLease(LeaseId{0}); id.has_value(); id = owned_.NextLease(*id)) {
    const std::shared_ptr<Lease> lease = leases_->Find(*id);
    if (lease == nullptr || lease->live()) continue;
    const auto drop = [&](Regions* regions, Regions::iterator it) {
      if (dropped.bytes >= bytes || it->second->lease != lease->id || lease->live()) return;
      dropped.regions += 1;
      dropped.bytes += it->second->chunks * kChunkBytes;
      doomed_.FreeLater(TakeOut(regions, it));
    };
    for (uint64_t from = 0; VisitSome(owned_, *lease, &from, drop) && dropped.bytes < bytes;) {
    }
    if (dropped.bytes >= bytes) break;
  }
  return dropped;
}

void RegionTable::ShrinkTables() {
  for (Shard& shard : shards_) {
    WriterLock lock(&shard.mu);
    if (shard.regions.capacity() > 4 * shard.regions.size() + 64) shard.regions.rehash(0);
  }
}

size_t RegionTable::CountOrphans() const {
  size_t orphans = 0;
  for (auto id = owned_.NextLease(LeaseId{0}); id.has_value(); id = owned_.NextLease(*id)) {
    const std::shared_ptr<Lease> lease = leases_->Find(*id);
    if (lease == nullptr || lease->live()) continue;
    const auto count = [&](Regions*, Regions::iterator it) {
      const StoredRegion& region = *it->second;
      const bool goes = region.gc && (region.versions == nullptr || region.versions->newest() == VersionNumber{});
      orphans += !goes && region.lease == lease->id;
    };
    for (uint64_t from = 0; VisitSome(owned_, *lease, &from, count);) {
    }
  }
  return orphans;
}

}  // namespace nram
