#include "memserver/page_index.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>

namespace nram {

// Entries are packed in the order of their pages. An entry's place is the number of earlier pages that exist.
struct PageIndex::Leaf {
  // Twelve bytes. A 64-bit member would align them to sixteen.
  struct Packed {
    uint32_t mask_and_low_frame;
    uint32_t high_frame_and_born;
    uint32_t crc;
  };

  uint16_t born;
  uint16_t capacity;
  SpanGeneration generation;
  uint64_t exists[kPagesPerSpan / 64];
  std::byte entries[];  // each a Packed, and in a sealed region a PageSeal behind it

  static constexpr uint64_t kFrameMask = (uint64_t{1} << 40) - 1;
  static constexpr size_t EntryBytes(Pages pages) {
    return sizeof(Packed) + (pages == Pages::kSealed ? sizeof(PageSeal) : 0);
  }
  static constexpr size_t OwnBytes(uint32_t capacity, Pages pages) {
    return sizeof(Leaf) + capacity * EntryBytes(pages);
  }
  // The memory that malloc takes for a leaf: its bytes and a word of malloc's, rounded to 16.
  static constexpr uint64_t Bytes(uint32_t capacity, Pages pages) {
    return (OwnBytes(capacity, pages) + sizeof(size_t) + 15) / 16 * 16;
  }
  std::byte* At(uint32_t rank, Pages pages) { return entries + rank * EntryBytes(pages); }
  const std::byte* At(uint32_t rank, Pages pages) const { return entries + rank * EntryBytes(pages); }
  PageEntry EntryAt(uint32_t rank, Pages pages) const {
    Packed packed;
    memcpy(&packed, At(rank, pages), sizeof packed);
    return Unpack(packed);
  }
  void SetEntry(uint32_t rank, Pages pages, const PageEntry& entry) {
    const Packed packed = Pack(entry);
    memcpy(At(rank, pages), &packed, sizeof packed);
  }
  uint32_t count() const {
    uint32_t count = 0;
    for (const uint64_t word : exists) count += std::popcount(word);
    return count;
  }
  bool Has(uint32_t page) const { return (exists[page / 64] >> (page % 64) & 1) != 0; }
  uint32_t Rank(uint32_t page) const {
    uint32_t rank = std::popcount(exists[page / 64] & ((uint64_t{1} << (page % 64)) - 1));
    for (uint32_t word = 0; word < page / 64; ++word) rank += std::popcount(exists[word]);
    return rank;
  }
  static Packed Pack(const PageEntry& entry) {
    const uint64_t word = uint64_t{entry.born} << 48 | (entry.frame & kFrameMask) << 8 | entry.mask;
    return {static_cast<uint32_t>(word), static_cast<uint32_t>(word >> 32), entry.crc};
  }
  static PageEntry Unpack(const Packed& packed) {
    const uint64_t word = uint64_t{packed.high_frame_and_born} << 32 | packed.mask_and_low_frame;
    return {word >> 8 & kFrameMask, static_cast<ChunkMask>(word), packed.crc, static_cast<uint16_t>(word >> 48)};
  }
};

namespace {

// Small leaves double, larger ones grow by eight, or by three in a sealed region. So one page never adds more index
// than its reservation has for it.
constexpr uint32_t RoundCapacity(uint32_t wanted, bool sealed) {
  uint32_t capacity = wanted <= (sealed ? 4 : 8) ? std::bit_ceil(wanted) : 0;
  if (capacity == 0) capacity = sealed ? 4 + (wanted - 4 + 2) / 3 * 3 : (wanted + 7) / 8 * 8;
  return std::min<uint32_t>(capacity, kPagesPerSpan);
}

}  // namespace

// The most that one page can add to the index. It may grow its leaf. Or it may make a leaf; if that is the second one,
// the tree with two entries comes with it, of which a sealed region has paid one.
constexpr uint64_t PageIndex::BytesPerPageMax(Pages pages) {
  const bool sealed = pages == Pages::kSealed;
  const auto leaf_bytes = [&](uint32_t count) { return Leaf::Bytes(RoundCapacity(count, sealed), pages); };
  uint64_t most = leaf_bytes(1) + 2 * kTreeBytesPerSpan - PrepaidBytes(pages);
  for (uint32_t count = 2; count <= kPagesPerSpan; ++count) {
    most = std::max(most, leaf_bytes(count) - leaf_bytes(count - 1));
  }
  return most;
}

void PageIndex::LeafFree::operator()(Leaf* leaf) const { std::free(leaf); }

PageIndex::~PageIndex() {
  static_assert(BytesPerPageMax(Pages::kPlain) <= kIndexBytesPerPageMax);
  static_assert(BytesPerPageMax(Pages::kSealed) <= kIndexBytesPerPageMax);
  uint64_t charged = only_leaf_ != nullptr ? Leaf::Bytes(only_leaf_->capacity, pages_are_) : 0;
  if (tree_ != nullptr) {
    for (const auto& [span, leaf] : *tree_) charged += Leaf::Bytes(leaf->capacity, pages_are_);
    charged += TreeBytes(tree_->size());
  }
  if (charged > 0) account_->ReleaseIndex(charged);
}

uint64_t PageIndex::spans() const {
  if (!has_generations_) return tree_ != nullptr ? tree_->size() : only_leaf_ != nullptr ? 1 : 0;
  uint64_t count = 0;
  VisitLeaves(0, UINT64_MAX, [&](uint64_t, const Leaf* leaf) {
    count += leaf->count() > 0;
    return true;
  });
  return count;
}

PageIndex::Leaf* PageIndex::FindLeaf(uint64_t span) const {
  if (tree_ == nullptr) return only_span_ == span ? only_leaf_.get() : nullptr;
  const auto it = tree_->find(span);
  return it == tree_->end() ? nullptr : it->second.get();
}

PageEntry PageIndex::Find(uint64_t page) const {
  const Leaf* leaf = FindLeaf(page / kPagesPerSpan);
  const uint32_t in_span = page % kPagesPerSpan;
  if (leaf == nullptr || !leaf->Has(in_span)) return {};
  return leaf->EntryAt(leaf->Rank(in_span), pages_are_);
}

void PageIndex::FindSome(uint64_t first_page, uint64_t* wanted, PageEntry* entries, PageSeal* seals) const {
  const Leaf* const leaf = FindLeaf(first_page / kPagesPerSpan);
  if (leaf == nullptr) return;
  for (uint64_t rest = *wanted; rest != 0; rest &= rest - 1) {
    const int i = std::countr_zero(rest);
    const uint32_t in_span = (first_page + i) % kPagesPerSpan;
    if (!leaf->Has(in_span)) continue;
    const uint32_t rank = leaf->Rank(in_span);
    entries[i] = leaf->EntryAt(rank, pages_are_);
    if (sealed() && seals != nullptr)
      memcpy(&seals[i], leaf->At(rank, pages_are_) + sizeof(Leaf::Packed), sizeof seals[i]);
    *wanted &= ~(uint64_t{1} << i);
  }
}

PageSeal PageIndex::SealOf(uint64_t page) const {
  PageSeal seal{};
  const Leaf* leaf = FindLeaf(page / kPagesPerSpan);
  const uint32_t in_span = page % kPagesPerSpan;
  if (!sealed() || leaf == nullptr || !leaf->Has(in_span)) return seal;
  memcpy(&seal, leaf->At(leaf->Rank(in_span), pages_are_) + sizeof(Leaf::Packed), sizeof seal);
  return seal;
}

PageIndex::LeafPtr* PageIndex::SlotFor(uint64_t span, Payment* payment) {
  if (tree_ == nullptr) {
    if (only_leaf_ == nullptr) only_span_ = span;
    if (only_span_ == span) return &only_leaf_;
    // With the second span the region gets a tree.
    if (TreeBytes(1) > 0 && !account_->ChargeIndex(TreeBytes(1), payment)) return nullptr;
    tree_ = std::make_unique<Tree>();
    (*tree_)[only_span_] = std::move(only_leaf_);
  }
  auto it = tree_->find(span);
  if (it == tree_->end()) {
    const uint64_t bytes = TreeBytes(tree_->size() + 1) - TreeBytes(tree_->size());
    if (bytes > 0 && !account_->ChargeIndex(bytes, payment)) return nullptr;
    it = tree_->emplace(span, nullptr).first;
  }
  return &it->second;
}

uint64_t PageIndex::DropLeaf(uint64_t span) {
  const auto it = tree_ != nullptr ? tree_->find(span) : Tree::iterator();
  LeafPtr* const slot = tree_ != nullptr ? &it->second : &only_leaf_;
  const uint64_t bytes = *slot != nullptr ? Leaf::Bytes((*slot)->capacity, pages_are_) : 0;
  if (*slot != nullptr && (*slot)->generation != SpanGeneration{} && !forgets_generations_) {
    if ((*slot)->capacity == 0) return 0;
    auto* const shrunk = static_cast<Leaf*>(std::realloc(slot->release(), sizeof(Leaf)));
    CHECK(shrunk != nullptr);
    shrunk->capacity = 0;
    slot->reset(shrunk);
    return bytes - Leaf::Bytes(0, pages_are_);
  }
  slot->reset();
  if (tree_ == nullptr) return bytes;
  tree_->erase(it);
  return bytes + TreeBytes(tree_->size() + 1) - TreeBytes(tree_->size());
}

bool PageIndex::GrowLeaf(LeafPtr* slot, uint32_t capacity, Payment* payment) {
  Leaf* leaf = slot->get();
  const uint64_t old_bytes = leaf != nullptr ? Leaf::Bytes(leaf->capacity, pages_are_) : 0;
  if (!account_->ChargeIndex(Leaf::Bytes(capacity, pages_are_) - old_bytes, payment)) return false;
  auto* grown = static_cast<Leaf*>(std::realloc(slot->release(), Leaf::OwnBytes(capacity, pages_are_)));
  CHECK(grown != nullptr);
  if (leaf == nullptr) {
    grown->born = birth_;
    grown->generation = SpanGeneration{};
    memset(grown->exists, 0, sizeof grown->exists);
  }
  grown->capacity = static_cast<uint16_t>(capacity);
  slot->reset(grown);
  return true;
}

bool PageIndex::Prepare(uint64_t page, uint64_t pages, Payment* payment) {
  const uint64_t span = page / kPagesPerSpan;
  DCHECK_EQ((page + pages - 1) / kPagesPerSpan, span);
  Leaf* leaf = FindLeaf(span);
  uint32_t missing = 0;
  for (uint64_t i = 0; i < pages; ++i) {
    if (leaf == nullptr || !leaf->Has((page + i) % kPagesPerSpan)) ++missing;
  }
  return MakeRoom(span, missing, payment);
}

bool PageIndex::PrepareSome(uint64_t first_page, uint64_t wanted, Payment* payment) {
  const Leaf* const leaf = FindLeaf(first_page / kPagesPerSpan);
  uint32_t missing = 0;
  for (uint64_t rest = wanted; rest != 0; rest &= rest - 1) {
    if (leaf == nullptr || !leaf->Has((first_page + std::countr_zero(rest)) % kPagesPerSpan)) ++missing;
  }
  return MakeRoom(first_page / kPagesPerSpan, missing, payment);
}

bool PageIndex::MakeRoom(uint64_t span, uint32_t missing, Payment* payment) {
  const Leaf* const leaf = FindLeaf(span);
  const uint32_t wanted = (leaf != nullptr ? leaf->count() : 0) + missing;
  if (leaf != nullptr && wanted <= leaf->capacity) return true;
  LeafPtr* slot = SlotFor(span, payment);
  if (slot == nullptr) return false;
  if (GrowLeaf(slot, wanted == 0 ? 0 : RoundCapacity(wanted, sealed()), payment)) return true;
  if (*slot == nullptr && tree_ != nullptr) {
    account_->ReturnIndex(DropLeaf(span), payment != nullptr && payment->pays() ? payment : nullptr);
  }
  return false;
}

void PageIndex::Set(uint64_t page, PageEntry entry, const PageSeal* seal) {
  DCHECK_NE(entry.mask, 0);
  CHECK_EQ(seal != nullptr, sealed());
  Leaf* leaf = FindLeaf(page / kPagesPerSpan);
  CHECK(leaf != nullptr);
  const uint32_t in_span = page % kPagesPerSpan;
  const uint32_t rank = leaf->Rank(in_span);
  if (!leaf->Has(in_span)) {
    const uint32_t count = leaf->count();
    CHECK_LT(count, leaf->capacity);
    memmove(leaf->At(rank + 1, pages_are_), leaf->At(rank, pages_are_), (count - rank) * Leaf::EntryBytes(pages_are_));
    leaf->exists[in_span / 64] |= uint64_t{1} << (in_span % 64);
    ++pages_;
  }
  leaf->SetEntry(rank, pages_are_, entry);
  if (seal != nullptr) memcpy(leaf->At(rank, pages_are_) + sizeof(Leaf::Packed), seal, sizeof *seal);
}

void PageIndex::Erase(uint64_t page) {
  Leaf* leaf = FindLeaf(page / kPagesPerSpan);
  const uint32_t in_span = page % kPagesPerSpan;
  if (leaf == nullptr || !leaf->Has(in_span)) return;
  const uint32_t rank = leaf->Rank(in_span);
  memmove(leaf->At(rank, pages_are_), leaf->At(rank + 1, pages_are_),
          (leaf->count() - rank - 1) * Leaf::EntryBytes(pages_are_));
  leaf->exists[in_span / 64] &= ~(uint64_t{1} << (in_span % 64));
  --pages_;
}

void PageIndex::DropIfEmpty(uint64_t page, Payment* payment) {
  const Leaf* leaf = FindLeaf(page / kPagesPerSpan);
  if (leaf == nullptr || leaf->count() > 0) return;
  account_->ReturnIndex(DropLeaf(page / kPagesPerSpan), payment);
}

uint64_t PageIndex::Visit(uint64_t begin, uint64_t end, uint64_t spans_max,
                          absl::FunctionRef<void(uint64_t page, PageEntry* entry)> visit, Refund* refund) {
  const size_t entry_bytes = Leaf::EntryBytes(pages_are_);
  uint64_t seen = 0;
  while (begin < end) {
    uint64_t span = begin / kPagesPerSpan;
    Leaf* leaf = nullptr;
    if (tree_ == nullptr) {
      if (only_leaf_ == nullptr || only_span_ < span) return end;
      span = only_span_;
      leaf = only_leaf_.get();
    } else {
      const auto it = tree_->lower_bound(span);
      if (it == tree_->end()) return end;
      span = it->first;
      leaf = it->second.get();
    }
    const uint64_t span_begin = span * kPagesPerSpan;
    if (span_begin >= end) return end;
    if (seen++ == spans_max) return std::max(begin, span_begin);
    const uint32_t first = begin > span_begin ? begin - span_begin : 0;
    const uint32_t last = std::min(end - span_begin, kPagesPerSpan);
    const uint32_t count = leaf->count();
    uint32_t kept = leaf->Rank(first);
    uint32_t at = kept;
    for (uint32_t page = first; page < last; ++page) {
      if (!leaf->Has(page)) continue;
      PageEntry entry = leaf->EntryAt(at++, pages_are_);
      visit(span_begin + page, &entry);
      if (entry.mask == 0) {
        leaf->exists[page / 64] &= ~(uint64_t{1} << (page % 64));
      } else {
        if (kept + 1 != at) memcpy(leaf->At(kept, pages_are_), leaf->At(at - 1, pages_are_), entry_bytes);
        leaf->SetEntry(kept++, pages_are_, entry);
      }
    }
    memmove(leaf->At(kept, pages_are_), leaf->At(at, pages_are_), (count - at) * entry_bytes);
    const uint32_t erased = at - kept;
    pages_ -= erased;
    if (erased == count) account_->ReleaseIndex(DropLeaf(span), refund);
    begin = span_begin + kPagesPerSpan;
  }
  return end;
}

void PageIndex::VisitLeaves(uint64_t from_span, uint64_t end_span,
                            absl::FunctionRef<bool(uint64_t span, Leaf* leaf)> visit) const {
  if (tree_ == nullptr) {
    if (only_leaf_ != nullptr && only_span_ >= from_span && only_span_ < end_span) visit(only_span_, only_leaf_.get());
    return;
  }
  for (auto it = tree_->lower_bound(from_span); it != tree_->end() && it->first < end_span; ++it) {
    if (!visit(it->first, it->second.get())) return;
  }
}

uint64_t PageIndex::MoveFrames(uint64_t page, uint64_t* looks_left,
                               absl::FunctionRef<FrameLoc(FrameLoc frame, ChunkMask mask)> move) {
  uint64_t next = kNoPage;
  VisitLeaves(page / kPagesPerSpan, UINT64_MAX, [&](uint64_t span, Leaf* leaf) {
    const uint64_t span_begin = span * kPagesPerSpan;
    const auto first = static_cast<uint32_t>(page > span_begin ? page - span_begin : 0);
    if (*looks_left == 0) {
      next = span_begin + first;
      return false;
    }
    --*looks_left;
    uint32_t rank = leaf->Rank(first);
    for (uint32_t word = first / 64; word < kPagesPerSpan / 64; ++word) {
      uint64_t rest = leaf->exists[word];
      if (word == first / 64) rest &= ~uint64_t{0} << (first % 64);
      for (; rest != 0; rest &= rest - 1, ++rank) {
        PageEntry entry = leaf->EntryAt(rank, pages_are_);
        const FrameLoc moved = *looks_left > 0 ? move(entry.frame, entry.mask) : kNoFrame;
        if (moved == kNoFrame) {
          next = span_begin + word * 64 + std::countr_zero(rest);
          return false;
        }
        --*looks_left;
        if (moved == entry.frame) continue;
        entry.frame = moved;
        leaf->SetEntry(rank, pages_are_, entry);
      }
    }
    return true;
  });
  return next;
}

void PageIndex::VisitSpans(uint64_t from_span,
                           absl::FunctionRef<bool(uint64_t span, SpanGeneration generation)> visit) const {
  VisitLeaves(from_span, UINT64_MAX, [&](uint64_t span, const Leaf* leaf) {
    return (leaf->count() == 0 && leaf->generation == SpanGeneration{}) || visit(span, leaf->generation);
  });
}

uint64_t PageIndex::NextSpan(uint64_t from_span) const {
  uint64_t next = kNoSpan;
  VisitSpans(from_span, [&](uint64_t span, SpanGeneration) {
    next = span;
    return false;
  });
  return next;
}

PageIndex::SpanPages PageIndex::PagesOf(uint64_t span) const {
  SpanPages pages{};
  if (const Leaf* const leaf = FindLeaf(span); leaf != nullptr) std::copy_n(leaf->exists, pages.size(), pages.begin());
  return pages;
}

uint16_t PageIndex::BirthOf(uint64_t page) const {
  const Leaf* const leaf = FindLeaf(page / kPagesPerSpan);
  return leaf == nullptr ? 0 : leaf->born;
}

uint64_t PageIndex::ChangeBirths(uint64_t page, uint64_t spans_max, absl::FunctionRef<uint16_t(uint16_t born)> change) {
  uint64_t next = kNoPage;
  VisitLeaves(page / kPagesPerSpan, UINT64_MAX, [&](uint64_t span, Leaf* leaf) {
    if (spans_max-- == 0) {
      next = span * kPagesPerSpan;
      return false;
    }
    leaf->born = change(leaf->born);
    const uint32_t count = leaf->count();
    for (uint32_t rank = 0; rank < count; ++rank) {
      PageEntry entry = leaf->EntryAt(rank, pages_are_);
      entry.born = change(entry.born);
      leaf->SetEntry(rank, pages_are_, entry);
    }
    return true;
  });
  return next;
}

SpanGeneration PageIndex::GenerationOf(uint64_t page) const {
  const Leaf* const leaf = FindLeaf(page / kPagesPerSpan);
  return leaf == nullptr ? SpanGeneration{} : leaf->generation;
}

void PageIndex::SetGeneration(uint64_t page, SpanGeneration generation) {
  Leaf* const leaf = FindLeaf(page / kPagesPerSpan);
  CHECK(leaf != nullptr);
  leaf->generation = generation;
  has_generations_ = true;
}

uint64_t PageIndex::FindAbove(uint64_t from_span, uint64_t end_span, SpanGeneration bound) const {
  uint64_t found = end_span;
  VisitLeaves(from_span, end_span, [&](uint64_t span, const Leaf* leaf) {
    if (leaf->generation > bound) found = span;
    return leaf->generation <= bound;
  });
  return found;
}

void PageIndex::RaiseGenerations(uint64_t from_span, uint64_t end_span, SpanGeneration generation) {
  VisitLeaves(from_span, end_span, [&](uint64_t, Leaf* leaf) {
    if (leaf->generation != SpanGeneration{} && leaf->generation < generation) leaf->generation = generation;
    return true;
  });
}

}  // namespace nram
