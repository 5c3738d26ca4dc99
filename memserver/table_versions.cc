// RegionTable's part in versions (adr/0019).

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "memserver/region_table.h"

namespace nram {
namespace {

// Of leaves, under a shard's lock, which writes of the region wait for: about a millisecond. A look for changes costs
// some of those for spans.
constexpr uint64_t kSpanLooks = 16'384;
constexpr uint64_t kChangeLooks = 2'048;
// The least that a call frees, so that the next one does not come for each frame, and the most.
constexpr uint64_t kYieldBytesMin = 256 * kKiB;
constexpr uint64_t kYieldBytesMax = 64 * kMiB;
constexpr int kYieldSteps = 64;
constexpr int kDonorYieldSteps = 256;
constexpr int64_t kStuckNs = kNsPerSecond;  // between two tries of work that finds no room

absl::Status NoRegion(RegionId id) { return absl::NotFoundError(absl::StrCat("no region ", FormatId(Raw(id)))); }

absl::Status NoVersion(RegionId id, VersionNumber version) {
  return absl::NotFoundError(absl::StrCat("region ", FormatId(Raw(id)), " has no version ", Raw(version), " here"));
}

uint64_t NextSpan(uint64_t next) { return next == PageIndex::kNoSpan ? 0 : next; }

}  // namespace

absl::StatusOr<std::vector<StoredVersion>> RegionTable::ListVersions(const StoredKey& key) const {
  const Shard& at = shard(key.id);
  ReaderLock lock(&at.mu);
  const auto it = at.regions.find(key);
  if (it == at.regions.end()) return NoRegion(key.id);
  return it->second->versions == nullptr ? std::vector<StoredVersion>() : it->second->versions->List();
}

absl::Status RegionTable::HoldVersion(Lease* lease, const StoredKey& key, VersionNumber version, bool release) {
  // The lease is marked and the hold listed first, and the lease looked at under the lock. CollectLease looks at both
  // after the lease has ended, and then takes the lock. So either CollectLease ends this hold, or this thread sees that
  // the lease has ended.
  if (!release) lease->may_hold = true;
  Shard& at = shard(key.id);
  WriterLock lock(&at.mu);
  const auto it = at.regions.find(key);
  RegionVersions* const versions = it == at.regions.end() ? nullptr : it->second->versions.get();
  const auto unlist = absl::MakeCleanup([&] {
    if (versions == nullptr || !versions->Holds(lease->id)) held_.Release(*lease, key.id);
  });
  if (release && versions != nullptr) versions->Release(version, lease->id);
  if (it == at.regions.end()) return NoRegion(key.id);
  if (release) return absl::OkStatus();
  if (!held_.Hold(*lease, key.id)) return absl::ResourceExhaustedError("the server is full");
  if (!lease->live()) return absl::NotFoundError("the lease has ended");
  switch (versions == nullptr ? RegionVersions::Held::kUnknown : versions->Hold(version, lease->id)) {
    case RegionVersions::Held::kOk:
      return absl::OkStatus();
    case RegionVersions::Held::kUnknown:
      break;
    case RegionVersions::Held::kTooMany:
      return absl::ResourceExhaustedError(absl::StrCat("version ", Raw(version), " of region ", FormatId(Raw(key.id)),
                                                       " is held by ", RegionVersions::Limits().holds,
                                                       " clients, the maximum"));
    case RegionVersions::Held::kNoRoom:
      return absl::ResourceExhaustedError("the server is full");
  }
  return NoVersion(key.id, version);
}

bool RegionTable::ReleaseHolds(const Lease& lease, uint64_t* from) {
  const std::vector<RegionId> ids = held_.Next(lease.id, *from, kLooksPerStep);
  Count(&looked_at_, ids.size());
  for (const RegionId id : ids) {
    Shard& at = shard(id);
    WriterLock lock(&at.mu);
    if (lease.live()) continue;
    const auto it = at.regions.find({id, lease.tenant->number});
    if (it != at.regions.end() && it->second->versions != nullptr) it->second->versions->ReleaseAll(lease.id);
    held_.Release(lease, id);
  }
  if (ids.size() < kLooksPerStep || ids.back() == RegionId{~uint64_t{0}}) return true;
  *from = Raw(ids.back()) + 1;
  return false;
}

absl::StatusOr<std::vector<RegionTable::ListedSpan>> RegionTable::ListSpansAt(const StoredKey& key,
                                                                              VersionNumber version, uint64_t from_span,
                                                                              uint64_t* next_span) const {
  const Shard& at = shard(key.id);
  ReaderLock lock(&at.mu);
  const auto it = at.regions.find(key);
  if (it == at.regions.end()) return NoRegion(key.id);
  const RegionVersions* const versions = it->second->versions.get();
  if (versions == nullptr || !versions->Has(version)) return NoVersion(key.id, version);
  std::vector<ListedSpan> spans;
  uint64_t looks_left = kSpanLooks;
  *next_span = NextSpan(versions->VisitSpans(version, it->second->index, from_span, &looks_left,
                                             [&](uint64_t span, SpanGeneration generation) {
                                               spans.push_back({span, generation});
                                             }));
  return spans;
}

absl::StatusOr<std::vector<RegionTable::ChangedSpan>> RegionTable::ListChanges(const StoredKey& key, VersionNumber from,
                                                                               VersionNumber to, uint64_t from_span,
                                                                               uint64_t* next_span) const {
  if (from >= to) {
    return absl::InvalidArgumentError(
        absl::StrCat("version ", Raw(from), " is not older than ", Raw(to), ": name the older one first"));
  }
  const Shard& at = shard(key.id);
  ReaderLock lock(&at.mu);
  const auto it = at.regions.find(key);
  if (it == at.regions.end()) return NoRegion(key.id);
  const RegionVersions* const versions = it->second->versions.get();
  for (const VersionNumber version : {from, to}) {
    if (versions == nullptr || !versions->Has(version)) return NoVersion(key.id, version);
  }
  std::vector<ChangedSpan> spans;
  uint64_t looks_left = kChangeLooks;
  *next_span = NextSpan(versions->VisitChanges(from, to, it->second->index, from_span, &looks_left,
                                               [&](uint64_t span, const PageIndex::SpanPages& pages) {
                                                 spans.push_back({span, pages});
                                               }));
  return spans;
}

bool RegionTable::StepVersionsOf(const StoredKey& key) {
  Count(&looked_at_);
  Doomed collected;
  {
    Shard& at = shard(key.id);
    WriterLock lock(&at.mu);
    const auto it = at.regions.find(key);
    if (it == at.regions.end() || it->second->versions == nullptr) return true;
    StoredRegion* const region = it->second.get();
    RegionVersions* const versions = region->versions.get();
    versions->place()->SetAwake();
    const std::shared_ptr<Lease> owner = leases_->Find(region->lease);
    const bool is_orphan = owner == nullptr || !owner->live();
    if (!is_orphan) versions->HasOwner();
    if (!is_orphan || region->StaysAlone(leases_->NowNs()) || !region->gc) {
      const bool done = versions->Step(&region->index);
      // Without room for the rest, it waits a little.
      if (versions->has_work()) versions->place()->Wake(leases_->NowNs() + (done ? kStuckNs : 0));
      return done;
    }
    collected = TakeOut(&at.regions, it);
  }
  doomed_.FreeLater(std::move(collected));
  Count(&counters_.regions_collected);
  return true;
}

bool RegionTable::StepVersions(uint64_t steps_max, const WorkBound& bound) {
  while (true) {
    const std::optional<StoredKey> key = versioned_.TakeDue();
    if (!key.has_value()) return true;
    if (!StepVersionsOf(*key) && (steps_max == 0 || --steps_max == 0)) return false;
    if (bound.is_over()) return false;
  }
}

uint64_t RegionTable::YieldOldest(const Yields& yields) {
  uint64_t freed = 0;
  for (int step = 0; step < yields.steps_max && freed < yields.bytes; ++step) {
    bool held = yields.held;
    std::optional<TenantNumber> first;
    if (yields.first != nullptr) first = yields.first->number;
    std::optional<StoredKey> key = first.has_value() ? versioned_.Oldest({.of = first, .held = held}) : std::nullopt;
    if (!key.has_value() && !yields.first_alone) {
      held = yields.held && !first.has_value();  // one that another tenant holds stays
      key = versioned_.Oldest({.not_of = first, .held = held});
    }
    if (!key.has_value()) break;
    Count(&looked_at_);
    Shard& at = shard(key->id);
    WriterLock lock(&at.mu);
    const auto it = at.regions.find(*key);
    if (it == at.regions.end() || it->second->versions == nullptr) continue;
    RegionVersions* const versions = it->second->versions.get();
    const uint64_t before = versions->bytes();
    versions->YieldStep(held);
    freed += before - versions->bytes();
  }
  return freed;
}

bool RegionTable::YieldVersions(const Tenant& tenant, uint64_t bytes, bool held) {
  const VersionTotals& own = tenant.versions;
  const uint64_t all = held ? counters_.versions.YieldableTo(own) : counters_.versions.unheld_bytes();
  if (all == 0) return false;
  const uint64_t left_bytes = tenant.account.left_bytes();
  const uint64_t free_bytes = arena_->usage().free_bytes;
  const uint64_t own_lack = bytes - std::min(bytes, left_bytes);
  const uint64_t lack = bytes - std::min(bytes, free_bytes);
  const uint64_t own_all = held ? own.yieldable_bytes() : own.unheld_bytes();
  if (own_lack > own_all || lack > all) return false;  // they would go in vain
  return YieldOldest({.first = &tenant,
                      .first_alone = own_lack > 0,
                      .held = held,
                      .bytes = std::clamp(std::max(own_lack, lack), kYieldBytesMin, kYieldBytesMax),
                      .steps_max = kYieldSteps}) > 0;
}

absl::Status RegionTable::WithRoom(const Tenant& tenant, uint64_t bytes, absl::FunctionRef<absl::Status()> attempt) {
  for (int turn = 0;; ++turn) {
    const absl::Status status = attempt();
    if (!absl::IsResourceExhausted(status)) return status;
    if (turn == kYieldTurns || !YieldVersions(tenant, bytes)) {
      Count(&counters_.refused_full);
      return status;
    }
  }
}

uint64_t RegionTable::YieldForDonor(uint64_t bytes, bool held) {
  if (counters_.versions.yieldable_bytes() == 0) return 0;
  return YieldOldest({.held = held, .bytes = bytes, .steps_max = kDonorYieldSteps});
}

}  // namespace nram
