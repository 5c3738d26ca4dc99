#include "client/memory/advice.h"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/memory/page_out.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace nram {
namespace {

// The most pages that are dropped in one go.
constexpr uint64_t kDropPagesMax = 1024;
constexpr uint64_t kDropShare = 8;  // at most this part of the budget is busy while servers drop pages
constexpr size_t kLanes = 8;
constexpr int64_t kLookAgainMs = 100;
constexpr int64_t kSealTurnMs = 1'000;

bool IsBusy(PageState state) { return state == PageState::kBusy; }
bool IsMoving(PageState state) { return IsBusy(state) || state == PageState::kWriting; }
// Another thread writes back the page, or a copy of it.
bool IsWritten(PageState state) { return state == PageState::kWriting || state == PageState::kDirtyCopied; }

}  // namespace

absl::Status Advice::Await(const Pages& pages, uint64_t page, bool (*moves)(PageState), int64_t deadline_ns,
                           const char* late) {
  Segment* const segment = pages.segment.get();
  while (moves(segment->word(page).state())) {
    const uint32_t seen = segment->ended.Prepare();
    page_in_->ahead()->Cancel(*segment, page, pages.end() - page);
    if (!moves(segment->word(page).state())) {
      segment->ended.Cancel();
      return absl::OkStatus();
    }
    segment->ended.WaitUntil(seen, std::min(deadline_ns, DeadlineAfterMs(kLookAgainMs)));
    if (MonotonicNs() > deadline_ns && moves(segment->word(page).state())) return absl::DeadlineExceededError(late);
  }
  return absl::OkStatus();
}

absl::Status Advice::Settle(const Pages& pages, int64_t deadline_ns) {
  for (uint64_t page = pages.first; page < pages.end(); ++page) {
    NRAM_RETURN_IF_ERROR(Await(pages, page, &IsBusy, deadline_ns, "a page was in transfer for too long"));
  }
  return absl::OkStatus();
}

absl::Status Advice::Prefetch(const Pages& pages) {
  page_in_->Retry(pages.segment, pages.first, pages.count);
  // More than fits would only push out pages that it has brought.
  page_in_->ahead()->Prefetch(pages.segment, pages.first, std::min(pages.count, residency_->limit_pages() / 2));
  return absl::OkStatus();
}

absl::Status Advice::Evict(const Pages& pages) {
  const int64_t deadline_ns = Deadline();
  NRAM_RETURN_IF_ERROR(gate_->AwaitSealed(*pages.segment.get(), deadline_ns));
  NRAM_RETURN_IF_ERROR(Settle(pages, deadline_ns));
  PageOut out(gate_, userfault_, residency_, sums_, counters_, kLanes);
  out.Add(pages.segment, pages.first, pages.count, PageOut::After::kDrop);
  return out.Finish();
}

absl::Status Advice::Flush(const Pages& pages) {
  // Data written after a flip is sent to servers after its seal. Like this, a publication takes as long as its pages
  // need, and ends by its deadlines. If it were given up on here, a kept mapping could not be unmapped without a loss.
  while (!gate_->AwaitSealed(*pages.segment.get(), DeadlineAfterMs(kSealTurnMs)).ok()) {
  }
  const int64_t deadline_ns = Deadline();
  NRAM_RETURN_IF_ERROR(Settle(pages, deadline_ns));
  PageOut out(gate_, userfault_, residency_, sums_, counters_, kLanes);
  out.Add(pages.segment, pages.first, pages.count, PageOut::After::kKeep);
  // Others are writing some of them out; if that fails they are dirty again.
  std::vector<uint64_t> others = out.TakePassed();
  NRAM_RETURN_IF_ERROR(out.Finish());
  while (!others.empty()) {
    if (MonotonicNs() > deadline_ns) return absl::DeadlineExceededError("pages were being written for too long");
    for (const uint64_t page : others) {
      const Pages one{pages.segment.Share(), page, 1};
      NRAM_RETURN_IF_ERROR(Await(one, page, &IsWritten, deadline_ns, "a page was being written for too long"));
      NRAM_RETURN_IF_ERROR(Settle(one, deadline_ns));
      out.Add(pages.segment, page, 1, PageOut::After::kKeep);
    }
    others = out.TakePassed();
    NRAM_RETURN_IF_ERROR(out.Finish());
  }
  return absl::OkStatus();
}

