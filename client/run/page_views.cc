#include "client/run/page_views.h"

#include <glog/logging.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {

std::unique_ptr<PageViews::View> PageViews::Make() {
  MutexLock lock(&mu_);
  if (views_ == 0) {
    seers_.clear();
    last_seers_ = {};
    free_.clear();
    base_ = 0;
  }
  return std::unique_ptr<View>(new View(this, /*whole=*/views_++ == 0));
}

uint16_t& PageViews::Seers(uint64_t slot) {
  // Slots in a row are asked for one after the other.
  if (last_seers_.second == nullptr || last_seers_.first != slot / kBlockPages) {
    auto& block = seers_[slot / kBlockPages];
    if (block == nullptr) block = std::make_unique<SeersBlock>();
    last_seers_ = {slot / kBlockPages, block.get()};
  }
  return (*last_seers_.second)[slot % kBlockPages];
}

PageRun PageViews::TakeSlots(uint64_t count) {
  PageRun taken = {next_, count};
  if (const auto at = free_.begin(); at != free_.end()) {
    taken = {at->first, std::min(count, at->second)};
    const uint64_t rest = at->second - taken.count;
    free_.erase(at);
    if (rest > 0) free_.emplace(taken.first + taken.count, rest);
  } else {
    next_ += count;
  }
  for (uint64_t i = 0; i < taken.count; ++i) Seers(taken.first + i) = 1;
  return taken;
}

void PageViews::Free(std::vector<uint64_t> unseen) {
  std::sort(unseen.begin(), unseen.end());
  for (size_t i = 0; i < unseen.size();) {
    PageRun run = {unseen[i], 0};
    while (i < unseen.size() && unseen[i] == run.first + run.count) ++run.count, ++i;
    store_->Forget(run.first, run.count);
    // From here on others may have them: not before, or Forget would drop their writes.
    MutexLock lock(&mu_);
    for (uint64_t k = 0; k < run.count; ++k) Seers(run.first + k) = 0;
    if (run.first < base_) continue;
    auto after = free_.lower_bound(run.first);
    if (after != free_.end() && after->first == run.first + run.count) {
      run.count += after->second;
      after = free_.erase(after);
    }
    if (after != free_.begin() && std::prev(after)->first + std::prev(after)->second == run.first) {
      std::prev(after)->second += run.count;
    } else {
      free_.emplace_hint(after, run.first, run.count);
    }
  }
}

PageViews::View::~View() {
  MutexLock lock(&views_->mu_);
  --views_->views_;
}

uint64_t PageViews::View::SlotOf(uint64_t home) const {
  const auto at = blocks_.find(home / kBlockPages);
  return at == blocks_.end() ? kNone : (*at->second)[home % kBlockPages];
}

PageViews::View::Block& PageViews::View::BlockOf(uint64_t home) {
  std::unique_ptr<Block>& block = blocks_[home / kBlockPages];
  if (block == nullptr) {
    block = std::make_unique<Block>();
    block->fill(kNone);
  }
  return *block;
}

absl::Status PageViews::View::ReadPages(uint64_t page, absl::Span<std::byte> to) {
  std::vector<PageRun> runs;
  {
    MutexLock lock(&views_->mu_);
    const uint64_t count = to.size() / kPageBytes;
    if (whole_) runs.push_back({page, count});
    for (uint64_t i = 0; !whole_ && i < count; ++i) {
      const uint64_t slot = SlotOf(page + i);
      if (slot == kNone) return absl::InternalError(absl::StrCat("page ", page + i, " was never stored"));
      if (!runs.empty() && runs.back().first + runs.back().count == slot) {
        ++runs.back().count;
      } else {
        runs.push_back({slot, 1});
      }
    }
  }
  for (const PageRun& run : runs) {
    NRAM_RETURN_IF_ERROR(views_->store_->ReadPages(run.first, to.first(run.count * kPageBytes)));
    to.remove_prefix(run.count * kPageBytes);
  }
  return absl::OkStatus();
}

