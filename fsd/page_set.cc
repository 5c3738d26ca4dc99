#include "fsd/page_set.h"

#include <algorithm>
#include <bit>

namespace nram {

const uint64_t* PageSet::Word(uint64_t word) const {
  if (word == 0) return &low_;
  if (blocks_ == nullptr) return nullptr;
  const auto it = blocks_->find(word * kWordPages / kBlockPages);
  return it == blocks_->end() ? nullptr : &it->second[word % (kBlockPages / kWordPages)];
}

uint64_t* PageSet::MakeWord(uint64_t word) {
  if (word == 0) return &low_;
  if (blocks_ == nullptr) blocks_ = std::make_unique<Blocks>();
  return &(*blocks_)[word * kWordPages / kBlockPages][word % (kBlockPages / kWordPages)];
}

template <typename Visit>
void PageSet::ForEachWord(uint64_t first, uint64_t end, bool all, Visit visit) const {
  while (first < end) {
    const uint64_t word = first / kWordPages;
    const uint64_t stop = std::min((word + 1) * kWordPages, end);
    const uint64_t count = stop - first;
    const uint64_t bits = (count == kWordPages ? ~uint64_t{0} : (uint64_t{1} << count) - 1) << first % kWordPages;
    if (!all && word != 0 && Word(word) == nullptr) {
      // Go on at the next block that there is.
      if (blocks_ == nullptr) return;
      const auto it = blocks_->lower_bound(first / kBlockPages);
      if (it == blocks_->end()) return;
      first = std::max(stop, it->first * kBlockPages);
      continue;
    }
    visit(word, bits);
    first = stop;
  }
}

uint64_t PageSet::Count(uint64_t first, uint64_t end) const {
  uint64_t count = 0;
  ForEachWord(first, end, false, [&](uint64_t word, uint64_t bits) { count += std::popcount(*Word(word) & bits); });
  return count;
}

uint64_t PageSet::Add(uint64_t first, uint64_t end) {
  uint64_t added = 0;
  ForEachWord(first, end, true, [&](uint64_t number, uint64_t bits) {
    uint64_t* const word = MakeWord(number);
    added += std::popcount(bits & ~*word);
    *word |= bits;
  });
  size_ += added;
  return added;
}

uint64_t PageSet::Remove(uint64_t first, uint64_t end) {
  uint64_t removed = 0;
  ForEachWord(first, end, false, [&](uint64_t number, uint64_t bits) {
    uint64_t* const word = const_cast<uint64_t*>(Word(number));
    removed += std::popcount(bits & *word);
    *word &= ~bits;
  });
  size_ -= removed;
  if (removed > 0 && blocks_ != nullptr) {
    for (auto it = blocks_->lower_bound(first / kBlockPages); it != blocks_->end() && it->first * kBlockPages < end;) {
      const bool none = std::all_of(it->second.begin(), it->second.end(), [](uint64_t word) { return word == 0; });
      it = none ? blocks_->erase(it) : std::next(it);
    }
    if (blocks_->empty()) blocks_ = nullptr;
  }
  return removed;
}

uint64_t PageSet::NextIn(uint64_t page) const {
  uint64_t found = kNone;
  // ForEachWord cannot stop early, so look at one word, then at one block, then at the blocks behind it.
  if (page < kWordPages) {
    const uint64_t rest = low_ >> page;
    if (rest != 0) return page + std::countr_zero(rest);
    page = kWordPages;
  }
  if (blocks_ == nullptr) return kNone;
  for (auto it = blocks_->lower_bound(page / kBlockPages); it != blocks_->end() && found == kNone; ++it) {
    for (uint64_t i = 0; i < it->second.size() && found == kNone; ++i) {
      const uint64_t base = it->first * kBlockPages + i * kWordPages;
      uint64_t word = it->second[i];
      if (base + kWordPages <= page || base == 0) continue;
      if (page > base) word &= ~uint64_t{0} << (page - base);
      if (word != 0) found = base + std::countr_zero(word);
    }
  }
  return found;
}

uint64_t PageSet::NextOut(uint64_t page) const {
  while (true) {
    const uint64_t* const word = Word(page / kWordPages);
    if (word == nullptr) return page;
    const uint64_t rest = ~*word >> page % kWordPages;
    if (rest != 0) return page + std::countr_zero(rest);
    page = (page / kWordPages + 1) * kWordPages;
  }
}

}  // namespace nram
