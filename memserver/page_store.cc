#include "memserver/page_store.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <tuple>
#include <utility>

#include "base/clock.h"
#include "base/crc32c.h"
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
    for (auto& [id, region] : shard.regions) Free(std::move(region));
    shard.regions.clear();
  }
  FreeSome(std::numeric_limits<int64_t>::max());
}

Reason PageStore::Create(Lease* lease, RegionId id, uint32_t epoch, bool gc, uint64_t* paid_bytes) {
  Shard& at = shard(id);
  WriterLock lock(&at.mu);
  return CreateLocked(&at, lease, nullptr, id, epoch, gc, /*named=*/false, paid_bytes);
}

Reason PageStore::CreateLocked(Shard* at, Lease* lease, ArenaPromise* promise, RegionId id, uint32_t epoch, bool gc,
                               bool named, uint64_t* paid_bytes) {
  // Counted before, and under the lock: CollectLease, which looks at the count after the lease has ended and then takes
  // the lock, either sees this region or is seen.
  lease->regions.fetch_add(1);
  Reason reason = lease->live() ? Reason::kOk : Reason::kLeaseEnded;
  if (reason == Reason::kOk && draining_ && promise == nullptr && !named) reason = Reason::kDraining;
  auto it = at->regions.end();
  if (reason == Reason::kOk) {
    bool inserted = false;
    std::tie(it, inserted) = at->regions.try_emplace(Raw(id), nullptr);
    if (!inserted) reason = Reason::kRegionExists;
  }
  if (reason == Reason::kOk && !(leases_->Charge(lease) && arena_->ChargeIndex(kRegionBytes, promise, paid_bytes))) {
    at->regions.erase(it);
    Count(&counters_.refused_full);
    reason = Reason::kFull;
  }
  if (reason != Reason::kOk) {
    leases_->Unname(lease);
    return reason;
  }
  it->second = std::make_unique<Region>(arena_);
  it->second->lease = lease->id;
  it->second->epoch = epoch;
  it->second->gc = gc;
  it->second->named = named;
  counters_.regions.fetch_add(1);
  return Reason::kOk;
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
                        FrameLoc* landed, uint64_t* paid_bytes, Frames frames, uint64_t limit_bytes, uint64_t term) {
  const uint64_t first_page = range.first_page();
  const uint64_t pages = range.pages();
  DCHECK_LE(pages, kPagesPerMessage);
  DCHECK_EQ(page_crcs.size(), pages);
  // What reads the data is done before the lock is taken; the landing frames are this call's alone.
  std::array<PageWrite, kPagesPerMessage> writes;
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
  Shard& at = shard(id);
  WriterLock lock(&at.mu);
  // Sent before the lease ended, it must not come after what was collected then.
  if (term != 0 && lease->term() != term) return Reason::kLeaseEnded;
  auto it = at.regions.find(Raw(id));
  if (it == at.regions.end()) {
    if (absent == IfAbsent::kRefuse) return lease->live() ? Reason::kUnknownRegion : Reason::kLeaseEnded;
    const Reason created = CreateLocked(&at, lease, limit_bytes >= kRegionBytes ? promise : nullptr, id, epoch,
                                        absent == IfAbsent::kCreateGc, /*named=*/false, paid_bytes);
    if (created != Reason::kOk) return created;
    it = at.regions.find(Raw(id));
  }
  Region* region = it->second.get();
  Reason reason = CheckOwner(*region, *lease, epoch);
  for (uint64_t i = 0; i < pages && reason == Reason::kOk; ++i) {
    const uint64_t page = first_page + i;
    const auto payer = [&](uint64_t bytes) { return *paid_bytes + bytes <= limit_bytes ? promise : nullptr; };
    // Room in the index for this page and those after it in its span, in one step.
    if (i == 0 || page % kPagesPerSpan == 0) {
      const uint64_t in_span = std::min(pages - i, kPagesPerSpan - page % kPagesPerSpan);
      if (!region->index.Prepare(page, in_span, payer(kIndexBytesPerPageMax), paid_bytes)) reason = Reason::kFull;
    }
    if (reason == Reason::kOk) {
      reason = WritePage(region, payer(kPageBytes), page, writes[i], frames, &landed[i], paid_bytes);
    }
  }
  region->index.DropIfEmpty(first_page, promise, paid_bytes);
  region->index.DropIfEmpty(first_page + pages - 1, promise, paid_bytes);
  if (reason == Reason::kFull) Count(&counters_.refused_full);
  if (reason == Reason::kOk) {
    Count(&counters_.writes);
    Count(&counters_.bytes_written, chunks * kChunkBytes);
    if (zeros > 0) Count(&counters_.zero_chunks_elided, zeros);
  }
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

Reason PageStore::WritePage(Region* region, ArenaPromise* promise, uint64_t page, const PageWrite& write, Frames frames,
                            FrameLoc* landed, uint64_t* paid_bytes) {
  if (write.written == 0) return Reason::kOk;
  std::byte* const fresh = arena_->Data(*landed);
  ChunkMask nonzero = write.nonzero;
  uint32_t crc = write.crc;
  const PageEntry old = region->index.Find(page);
  const auto kept = static_cast<ChunkMask>(old.mask & ~write.written);
  if (frames == Frames::kWhole && old.mask != 0 && kept == 0 && nonzero == 0) {
    // To keep its frame it keeps a chunk, of zeros.
    nonzero = static_cast<ChunkMask>(write.written & -write.written);
    crc = Crc32c(0, fresh + std::countr_zero(nonzero) * kChunkBytes, kChunkBytes);
  }
  const auto stored = static_cast<ChunkMask>(kept | nonzero);
  const int chunks_change = std::popcount(stored) - std::popcount(old.mask);
  // A checksum of what is there now would hide what has changed.
  if (kept != 0 && IsDamaged(old)) return Reason::kDamaged;
  const auto set = [&](FrameLoc frame) {
    region->index.Set(page, {frame, stored, kept == 0 ? crc : StoredCrc(frame, stored)});
  };
  if (stored == 0) {
    if (old.mask != 0) {
      arena_->Free(old.frame);
      region->index.Erase(page);
      counters_.pages.fetch_sub(1, std::memory_order_relaxed);
    }
  } else if (nonzero == kAllChunks &&
             (old.mask == kAllChunks || (old.mask != 0 && arena_->ChunksIn(old.frame) == int{kChunksPerPage}))) {
    // The common case: the landed frame takes the old one's place and the old one lands the next write.
    set(*landed);
    *landed = old.frame;
  } else if (stored == old.mask) {
    Pack(fresh, nonzero, stored, arena_->Data(old.frame));
    set(old.frame);
  } else {
    const bool fits = old.mask != 0 && arena_->ChunksIn(old.frame) >= std::popcount(stored);
    if (old.mask == 0 && draining_ && promise == nullptr) return Reason::kDraining;
    FrameLoc added = kNoFrame;
    if (!fits || frames == Frames::kFitted) {
      const int chunks = frames == Frames::kWhole ? int{kChunksPerPage} : std::popcount(stored);
      added = arena_->Allocate(chunks, fits ? nullptr : promise, paid_bytes);
      // What is there can be written over without room.
      if (added == kNoFrame && !fits) return Reason::kFull;
    }
    for (uint32_t rest = kept; rest != 0; rest &= rest - 1) {
      const int chunk = std::countr_zero(rest);
      memcpy(fresh + chunk * kChunkBytes, arena_->Data(old.frame) + PackedOffset(old.mask, chunk), kChunkBytes);
    }
    if (stored == kAllChunks && added != kNoFrame) {
      // The landed frame becomes the page and the new one lands the next write.
      set(*landed);
      *landed = added;
    } else {
      const FrameLoc frame = added != kNoFrame ? added : old.frame;
      Pack(fresh, stored, stored, arena_->Data(frame));
      set(frame);
    }
    if (old.mask == 0) {
      counters_.pages.fetch_add(1, std::memory_order_relaxed);
    } else if (added != kNoFrame) {
      arena_->Free(old.frame);
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
  std::array<ChunkMask, kPagesPerMessage> masks;
  std::array<uint32_t, kPagesPerMessage> page_crcs;
  std::array<iovec, kPagesPerMessage + 2 * kChunksPerPage> pieces;
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

uint64_t PageStore::DropPages(Region* region, uint64_t begin_page, uint64_t end_page, ArenaPromise* promise) {
  int64_t pages = 0;
  int64_t chunks = 0;
  uint64_t promised_bytes = 0;
  const auto drop = [&](uint64_t, PageEntry* entry) {
    ++pages;
    chunks += std::popcount(entry->mask);
    arena_->Free(entry->frame, promise, &promised_bytes);
    entry->mask = 0;
  };
  region->index.Visit(begin_page, end_page, kTrimSpansPerStep, drop, promise, &promised_bytes);
  region->chunks -= chunks;
  counters_.pages.fetch_sub(pages, std::memory_order_relaxed);
  counters_.chunks.fetch_sub(chunks, std::memory_order_relaxed);
  return promised_bytes;
}

void PageStore::TrimPart(Region* region, uint64_t page, ChunkMask trimmed, Frames frames) {
  const PageEntry old = region->index.Find(page);
  auto stored = static_cast<ChunkMask>(old.mask & ~trimmed);
  if (stored == old.mask) return;
  if (stored == 0 && frames == Frames::kFitted) {
    DropPages(region, page, page + 1, nullptr);
    return;
  }
  const bool damaged = IsDamaged(old);
  if (stored == 0) {
    // To keep its frame it keeps a chunk, of zeros.
    stored = static_cast<ChunkMask>(old.mask & -old.mask);
    memset(arena_->Data(old.frame), 0, kChunkBytes);
  }
  const auto set = [&](FrameLoc frame) {
    const uint32_t crc = StoredCrc(frame, stored);
    region->index.Set(page, {frame, stored, damaged ? ~crc : crc});
  };
  const FrameLoc smaller =
      frames == Frames::kWhole ? kNoFrame : arena_->Allocate(std::popcount(stored), nullptr, nullptr);
  if (smaller != kNoFrame) {
    Repack(arena_->Data(old.frame), old.mask, stored, arena_->Data(smaller), stored);
    set(smaller);
    arena_->Free(old.frame);
  } else {
    // It is to keep its frame, or there is no room to shrink it: pack what stays to the frame's front, in order, so
    // that nothing is overwritten before it moves.
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

Reason PageStore::TrimStep(Lease* lease, RegionId id, uint32_t epoch, const ChunkRange& range, ArenaPromise* promise,
                           uint64_t* kept_bytes, Frames frames, uint64_t* page) {
  const uint64_t end_page = (range.end() + kChunksPerPage - 1) / kChunksPerPage;
  Shard& at = shard(id);
  WriterLock lock(&at.mu);
  const auto it = at.regions.find(Raw(id));
  if (it == at.regions.end()) return lease->live() ? Reason::kUnknownRegion : Reason::kLeaseEnded;
  Region* region = it->second.get();
  if (const Reason reason = CheckOwner(*region, *lease, epoch); reason != Reason::kOk) return reason;
  if (region->kept_term != lease->term()) {
    region->kept_term = lease->term();
    region->kept_bytes = 0;
  }
  if (MaskOfPage(range, *page) != kAllChunks) {
    TrimPart(region, *page, MaskOfPage(range, *page), frames);
    ++*page;
  } else {
    const uint64_t whole_end = range.end() / kChunksPerPage;
    // Skips to the next span with pages.
    const uint64_t next = region->index.Visit(*page, whole_end, 0, [](uint64_t, PageEntry*) {});
    const uint64_t step_end = std::min(whole_end, (next / kPagesPerSpan + kTrimSpansPerStep) * kPagesPerSpan);
    region->kept_bytes += DropPages(region, *page, step_end, promise);
    *page = step_end;
  }
  if (promise != nullptr) *kept_bytes = region->kept_bytes;
  if (*page >= end_page) Count(&counters_.trims);
  return Reason::kOk;
}

Reason PageStore::Trim(Lease* lease, RegionId id, uint32_t epoch, const ChunkRange& range, ArenaPromise* promise,
                       uint64_t* kept_bytes, Frames frames) {
  Reason reason = Reason::kOk;
  for (uint64_t page = range.first_page(); reason == Reason::kOk && page * kChunksPerPage < range.end();) {
    reason = TrimStep(lease, id, epoch, range, promise, kept_bytes, frames, &page);
  }
  return reason;
}

bool PageStore::FreeStep(Doomed* doomed) {
  Region* const region = doomed->get();
  if (region == nullptr) return true;
  if (region->index.pages() > 0) DropPages(region, 0, kRegionChunksMax / kChunksPerPage, nullptr);
  if (region->index.pages() > 0) return false;
  if (const auto lease = leases_->Find(region->lease)) leases_->Unname(lease.get());
  doomed->reset();
  arena_->ReleaseIndex(kRegionBytes);
  counters_.regions.fetch_sub(1);
  return true;
}

void PageStore::Free(Doomed doomed) {
  while (!FreeStep(&doomed)) {
  }
}

void PageStore::FreeLater(Doomed doomed) {
  if (doomed == nullptr) return;
  MutexLock lock(&doomed_mu_);
  doomed_.push_back(std::move(doomed));
}

bool PageStore::FreeSome(int64_t until_ns) {
  MutexLock turn(&free_some_mu_);
  Doomed doomed;
  while (true) {
    if (FreeStep(&doomed)) {
      MutexLock lock(&doomed_mu_);
      if (doomed_.empty()) return true;
      doomed = std::move(doomed_.back());
      doomed_.pop_back();
    } else if (MonotonicNs() >= until_ns) {
      FreeLater(std::move(doomed));
      return false;
    }
  }
}

Reason PageStore::Unlink(Lease* lease, RegionId id, uint32_t epoch, Doomed* doomed) {
  Shard& at = shard(id);
  WriterLock lock(&at.mu);
  const auto it = at.regions.find(Raw(id));
  if (it == at.regions.end()) return Reason::kUnknownRegion;
  if (const Reason reason = CheckOwner(*it->second, *lease, epoch); reason != Reason::kOk) return reason;
  *doomed = std::move(it->second);
  at.regions.erase(it);
  if ((*doomed)->named) ForgetName(id);
  return Reason::kOk;
}

Reason PageStore::Destroy(Lease* lease, RegionId id, uint32_t epoch) {
  Doomed doomed;
  const Reason reason = Unlink(lease, id, epoch, &doomed);
  Free(std::move(doomed));
  return reason;
}

}  // namespace nram
