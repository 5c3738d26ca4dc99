#include "client/pool/lost_pages.h"

#include <algorithm>

namespace nram {
namespace {

// Of the range's i-th page.
ChunkMask WrittenOf(const ChunkRange& range, const ChunkMask* masks, uint64_t i) {
  return masks == nullptr ? MaskOfPage(range, range.first_page() + i) : masks[i];
}

}  // namespace

bool LostPages::Has(uint64_t page) const {
  const auto it = spans_.find(page / kPagesPerSpan);
  return it != spans_.end() && it->second[page % kPagesPerSpan];
}

void LostPages::Remove(uint64_t page) {
  const auto it = spans_.find(page / kPagesPerSpan);
  if (it == spans_.end()) return;
  it->second.reset(page % kPagesPerSpan);
  if (it->second.none()) spans_.erase(it);
}

bool LostPages::MeetsRead(const ChunkRange& range) const {
  if (empty()) return false;
  for (uint64_t i = 0; i < range.pages(); ++i) {
    if (Has(range.first_page() + i)) return true;
  }
  return false;
}

bool LostPages::MeetsWrite(const ChunkRange& range, const ChunkMask* masks) const {
  if (empty()) return false;
  for (uint64_t i = 0; i < range.pages(); ++i) {
    const ChunkMask written = WrittenOf(range, masks, i);
    if (written != 0 && written != kAllChunks && Has(range.first_page() + i)) return true;
  }
  return false;
}

void LostPages::RemoveWritten(const ChunkRange& range, const ChunkMask* masks) {
  for (uint64_t i = 0; i < range.pages() && !empty(); ++i) {
    if (WrittenOf(range, masks, i) == kAllChunks) Remove(range.first_page() + i);
  }
}

void LostPages::RemoveTrimmed(const ChunkRange& range) {
  const uint64_t first = (range.first + kChunksPerPage - 1) / kChunksPerPage;
  const uint64_t end = range.end() / kChunksPerPage;
  absl::erase_if(spans_, [&](auto& entry) {
    const uint64_t span_first = entry.first * kPagesPerSpan;
    for (uint64_t page = std::max(first, span_first); page < std::min(end, span_first + kPagesPerSpan); ++page) {
      entry.second.reset(page - span_first);
    }
    return entry.second.none();
  });
}

}  // namespace nram
