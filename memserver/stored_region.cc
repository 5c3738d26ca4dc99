#include "memserver/stored_region.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>

namespace nram {

void StoredRegion::DropPages(uint64_t begin_page, uint64_t end_page, StoreCounters* counters, Refund* refund) {
  int64_t pages_gone = 0;
  int64_t chunks_gone = 0;
  const auto drop = [&](uint64_t, PageEntry* entry) {
    ++pages_gone;
    chunks_gone += std::popcount(entry->mask);
    index.account()->Free(entry->frame, refund);
    entry->mask = 0;
  };
  index.Visit(begin_page, end_page, kSpansPerStep, drop, refund);
  chunks -= chunks_gone;
  counters->pages.fetch_sub(pages_gone, std::memory_order_relaxed);
  counters->chunks.fetch_sub(chunks_gone, std::memory_order_relaxed);
}

PageEntry StoredRegion::Detach(FrameArena* arena, uint64_t page, bool copies) {
  const PageEntry old = index.Find(page);
  if (versions == nullptr) return old;
  versions->PrepareKept(index, page, 1);
  FrameLoc frame = kNoFrame;
  const bool keeps = versions->KeepsWith(old, [&] {
    frame = index.account()->Allocate(arena->ChunksIn(old.frame));
    return frame != kNoFrame;
  });
  if (!keeps) return old;
  if (copies) memcpy(arena->Data(frame), arena->Data(old.frame), std::popcount(old.mask) * kChunkBytes);
  const PageSeal seal = index.SealOf(page);
  const PageSeal* const its_seal = index.sealed() ? &seal : nullptr;
  versions->Keep(page, old, its_seal);
  const PageEntry detached{frame, old.mask, old.crc, versions->birth()};
  index.Set(page, detached, its_seal);
  return detached;
}

uint64_t StoredRegion::KeepPages(FrameArena* arena, uint64_t begin_page, uint64_t end_page, StoreCounters* counters,
                                 ArenaReservation* reservation, uint64_t* reserved_bytes) {
  if (versions == nullptr) return 0;
  uint64_t pages_gone = 0;
  int64_t chunks_gone = 0;
  for (uint64_t page = begin_page; page < end_page;) {
    const uint64_t span = index.NextSpan(page / kPagesPerSpan);
    if (span == PageIndex::kNoSpan) break;
    page = std::max(page, span * kPagesPerSpan);
    if (page >= end_page) break;
    const uint64_t pages = std::min({end_page - page, kPagesPerSpan - page % kPagesPerSpan, uint64_t{64}});
    versions->PrepareKept(index, page, pages);
    const uint64_t asked = ~uint64_t{0} >> (64 - pages);
    uint64_t missing = asked;
    std::array<PageEntry, 64> entries;
    std::array<PageSeal, 64> seals;
    index.FindSome(page, &missing, entries.data(), seals.data());
    for (uint64_t rest = asked & ~missing; rest != 0; rest &= rest - 1) {
      const int i = std::countr_zero(rest);
      std::optional<uint64_t> reserved = 0;
      const auto reserve = [&] {
        if (reservation != nullptr) reserved = arena->ReserveLike(entries[i].frame, reservation);
        return reserved.has_value();
      };
      if (!versions->KeepsWith(entries[i], reserve)) continue;
      if (reserved_bytes != nullptr) *reserved_bytes += *reserved;
      versions->Keep(page + i, entries[i], index.sealed() ? &seals[i] : nullptr);
      index.Erase(page + i);
      ++pages_gone;
      chunks_gone += std::popcount(entries[i].mask);
    }
    page += pages;
  }
  chunks -= chunks_gone;
  counters->pages.fetch_sub(static_cast<int64_t>(pages_gone), std::memory_order_relaxed);
  counters->chunks.fetch_sub(chunks_gone, std::memory_order_relaxed);
  return pages_gone;
}

void StoredRegion::NoteGenerations(uint64_t from_span, uint64_t end_span, SpanGeneration generation) {
  if (versions == nullptr) return;
  index.VisitSpans(from_span, [&](uint64_t span, SpanGeneration present) {
    if (span >= end_span) return false;
    if (present < generation) versions->NoteGeneration(index, span * kPagesPerSpan);
    return true;
  });
}

}  // namespace nram
