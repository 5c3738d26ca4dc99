#ifndef NRAM_MEMSERVER_PAGE_INDEX_H_
#define NRAM_MEMSERVER_PAGE_INDEX_H_

// One region's index: page -> (frame, stored chunks, their checksum). A leaf has the pages of one span: a map of 256
// bits for the pages that exist, and 12 bytes for each of these, in order. A region's leaves are in a tree. If the
// region has only one span, it holds the leaf itself. A full span costs 12.3 bytes a page, a one-page region 64.
//
// The pages of a sealed region (adr/0016) have seals too: 36 bytes a page, and 36.3 in a full span. The tree's first
// entry is then paid with the region, so that a page costs no more than kIndexBytesPerPageMax here either.
//
// A span of a region with several copies has a generation (adr/0014), in its leaf. Such a leaf stays when the span has
// lost its last page. It keeps its birth (SetBirth) too, so that versions of the region know newer pages.

#include <array>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/functional/function_ref.h"
#include "base/units.h"
#include "memserver/frame_arena.h"
#include "proto/wire.h"

namespace nram {

struct PageEntry {
  FrameLoc frame = kNoFrame;
  ChunkMask mask = 0;  // 0: nothing stored, the page reads as zeros
  uint32_t crc = 0;    // CRC-32C of the stored chunks, as their sender computed it
  uint16_t born = 0;   // of a region with versions: RegionVersions::born() of its time
};

// Not thread-safe: the lock of the region's shard guards it. Owns its leaves (charged to `account` as index), but not
// the frames: the caller that drops an entry frees its frame.
class PageIndex {
 public:
  enum class Pages { kPlain, kSealed };
  explicit PageIndex(ArenaAccount* account, Pages pages = Pages::kPlain) : account_(account), pages_are_(pages) {}
  PageIndex(PageIndex&&) = delete;
  ~PageIndex();

  // Mask 0 if the page is a hole.
  PageEntry Find(uint64_t page) const;
  // Finds up to 64 pages within one span: bit i of *wanted asks for page first_page + i. Puts those that are here into
  // entries[i], and of a sealed region into seals[i] (may be null), and clears their bits. Leaves others as they are.
  void FindSome(uint64_t first_page, uint64_t* wanted, PageEntry* entries, PageSeal* seals) const;
  // Makes sure that Set of `pages` pages from `page` on, all within one span, cannot fail. False: the arena is full.
  // `payment` may be null.
  bool Prepare(uint64_t page, uint64_t pages, Payment* payment = nullptr);
  // The same for those pages first_page + i whose bit is in `wanted`. Without any: the span has a leaf.
  bool PrepareSome(uint64_t first_page, uint64_t wanted, Payment* payment = nullptr);
  // Stores an entry with a non-zero mask, in place of the old one. Prepare must have covered the page. `seal`: the
  // page's, in a sealed region; else null.
  void Set(uint64_t page, PageEntry entry, const PageSeal* seal = nullptr);
  // The seal of a page of a sealed region; zeros if the page is a hole.
  PageSeal SealOf(uint64_t page) const;
  // May leave an empty leaf behind; see DropIfEmpty.
  void Erase(uint64_t page);
  // Gives back an empty leaf of the page, or the part of it that its generation does not need, and with it the bytes
  // that `payment` (may be null) has paid for it.
  void DropIfEmpty(uint64_t page, Payment* payment = nullptr);

  // Calls `visit` for entries in [begin, end), in order, for at most `spans_max` spans. `visit` may change the entry;
  // an entry with mask 0 is erased afterwards. Returns the page to go on from, or `end`. `refund` (may be null) keeps
  // bytes of the index that this frees.
  uint64_t Visit(uint64_t begin, uint64_t end, uint64_t spans_max,
                 absl::FunctionRef<void(uint64_t page, PageEntry* entry)> visit, Refund* refund = nullptr);
  // Calls `move` for pages from `page` on, in order, and has each in the frame that `move` returns. The rest of a page
  // does not change, its seal included. Counts *looks_left down, by one a page and one a span, and ends at 0. It also
  // ends, before this page, if `move` returns kNoFrame. Returns the page to go on from, or kNoPage: there are no more.
  static constexpr uint64_t kNoPage = ~uint64_t{0};
  uint64_t MoveFrames(uint64_t page, uint64_t* looks_left,
                      absl::FunctionRef<FrameLoc(FrameLoc frame, ChunkMask mask)> move);
  // Calls `visit` with each span that holds a page or has a generation, from `from_span` on, until `visit` returns
  // false.
  void VisitSpans(uint64_t from_span, absl::FunctionRef<bool(uint64_t span, SpanGeneration generation)> visit) const;

