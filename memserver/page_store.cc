#include "memserver/page_store.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/status.h"
#include "memserver/packed_chunks.h"

namespace nram {
namespace {

void Count(std::atomic<uint64_t>* counter, uint64_t by = 1) { counter->fetch_add(by, std::memory_order_relaxed); }

void Prefetch(const std::byte* frame) {
  for (int line = 0; line < 16; ++line) __builtin_prefetch(frame + line * 64);
}

}  // namespace

PageStore::~PageStore() {
  for (Shard& shard : shards_) {
    WriterLock lock(&shard.mu);
    for (auto& [id, region] : shard.regions) Drop(std::move(region));
    shard.regions.clear();
  }
}

Reason PageStore::Create(Lease* lease, RegionId id, uint32_t epoch, bool gc, uint64_t* paid_bytes) {
  Shard& at = shard(id);
  WriterLock lock(&at.mu);
  return CreateLocked(&at, lease, nullptr, id, epoch, gc, /*named=*/false, paid_bytes);
}

Reason PageStore::CreateLocked(Shard* at, Lease* lease, ArenaPromise* promise, RegionId id, uint32_t epoch, bool gc,
                               bool named, uint64_t* paid_bytes) {
  // Looked at under the lock: CollectLease, which takes it after the lease has ended, either sees this region or is
  // seen.
  if (!lease->live()) return Reason::kLeaseEnded;
  const auto [it, inserted] = at->regions.try_emplace(Raw(id), nullptr);
  if (!inserted) return Reason::kRegionExists;
  if (!arena_->ChargeIndex(kRegionBytes, promise, paid_bytes)) {
    at->regions.erase(it);
    Count(&counters_.refused_full);
    return Reason::kFull;
  }
  it->second = std::make_unique<Region>(arena_);
  it->second->lease = lease->id;
  it->second->epoch = epoch;
  it->second->gc = gc;
  it->second->named = named;
  lease->regions.fetch_add(1);
  counters_.regions.fetch_add(1);
  return Reason::kOk;
}

absl::Status PageStore::CreateNamed(Lease* lease, RegionId id, uint32_t epoch, bool gc, RegionManifest manifest) {
  const std::string name = manifest.name;
  if (!name.empty()) {
    MutexLock lock(&names_mu_);
    if (!names_.emplace(name, Raw(id)).second) {
      return absl::AlreadyExistsError(absl::StrCat("a region named \"", name, "\" exists"));
    }
    manifests_[Raw(id)] = std::move(manifest);
  }
  Reason reason;
  {
    Shard& at = shard(id);
    WriterLock lock(&at.mu);
    reason = CreateLocked(&at, lease, nullptr, id, epoch, gc, !name.empty(), nullptr);
  }
  if (reason == Reason::kOk) return absl::OkStatus();
  if (!name.empty()) ForgetName(id);
  switch (reason) {
    case Reason::kRegionExists:
      return absl::AlreadyExistsError(absl::StrCat("region ", FormatId(Raw(id)), " exists"));
    case Reason::kFull:
      return absl::ResourceExhaustedError("the server is full");
    default:
      return absl::FailedPreconditionError("the lease has ended");
  }
}

Reason PageStore::CheckOwner(const Region& region, const Lease& lease, uint32_t epoch) {
  if (region.epoch != epoch) {
    Count(&counters_.refused_stale);
    return Reason::kStaleEpoch;
  }
  if (region.lease != lease.id) return Reason::kNotOwner;
  return lease.live() ? Reason::kOk : Reason::kLeaseEnded;
}

Reason PageStore::Write(Lease* lease, ArenaPromise* promise, RegionId id, uint32_t epoch, const ChunkRange& range,
                        absl::Span<const ChunkMask> masks, absl::Span<const uint32_t> page_crcs, IfAbsent absent,
                        FrameLoc* landed, uint64_t* paid_bytes) {
  const uint64_t first_page = range.first_page();
  const uint64_t pages = range.pages();
  DCHECK_LE(pages, kPagesPerFrame);
  DCHECK_EQ(page_crcs.size(), pages);
  // What reads the data is done before the lock is taken; the landing frames are this call's alone.
  std::array<PageWrite, kPagesPerFrame> writes;
  uint64_t chunks = 0;
  uint64_t zeros = 0;
  for (uint64_t i = 0; i < pages; ++i) {
    const ChunkMask written = masks.empty() ? MaskOfPage(range, first_page + i) : masks[i];
    const ChunkMask nonzero = NonZero(arena_->Data(landed[i]), written);
    writes[i] = {written, nonzero, page_crcs[i]};
    if (nonzero != written) {
      writes[i].crc = 0;
      ForEachRun(nonzero, [&](size_t offset, size_t bytes) {
        writes[i].crc = Crc32c(writes[i].crc, arena_->Data(landed[i]) + offset, bytes);
      });
    }
    chunks += std::popcount(written);
    zeros += std::popcount(static_cast<unsigned>(written & ~nonzero));
  }
  Count(&counters_.writes);
  Count(&counters_.bytes_written, chunks * kChunkBytes);
  if (zeros > 0) Count(&counters_.zero_chunks_elided, zeros);

  Shard& at = shard(id);
  WriterLock lock(&at.mu);
  auto it = at.regions.find(Raw(id));
  if (it == at.regions.end()) {
    if (absent == IfAbsent::kRefuse) return lease->live() ? Reason::kUnknownRegion : Reason::kLeaseEnded;
    const Reason created =
        CreateLocked(&at, lease, promise, id, epoch, absent == IfAbsent::kCreateGc, /*named=*/false, paid_bytes);
    if (created != Reason::kOk) return created;
    it = at.regions.find(Raw(id));
  }
  Region* region = it->second.get();
  Reason reason = CheckOwner(*region, *lease, epoch);
  for (uint64_t i = 0; i < pages && reason == Reason::kOk; ++i) {
    const uint64_t page = first_page + i;
    // Room in the index for this page and those after it in its span, in one step.
    if (i == 0 || page % kPagesPerSpan == 0) {
      const uint64_t in_span = std::min(pages - i, kPagesPerSpan - page % kPagesPerSpan);
      if (!region->index.Prepare(page, in_span, promise, paid_bytes)) reason = Reason::kFull;
    }
    if (reason == Reason::kOk) reason = WritePage(region, promise, page, writes[i], &landed[i], paid_bytes);
  }
  region->index.DropIfEmpty(first_page);
  region->index.DropIfEmpty(first_page + pages - 1);
  if (reason == Reason::kFull) Count(&counters_.refused_full);
  return reason;
}

bool PageStore::IsDamaged(const PageEntry& entry) const { return StoredCrc(entry.frame, entry.mask) != entry.crc; }

uint32_t PageStore::StoredCrc(FrameLoc frame, ChunkMask stored) const {
  return Crc32c(0, arena_->Data(frame), std::popcount(stored) * kChunkBytes);
}

uint32_t PageStore::CrcOf(const PageEntry& entry, ChunkMask wanted) const {
  if (wanted == entry.mask) return entry.crc;
  if (wanted == 0) return 0;
  uint32_t crc = 0;
  for (uint32_t rest = wanted; rest != 0; rest &= rest - 1) {
    const size_t offset = PackedOffset(entry.mask, std::countr_zero(rest));
    crc = Crc32c(crc, arena_->Data(entry.frame) + offset, kChunkBytes);
  }
  return IsDamaged(entry) ? ~crc : crc;
}

Reason PageStore::WritePage(Region* region, ArenaPromise* promise, uint64_t page, const PageWrite& write,
                            FrameLoc* landed, uint64_t* paid_bytes) {
  if (write.written == 0) return Reason::kOk;
  std::byte* const fresh = arena_->Data(*landed);
  const ChunkMask nonzero = write.nonzero;
  const PageEntry old = region->index.Find(page);
  const auto kept = static_cast<ChunkMask>(old.mask & ~write.written);
  const auto stored = static_cast<ChunkMask>(kept | nonzero);
  const int chunks_change = std::popcount(stored) - std::popcount(old.mask);
  // A checksum of what is there now would hide what has changed.
  if (kept != 0 && IsDamaged(old)) return Reason::kDamaged;
  const auto set = [&](FrameLoc frame) {
    region->index.Set(page, {frame, stored, kept == 0 ? write.crc : StoredCrc(frame, stored)});
  };
  if (stored == 0) {
    if (old.mask != 0) {
      arena_->Free(old.frame);
      region->index.Erase(page);
      counters_.pages.fetch_sub(1, std::memory_order_relaxed);
    }
  } else if (nonzero == kAllChunks && old.mask == kAllChunks) {
    // The common case: the landed frame takes the old one's place and the old one lands the next write.
    set(*landed);
    *landed = old.frame;
  } else if (stored == old.mask) {
    Pack(fresh, nonzero, stored, arena_->Data(old.frame));
    set(old.frame);
  } else {
    const FrameLoc added = arena_->Allocate(std::popcount(stored), promise, paid_bytes);
    if (added == kNoFrame) return Reason::kFull;
    if (stored == kAllChunks) {
      // The landed frame becomes the page and the new one lands the next write.
      for (uint32_t rest = kept; rest != 0; rest &= rest - 1) {
        const int chunk = std::countr_zero(rest);
        memcpy(fresh + chunk * kChunkBytes, arena_->Data(old.frame) + PackedOffset(old.mask, chunk), kChunkBytes);
      }
      set(*landed);
      *landed = added;
    } else {
      Pack(fresh, nonzero, stored, arena_->Data(added));
      Repack(old.mask != 0 ? arena_->Data(old.frame) : nullptr, old.mask, kept, arena_->Data(added), stored);
      set(added);
    }
    if (old.mask != 0) {
      arena_->Free(old.frame);
    } else {
      counters_.pages.fetch_add(1, std::memory_order_relaxed);
    }
  }
  if (chunks_change != 0) {
    region->chunks += chunks_change;
    counters_.chunks.fetch_add(chunks_change, std::memory_order_relaxed);
  }
  return Reason::kOk;
}

Reason PageStore::Read(RegionId id, uint32_t epoch, const ChunkRange& range, ChunkMask* masks, uint32_t* page_crcs,
                       std::byte* out, size_t* out_bytes) {
  Count(&counters_.reads);
  *out_bytes = 0;
  const uint64_t first_page = range.first_page();
  const uint64_t pages = range.pages();
  const Shard& at = shard(id);
  for (uint64_t done = 0; done < pages;) {
    ReaderLock lock(&at.mu);
    const auto it = at.regions.find(Raw(id));
    if (it == at.regions.end()) return Reason::kUnknownRegion;
    const Region& region = *it->second;
    if (epoch != 0 && region.epoch != epoch) {
      Count(&counters_.refused_stale);
      return Reason::kStaleEpoch;
    }
    const uint64_t step = std::min(pages - done, kReadPagesPerLock);
    std::array<PageEntry, kReadPagesPerLock> entries;
    for (uint64_t i = 0; i < step; ++i) entries[i] = region.index.Find(first_page + done + i);
    for (uint64_t i = 0; i < step; ++i) {
      // Frames lie anywhere, and the processor's own prefetching ends where a page does.
      if (i + 1 < step && entries[i + 1].mask != 0) Prefetch(arena_->Data(entries[i + 1].frame));
      const PageEntry& entry = entries[i];
      const auto wanted = static_cast<ChunkMask>(entry.mask & MaskOfPage(range, first_page + done + i));
      masks[done + i] = wanted;
      page_crcs[done + i] = CrcOf(entry, wanted);
      if (wanted == 0) continue;
      const std::byte* frame = arena_->Data(entry.frame);
      if (wanted == entry.mask) {
        const size_t bytes = std::popcount(wanted) * kChunkBytes;
        memcpy(out + *out_bytes, frame, bytes);
        *out_bytes += bytes;
        continue;
      }
      for (uint32_t rest = wanted; rest != 0; rest &= rest - 1) {
        memcpy(out + *out_bytes, frame + PackedOffset(entry.mask, std::countr_zero(rest)), kChunkBytes);
        *out_bytes += kChunkBytes;
      }
    }
    done += step;
  }
  Count(&counters_.bytes_read, *out_bytes);
  return Reason::kOk;
}

Reason PageStore::ReadInPlace(RegionId id, uint32_t epoch, const ChunkRange& range,
                              absl::FunctionRef<void(const Stored& stored)> send) {
  Count(&counters_.reads);
  const uint64_t first_page = range.first_page();
  const uint64_t pages = range.pages();
  std::array<ChunkMask, kPagesPerFrame> masks;
  std::array<uint32_t, kPagesPerFrame> page_crcs;
  std::array<iovec, kPagesPerFrame + 2 * kChunksPerPage> pieces;
  size_t count = 0;
  uint64_t bytes = 0;
  const Shard& at = shard(id);
  ReaderLock lock(&at.mu);
  const auto it = at.regions.find(Raw(id));
  if (it == at.regions.end()) return Reason::kUnknownRegion;
  const Region& region = *it->second;
  if (epoch != 0 && region.epoch != epoch) {
    Count(&counters_.refused_stale);
    return Reason::kStaleEpoch;
  }
  for (uint64_t i = 0; i < pages; ++i) {
    const PageEntry entry = region.index.Find(first_page + i);
    masks[i] = static_cast<ChunkMask>(entry.mask & MaskOfPage(range, first_page + i));
    page_crcs[i] = CrcOf(entry, masks[i]);
    if (masks[i] == 0) continue;
    std::byte* const frame = arena_->Data(entry.frame);
    if (masks[i] == entry.mask) {
      const size_t page_bytes = std::popcount(masks[i]) * kChunkBytes;
      const iovec* const last = count > 0 ? &pieces[count - 1] : nullptr;
      if (last != nullptr && static_cast<std::byte*>(last->iov_base) + last->iov_len == frame) {
        pieces[count - 1].iov_len += page_bytes;  // pages that were written together often lie together
      } else {
        pieces[count++] = {frame, page_bytes};
      }
    } else {
      // Only the first and the last page are cut by the range.
      for (uint32_t rest = masks[i]; rest != 0; rest &= rest - 1) {
        pieces[count++] = {frame + PackedOffset(entry.mask, std::countr_zero(rest)), kChunkBytes};
      }
    }
    bytes += std::popcount(masks[i]) * kChunkBytes;
  }
  Count(&counters_.bytes_read, bytes);
  send({{masks.data(), pages}, {page_crcs.data(), pages}, {pieces.data(), count}});
  return Reason::kOk;
}

uint64_t PageStore::DropPages(Region* region, uint64_t begin_page, uint64_t end_page) {
  int64_t pages = 0;
  int64_t chunks = 0;
  uint64_t bytes = 0;
  const auto drop = [&](uint64_t, PageEntry* entry) {
    ++pages;
    chunks += std::popcount(entry->mask);
    bytes += FrameArena::CostOf(std::popcount(entry->mask));
    arena_->Free(entry->frame);
    entry->mask = 0;
  };
  region->index.Visit(begin_page, end_page, kTrimSpansPerStep, drop, &bytes);
  region->chunks -= chunks;
  counters_.pages.fetch_sub(pages, std::memory_order_relaxed);
  counters_.chunks.fetch_sub(chunks, std::memory_order_relaxed);
  return bytes;
}

void PageStore::TrimPart(Region* region, Lease* lease, uint64_t page, ChunkMask trimmed) {
  const PageEntry old = region->index.Find(page);
  const auto stored = static_cast<ChunkMask>(old.mask & ~trimmed);
  if (stored == old.mask) return;
  if (stored == 0) {
    DropPages(region, page, page + 1);
    return;
  }
  const bool damaged = IsDamaged(old);
  const auto set = [&](FrameLoc frame) {
    const uint32_t crc = StoredCrc(frame, stored);
    region->index.Set(page, {frame, stored, damaged ? ~crc : crc});
  };
  const FrameLoc smaller = arena_->Allocate(std::popcount(stored), nullptr, nullptr);
  if (smaller != kNoFrame) {
    Repack(arena_->Data(old.frame), old.mask, stored, arena_->Data(smaller), stored);
    set(smaller);
    arena_->Free(old.frame);
  } else {
    // No room to shrink it: pack what stays to the frame's front, in order, so that nothing is overwritten before it
    // moves.
    std::byte* frame = arena_->Data(old.frame);
    for (uint32_t rest = stored; rest != 0; rest &= rest - 1) {
      const int chunk = std::countr_zero(rest);
      memmove(frame + PackedOffset(stored, chunk), frame + PackedOffset(old.mask, chunk), kChunkBytes);
    }
    set(old.frame);
  }
  const int64_t gone = std::popcount(old.mask) - std::popcount(stored);
  region->chunks -= gone;
  counters_.chunks.fetch_sub(gone, std::memory_order_relaxed);
}

Reason PageStore::Trim(Lease* lease, RegionId id, uint32_t epoch, const ChunkRange& range, ArenaPromise* promise,
                       uint64_t* returned_bytes) {
  Count(&counters_.trims);
  Shard& at = shard(id);
  const uint64_t end_page = (range.end() + kChunksPerPage - 1) / kChunksPerPage;
  uint64_t page = range.first_page();
  while (page < end_page) {
    WriterLock lock(&at.mu);
    const auto it = at.regions.find(Raw(id));
    if (it == at.regions.end()) return lease->live() ? Reason::kUnknownRegion : Reason::kLeaseEnded;
    Region* region = it->second.get();
    if (const Reason reason = CheckOwner(*region, *lease, epoch); reason != Reason::kOk) return reason;
    if (MaskOfPage(range, page) != kAllChunks) {
      TrimPart(region, lease, page, MaskOfPage(range, page));
      ++page;
      continue;
    }
    const uint64_t whole_end = range.end() / kChunksPerPage;
    uint64_t next = page;
    next = region->index.Visit(page, whole_end, 0, [](uint64_t, PageEntry*) {});  // skips to the next span with pages
    const uint64_t step_end = std::min(whole_end, (next / kPagesPerSpan + kTrimSpansPerStep) * kPagesPerSpan);
    const uint64_t bytes = DropPages(region, page, step_end);
    if (promise != nullptr && bytes > 0 && arena_->PromiseFreed(bytes, promise)) *returned_bytes += bytes;
    page = step_end;
  }
  return Reason::kOk;
}

void PageStore::Drop(std::unique_ptr<Region> region) {
  while (region->index.pages() > 0) DropPages(region.get(), 0, kRegionChunksMax / kChunksPerPage);
  if (const auto lease = leases_->Find(region->lease)) lease->regions.fetch_sub(1);
  region.reset();
  arena_->ReleaseIndex(kRegionBytes);
  counters_.regions.fetch_sub(1);
}

void PageStore::ForgetName(RegionId id) {
  MutexLock lock(&names_mu_);
  const auto it = manifests_.find(Raw(id));
  if (it == manifests_.end()) return;
  names_.erase(it->second.name);
  manifests_.erase(it);
}

Reason PageStore::Destroy(Lease* lease, RegionId id, uint32_t epoch) {
  std::unique_ptr<Region> region;
  {
    Shard& at = shard(id);
    WriterLock lock(&at.mu);
    const auto it = at.regions.find(Raw(id));
    if (it == at.regions.end()) return Reason::kUnknownRegion;
    if (const Reason reason = CheckOwner(*it->second, *lease, epoch); reason != Reason::kOk) return reason;
    region = std::move(it->second);
    at.regions.erase(it);
  }
  if (region->named) ForgetName(id);
  Drop(std::move(region));
  return Reason::kOk;
}

absl::StatusOr<bool> PageStore::DestroyByControl(LeaseId lease_id, RegionId id, bool force) {
  std::unique_ptr<Region> region;
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
  }
  if (region->named) ForgetName(id);
  Drop(std::move(region));
  return true;
}