absl::Status PageViews::View::WritePages(absl::Span<const Write> writes) {
  std::vector<Write> made;
  {
    MutexLock lock(&views_->mu_);
    for (const Write& write : writes) {
      const uint64_t count = write.data.size() / kPageBytes;
      if (whole_) {
        written_end_ = std::max(written_end_, write.page + count);
        continue;
      }
      PageRun fresh;
      uint64_t expected = kNone;
      for (uint64_t i = 0; i < count; ++i) {
        const uint64_t home = write.page + i;
        uint64_t slot = SlotOf(home);
        const bool alone = slot != kNone && views_->Seers(slot) == 1;
        if (!alone && slot == kNone && home < views_->base_ && views_->Seers(home) == 0) {
          slot = home;
          views_->Seers(slot) = 1;
          SetSlot(home, slot);
        } else if (!alone) {
          // The other views keep the former content.
          if (slot != kNone) --views_->Seers(slot);
          if (fresh.count == 0) fresh = views_->TakeSlots(count - i);
          slot = fresh.first++;
          --fresh.count;
          SetSlot(home, slot);
        }
        const auto data = write.data.subspan(i * kPageBytes, kPageBytes);
        if (slot == expected) {
          made.back().data = {made.back().data.data(), made.back().data.size() + kPageBytes};
        } else {
          made.push_back({slot, data});
        }
        expected = slot + 1;
      }
      // More were taken than were needed.
      if (fresh.count > 0) {
        for (uint64_t i = 0; i < fresh.count; ++i) views_->Seers(fresh.first + i) = 0;
        views_->free_.emplace(fresh.first, fresh.count);
      }
    }
    if (whole_) made.assign(writes.begin(), writes.end());
  }
  return views_->store_->WritePages(made);
}

void PageViews::View::Unsee(uint64_t home, uint64_t count, std::vector<uint64_t>* unseen) {
  for (uint64_t i = 0; i < count;) {
    const uint64_t in_block = (home + i) % kBlockPages;
    const uint64_t end = std::min(count, i + kBlockPages - in_block);
    const auto at = blocks_.find((home + i) / kBlockPages);
    if (at != blocks_.end()) {
      for (uint64_t k = in_block; k < in_block + end - i; ++k) {
        const uint64_t slot = std::exchange((*at->second)[k], kNone);
        if (slot == kNone) continue;
        if (views_->Seers(slot) > 1) {
          --views_->Seers(slot);
        } else {
          unseen->push_back(slot);
        }
      }
      if (end - i == kBlockPages) blocks_.erase(at);
    }
    i = end;
  }
}

void PageViews::View::Forget(uint64_t page, uint64_t count) {
  std::vector<uint64_t> unseen;
  bool whole;
  {
    MutexLock lock(&views_->mu_);
    whole = whole_;
    if (!whole) Unsee(page, count, &unseen);
  }
  if (whole) return views_->store_->Forget(page, count);
  views_->Free(std::move(unseen));
}

void PageViews::View::Release() {
  std::vector<uint64_t> unseen;
  uint64_t written = 0;
  {
    MutexLock lock(&views_->mu_);
    written = whole_ ? written_end_ : 0;
    std::vector<uint64_t> blocks;
    for (const auto& [block, slots] : blocks_) blocks.push_back(block);
    for (const uint64_t block : blocks) Unsee(block * kBlockPages, kBlockPages, &unseen);
  }
  if (written > 0) views_->store_->Forget(0, written);
  views_->Free(std::move(unseen));
}

std::unique_ptr<PageViews::View> PageViews::View::Copy(absl::Span<const PageRun> stored,
                                                       absl::Span<const PageRun> seen) {
  MutexLock lock(&views_->mu_);
  if (std::exchange(whole_, false)) {
    CHECK_EQ(views_->views_, 1);
    for (const PageRun& run : stored) {
      for (uint64_t home = run.first; home < run.first + run.count; ++home) {
        SetSlot(home, home);
        views_->Seers(home) = 1;
      }
    }
    views_->base_ = views_->next_ = RoundUp(written_end_, kPagesPerSpan) + kGapPages;
  }
  ++views_->views_;
  auto copy = std::unique_ptr<View>(new View(views_, /*whole=*/false));
  for (const PageRun& run : seen) {
    for (uint64_t home = run.first; home < run.first + run.count;) {
      const Block& from = BlockOf(home);
      Block& to = copy->BlockOf(home);
      const uint64_t end = std::min(run.first + run.count, RoundDown(home, kBlockPages) + kBlockPages);
      for (; home < end; ++home) {
        const uint64_t slot = from[home % kBlockPages];
        CHECK_NE(slot, kNone) << "page " << home;
        to[home % kBlockPages] = slot;
        CHECK_LT(++views_->Seers(slot), UINT16_MAX);
      }
    }
  }
  return copy;
}

}  // namespace nram
