// PageStore's part in versions (adr/0019).

#include <bit>
#include <cstring>

#include "memserver/packed_chunks.h"
#include "memserver/page_store.h"

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

Reason PageStore::SealVersion(Lease* lease, const VersionSeal& seal, SealReply* reply) {
  for (int turn = 0;; ++turn) {
    bool may_help = true;
    const Reason reason = SealOnce(lease, seal, reply, &may_help);
    if (reason != Reason::kFull) return reason;
    // Its own region's versions have yielded already.
    if (!may_help || turn == kYieldTurns || !YieldVersions(*lease->tenant, kReservationBytesPerPage)) {
      Count(&mutable_counters()->refused_full);
      return reason;
    }
  }
}

Reason PageStore::SealOnce(Lease* lease, const VersionSeal& seal, SealReply* reply, bool* may_help) {
  Shard& at = shard(seal.region);
  WriterLock lock(&at.mu);
  const StoredKey key{seal.region, lease->tenant->number};
  const auto it = at.regions.find(key);
  if (it == at.regions.end()) return lease->live() ? Reason::kUnknownRegion : Reason::kLeaseEnded;
  StoredRegion* const region = it->second.get();
  if (const Reason reason = CheckOwner(*region, *lease, seal.epoch); reason != Reason::kOk) return reason;
  PageIndex* const index = &region->index;
  if (!index->has_generations() && index->pages() > 0) return Reason::kOtherGeneration;
  if (region->versions == nullptr) {
    const auto kind = index->sealed() ? PageIndex::Pages::kSealed : PageIndex::Pages::kPlain;
    region->versions =
        RegionVersions::Make(index->account(), kind, &mutable_counters()->versions, &region->tenant->versions);
    if (region->versions == nullptr) return Reason::kFull;
    region->versions->place()->Join(versioned(), key);
  }
  RegionVersions* const versions = region->versions.get();
  const RegionVersions::Sealed sealed = versions->Seal(index, seal.version, seal.keep);
  if (reply != nullptr) {
    reply->oldest = versions->oldest();
    // A client that is refused is to know which number will do.
    reply->newest = sealed == RegionVersions::Sealed::kOld ? versions->highest() : versions->newest();
    reply->pages = index->pages();
  }
  switch (sealed) {
    case RegionVersions::Sealed::kOk:
      return Reason::kOk;
    case RegionVersions::Sealed::kOld:
      return seal.version == versions->highest() ? Reason::kUnknownSnapshot : Reason::kOldVersion;
    case RegionVersions::Sealed::kNoRoom:
      return Reason::kFull;
    case RegionVersions::Sealed::kTooMany:
    case RegionVersions::Sealed::kBusy:
      break;
  }
  *may_help = false;
  return Reason::kFull;
}

Reason PageStore::DropVersionsStep(Lease* lease, const VersionDrop& drop, bool is_first, bool* done,
                                   DropVersionReply* reply) {
  *done = true;
  Shard& at = shard(drop.region);
  WriterLock lock(&at.mu);
  const auto it = at.regions.find({drop.region, lease->tenant->number});
  if (it == at.regions.end()) return lease->live() ? Reason::kUnknownRegion : Reason::kLeaseEnded;
  StoredRegion* const region = it->second.get();
  if (const Reason reason = CheckOwner(*region, *lease, drop.epoch); reason != Reason::kOk) return reason;
  RegionVersions* const versions = region->versions.get();
  if (versions == nullptr) return Reason::kOk;
  const uint64_t before = versions->bytes();
  if (is_first) {
    const RegionVersions::Dropped dropped = versions->Drop(drop.first, drop.last, drop.force);
    reply->dropped = static_cast<uint32_t>(dropped.dropped);
    reply->held = static_cast<uint32_t>(dropped.held);
  }
  *done = versions->Step(&region->index);
  reply->freed_bytes += before - versions->bytes();
  return Reason::kOk;
}

Reason PageStore::DropVersions(Lease* lease, const VersionDrop& drop, RegionVersions::Dropped* dropped) {
  DropVersionReply reply;
  bool done = false;
  Reason reason = Reason::kOk;
  for (bool is_first = true; reason == Reason::kOk && !done; is_first = false) {
    reason = DropVersionsStep(lease, drop, is_first, &done, &reply);
  }
  if (dropped != nullptr) *dropped = {reply.dropped, reply.held};
  return reason;
}

}  // namespace nram
