// The control plane's side of the page store: names, owners, lists, and what happens to the regions of a lease that
// ends.

#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "memserver/page_store.h"

namespace nram {
namespace {

void Count(std::atomic<uint64_t>* counter) { counter->fetch_add(1, std::memory_order_relaxed); }

// What it takes beyond its region: two entries in tables (also while these grow), and what they point to.
uint64_t ManifestBytes(const RegionManifest& manifest) {
  return 480 + 2 * manifest.name.size() + manifest.incarnations.size() * sizeof(uint64_t);
}

}  // namespace

absl::Status PageStore::CreateNamed(Lease* lease, RegionId id, uint32_t epoch, bool gc, RegionManifest manifest) {
  const bool named = !manifest.name.empty();
  const uint64_t manifest_bytes = named ? ManifestBytes(manifest) : 0;
  if (!arena_->ChargeIndex(manifest_bytes, nullptr, nullptr)) {
    return absl::ResourceExhaustedError("the server is full");
  }
  Reason reason;
  {
    Shard& at = shard(id);
    WriterLock lock(&at.mu);
    MutexLock names_lock(&names_mu_);
    if (named && names_.contains(manifest.name)) {
      arena_->ReleaseIndex(manifest_bytes);
      return absl::AlreadyExistsError(absl::StrCat("a region named \"", manifest.name, "\" exists"));
    }
    reason = CreateLocked(&at, lease, nullptr, id, epoch, gc, named, nullptr);
    if (reason == Reason::kOk && named) {
      names_.emplace(manifest.name, Raw(id));
      manifests_.emplace(Raw(id), std::move(manifest));
    }
  }
  if (reason == Reason::kOk) return absl::OkStatus();
  arena_->ReleaseIndex(manifest_bytes);
  switch (reason) {
    case Reason::kRegionExists:
      return absl::AlreadyExistsError(absl::StrCat("region ", FormatId(Raw(id)), " exists"));
    case Reason::kFull:
      return absl::ResourceExhaustedError("the server is full");
    case Reason::kDraining:
      return absl::FailedPreconditionError("the donor is draining and takes no new regions");
    default:
      return absl::FailedPreconditionError("the lease has ended");
  }
}

void PageStore::ForgetName(RegionId id) {
  MutexLock lock(&names_mu_);
  const auto it = manifests_.find(Raw(id));
  if (it == manifests_.end()) return;
  arena_->ReleaseIndex(ManifestBytes(it->second));
  names_.erase(it->second.name);
  manifests_.erase(it);
}

absl::StatusOr<bool> PageStore::DestroyByControl(LeaseId lease_id, RegionId id, bool force) {
  Doomed region;
  {
    Shard& at = shard(id);
    WriterLock lock(&at.mu);
    const auto it = at.regions.find(Raw(id));
    if (it == at.regions.end()) return false;
    const auto owner = leases_->Find(it->second->lease);
    if (!force && it->second->lease != lease_id && owner != nullptr && owner->live()) {
      return absl::FailedPreconditionError(absl::StrCat("region ", FormatId(Raw(id)), " is in use by ", owner->owner));
    }
    region = std::move(it->second);
    at.regions.erase(it);
    if (region->named) ForgetName(id);
  }
  Free(std::move(region));
  return true;
}

absl::StatusOr<RegionDescription> PageStore::Attach(Lease* lease, RegionId id, uint32_t epoch, bool force) {
  Shard& at = shard(id);
  WriterLock lock(&at.mu);
  const auto it = at.regions.find(Raw(id));
  if (it == at.regions.end()) return absl::NotFoundError(absl::StrCat("no region ", FormatId(Raw(id))));
  Region* region = it->second.get();
  if (lease != nullptr) {
    // Counted first, as in CreateLocked.
    lease->regions.fetch_add(1);
    auto uncount = absl::MakeCleanup([&] { leases_->Unname(lease); });
    const auto owner = leases_->Find(region->lease);
    if (!lease->live()) return absl::FailedPreconditionError("the lease has ended");
    if (!force && owner != nullptr && owner.get() != lease && owner->live()) {
      return absl::FailedPreconditionError(absl::StrCat("region ", FormatId(Raw(id)), " is in use by ", owner->owner));
    }
    if (epoch <= region->epoch) {
      return absl::AbortedError(absl::StrCat("region ", FormatId(Raw(id)), " is already at epoch ", region->epoch));
    }
    if (!leases_->Charge(lease)) return absl::ResourceExhaustedError("the server is full");
    if (owner != nullptr) leases_->Unname(owner.get());
    std::move(uncount).Cancel();
    region->lease = lease->id;
    region->epoch = epoch;
    region->kept_bytes = 0;
  }
  return Describe(id, *region, /*with_incarnations=*/true);
}

RegionId PageStore::FindByName(const std::string& name) const {
  MutexLock lock(&names_mu_);
  const auto it = names_.find(name);
  return it == names_.end() ? RegionId{0} : RegionId{it->second};
}

RegionDescription PageStore::Describe(RegionId id, const Region& region, bool with_incarnations) const {
  RegionDescription description;
  description.id = id;
  description.lease = region.lease;
  description.epoch = region.epoch;
  description.gc = region.gc;
  const auto lease = leases_->Find(region.lease);
  description.orphan = lease == nullptr || !lease->live();
  if (lease != nullptr) description.owner = lease->owner;
  description.stored_bytes = region.chunks * kChunkBytes;
  description.spans = region.index.spans();
  if (region.named) {
    MutexLock lock(&names_mu_);
    if (const auto it = manifests_.find(Raw(id)); it != manifests_.end()) {
      const RegionManifest& manifest = it->second;
      description.manifest.name = manifest.name;
      description.manifest.size_bytes = manifest.size_bytes;
      if (with_incarnations) description.manifest.incarnations = manifest.incarnations;
    }
  }
  return description;
}

std::vector<uint64_t> PageStore::FirstIds(uint64_t from, size_t limit, bool orphans_only, bool named_only) const {
  const LeaseTable::IdSet live = leases_->LiveIds();
  std::vector<uint64_t> ids;  // a heap of the smallest ones, the largest of them first
  for (const Shard& shard : shards_) {
    ReaderLock lock(&shard.mu);
    for (const auto& [id, region] : shard.regions) {
      if (id < from || (ids.size() == limit && id >= ids.front())) continue;
      if ((named_only && !region->named) || (orphans_only && live.contains(Raw(region->lease)))) continue;
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

std::vector<RegionDescription> PageStore::List(uint64_t from, size_t limit, bool orphans_only, bool named_only,
                                               uint64_t* next) const {
  std::vector<RegionDescription> result;
  uint64_t go_on = from;
  // Again only if all of them went away between the two looks.
  while (result.empty() && limit > 0) {
    // One more than is wanted tells whether there are more.
    std::vector<uint64_t> ids = FirstIds(go_on, limit + 1, orphans_only, named_only);
    go_on = ids.size() > limit ? ids.back() : 0;
    if (go_on != 0) ids.pop_back();
    for (const uint64_t id : ids) {
      const Shard& at = shard(RegionId{id});
      ReaderLock lock(&at.mu);
      if (const auto it = at.regions.find(id); it != at.regions.end())
        result.push_back(Describe(RegionId{id}, *it->second, /*with_incarnations=*/false));
    }
    if (go_on == 0) break;
  }
  if (next != nullptr) *next = go_on;
  return result;
}

absl::StatusOr<std::vector<uint64_t>> PageStore::ListSpans(RegionId id, uint64_t from_span, size_t limit) const {
  const Shard& at = shard(id);
  ReaderLock lock(&at.mu);
  const auto it = at.regions.find(Raw(id));
  if (it == at.regions.end()) return absl::NotFoundError(absl::StrCat("no region ", FormatId(Raw(id))));
  std::vector<uint64_t> spans;
  it->second->index.VisitSpans(from_span, [&](uint64_t span) {
    spans.push_back(span);
    return spans.size() < limit;
  });
  return spans;
}

void PageStore::CollectLease(const Lease& lease) {
  if (lease.regions == 0) return;
  for (Shard& shard : shards_) {
    std::vector<Doomed> collected;
    {
      WriterLock lock(&shard.mu);
      for (auto it = shard.regions.begin(); it != shard.regions.end();) {
        // Looked at again under the lock: the lease may have been granted anew in the meantime.
        if (it->second->gc && it->second->lease == lease.id && !lease.live()) {
          if (it->second->named) ForgetName(RegionId{it->first});
          collected.push_back(std::move(it->second));
          shard.regions.erase(it++);
        } else {
          ++it;
        }
      }
    }
    for (auto& region : collected) {
      Free(std::move(region));
      Count(&counters_.regions_collected);
    }
  }
}

void PageStore::ShrinkTables() {
  for (Shard& shard : shards_) {
    WriterLock lock(&shard.mu);
    if (shard.regions.capacity() > 4 * shard.regions.size() + 64) shard.regions.rehash(0);
  }
}

size_t PageStore::CountOrphans() const {
  const LeaseTable::IdSet live = leases_->LiveIds();
  size_t orphans = 0;
  for (const Shard& shard : shards_) {
    ReaderLock lock(&shard.mu);
    for (const auto& [id, region] : shard.regions) orphans += !region->gc && !live.contains(Raw(region->lease));
  }
  return orphans;
}

}  // namespace nram