absl::Status Advice::Pin(const Pages& pages, uint64_t asked_bytes) {
  Segment* const segment = pages.segment.get();
  std::vector<bool> is_fresh(pages.count);
  {
    MutexLock lock(&pin_mu_);
    uint64_t fresh = 0;
    for (uint64_t i = 0; i < pages.count; ++i) {
      is_fresh[i] = !segment->word(pages.first + i).Has(PageWord::kPinned);
      fresh += is_fresh[i];
    }
    const uint64_t most = residency_->limit_pages() / 2;
    if (pinned_pages_ + fresh > most) {
      return absl::OutOfRangeError(absl::StrCat(
          "pinning ", FormatByteSize(asked_bytes), " more: at most ", FormatByteSize(most * segment->page_bytes),
          ", half of the budget, can be pinned; pinned: ", FormatByteSize(pinned_pages_ * segment->page_bytes)));
    }
    for (uint64_t page = pages.first; page < pages.end(); ++page) segment->word(page).Set(PageWord::kPinned);
    pinned_pages_ += fresh;
    segment->pinned_pages += fresh;
  }
  // Some may be leaving still.
  const int64_t deadline_ns = Deadline();
  absl::Status status;
  for (uint64_t page = pages.first; page < pages.end() && status.ok(); ++page) {
    status = Await(pages, page, &IsMoving, deadline_ns, "pinning: a page was being evicted for too long");
  }
  if (status.ok()) page_in_->ahead()->Prefetch(pages.segment, pages.first, pages.count);
  // The kernel touches the pages, but a lost page is an error here, not a signal.
  const size_t bytes = pages.count * segment->page_bytes;
  if (status.ok() && bytes > 0 && madvise(segment->address(pages.first), bytes, MADV_POPULATE_READ) != 0) {
    status = errno == EINVAL ? absl::UnimplementedError("pinning needs Linux 5.14 or newer")
                             : absl::DataLossError(absl::StrCat("pinning: a page cannot be read: ", strerror(errno)));
  }
  // Pages that others had pinned before remain pinned.
  for (uint64_t i = 0; i < pages.count && !status.ok(); ++i) {
    if (is_fresh[i]) UnpinPage(segment, pages.first + i);
  }
  return status;
}

absl::Status Advice::SetLimit(uint64_t limit_pages, uint64_t window_pages) {
  MutexLock lock(&pin_mu_);
  if (pinned_pages_ > limit_pages / 2) {
    return absl::FailedPreconditionError(absl::StrCat("at most half of the budget can be pinned, and ", pinned_pages_,
                                                      " pages are pinned: expected ", 2 * pinned_pages_,
                                                      " pages or more"));
  }
  residency_->SetLimit(limit_pages, window_pages);
  return absl::OkStatus();
}

uint64_t Advice::PinnedPages() {
  MutexLock lock(&pin_mu_);
  return pinned_pages_;
}

void Advice::UnpinPage(Segment* segment, uint64_t page) {
  PageWord& word = segment->word(page);
  {
    MutexLock lock(&pin_mu_);
    if (!word.Clear(PageWord::kPinned)) return;
    --pinned_pages_;
    --segment->pinned_pages;
  }
  const PageState state = word.state();
  if (IsResident(state) || state == PageState::kBusy) residency_->Enter(*segment, page, 1);
}

void Advice::Unpin(const Pages& pages) {
  for (uint64_t page = pages.first; page < pages.end(); ++page) UnpinPage(pages.segment.get(), page);
}

void Advice::Forget(const Segment& segment) {
  MutexLock lock(&pin_mu_);
  pinned_pages_ -= segment.pinned_pages;
}

absl::Status Advice::Drop(const Pages& pages) {
  const int64_t deadline_ns = Deadline();
  const uint64_t most = std::clamp<uint64_t>(residency_->limit_pages() / kDropShare, 1, kDropPagesMax);
  for (uint64_t page = pages.first; page < pages.end(); page += most) {
    NRAM_ASSIGN_OR_RETURN(const PublishGate::Trimming trimming, gate_->BeginTrim(pages.segment, deadline_ns));
    NRAM_RETURN_IF_ERROR(DropSome({pages.segment.Share(), page, std::min(most, pages.end() - page)}, deadline_ns));
  }
  return absl::OkStatus();
}

void Advice::AwaitSettled(const SegmentRef& segment) {
  const Pages pages{segment.Share(), 0, segment->pages()};
  while (!Settle(pages, Deadline()).ok()) {
  }
}

