#ifndef NRAM_FSD_PAGE_SET_H_
#define NRAM_FSD_PAGE_SET_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/container/btree_map.h"
#include "base/units.h"

namespace nram {

// Which pages of a file have data: a bit each, 32 bytes a span that has any, nothing for spans that have none, and
// nothing beyond the object for files of up to 64 pages. With it, holes are read, found and counted without asking a
// server. Not thread-safe.
class PageSet {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;

  uint64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // Pages of [first, end) that are in the set.
  uint64_t Count(uint64_t first, uint64_t end) const;
  // Returns how many were not in the set, or were.
  uint64_t Add(uint64_t first, uint64_t end);
  uint64_t Remove(uint64_t first, uint64_t end);

  // The first page at or after `page` that is in the set, kNone if there is none; or that is not.
  uint64_t NextIn(uint64_t page) const;
  uint64_t NextOut(uint64_t page) const;

 private:
  static constexpr uint64_t kWordPages = 64;
  static constexpr uint64_t kBlockPages = kPagesPerSpan;
  using Block = std::array<uint64_t, kBlockPages / kWordPages>;
  using Blocks = absl::btree_map<uint64_t, Block>;  // by first page / kBlockPages

  // The word of the pages from `word * 64` on; null if none of them is in the set and `make` is false.
  const uint64_t* Word(uint64_t word) const;
  uint64_t* MakeWord(uint64_t word);
  // Calls `visit(word number, bits of [first, end) in it)` for each word; where there is no block, skips it unless
  // `all`.
  template <typename Visit>
  void ForEachWord(uint64_t first, uint64_t end, bool all, Visit visit) const;

  uint64_t low_ = 0;  // the first 64 pages
  std::unique_ptr<Blocks> blocks_;
  uint64_t size_ = 0;
};

}  // namespace nram

#endif  // NRAM_FSD_PAGE_SET_H_
