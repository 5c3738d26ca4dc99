// PageStore's part in versions (adr/0019).

#include <bit>
#include <cstring>

#include "base/clock.h"
#include "memserver/packed_chunks.h"
#include "memserver/page_store.h"
#include "memserver/region_walk.h"

namespace nram {

bool PageStore::IsSame(const PageEntry& old, const PageWrite& write) const {
  if (write.seal != nullptr || write.nonzero != old.mask || (old.mask & ~write.written) != 0) return false;
  if (write.crc != old.crc) return false;
  for (uint32_t rest = old.mask; rest != 0; rest &= rest - 1) {
    const int chunk = std::countr_zero(rest);
    const std::byte* const stored = arena()->Data(old.frame) + PackedOffset(old.mask, chunk);
    if (memcmp(stored, arena()->Data(*write.landed) + chunk * kChunkBytes, kChunkBytes) != 0) return false;
  }
  return true;
}

void PageStore::FindToRead(const StoredRegion& region, const ReadArgs& args, uint64_t first_page, uint64_t pages,
                           PageEntry* entries, PageSeal* seals) {
  const bool sealed = region.index.sealed();
  if (args.version != VersionNumber{}) {
    region.versions->Resolve(args.version, region.index, first_page, pages, entries, sealed ? seals : nullptr);
    return;
  }
  for (uint64_t i = 0; i < pages; ++i) {
    entries[i] = region.index.Find(first_page + i);
    if (sealed) seals[i] = region.index.SealOf(first_page + i);
  }
}

Reason PageStore::SealVersion(Lease* lease, const VersionSeal& seal) {
  Shard& at = shard(seal.region);
  WriterLock lock(&at.mu);
  const auto it = at.regions.find({seal.region, lease->tenant->number});
  if (it == at.regions.end()) return lease->live() ? Reason::kUnknownRegion : Reason::kLeaseEnded;
  StoredRegion* const region = it->second.get();
  if (const Reason reason = CheckOwner(*region, *lease, seal.epoch); reason != Reason::kOk) return reason;
  PageIndex* const index = &region->index;
  if (!index->has_generations() && index->pages() > 0) return Reason::kOtherGeneration;
  if (region->versions == nullptr) {
    const auto kind = index->sealed() ? PageIndex::Pages::kSealed : PageIndex::Pages::kPlain;
    region->versions = RegionVersions::Make(index->account(), kind);
    if (region->versions == nullptr) return Reason::kFull;
  }
  switch (region->versions->Seal(index, seal.version, seal.keep)) {
    case RegionVersions::Sealed::kOk:
      return Reason::kOk;
    case RegionVersions::Sealed::kOld:
      return Reason::kUnknownSnapshot;
    case RegionVersions::Sealed::kTooMany:
    case RegionVersions::Sealed::kNoRoom:
    case RegionVersions::Sealed::kBusy:
      break;
  }
  return Reason::kFull;
}

Reason PageStore::DropVersions(Lease* lease, const VersionDrop& drop, RegionVersions::Dropped* dropped) {
  Shard& at = shard(drop.region);
  for (bool is_first = true;; is_first = false) {
    WriterLock lock(&at.mu);
    const auto it = at.regions.find({drop.region, lease->tenant->number});
    if (it == at.regions.end()) return lease->live() ? Reason::kUnknownRegion : Reason::kLeaseEnded;
    StoredRegion* const region = it->second.get();
    if (const Reason reason = CheckOwner(*region, *lease, drop.epoch); reason != Reason::kOk) return reason;
    if (region->versions == nullptr) return Reason::kOk;
    if (is_first) {
      const RegionVersions::Dropped result = region->versions->Drop(drop.first, drop.last, drop.force);
      if (dropped != nullptr) *dropped = result;
    }
    if (region->versions->Step(&region->index)) return Reason::kOk;
  }
}

std::vector<StoredVersion> PageStore::ListVersions(const StoredKey& key) const {
  const Shard& at = shard(key.id);
  ReaderLock lock(&at.mu);
  const auto it = at.regions.find(key);
  if (it == at.regions.end() || it->second->versions == nullptr) return {};
  return it->second->versions->List();
}

bool PageStore::StepVersions(int64_t until_ns) {
  RegionWalk walk(this);
  bool more = true;
  while (more) {
    int steps = 0;
    more = walk.Step([&](const StoredKey&, StoredRegion* region) {
      // The shard's lock is let go after each step that has done something.
      if (region->versions == nullptr || steps++ > 0) return region->versions == nullptr;
      return region->versions->Step(&region->index);
    });
    if (more && MonotonicNs() >= until_ns) return false;
  }
  return true;
}

}  // namespace nram
