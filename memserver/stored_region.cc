#include "memserver/stored_region.h"

#include <bit>

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

}  // namespace nram
