#ifndef NRAM_CLIENT_MANAGED_RUNS_H_
#define NRAM_CLIENT_MANAGED_RUNS_H_

// Runs of blocks: neighbours that one request moves; pure.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "base/units.h"
#include "client/managed/block.h"

namespace nram {

// The most bytes of blocks that one request moves: as many as the pool moves by one message.
inline constexpr uint64_t kRunBytes = 256 * kKiB;

using BlockRun = absl::Span<Block* const>;

inline void SortByOffset(std::vector<Block*>* blocks) {
  std::sort(blocks->begin(), blocks->end(), [](const Block* a, const Block* b) { return a->offset < b->offset; });
}

// In the store.
inline bool AreNeighbours(const Block& a, const Block& b) { return a.offset + a.bytes == b.offset; }
// Here too.
inline bool AreNeighboursHere(const Block& a, const Block& b) {
  return AreNeighbours(a, b) && a.data != nullptr && a.data + a.bytes == b.data;
}
// Blocks that have no buffer yet may be neighbours here, except fixed ones.
inline bool MayBeNeighboursHere(const Block& a, const Block& b) { return AreNeighbours(a, b) && !a.fixed && !b.fixed; }

inline uint64_t BytesOf(BlockRun blocks) {
  uint64_t bytes = 0;
  for (const Block* const block : blocks) bytes += block->bytes;
  return bytes;
}

// The first blocks, as far as each is the neighbour of the one before it and all have `most` bytes at most together; at
// least one of them.
template <typename Follows>
BlockRun FirstRun(BlockRun blocks, uint64_t most, Follows follows) {
  size_t count = 1;
  for (uint64_t bytes = blocks[0]->bytes; count < blocks.size(); ++count) {
    bytes += blocks[count]->bytes;
    if (bytes > most || !follows(*blocks[count - 1], *blocks[count])) break;
  }
  return blocks.first(count);
}

// Calls visit(run) for each run of the blocks, which it sorts.
template <typename Visit>
void ForEachRun(std::vector<Block*>* blocks, Visit visit) {
  SortByOffset(blocks);
  for (BlockRun rest = *blocks; !rest.empty();) {
    const BlockRun run = FirstRun(rest, kRunBytes, AreNeighboursHere);
    rest.remove_prefix(run.size());
    visit(run);
  }
}

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_RUNS_H_
