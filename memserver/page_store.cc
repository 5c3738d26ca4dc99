#include "memserver/page_store.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/crc32c.h"
#include "base/plant.h"
#include "memserver/packed_chunks.h"
#include "proto/message.h"

namespace nram {
namespace {

void Prefetch(const std::byte* frame) {
  for (int line = 0; line < 16; ++line) __builtin_prefetch(frame + line * 64);
}

}  // namespace

PageStore::ChunkCounts PageStore::LookAt(const WriteArgs& args, PageWrites* writes) const {
  const uint64_t first_page = args.range.first_page();
  const uint64_t pages = args.range.pages();
  ChunkCounts counts;
  for (uint64_t i = 0; i < pages; ++i) {
    const std::byte* const landed = arena()->Data(args.landed[i]);
    ChunkMask written = args.masks.empty() ? MaskOfPage(args.range, first_page + i) : args.masks[i];
    // No chunk of a sealed page is left out.
    const ChunkMask nonzero = args.seals.empty() ? NonZero(landed, written) : written;
    if (written == 0 && !args.seals.empty() && args.seals[i] != PageSeal()) written = kAllChunks;  // becomes a hole
    uint32_t crc = args.page_crcs[i];
    if (nonzero != written) {
      crc = 0;
      ForEachRun(nonzero, [&](size_t offset, size_t bytes) { crc = Crc32c(crc, landed + offset, bytes); });
    }
    (*writes)[i] = {
        first_page + i, written, nonzero, crc, &args.landed[i], args.seals.empty() ? nullptr : &args.seals[i]};
    counts.written += std::popcount(written);
    counts.zeros += std::popcount(static_cast<unsigned>(written & ~nonzero));
  }
  return counts;
}

Reason PageStore::EnterGeneration(StoredRegion* region, const WriteArgs& args, Payment* payment) {
  PageIndex& index = region->index;
  if (args.generation == SpanGeneration{} && !index.has_generations()) return Reason::kOk;
  const uint64_t first_page = args.range.first_page();
  const uint64_t last_page = first_page + args.range.pages() - 1;
  const bool is_one_span = first_page / kPagesPerSpan == last_page / kPagesPerSpan;
  const SpanGeneration present = index.GenerationOf(first_page);
  if (args.generation == present && (is_one_span || args.generation == index.GenerationOf(last_page))) {
    return Reason::kOk;
  }
  const bool creates = args.absent != IfAbsent::kRefuse;
  const bool is_lower = args.generation < present && !NRAM_PLANTED(lower_generation_taken);
  if (!is_one_span || is_lower || (present == SpanGeneration{} && !creates)) {
    Count(&mutable_counters()->refused_stale);
    return Reason::kOtherGeneration;
  }
  // A leaf that is there gets its new generation in any case, so that its rest is not taken for a copy.
  region->NoteGenerations(first_page / kPagesPerSpan, first_page / kPagesPerSpan + 1, args.generation);
  if (present != SpanGeneration{}) index.SetGeneration(first_page, args.generation);
  if (!creates) return Reason::kOk;
  // Pages of a former copy must not show beside those that are to come.
  const uint64_t span_page = first_page / kPagesPerSpan * kPagesPerSpan;
  if (!NRAM_PLANTED(create_keeps_leaf)) DropPages(region, span_page, span_page + kPagesPerSpan, nullptr);
  if (present != SpanGeneration{}) return Reason::kOk;
  payment->BeginStep(kIndexBytesPerPageMax);
  if (!index.Prepare(first_page, args.range.pages(), payment)) return Reason::kFull;
  index.SetGeneration(first_page, args.generation);
  return Reason::kOk;
}

Reason PageStore::Write(Lease* lease, const WriteArgs& args, Payment* payment, uint32_t* stored_pages,
                        VersionNumber* yielded) {
  const uint64_t pages = args.range.pages();
  DCHECK_LE(pages, kPagesPerMessage);
  DCHECK_EQ(args.page_crcs.size(), pages);
  // The data is read before the lock is taken; no other thread uses this call's landing frames.
  PageWrites writes;
  const ChunkCounts chunks = LookAt(args, &writes);
  uint32_t stored = 0;
  bool may_help = true;
  const auto write = [&] {
    const absl::Span<const PageWrite> rest(&writes[stored], pages - stored);
    return WriteRest(lease, args, chunks, rest, payment, &stored, yielded, &may_help);
  };
  Reason reason = write();
  for (int turn = 0; reason == Reason::kFull && may_help && turn < kYieldTurns; ++turn) {
    if (!YieldVersions(*lease->tenant, kReservationBytesPerPage)) break;
    reason = write();
  }
  if (stored_pages != nullptr) *stored_pages = stored;
  StoreCounters* const counters = mutable_counters();
  if (reason == Reason::kFull) Count(&counters->refused_full);
  if (reason == Reason::kOk) {
    Count(&counters->writes);
    Count(&counters->bytes_written, chunks.written * kChunkBytes);
    if (chunks.zeros > 0) Count(&counters->zero_chunks_elided, chunks.zeros);
  }
  return reason;
}

Reason PageStore::WriteRest(Lease* lease, const WriteArgs& args, const ChunkCounts& chunks,
                            absl::Span<const PageWrite> writes, Payment* payment, uint32_t* stored,
                            VersionNumber* yielded, bool* may_help) {
  Shard& at = shard(args.region);
  WriterLock lock(&at.mu);
  // A write that was sent before the lease ended must not be executed after the collection.
  if (args.term != 0 && lease->term() != args.term) return Reason::kLeaseEnded;
  const StoredKey key{args.region, lease->tenant->number};
  auto it = at.regions.find(key);
  if (it == at.regions.end()) {
    // Where a region with several owners is, only its creator and its members' list say.
    const bool is_firsts = args.generation == SpanGeneration{} || args.epoch == 1;
    if (args.absent == IfAbsent::kRefuse || !is_firsts)
      return lease->live() ? Reason::kUnknownRegion : Reason::kLeaseEnded;
    const bool sealed = !args.seals.empty();
    payment->BeginStep(RegionBytes(sealed));
    const Reason created = CreateLocked(&at, lease, payment, args.region, args.epoch,
                                        args.absent == IfAbsent::kCreateGc, sealed, /*named=*/false);
    if (created == Reason::kFull) *may_help = !lease->tenant->regions.is_full();
    if (created != Reason::kOk) return created;
    it = at.regions.find(key);
  }
  StoredRegion* const region = it->second.get();
  Reason reason = CheckOwner(*region, *lease, args.epoch);
  if (reason == Reason::kOk && region->index.sealed() != !args.seals.empty()) reason = Reason::kNoSeals;
  // A page that keeps its frame cannot be a hole: it would have to hold a chunk.
  if (reason == Reason::kOk && !args.seals.empty() && args.frames == Frames::kWhole && chunks.zeros > 0) {
    reason = Reason::kNoSeals;
  }
  if (reason == Reason::kOk) reason = EnterGeneration(region, args, payment);
  if (reason == Reason::kOk && chunks.written > 0) reason = WritePages(region, writes, args.frames, payment, stored);
  region->index.DropIfEmpty(args.range.first_page(), payment);
  region->index.DropIfEmpty(args.range.first_page() + args.range.pages() - 1, payment);
  if (yielded != nullptr && region->versions != nullptr) *yielded = region->versions->yielded();
  return reason;
}

Reason PageStore::WritePages(StoredRegion* region, absl::Span<const PageWrite> writes, Frames frames, Payment* payment,
                             uint32_t* stored_pages) {
  for (size_t i = 0; i < writes.size(); ++i, ++*stored_pages) {
    const uint64_t page = writes[i].page;
    // Makes room in the index for this page and all later ones of its span, in one step.
    if (i == 0 || page % kPagesPerSpan == 0) {
      const uint64_t in_span = std::min(writes.size() - i, kPagesPerSpan - page % kPagesPerSpan);
      payment->BeginStep(kIndexBytesPerPageMax);
      if (!region->index.Prepare(page, in_span, payment)) return Reason::kFull;
    }
    payment->BeginStep(kPageBytes);
    if (const Reason reason = WritePage(region, writes[i], frames, payment); reason != Reason::kOk) return reason;
  }
  return Reason::kOk;
}

bool PageStore::IsDamaged(const PageEntry& entry) const { return StoredCrc(entry.frame, entry.mask) != entry.crc; }

uint32_t PageStore::StoredCrc(FrameLoc frame, ChunkMask stored) const {
  return Crc32c(0, arena()->Data(frame), std::popcount(stored) * kChunkBytes);
}

uint32_t PageStore::CrcOf(const PageEntry& entry, ChunkMask wanted) const {
  if (wanted == entry.mask) return entry.crc;
  if (wanted == 0) return 0;
  uint32_t crc = 0;
  for (uint32_t rest = wanted; rest != 0; rest &= rest - 1) {
    const size_t offset = PackedOffset(entry.mask, std::countr_zero(rest));
    crc = Crc32c(crc, arena()->Data(entry.frame) + offset, kChunkBytes);
  }
  return IsDamaged(entry) ? ~crc : crc;
}

Reason PageStore::WritePage(StoredRegion* region, const PageWrite& write, Frames frames, Payment* payment) {
  if (write.written == 0) return Reason::kOk;
  const uint64_t page = write.page;
  FrameLoc* const landed = write.landed;
  std::byte* const fresh = arena()->Data(*landed);
  ChunkMask nonzero = write.nonzero;
  uint32_t crc = write.crc;
  PageEntry old = region->index.Find(page);
  const auto kept = static_cast<ChunkMask>(old.mask & ~write.written);
  if (frames == Frames::kWhole && old.mask != 0 && kept == 0 && nonzero == 0) {
    // To keep its frame, the page keeps a chunk of zeros.
    nonzero = static_cast<ChunkMask>(write.written & -write.written);
    crc = Crc32c(0, fresh + std::countr_zero(nonzero) * kChunkBytes, kChunkBytes);
  }
  const auto stored = static_cast<ChunkMask>(kept | nonzero);
  const int chunks_change = std::popcount(stored) - std::popcount(old.mask);
  // A new checksum of the old chunks would hide that they have changed.
  if (kept != 0 && IsDamaged(old) && !NRAM_PLANTED(damage_hidden)) return Reason::kDamaged;
  if (stored == 0) {
    MakeHole(region, page, old);
    return Reason::kOk;
  }
  const bool swaps = nonzero == kAllChunks && (old.mask == kAllChunks || HasWholeFrame(old));
  if (region->versions != nullptr && region->versions->Keeps(old)) {
    if (IsSame(old, write)) return Reason::kOk;
    if (!NRAM_PLANTED(displaced_in_place) || swaps) old = region->Detach(arena(), page, /*copies=*/!swaps);
  }
  const auto set = [&](FrameLoc frame) {
    const uint32_t stored_crc = kept == 0 ? crc : StoredCrc(frame, stored);
    region->index.Set(page, {frame, stored, stored_crc, region->birth()}, write.seal);
  };
  if (swaps) {
    // The common case: the landed frame takes the old one's place, and the next write lands in the old one.
    set(*landed);
    *landed = old.frame;
  } else if (stored == old.mask) {
    Pack(fresh, nonzero, stored, arena()->Data(old.frame));
    set(old.frame);
  } else {
    const bool fits = old.mask != 0 && arena()->ChunksIn(old.frame) >= std::popcount(stored);
    if (old.mask == 0 && draining() && !payment->pays()) return Reason::kDraining;
    FrameLoc added = kNoFrame;
    if (!fits || frames == Frames::kFitted) {
      const int chunks = frames == Frames::kWhole ? int{kChunksPerPage} : std::popcount(stored);
      added = region->index.account()->Allocate(chunks, fits ? nullptr : payment);
      // If the old frame is large enough, the page can be written over without new room.
      if (added == kNoFrame && !fits) return Reason::kFull;
    }
    for (uint32_t rest = kept; rest != 0; rest &= rest - 1) {
      const int chunk = std::countr_zero(rest);
      memcpy(fresh + chunk * kChunkBytes, arena()->Data(old.frame) + PackedOffset(old.mask, chunk), kChunkBytes);
    }
    if (stored == kAllChunks && added != kNoFrame) {
      // The landed frame becomes the page's, and the next write lands in the new one.
      set(*landed);
      *landed = added;
    } else {
      const FrameLoc frame = added != kNoFrame ? added : old.frame;
      Pack(fresh, stored, stored, arena()->Data(frame));
      set(frame);
    }
    if (old.mask == 0) {
      mutable_counters()->pages.fetch_add(1, std::memory_order_relaxed);
    } else if (added != kNoFrame) {
      region->index.account()->Free(old.frame);
    }
  }
  if (chunks_change != 0) CountChunks(region, chunks_change);
  return Reason::kOk;
}

void PageStore::CountChunks(StoredRegion* region, int64_t change) {
  region->chunks += change;
  mutable_counters()->chunks.fetch_add(change, std::memory_order_relaxed);
}

void PageStore::MakeHole(StoredRegion* region, uint64_t page, const PageEntry& old) {
  // The leaf stays: it has room for the pages to come.
  if (old.mask == 0 || region->KeepPages(arena(), page, page + 1, mutable_counters(), nullptr) > 0) return;
  region->index.account()->Free(old.frame);
  region->index.Erase(page);
  mutable_counters()->pages.fetch_sub(1, std::memory_order_relaxed);
  CountChunks(region, -std::popcount(old.mask));
}

Reason PageStore::CheckRead(const StoredRegion& region, const ReadArgs& args) {
  const bool is_other_epoch = args.epoch != 0 && region.epoch != args.epoch;
  const auto is_other_generation = [&] {
    if (!args.generation.has_value()) return false;
    if (args.version != VersionNumber{}) {
      const uint64_t last_page = args.range.first_page() + args.range.pages() - 1;
      const auto generation = [&](uint64_t page) {
        return region.versions->GenerationAt(args.version, region.index, page);
      };
      return generation(args.range.first_page()) != args.generation || generation(last_page) != args.generation;
    }
    if (*args.generation == SpanGeneration{} && !region.index.has_generations()) return false;
    const uint64_t first_page = args.range.first_page();
    return region.index.GenerationOf(first_page) != *args.generation ||
           region.index.GenerationOf(first_page + args.range.pages() - 1) != *args.generation;
  };
  if (args.version != VersionNumber{} && (region.versions == nullptr || !region.versions->Has(args.version))) {
    return Reason::kUnknownSnapshot;
  }
  if (!is_other_epoch && !is_other_generation()) return Reason::kOk;
  Count(&mutable_counters()->refused_stale);
  return is_other_epoch ? Reason::kStaleEpoch : Reason::kOtherGeneration;
}

Reason PageStore::Read(const ReadArgs& args, ChunkMask* masks, uint32_t* page_crcs, std::byte* out, size_t* out_bytes,
                       PageSeal* seals, bool* sealed) {
  const ChunkRange& range = args.range;
  Count(&mutable_counters()->reads);
  *out_bytes = 0;
  const uint64_t first_page = range.first_page();
  const uint64_t pages = range.pages();
  const Shard& at = shard(args.region.id);
  for (uint64_t done = 0; done < pages;) {
    ReaderLock lock(&at.mu);
    const auto it = at.regions.find(args.region);
    if (it == at.regions.end()) return Reason::kUnknownRegion;
    const StoredRegion& region = *it->second;
    if (const Reason reason = CheckRead(region, args); reason != Reason::kOk) return reason;
    if (region.index.sealed() && (seals == nullptr || !FitsSeals(region, range))) return Reason::kNoSeals;
    if (sealed != nullptr) *sealed = region.index.sealed();
    const uint64_t step = std::min(pages - done, kReadPagesPerLock);
    std::array<PageEntry, kReadPagesPerLock> entries;
    FindToRead(region, args, first_page + done, step, entries.data(), seals != nullptr ? seals + done : nullptr);
    for (uint64_t i = 0; i < step; ++i) {
      // Frames lie anywhere, and the processor's own prefetching ends at a page's end.
      if (i + 1 < step && entries[i + 1].mask != 0) Prefetch(arena()->Data(entries[i + 1].frame));
      const PageEntry& entry = entries[i];
      const auto wanted = static_cast<ChunkMask>(entry.mask & MaskOfPage(range, first_page + done + i));
      masks[done + i] = wanted;
      page_crcs[done + i] = CrcOf(entry, wanted);
      if (wanted == 0) continue;
      const std::byte* frame = arena()->Data(entry.frame);
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
  Count(&mutable_counters()->bytes_read, *out_bytes);
  return Reason::kOk;
}

Reason PageStore::ReadInPlace(const ReadArgs& args, absl::FunctionRef<void(const Stored& stored)> send) {
  const ChunkRange& range = args.range;
  Count(&mutable_counters()->reads);
  const uint64_t first_page = range.first_page();
  const uint64_t pages = range.pages();
  std::array<ChunkMask, kPagesPerMessage> masks;
  std::array<uint32_t, kPagesPerMessage> page_crcs;
  std::array<iovec, kPagesPerMessage + 2 * kChunksPerPage> pieces;
  size_t count = 0;
  uint64_t bytes = 0;
  const Shard& at = shard(args.region.id);
  ReaderLock lock(&at.mu);
  const auto it = at.regions.find(args.region);
  if (it == at.regions.end()) return Reason::kUnknownRegion;
  const StoredRegion& region = *it->second;
  if (const Reason reason = CheckRead(region, args); reason != Reason::kOk) return reason;
  if (!FitsSeals(region, range)) return Reason::kNoSeals;
  std::array<PageEntry, kPagesPerMessage> entries;
  std::array<PageSeal, kPagesPerMessage> seals;
  FindToRead(region, args, first_page, pages, entries.data(), seals.data());
  for (uint64_t i = 0; i < pages; ++i) {
    const PageEntry& entry = entries[i];
    masks[i] = static_cast<ChunkMask>(entry.mask & MaskOfPage(range, first_page + i));
    page_crcs[i] = CrcOf(entry, masks[i]);
    if (masks[i] == 0) continue;
    std::byte* const frame = arena()->Data(entry.frame);
    if (masks[i] == entry.mask) {
      const size_t page_bytes = std::popcount(masks[i]) * kChunkBytes;
      const iovec* const last = count > 0 ? &pieces[count - 1] : nullptr;
      if (last != nullptr && static_cast<std::byte*>(last->iov_base) + last->iov_len == frame) {
        pieces[count - 1].iov_len += page_bytes;  // pages that were written together often lie side by side
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
  Count(&mutable_counters()->bytes_read, bytes);
  send({{masks.data(), pages},
        {page_crcs.data(), pages},
        {pieces.data(), count},
        {seals.data(), region.index.sealed() ? pages : 0}});
  return Reason::kOk;
}

void PageStore::TrimPart(StoredRegion* region, uint64_t page, ChunkMask trimmed, Frames frames) {
  ArenaAccount* const account = region->index.account();
  PageEntry old = region->index.Find(page);
  auto stored = static_cast<ChunkMask>(old.mask & ~trimmed);
  if (stored == old.mask) return;
  if (stored == 0 && frames == Frames::kFitted) {
    DropPages(region, page, page + 1, nullptr);
    return;
  }
  // If no chunk stays, nothing damaged stays.
  const bool damaged = stored != 0 && IsDamaged(old);
  old = region->Detach(arena(), page, /*copies=*/true);
  if (stored == 0) {
    // To keep its frame, the page keeps a chunk of zeros.
    stored = static_cast<ChunkMask>(old.mask & -old.mask);
    memset(arena()->Data(old.frame), 0, kChunkBytes);
  }
  const auto set = [&](FrameLoc frame) {
    const uint32_t crc = StoredCrc(frame, stored);
    region->index.Set(page, {frame, stored, damaged ? ~crc : crc, region->birth()});
  };
  const FrameLoc smaller = frames == Frames::kWhole ? kNoFrame : account->Allocate(std::popcount(stored));
  if (smaller != kNoFrame) {
    Repack(arena()->Data(old.frame), old.mask, stored, arena()->Data(smaller), stored);
    set(smaller);
    account->Free(old.frame);
  } else {
    // The page is to keep its frame, or there is no room for a smaller one. The chunks that stay move to the frame's
    // front, in order, so that none is overwritten before it has moved.
    std::byte* frame = arena()->Data(old.frame);
    for (uint32_t rest = stored; rest != 0; rest &= rest - 1) {
      const int chunk = std::countr_zero(rest);
      memmove(frame + PackedOffset(stored, chunk), frame + PackedOffset(old.mask, chunk), kChunkBytes);
    }
    set(old.frame);
  }
  const int64_t gone = std::popcount(old.mask) - std::popcount(stored);
  region->chunks -= gone;
  mutable_counters()->chunks.fetch_sub(gone, std::memory_order_relaxed);
}

bool PageStore::EnterTrim(StoredRegion* region, uint64_t begin_page, uint64_t end_page, SpanGeneration generation) {
  if (!region->index.has_generations()) return true;
  const uint64_t from_span = begin_page / kPagesPerSpan;
  const uint64_t end_span = (end_page + kPagesPerSpan - 1) / kPagesPerSpan;
  if (region->index.FindAbove(from_span, end_span, generation) != end_span) {
    Count(&mutable_counters()->refused_stale);
    return false;
  }
  region->NoteGenerations(from_span, end_span, generation);
  region->index.RaiseGenerations(from_span, end_span, generation);
  return true;
}

Reason PageStore::TrimStep(Lease* lease, const TrimArgs& args, uint64_t* page, uint64_t* kept_bytes) {
  const ChunkRange& range = args.range;
  const uint64_t end_page = (range.end() + kChunksPerPage - 1) / kChunksPerPage;
  Shard& at = shard(args.region);
  WriterLock lock(&at.mu);
  const auto it = at.regions.find({args.region, lease->tenant->number});
  if (it == at.regions.end()) return lease->live() ? Reason::kUnknownRegion : Reason::kLeaseEnded;
  StoredRegion* const region = it->second.get();
  if (const Reason reason = CheckOwner(*region, *lease, args.epoch); reason != Reason::kOk) return reason;
  if (region->kept_term != lease->term()) {
    region->kept_term = lease->term();
    region->kept_bytes = 0;
  }
  if (!FitsSeals(*region, range)) return Reason::kNoSeals;
  if (MaskOfPage(range, *page) != kAllChunks) {
    const bool leaves = NRAM_PLANTED(trim_leaves_last_page) && *page + 1 == end_page;
    if (!EnterTrim(region, *page, *page + 1, args.generation)) return Reason::kOtherGeneration;
    if (!leaves) TrimPart(region, *page, MaskOfPage(range, *page), args.frames);
    ++*page;
  } else {
    const uint64_t whole_end = range.end() / kChunksPerPage;
    // Skips to the next span with pages.
    const uint64_t next = region->index.Visit(*page, whole_end, 0, [](uint64_t, PageEntry*) {});
    const uint64_t step_end = std::min(whole_end, (next / kPagesPerSpan + StoredRegion::kSpansPerStep) * kPagesPerSpan);
    if (!EnterTrim(region, *page, step_end, args.generation)) return Reason::kOtherGeneration;
    Refund refund(args.reservation);
    const uint64_t kept_bytes_anew = DropPages(region, *page, step_end, &refund, args.reservation);
    region->kept_bytes += refund.kept_bytes() + kept_bytes_anew;
    if (NRAM_PLANTED(trim_counts_kept_frame)) region->kept_bytes += kept_bytes_anew;
    *page = step_end;
  }
  if (args.reservation != nullptr) *kept_bytes = region->kept_bytes;
  if (*page >= end_page) Count(&mutable_counters()->trims);
  return Reason::kOk;
}

Reason PageStore::Trim(Lease* lease, const TrimArgs& args, uint64_t* kept_bytes) {
  Reason reason = Reason::kOk;
  for (uint64_t page = args.range.first_page(); reason == Reason::kOk && page * kChunksPerPage < args.range.end();) {
    reason = TrimStep(lease, args, &page, kept_bytes);
  }
  return reason;
}

}  // namespace nram