  // The first span from `from_span` on that holds a page or has a generation; kNoSpan: there is none.
  static constexpr uint64_t kNoSpan = ~uint64_t{0};
  uint64_t NextSpan(uint64_t from_span) const;
  // A bit for each page of the span that is here.
  using SpanPages = std::array<uint64_t, kPagesPerSpan / 64>;
  SpanPages PagesOf(uint64_t span) const;

  // The birth of leaves that are made from now on; 0 at first.
  void SetBirth(uint16_t birth) { birth_ = birth; }
  // When the leaf of the page's span was born; 0 if there is none.
  uint16_t BirthOf(uint64_t page) const;
  // Calls `change` for when each leaf and each entry was born, from the page's span on, for at most `spans_max` spans,
  // and stores the results. Returns the first page of the span to go on from, or kNoPage.
  uint64_t ChangeBirths(uint64_t page, uint64_t spans_max, absl::FunctionRef<uint16_t(uint16_t born)> change);

  // The generation of the page's span; 0 if there is no leaf.
  SpanGeneration GenerationOf(uint64_t page) const;
  // The span must have a leaf: Prepare has covered a page of it, or it has a generation.
  void SetGeneration(uint64_t page, SpanGeneration generation);
  // The first span in [from_span, end_span) with a generation above `bound`; `end_span` if there is none.
  uint64_t FindAbove(uint64_t from_span, uint64_t end_span, SpanGeneration bound) const;
  // Raises the generations in [from_span, end_span) that are not 0 to `generation` at least.
  void RaiseGenerations(uint64_t from_span, uint64_t end_span, SpanGeneration generation);
  // Whether a span has a generation, or had one.
  bool has_generations() const { return has_generations_; }
  // Leaves go with their last page from now on, or when Visit comes to them.
  void ForgetGenerations() { forgets_generations_ = true; }

  ArenaAccount* account() const { return account_; }
  bool sealed() const { return pages_are_ == Pages::kSealed; }
  static constexpr uint64_t kTreeBytesPerSpan = 32;
  // The bytes that a region pays beforehand for its index.
  static constexpr uint64_t PrepaidBytes(Pages pages) { return pages == Pages::kSealed ? kTreeBytesPerSpan : 0; }
  uint64_t pages() const { return pages_; }
  // Spans that hold a page. Visits all leaves if the region has generations.
  uint64_t spans() const;

 private:
  struct Leaf;
  struct LeafFree {
    void operator()(Leaf* leaf) const;
  };
  using LeafPtr = std::unique_ptr<Leaf, LeafFree>;
  using Tree = absl::btree_map<uint64_t, LeafPtr>;
  static constexpr uint64_t BytesPerPageMax(Pages pages);
  // The charge for a tree of `leaves` leaves.
  uint64_t TreeBytes(size_t leaves) const { return (leaves - (sealed() && leaves > 0 ? 1 : 0)) * kTreeBytesPerSpan; }

  Leaf* FindLeaf(uint64_t span) const;
  // Calls `visit` with each leaf in [from_span, end_span), in order, until `visit` returns false.
  void VisitLeaves(uint64_t from_span, uint64_t end_span,
                   absl::FunctionRef<bool(uint64_t span, Leaf* leaf)> visit) const;
  bool GrowLeaf(LeafPtr* slot, uint32_t capacity, Payment* payment);
  // Makes sure that the span's leaf is there, and has room for `missing` more pages.
  bool MakeRoom(uint64_t span, uint32_t missing, Payment* payment);
  LeafPtr* SlotFor(uint64_t span, Payment* payment);
  // Drops an empty leaf, or the part of it that its generation does not need. Returns the bytes, which are still
  // charged.
  uint64_t DropLeaf(uint64_t span);

  ArenaAccount* const account_;
  const Pages pages_are_;
  uint64_t pages_ = 0;
  bool has_generations_ = false;
  bool forgets_generations_ = false;
  uint16_t birth_ = 0;
  // The only span, while there is at most one. `tree_` is null then.
  uint64_t only_span_ = 0;
  LeafPtr only_leaf_;
  std::unique_ptr<Tree> tree_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_PAGE_INDEX_H_
