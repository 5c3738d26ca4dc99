#include "client/memory/chunk_sums.h"

#include <glog/logging.h>
#include <sys/random.h>
#include <xxhash.h>

#include <algorithm>
#include <utility>

#include "base/status.h"

#if defined(__x86_64__)
#include <xxh_x86dispatch.h>  // the widest instructions that the processor has
#endif

namespace nram {

absl::StatusOr<std::unique_ptr<ChunkSums>> ChunkSums::New(size_t page_bytes, uint64_t pages) {
  const uint64_t sets = std::max<uint64_t>(1, pages / kWays);
  NRAM_ASSIGN_OR_RETURN(auto keys, Mapping::Anonymous(sets * kWays * sizeof(uintptr_t)));
  NRAM_ASSIGN_OR_RETURN(auto sums, Mapping::Anonymous(sets * kWays * page_bytes / kChunkBytes * sizeof(uint64_t)));
  return std::unique_ptr<ChunkSums>(new ChunkSums(page_bytes, sets, std::move(keys), std::move(sums)));
}

ChunkSums::ChunkSums(size_t page_bytes, uint64_t sets, Mapping keys, Mapping sums)
    : page_bytes_(page_bytes),
      chunks_(page_bytes / kChunkBytes),
      sets_(sets),
      keys_(std::move(keys)),
      sums_(std::move(sums)) {
  static_assert(sizeof(secret_) >= XXH3_SECRET_SIZE_MIN);
  PCHECK(getrandom(secret_.data(), secret_.size(), 0) == static_cast<ssize_t>(secret_.size()));
}

uint64_t ChunkSums::SetOf(uintptr_t page) const {
  // Neighbours go to different sets, and so do pages at powers of two from one another (Knuth's multiplicative hash).
  const uint64_t mixed = page / page_bytes_ * 0x9E3779B97F4A7C15u;
  return static_cast<uint64_t>((static_cast<unsigned __int128>(mixed) * sets_) >> 64);
}

uint64_t ChunkSums::PlaceOf(uintptr_t page, uint64_t set) const {
  const uint64_t begin = set * kWays;
  uint64_t free = begin + page / page_bytes_ % kWays;
  for (uint64_t place = begin; place < begin + kWays; ++place) {
    if (*key(place) == page) return place;
    if (*key(place) == 0) free = place;
  }
  return free;
}

uint64_t ChunkSums::Sum(const std::byte* chunk) const {
  return XXH3_64bits_withSecret(chunk, kChunkBytes, secret_.data(), secret_.size());
}

void ChunkSums::Note(uintptr_t page, const std::byte* data) {
  const uint64_t set = SetOf(page);
  MutexLock lock(&locks_[set % kLocks]);
  const uint64_t place = PlaceOf(page, set);
  *key(place) = page;
  uint64_t* const to = sums(place);
  for (size_t chunk = 0; chunk < chunks_; ++chunk) to[chunk] = Sum(data + chunk * kChunkBytes);
}

void ChunkSums::Take(uintptr_t page, const std::byte* data, absl::Span<ChunkMask> masks) {
  const uint64_t set = SetOf(page);
  MutexLock lock(&locks_[set % kLocks]);
  const uint64_t place = PlaceOf(page, set);
  if (*key(place) != page) {
    std::fill(masks.begin(), masks.end(), kAllChunks);
    return;
  }
  *key(place) = 0;
  const uint64_t* const was = sums(place);
  std::fill(masks.begin(), masks.end(), ChunkMask{0});
  for (size_t chunk = 0; chunk < chunks_; ++chunk) {
    if (was[chunk] == Sum(data + chunk * kChunkBytes)) continue;
    masks[chunk / kChunksPerPage] |= static_cast<ChunkMask>(1u << chunk % kChunksPerPage);
  }
}

}  // namespace nram
