#ifndef NRAM_CLIENT_POOL_LOST_PAGES_H_
#define NRAM_CLIENT_POOL_LOST_PAGES_H_

// Which pages of a region were lost with their server and have not been written since. They read as DATA_LOSS, never as
// zeros. Pure.

#include <bitset>
#include <cstddef>
#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "base/units.h"

namespace nram {

// Not thread-safe. 32 bytes and a slot of the table for each span that lost anything.
class LostPages {
 public:
  bool empty() const { return spans_.empty(); }
  // All pages of the span.
  void AddSpan(uint64_t span) { spans_[span].set(); }
  // Whether a read of the range meets a lost page.
  bool MeetsRead(const ChunkRange& range) const;
  // Whether a write meets a lost page that it does not write whole. `masks`: which chunks of each page it writes; null:
  // all of the range.
  bool MeetsWrite(const ChunkRange& range, const ChunkMask* masks) const;
  // Pages that a write has written whole are lost no more.
  void RemoveWritten(const ChunkRange& range, const ChunkMask* masks);
  // Likewise, the whole pages of a trim, of any length.
  void RemoveTrimmed(const ChunkRange& range);
  // Whether a page of the span is lost.
  bool HasSpan(uint64_t span) const { return spans_.contains(span); }
  size_t memory_bytes() const { return spans_.capacity() * (sizeof(Spans::value_type) + 1); }

 private:
  using Spans = absl::flat_hash_map<uint64_t, std::bitset<kPagesPerSpan>>;

  bool Has(uint64_t page) const;
  void Remove(uint64_t page);

  Spans spans_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_LOST_PAGES_H_