absl::StatusOr<RegionDescription> PageStore::Attach(Lease* lease, RegionId id, uint32_t epoch, bool force) {
  Shard& at = shard(id);
  WriterLock lock(&at.mu);
  const auto it = at.regions.find(Raw(id));
  if (it == at.regions.end()) return absl::NotFoundError(absl::StrCat("no region ", FormatId(Raw(id))));
  Region* region = it->second.get();
  if (lease != nullptr) {
    const auto owner = leases_->Find(region->lease);
    if (!lease->live()) return absl::FailedPreconditionError("the lease has ended");
    if (!force && owner != nullptr && owner.get() != lease && owner->live()) {
      return absl::FailedPreconditionError(absl::StrCat("region ", FormatId(Raw(id)), " is in use by ", owner->owner));
    }
    if (epoch <= region->epoch) {
      return absl::AbortedError(absl::StrCat("region ", FormatId(Raw(id)), " is already at epoch ", region->epoch));
    }
    if (owner != nullptr) owner->regions.fetch_sub(1);
    lease->regions.fetch_add(1);
    region->lease = lease->id;
    region->epoch = epoch;
  }
  return Describe(id, *region);
}

RegionId PageStore::FindByName(const std::string& name) const {
  MutexLock lock(&names_mu_);
  const auto it = names_.find(name);
  return it == names_.end() ? RegionId{0} : RegionId{it->second};
}

