#include "client/seal/page_versions.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/plant.h"

namespace nram {
namespace {

PageVersion VersionOf(uint64_t counter) { return static_cast<PageVersion>(counter); }

// The bits of a message's pages that begins at `first_page`, as seen from `from`.
PageBits Shifted(PageBits pages, uint64_t first_page, uint64_t from) {
  if (first_page >= from) return first_page - from < 64 ? pages << (first_page - from) : 0;
  return from - first_page < 64 ? pages >> (from - first_page) : 0;
}

// The next message's worth of pages from `page` on, before `end_page`.
PageBits BitsFrom(uint64_t page, uint64_t end_page) {
  const uint64_t count = std::min(end_page - page, kPagesPerMessage);
  return count == kPagesPerMessage ? ~PageBits{0} : (PageBits{1} << count) - 1;
}

}  // namespace

uint64_t PageVersions::TakeCounters(uint64_t count) {
  CHECK(count >= 1 && count <= kPagesPerMessage);
  while (true) {
    const uint64_t step = NRAM_PLANTED(counter_given_twice) && count > 1 ? count - 1 : count;
    const uint64_t first = next_counter_.fetch_add(step, std::memory_order_relaxed);
    // The low words of all must differ from the constants that are no counters.
    if (VersionOf(first) >= kFirstVersion && VersionOf(first + count - 1) >= VersionOf(first)) return first;
  }
}

PageVersions::Span* PageVersions::FindSpanLocked(uint64_t span) const {
  if (spans_ == nullptr) return span == only_span_ ? &only_ : nullptr;
  const auto it = spans_->find(span);
  return it == spans_->end() ? nullptr : &it->second;
}

PageVersion PageVersions::FindLocked(uint64_t page) const {
  const Span* const span = FindSpanLocked(page / kPagesPerSpan);
  if (span == nullptr) return untold_;
  const uint64_t run = page % kPagesPerSpan / kRunPages;
  if ((span->present >> run & 1) == 0) return untold_;
  const int at = std::popcount(static_cast<unsigned>(span->present & ((1u << run) - 1)));
  return span->runs[at][page % kRunPages];
}

PageVersion* PageVersions::SlotLocked(uint64_t page) {
  const uint64_t number = page / kPagesPerSpan;
  if (spans_ == nullptr && only_span_ == UINT64_MAX) only_span_ = number;
  if (spans_ == nullptr && only_span_ != number) {
    spans_ = std::make_unique<absl::btree_map<uint64_t, Span>>();
    (*spans_)[only_span_] = std::move(only_);
  }
  Span& span = spans_ == nullptr ? only_ : (*spans_)[number];
  const uint64_t run = page % kPagesPerSpan / kRunPages;
  const int before = std::popcount(static_cast<unsigned>(span.present & ((1u << run) - 1)));
  if ((span.present >> run & 1) == 0) {
    const int count = std::popcount(span.present);
    if (count == span.capacity) {
      const int capacity = std::max(1, 2 * count);
      std::unique_ptr<Run[]> more(new Run[static_cast<size_t>(capacity)]);
      std::copy_n(span.runs.get(), count, more.get());
      span.runs = std::move(more);
      span.capacity = static_cast<uint16_t>(capacity);
    }
    std::copy_backward(&span.runs[before], &span.runs[count], &span.runs[count] + 1);
    span.runs[before].fill(untold_);
    span.present |= static_cast<uint16_t>(1u << run);
  }
  return &span.runs[before][page % kRunPages];
}

void PageVersions::SetLocked(uint64_t page, PageVersion version) {
  if (FindLocked(page) == version) return;
  *SlotLocked(page) = version;
}

void PageVersions::Prepare(uint64_t first_page, uint64_t end_page) {
  for (uint64_t page = first_page / kRunPages * kRunPages; page < end_page; page += kRunPages) {
    GateLock lock(&mu_);
    is_prepared_ = true;
    DoubtsLocked().writes.reserve(kDoubtsMax);
    (void)SlotLocked(page);
  }
}

PageVersions::Doubts& PageVersions::DoubtsLocked() {
  if (doubts_ == nullptr) doubts_ = std::make_unique<Doubts>();
  return *doubts_;
}

void PageVersions::EndDoubtsLocked(uint64_t first_page, PageBits pages, uint64_t mark) {
  if (doubts_ == nullptr || doubts_->empty()) return;
  for (Doubt& doubt : doubts_->writes) {
    if (doubt.number <= mark) doubt.pages &= ~Shifted(pages, first_page, doubt.first_page);
  }
  std::erase_if(doubts_->writes, [](const Doubt& doubt) { return doubt.pages == 0; });
  EndHolesLocked(first_page, pages, mark);
}

void PageVersions::EndHolesLocked(uint64_t first_page, PageBits pages, uint64_t mark) {
  Holes& holes = doubts_->holes;
  for (auto it = doubts_->HolesNear(first_page); it != holes.end();) {
    const auto [first_of_it, number] = it->first;
    if (first_of_it >= first_page + kPagesPerMessage) break;
    if (number <= mark) it->second &= ~Shifted(pages, first_page, first_of_it);
    it = it->second == 0 ? holes.erase(it) : std::next(it);
  }
}

uint64_t PageVersions::HoleInDoubtLocked(uint64_t page) const {
  if (doubts_ == nullptr) return 0;
  for (auto it = doubts_->HolesNear(page); it != doubts_->holes.end() && it->first.first <= page; ++it) {
    if ((it->second >> (page - it->first.first) & 1) != 0) return it->first.second;
  }
  return 0;
}

void PageVersions::NoteEmpty(uint64_t span) {
  if (untold_ == kHoleVersion) return;
  GateLock lock(&mu_);
  for (uint64_t page = span * kPagesPerSpan; page < (span + 1) * kPagesPerSpan; ++page) {
    if (FindLocked(page) == kUnknownVersion) SetLocked(page, kHoleVersion);
  }
}

uint64_t PageVersions::mark() const {
  GateLock lock(&mu_);
  return doubts_ == nullptr ? 0 : doubts_->last_number;
}

void PageVersions::EndDoubts(uint64_t first_page, uint64_t end_page, uint64_t mark) {
  GateLock lock(&mu_);
  if (doubts_ == nullptr || doubts_->empty()) return;
  for (uint64_t page = first_page; page < end_page; page += kPagesPerMessage) {
    EndDoubtsLocked(page, BitsFrom(page, end_page), mark);
  }
}

uint64_t PageVersions::NextTold(uint64_t span) const {
  GateLock lock(&mu_);
  uint64_t next = UINT64_MAX;
  if (spans_ != nullptr) {
    if (const auto it = spans_->lower_bound(span); it != spans_->end()) next = it->first;
  } else if (only_span_ >= span) {
    next = only_span_;
  }
  if (doubts_ == nullptr) return next;
  for (const Doubt& doubt : doubts_->writes) {
    const uint64_t of = doubt.first_page / kPagesPerSpan;
    if (of >= span) next = std::min(next, of);
  }
  const auto hole = doubts_->holes.lower_bound({span * kPagesPerSpan, 0});
  if (hole != doubts_->holes.end()) next = std::min(next, hole->first.first / kPagesPerSpan);
  return next;
}

void PageVersions::Stored(uint64_t first_page, PageBits pages, uint64_t first_counter) {
  GateLock lock(&mu_);
  EndDoubtsLocked(first_page, pages);
  for (PageBits rest = pages; rest != 0; rest &= rest - 1) {
    const auto i = static_cast<uint64_t>(std::countr_zero(rest));
    SetLocked(first_page + i, first_counter == 0 ? kHoleVersion : VersionOf(first_counter + i));
  }
}

PageBits PageVersions::DoubtedHolesLocked(uint64_t first_page, PageBits pages) {
  PageBits written = 0;  // by changes in doubt
  for (const Doubt& doubt : DoubtsLocked().writes) written |= Shifted(doubt.pages, doubt.first_page, first_page);
  EndHolesLocked(first_page, pages, UINT64_MAX);  // this one is newer, and makes the same
  PageBits doubted = pages & written;
  for (PageBits rest = pages & ~written; rest != 0; rest &= rest - 1) {
    // A hole that becomes a hole is not in doubt, nor is a page of which anything or nothing is believed.
    const int i = std::countr_zero(rest);
    if (FindLocked(first_page + static_cast<uint64_t>(i)) >= kFirstVersion) doubted |= PageBits{1} << i;
  }
  return doubted;
}

void PageVersions::Doubted(uint64_t first_page, PageBits pages, uint64_t first_counter) {
  GateLock lock(&mu_);
  if (first_counter == 0) pages = DoubtedHolesLocked(first_page, pages);
  if (pages == 0) return;
  Doubts& doubts = DoubtsLocked();
  // Holes need no bound of their own: a page that was written is in one of them at most.
  if (first_counter == 0) {
    doubts.holes.emplace(std::pair(first_page, ++doubts.last_number), pages);
    return;
  }
  // It was sent before, and is in doubt still.
  std::erase_if(doubts.writes, [&](const Doubt& doubt) { return doubt.first_counter == first_counter; });
  if (doubts.writes.size() < kDoubtsMax) {
    doubts.writes.push_back({first_page, pages, first_counter, ++doubts.last_number});
    return;
  }
  if (NRAM_PLANTED(doubt_forgotten_when_full)) return;
  EndDoubtsLocked(first_page, pages);
  for (PageBits rest = pages; rest != 0; rest &= rest - 1) {
    SetLocked(first_page + static_cast<uint64_t>(std::countr_zero(rest)), kLostVersion);
  }
}

void PageVersions::Trimmed(uint64_t first_page, uint64_t end_page) {
  for (uint64_t page = first_page; page < end_page; page += kPagesPerMessage) {
    Stored(page, BitsFrom(page, end_page), 0);
  }
  const uint64_t first_span = (first_page + kPagesPerSpan - 1) / kPagesPerSpan;
  const uint64_t end_span = end_page / kPagesPerSpan;
  if (first_span >= end_span) return;
  GateLock lock(&mu_);
  if (is_prepared_ || spans_ == nullptr || untold_ != kHoleVersion) return;
  for (uint64_t span = first_span; span < end_span; ++span) spans_->erase(span);
}

void PageVersions::TrimDoubted(uint64_t first_page, uint64_t end_page) {
  for (uint64_t page = first_page; page < end_page; page += kPagesPerMessage) {
    Doubted(page, BitsFrom(page, end_page), 0);
  }
}

PageVersions::Verdict PageVersions::Check(uint64_t page, uint64_t counter, bool settles) {
  if (NRAM_PLANTED(counter_not_compared)) return Verdict::kFits;
  if (NRAM_PLANTED(hole_believed) && counter == 0) return Verdict::kFits;
  const PageVersion found = counter == 0 ? kHoleVersion : VersionOf(counter);
  GateLock lock(&mu_);
  const PageVersion known = FindLocked(page);
  if (known == kLostVersion) return Verdict::kLost;
  if (known == kUnknownVersion) return Verdict::kFits;
  bool is_doubted = false;
  // A former owner's counters may have the same low words: all versions known here are of this owner's seals.
  const bool is_own = counter == 0 || (counter ^ next_counter_.load(std::memory_order_relaxed)) >> 48 == 0;
  bool fits = known == found && is_own;
  // Of the doubts about the page, the newest first.
  const auto meet = [&](bool is_it) {
    settles = settles || (is_it && !is_doubted);  // the newest has come through, and nothing older comes after it
    fits = fits || is_it;
    is_doubted = true;
  };
  uint64_t hole = HoleInDoubtLocked(page);
  if (doubts_ != nullptr) {
    for (auto it = doubts_->writes.rbegin(); it != doubts_->writes.rend(); ++it) {
      const uint64_t at = page - it->first_page;  // wraps where the page is before it
      if (at >= kPagesPerMessage || (it->pages >> at & 1) == 0) continue;
      if (hole > it->number) {
        meet(counter == 0);
        hole = 0;
      }
      meet(counter == it->first_counter + at);
    }
  }
  if (hole != 0) meet(counter == 0);
  if (!is_doubted || !fits) return fits ? Verdict::kFits : Verdict::kOther;
  if (!settles) return Verdict::kOther;
  EndDoubtsLocked(page, 1);
  SetLocked(page, found);
  return Verdict::kFits;
}

size_t PageVersions::memory_bytes() const {
  GateLock lock(&mu_);
  size_t bytes = only_.capacity * sizeof(Run);
  if (doubts_ != nullptr) {
    bytes += sizeof *doubts_ + doubts_->writes.capacity() * sizeof(Doubt);
    bytes += doubts_->holes.size() * 2 * sizeof(Holes::value_type);  // as below
  }
  if (spans_ == nullptr) return bytes;
  // A node of the tree is half full at least.
  bytes += sizeof *spans_ + spans_->size() * 2 * sizeof(std::pair<const uint64_t, Span>);
  for (const auto& [number, span] : *spans_) bytes += span.capacity * sizeof(Run);
  return bytes;
}

}  // namespace nram
