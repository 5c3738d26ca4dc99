#ifndef NRAM_FSD_PAGE_SET_H_
#define NRAM_FSD_PAGE_SET_H_

#include <array>
#include <cstdint>
#include <memory>

#include "absl/container/btree_map.h"
#include "base/units.h"

namespace nram {

// The pages of a file that have data: a bit each. A span with any takes 32 bytes, other spans nothing; a file of up to
// 64 pages takes nothing beyond the object. With it, holes are read, found and counted without a server. Not
// thread-safe.
class PageSet {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;

  uint64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }

  // How many pages of [first, end) are in the set.
  uint64_t Count(uint64_t first, uint64_t end) const;
  // Return the number of pages that were not in the set, or were.
  uint64_t Add(uint64_t first, uint64_t end);
  uint64_t Remove(uint64_t first, uint64_t end);

  // Those of [first, end) that `other`, not this set, has.
  void AddAll(const PageSet& other, uint64_t first = 0, uint64_t end = kNone) {
    other.ForEachRun(first, end, [this](uint64_t from, uint64_t to) { Add(from, to); });
  }
  void RemoveAll(const PageSet& other, uint64_t first = 0, uint64_t end = kNone) {
    other.ForEachRun(first, end, [this](uint64_t from, uint64_t to) { Remove(from, to); });
  }

  // The first page at or after `page` that is in the set, kNone if there is none; the first that is not.
  uint64_t NextIn(uint64_t page) const;
  uint64_t NextOut(uint64_t page) const;

  // Calls `visit(from, to)` for each run [from, to) of pages of [first, end) that are in the set. It must not change
  // the set.
  template <typename Visit>
  void ForEachRun(uint64_t first, uint64_t end, Visit visit) const {
    for (uint64_t from = NextIn(first); from < end; from = NextIn(from)) {
      const uint64_t to = NextOut(from) < end ? NextOut(from) : end;
      visit(from, to);
      from = to;
    }
  }

 private:
  static constexpr uint64_t kWordPages = 64;
  static constexpr uint64_t kBlockPages = kPagesPerSpan;
  using Block = std::array<uint64_t, kBlockPages / kWordPages>;
  using Blocks = absl::btree_map<uint64_t, Block>;  // by first page / kBlockPages

  // The word of the pages from `word * 64` on. Null: no page of its block is in the set. MakeWord makes it.
  const uint64_t* Word(uint64_t word) const;
  uint64_t* MakeWord(uint64_t word);
  // Calls `visit(word number, bits of [first, end) in it)` for each word. Skips words that have no block, unless `all`.
  template <typename Visit>
  void ForEachWord(uint64_t first, uint64_t end, bool all, Visit visit) const;

  uint64_t low_ = 0;  // the first 64 pages
  std::unique_ptr<Blocks> blocks_;
  uint64_t size_ = 0;
};

}  // namespace nram

#endif  // NRAM_FSD_PAGE_SET_H_
