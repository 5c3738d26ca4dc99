#ifndef NRAM_BASE_ZERO_CHUNKS_H_
#define NRAM_BASE_ZERO_CHUNKS_H_

// Which chunks hold nothing but zeros: those are not stored.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/units.h"

namespace nram {

inline bool IsZero(const std::byte* chunk) {
  uint64_t words[kChunkBytes / sizeof(uint64_t)];
  // The first word tells for nearly every chunk.
  memcpy(words, chunk, sizeof(uint64_t));
  if (words[0] != 0) return false;
  memcpy(words, chunk, kChunkBytes);
  uint64_t any = 0;
  for (uint64_t word : words) any |= word;
  return any == 0;
}

// The chunks of `mask` that are not all zeros. `page` is laid out in full.
inline ChunkMask NonZero(const std::byte* page, ChunkMask mask) {
  ChunkMask result = 0;
  for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int chunk = std::countr_zero(rest);
    if (!IsZero(page + chunk * kChunkBytes)) result |= static_cast<ChunkMask>(1u << chunk);
  }
  return result;
}

}  // namespace nram

#endif  // NRAM_BASE_ZERO_CHUNKS_H_