void Advice::Refresh(const Pages& pages) {
  Segment* const segment = pages.segment.get();
  page_in_->Retry(pages.segment, pages.first, pages.count);
  uint64_t run = 0;  // pages right before `page`, which are kBusy
  const auto drop = [&](uint64_t page) {
    if (run == 0) return;
    DropLocally(segment->address(page - run), run * segment->page_bytes);
    for (uint64_t i = page - run; i < page; ++i) EndPage(segment, i, PageState::kRemote, userfault_);
    residency_->ReturnBudget(run);
    run = 0;
  };
  for (uint64_t page = pages.first; page < pages.end();) {
    PageState state = segment->word(page).state();
    if (IsClean(state) && segment->word(page).Change(&state, PageState::kBusy)) {
      ++run;
      ++page;
      continue;
    }
    drop(page);
    if (IsBusy(state)) {
      // It may be on its way in, or out.
      (void)Await(pages, page, &IsBusy, Deadline(), "");
    } else if (!IsClean(state)) {
      ++page;
    }
  }
  drop(pages.end());
}

absl::StatusOr<bool> Advice::Seize(const Pages& pages, uint64_t page, PageState* was, int64_t deadline_ns) {
  PageWord& word = pages.segment->word(page);
  while (true) {
    *was = word.state();
    if (*was == PageState::kEmpty) return false;
    if (!IsMoving(*was) && word.Change(*was, PageState::kBusy)) return true;
    NRAM_RETURN_IF_ERROR(
        Await({pages.segment.Share(), page, 1}, page, &IsMoving, deadline_ns, "a page was in transfer for too long"));
  }
}

absl::Status Advice::DropSome(const Pages& pages, int64_t deadline_ns) {
  Segment* const segment = pages.segment.get();
  std::vector<PageState> was(pages.count, PageState::kEmpty);  // kEmpty: not ours to drop
  uint64_t resident = 0;
  bool remote = false;
  absl::Status status;
  for (uint64_t i = 0; i < pages.count && status.ok(); ++i) {
    PageState state;
    const absl::StatusOr<bool> got = Seize(pages, pages.first + i, &state, deadline_ns);
    status = got.status();
    if (!status.ok() || !*got) continue;
    was[i] = state;
    resident += IsResident(state);
    remote |= state != PageState::kCleanEmpty && state != PageState::kDirtyEmpty;
  }
  const auto end_all = [&](auto becomes) {
    for (uint64_t i = 0; i < pages.count; ++i) {
      if (was[i] == PageState::kEmpty) continue;
      EndPage(segment, pages.first + i, becomes(was[i]), userfault_);
    }
  };
  // While they were busy they may have lost their places in the queue.
  const auto enter_all = [&] {
    for (uint64_t i = 0; i < pages.count; ++i) {
      if (IsResident(was[i])) residency_->Enter(*segment, pages.first + i, 1);
    }
  };
  if (!status.ok()) {
    end_all([](PageState state) { return state; });
    enter_all();
    return status;
  }
  const auto for_each_run = [&](auto function) {
    for (uint64_t i = 0; i < pages.count;) {
      uint64_t run = 0;
      while (i + run < pages.count && was[i + run] != PageState::kEmpty) ++run;
      if (run > 0) function(pages.first + i, run);
      i += run + 1;
    }
  };
  // Servers drop their pages first: if that fails, the pages here must not be lost.
  if (remote) {
    for_each_run([&](uint64_t first, uint64_t count) {
      if (!status.ok()) return;
      const IoOptions options{.timeout_ms = std::max<int64_t>((deadline_ns - MonotonicNs()) / kNsPerMs, 1)};
      status = segment->region()->Trim(first * segment->page_bytes, count * segment->page_bytes, options,
                                       Region::TrimRoom::kKeep);
    });
  }
  if (!status.ok()) {
    // Servers may have dropped the pages or not: pages that are here count as dirty, whatever they were.
    for (uint64_t i = 0; i < pages.count; ++i) {
      if (IsResident(was[i])) userfault_->Unprotect(segment->address(pages.first + i), segment->page_bytes);
    }
    end_all([](PageState state) { return IsResident(state) ? PageState::kDirty : state; });
    enter_all();
    return status;
  }
  for_each_run(
      [&](uint64_t first, uint64_t count) { DropLocally(segment->address(first), count * segment->page_bytes); });
  residency_->ReturnBudget(resident);
  end_all([](PageState) { return PageState::kEmpty; });
  return absl::OkStatus();
}

}  // namespace nram
