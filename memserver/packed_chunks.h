#ifndef NRAM_MEMSERVER_PACKED_CHUNKS_H_
#define NRAM_MEMSERVER_PACKED_CHUNKS_H_

// A frame has only a page's stored chunks, packed, in order. These are pure functions on such bytes.

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/units.h"
#include "base/zero_chunks.h"
#include "proto/message.h"

namespace nram {

// The place of chunk `number` in the packed frame of a page with `stored` chunks.
inline size_t PackedOffset(ChunkMask stored, int number) {
  return std::popcount(static_cast<unsigned>(stored) & ((1u << number) - 1)) * kChunkBytes;
}

// Copies the chunks of `which` from a full page into a packed frame.
inline void Pack(const std::byte* page, ChunkMask which, ChunkMask stored, std::byte* frame) {
  for (uint32_t rest = which; rest != 0; rest &= rest - 1) {
    const int chunk = std::countr_zero(rest);
    memcpy(frame + PackedOffset(stored, chunk), page + chunk * kChunkBytes, kChunkBytes);
  }
}

// Copies the chunks of `which` from one packed frame to another.
inline void Repack(const std::byte* from, ChunkMask from_stored, ChunkMask which, std::byte* to, ChunkMask to_stored) {
  for (uint32_t rest = which; rest != 0; rest &= rest - 1) {
    const int chunk = std::countr_zero(rest);
    memcpy(to + PackedOffset(to_stored, chunk), from + PackedOffset(from_stored, chunk), kChunkBytes);
  }
}

}  // namespace nram

#endif  // NRAM_MEMSERVER_PACKED_CHUNKS_H_
