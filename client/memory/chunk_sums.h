#ifndef NRAM_CLIENT_MEMORY_CHUNK_SUMS_H_
#define NRAM_CLIENT_MEMORY_CHUNK_SUMS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mapping.h"
#include "base/sync.h"
#include "base/units.h"

namespace nram {

// Remembers each page as servers have it, in 64 bits a chunk, so that only chunks that differ are written back. The
// sums (XXH3) are keyed by a secret that only this object has: a changed chunk passes for unchanged once in 2^64 times.
//
// It is a cache in sets of sixteen places: if it was made for n pages, it knows three in four of the last n, or more.
// Thread-safe.
class ChunkSums {
 public:
  // `page_bytes`: a multiple of 4096. Memory is touched only as it is used.
  static absl::StatusOr<std::unique_ptr<ChunkSums>> New(size_t page_bytes, uint64_t pages);
  // From now on for `pages` pages. Forgets all: pages that are dirty now are written back whole. After an error nothing
  // has changed.
  absl::Status Resize(uint64_t pages);
  static constexpr uint64_t BytesPerPage(size_t page_bytes) {
    return sizeof(uintptr_t) + page_bytes / kChunkBytes * sizeof(uint64_t);
  }

  // Servers have `data` as the page. Replaces an earlier note of it.
  void Note(uintptr_t page, const std::byte* data);
  // Sets a mask for each 4 KiB of the page: the chunks of `data` that differ from the note, or all chunks if the page
  // is not known any more. Forgets the page.
  void Take(uintptr_t page, const std::byte* data, absl::Span<ChunkMask> masks);

  // For how many pages it was made, about.
  uint64_t pages() const { return sets_.load(std::memory_order_relaxed) * kWays; }
  uint64_t memory_bytes() const { return pages() * BytesPerPage(page_bytes_); }

 private:
  static constexpr uint64_t kWays = 16;  // places that a page may have
  static constexpr size_t kLocks = 32;  // Swap holds all of them; a checker of lock orders knows 64 in all

  explicit ChunkSums(size_t page_bytes);
  uint64_t SetOf(uintptr_t page, uint64_t sets) const;
  // Locks the page's set, which it returns, and unlocks it.
  uint64_t LockSet(uintptr_t page) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  void UnlockSet(uint64_t set) ABSL_NO_THREAD_SAFETY_ANALYSIS { locks_[set % kLocks].Unlock(); }
  void Swap(uint64_t sets, Mapping* keys, Mapping* sums) ABSL_NO_THREAD_SAFETY_ANALYSIS;
  // The page's place, or, if it has none, the one that it should take.
  uint64_t PlaceOf(uintptr_t page, uint64_t set) const;
  uint64_t Sum(const std::byte* chunk) const;
  uintptr_t* key(uint64_t place) const { return reinterpret_cast<uintptr_t*>(keys_.data()) + place; }
  uint64_t* sums(uint64_t place) const { return reinterpret_cast<uint64_t*>(sums_.data()) + place * chunks_; }

  const size_t page_bytes_;
  const size_t chunks_;            // a page
  std::atomic<uint64_t> sets_{0};  // changed under all locks
  std::array<std::byte, 192> secret_;
  std::array<Mutex, kLocks> locks_;  // each of every kLocks-th set
  Mapping keys_;                     // addresses of pages; 0: none
  Mapping sums_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_CHUNK_SUMS_H_
