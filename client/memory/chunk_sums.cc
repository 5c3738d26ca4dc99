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
  auto sums = std::unique_ptr<ChunkSums>(new ChunkSums(page_bytes));
  NRAM_RETURN_IF_ERROR(sums->Resize(pages));
  return sums;
}

ChunkSums::ChunkSums(size_t page_bytes) : page_bytes_(page_bytes), chunks_(page_bytes / kChunkBytes) {
  static_assert(sizeof(secret_) >= XXH3_SECRET_SIZE_MIN);
  PCHECK(getrandom(secret_.data(), secret_.size(), 0) == static_cast<ssize_t>(secret_.size()));
}

absl::Status ChunkSums::Resize(uint64_t pages) {
  const uint64_t sets = std::max<uint64_t>(1, pages / kWays);
  NRAM_ASSIGN_OR_RETURN(Mapping keys, Mapping::Untouched(sets * kWays * sizeof(uintptr_t)));
  NRAM_ASSIGN_OR_RETURN(Mapping sums, Mapping::Untouched(sets * kWays * chunks_ * sizeof(uint64_t)));
  Swap(sets, &keys, &sums);
  return absl::OkStatus();
}

void ChunkSums::Swap(uint64_t sets, Mapping* keys, Mapping* sums) {
  for (Mutex& mu : locks_) mu.Lock();
  sets_.store(sets);
  std::swap(keys_, *keys);
  std::swap(sums_, *sums);
  for (Mutex& mu : locks_) mu.Unlock();
}

uint64_t ChunkSums::LockSet(uintptr_t page) {
  while (true) {
    const uint64_t sets = sets_.load();
    const uint64_t set = SetOf(page, sets);
    locks_[set % kLocks].Lock();
    if (sets_.load() == sets) return set;
    locks_[set % kLocks].Unlock();
  }
}

uint64_t ChunkSums::SetOf(uintptr_t page, uint64_t sets) const {
  // Neighbours go to different sets, and so do pages at powers of two from one another (Knuth's multiplicative hash).
  const uint64_t mixed = page / page_bytes_ * 0x9E3779B97F4A7C15u;
  return static_cast<uint64_t>((static_cast<unsigned __int128>(mixed) * sets) >> 64);
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
  const uint64_t set = LockSet(page);
  const uint64_t place = PlaceOf(page, set);
  *key(place) = page;
  uint64_t* const to = sums(place);
  for (size_t chunk = 0; chunk < chunks_; ++chunk) to[chunk] = Sum(data + chunk * kChunkBytes);
  UnlockSet(set);
}

void ChunkSums::Take(uintptr_t page, const std::byte* data, absl::Span<ChunkMask> masks) {
  const uint64_t set = LockSet(page);
  const uint64_t place = PlaceOf(page, set);
  if (*key(place) != page) {
    UnlockSet(set);
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
  UnlockSet(set);
}

}  // namespace nram
