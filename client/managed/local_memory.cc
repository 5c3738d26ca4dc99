#include "client/managed/local_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "base/units.h"

#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif

namespace nram {
namespace {

// Pages are given back in such pieces: single ones, for bookkeeping that grows, would leave pieces too short for a
// block.
constexpr uint64_t kShrinkBytes = 64 * kKiB;
constexpr uint64_t kGrowBytes = 256 * kMiB;  // of addresses, which cost nothing until they are touched

uint64_t AddressOf(const std::byte* data) { return reinterpret_cast<uintptr_t>(data); }

}  // namespace

std::byte* LocalMemory::TakeFixed(uint64_t bytes) {
  std::optional<uint64_t> found = addresses_.Take(bytes);
  if (!found.has_value()) {
    absl::StatusOr<Mapping> mapping = Mapping::Anonymous(std::max(bytes, kGrowBytes));
    if (!mapping.ok()) mapping = Mapping::Anonymous(bytes);
    if (!mapping.ok()) return nullptr;
    // Memory is taken and dropped in pages of 4 KiB; the account does not know huge pages.
    (void)madvise(mapping->data(), mapping->size(), MADV_NOHUGEPAGE);
    addresses_.Give(AddressOf(mapping->data()), mapping->size());
    mappings_.push_back(*std::move(mapping));
    found = addresses_.Take(bytes);
  }
  return reinterpret_cast<std::byte*>(*found);
}

void LocalMemory::DropPages(std::byte* data, uint64_t bytes) {
  if (madvise(data, bytes, MADV_DONTNEED) == 0) return;
  // The program has locked its memory (mlockall). Where the kernel has no such advice (before 5.18) the pages are not
  // dropped, and only the account is wrong. They are zeroed, because fresh memory is zeros.
  if (madvise(data, bytes, MADV_DONTNEED_LOCKED) != 0) memset(data, 0, bytes);
}

void LocalMemory::GiveFixed(std::byte* data, uint64_t bytes) {
  DropPages(data, bytes);
  addresses_.Give(AddressOf(data), bytes);
}

std::byte* LocalMemory::TakeBuffer(uint64_t bytes) {
  const std::optional<uint64_t> kept = kept_.Take(bytes);
  return kept.has_value() ? reinterpret_cast<std::byte*>(*kept) : TakeFixed(bytes);
}

void LocalMemory::GiveBuffer(std::byte* data, uint64_t bytes, uint64_t keep_bytes) {
  kept_.Give(AddressOf(data), bytes);
  Shrink(keep_bytes);
}

void LocalMemory::Shrink(uint64_t keep_bytes) {
  while (kept_.free() > keep_bytes) {
    const Extents::Range range = kept_.TakeOfShortest(RoundUp(kept_.free() - keep_bytes, kShrinkBytes));
    GiveFixed(reinterpret_cast<std::byte*>(range.begin), range.length);
  }
}

}  // namespace nram