RegionDescription PageStore::Describe(RegionId id, const Region& region) const {
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
    if (const auto it = manifests_.find(Raw(id)); it != manifests_.end()) description.manifest = it->second;
  }
  return description;
}

std::vector<RegionDescription> PageStore::List(uint64_t from, size_t limit, bool orphans_only, bool named_only) const {
  std::vector<uint64_t> ids;
  for (const Shard& shard : shards_) {
    ReaderLock lock(&shard.mu);
    for (const auto& [id, region] : shard.regions) {
      if (id < from || (named_only && !region->named)) continue;
      if (orphans_only) {
        const auto lease = leases_->Find(region->lease);
        if (lease != nullptr && lease->live()) continue;
      }
      ids.push_back(id);
    }
  }
  const size_t count = std::min(limit, ids.size());
  std::partial_sort(ids.begin(), ids.begin() + count, ids.end());
  ids.resize(count);
  std::vector<RegionDescription> result;
  for (uint64_t id : ids) {
    const Shard& at = shard(RegionId{id});
    ReaderLock lock(&at.mu);
    if (const auto it = at.regions.find(id); it != at.regions.end())
      result.push_back(Describe(RegionId{id}, *it->second));
  }
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
  for (Shard& shard : shards_) {
    std::vector<std::pair<uint64_t, std::unique_ptr<Region>>> collected;
    {
      WriterLock lock(&shard.mu);
      for (auto it = shard.regions.begin(); it != shard.regions.end();) {
        // Looked at again under the lock: the lease may have been granted anew in the meantime.
        if (it->second->gc && it->second->lease == lease.id && !lease.live()) {
          collected.emplace_back(it->first, std::move(it->second));
          shard.regions.erase(it++);
        } else {
          ++it;
        }
      }
    }
    for (auto& [id, region] : collected) {
      if (region->named) ForgetName(RegionId{id});
      Drop(std::move(region));
      Count(&counters_.regions_collected);
    }
  }
}

size_t PageStore::CountOrphans() const {
  size_t orphans = 0;
  for (const Shard& shard : shards_) {
    ReaderLock lock(&shard.mu);
    for (const auto& [id, region] : shard.regions) {
      const auto lease = leases_->Find(region->lease);
      if (lease == nullptr || !lease->live()) ++orphans;
    }
  }
  return orphans;
}

}  // namespace nram
