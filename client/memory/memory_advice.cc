// What callers tell of their memory: Memory's advice, flush and drop.

#include <glog/logging.h>
#include <sys/mman.h>
#include <time.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/memory/memory.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace nram {
namespace {

// Of pages whose contents are dropped in one go.
constexpr uint64_t kDropPagesMax = 1024;
constexpr uint64_t kDropShare = 8;  // of the budget, at most so much is busy while servers are told
constexpr size_t kLanes = 8;

void SleepUs(int64_t us) {
  const timespec time = {0, us * 1000};
  nanosleep(&time, nullptr);
}

}  // namespace

absl::StatusOr<Memory::Pages> Memory::FindPages(void* address, uint64_t length, bool inner) const {
  Pages pages;
  const auto begin = reinterpret_cast<uintptr_t>(address);
  pages.segment = index_.Find(begin);
  if (!pages.segment || length > pages.segment->length() ||
      (length > 0 && !pages.segment->Contains(begin + length - 1))) {
    return absl::InvalidArgumentError(
        absl::StrCat("[", absl::Hex(begin), ", +", length, ") does not lie in one nram mapping"));
  }
  const uint64_t offset = begin - reinterpret_cast<uintptr_t>(pages.segment->base());
  const uint64_t unit = pages.segment->page_bytes;
  pages.first = (offset + (inner ? unit - 1 : 0)) / unit;
  const uint64_t end = (offset + length + (inner ? 0 : unit - 1)) / unit;
  pages.count = end > pages.first ? end - pages.first : 0;
  return pages;
}

absl::Status Memory::SetReadAhead(void* address, ReadAhead mode) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, 0));
  pages.segment->read_ahead = mode;
  return absl::OkStatus();
}

absl::Status Memory::Prefetch(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length));
  page_in_->Retry(pages.segment, pages.first, pages.count);
  // More than fits would only push out what it has brought.
  page_in_->Prefetch(pages.segment, pages.first, std::min(pages.count, residency_->limit_pages() / 2));
  return absl::OkStatus();
}

// A page whose state is about to change may have been written to already: its thread runs on before the handler has
// noted what it did.
absl::Status Memory::Settle(const Pages& pages, int64_t deadline_ns) {
  for (uint64_t page = pages.first; page < pages.end(); ++page) {
    while (pages.segment->word(page).state() == PageState::kBusy) {
      if (MonotonicNs() > deadline_ns) return absl::DeadlineExceededError("a page was on its way for too long");
      page_in_->CancelAhead(*pages.segment.get(), page, pages.end() - page);
      SleepUs(20);
    }
  }
  return absl::OkStatus();
}

absl::Status Memory::Evict(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length));
  NRAM_RETURN_IF_ERROR(Settle(pages, LongDeadline()));
  PageOut out(userfault_.get(), residency_.get(), sums_.get(), &counters_, kLanes);
  out.Add(pages.segment, pages.first, pages.count, PageOut::After::kDrop);
  return out.Finish();
}

absl::Status Memory::Flush(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length));
  return FlushPages(pages);
}

absl::Status Memory::FlushPages(const Pages& pages) {
  const int64_t deadline_ns = LongDeadline();
  NRAM_RETURN_IF_ERROR(Settle(pages, deadline_ns));
  PageOut out(userfault_.get(), residency_.get(), sums_.get(), &counters_, kLanes);
  out.Add(pages.segment, pages.first, pages.count, PageOut::After::kKeep);
  // Others are writing some of them out; if that fails they are dirty again.
  std::vector<uint64_t> others = out.TakePassed();
  NRAM_RETURN_IF_ERROR(out.Finish());
  while (!others.empty()) {
    if (MonotonicNs() > deadline_ns) return absl::DeadlineExceededError("pages were being written for too long");
    for (const uint64_t page : others) {
      while (pages.segment->word(page).state() == PageState::kWriting) {
        if (MonotonicNs() > deadline_ns) return absl::DeadlineExceededError("a page was being written for too long");
        SleepUs(50);
      }
      NRAM_RETURN_IF_ERROR(Settle({pages.segment.Share(), page, 1}, deadline_ns));
      out.Add(pages.segment, page, 1, PageOut::After::kKeep);
    }
    others = out.TakePassed();
    NRAM_RETURN_IF_ERROR(out.Finish());
  }
  return absl::OkStatus();
}

absl::Status Memory::Pin(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length));
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
          "pinning ", FormatByteSize(length), " more: at most ", FormatByteSize(most * segment->page_bytes),
          ", half of the budget, can be pinned, and ", FormatByteSize(pinned_pages_ * segment->page_bytes), " are"));
    }
    for (uint64_t page = pages.first; page < pages.end(); ++page) segment->word(page).Set(PageWord::kPinned);
    pinned_pages_ += fresh;
    segment->pinned_pages += fresh;
  }
  // Some may be leaving still.
  const int64_t deadline_ns = LongDeadline();
  absl::Status status;
  const auto moves = [](PageState state) { return state == PageState::kBusy || state == PageState::kWriting; };
  for (uint64_t page = pages.first; page < pages.end() && status.ok(); ++page) {
    while (moves(segment->word(page).state()) && status.ok()) {
      if (MonotonicNs() > deadline_ns) status = absl::DeadlineExceededError("pinning: a page was leaving for too long");
      page_in_->CancelAhead(*segment, page, pages.end() - page);
      SleepUs(50);
    }
  }
  if (status.ok()) page_in_->Prefetch(pages.segment, pages.first, pages.count);
  // As if it were touched, but a page that is lost is an error here, not a signal.
  const size_t bytes = pages.count * segment->page_bytes;
  if (status.ok() && bytes > 0 && madvise(segment->address(pages.first), bytes, MADV_POPULATE_READ) != 0) {
    status = errno == EINVAL ? absl::UnimplementedError("pinning needs Linux 5.14 or newer")
                             : absl::DataLossError(absl::StrCat("pinning: a page cannot be had: ", strerror(errno)));
  }
  // What others had pinned before stays so.
  for (uint64_t i = 0; i < pages.count && !status.ok(); ++i) {
    if (is_fresh[i]) UnpinPage(segment, pages.first + i);
  }
  return status;
}

void Memory::UnpinPage(Segment* segment, uint64_t page) {
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

absl::Status Memory::Unpin(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length));
  for (uint64_t page = pages.first; page < pages.end(); ++page) UnpinPage(pages.segment.get(), page);
  return absl::OkStatus();
}

absl::Status Memory::Drop(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length, /*inner=*/true));
  if (pages.segment->read_only) return absl::InvalidArgumentError("this mapping is read-only");
  const int64_t deadline_ns = LongDeadline();
  const uint64_t most = std::clamp<uint64_t>(residency_->limit_pages() / kDropShare, 1, kDropPagesMax);
  for (uint64_t page = pages.first; page < pages.end(); page += most) {
    NRAM_RETURN_IF_ERROR(DropPages({pages.segment.Share(), page, std::min(most, pages.end() - page)}, deadline_ns));
  }
  return absl::OkStatus();
}

absl::StatusOr<bool> Memory::Seize(Segment* segment, uint64_t page, PageState* was, int64_t deadline_ns) {
  PageWord& word = segment->word(page);
  while (true) {
    *was = word.state();
    if (*was == PageState::kEmpty) return false;
    if (*was != PageState::kBusy && *was != PageState::kWriting) {
      if (word.Change(*was, PageState::kBusy)) return true;
      continue;
    }
    if (MonotonicNs() > deadline_ns) return absl::DeadlineExceededError("a page was on its way for too long");
    page_in_->CancelAhead(*segment, page, 1);
    SleepUs(50);
  }
}

absl::Status Memory::DropPages(const Pages& pages, int64_t deadline_ns) {
  Segment* const segment = pages.segment.get();
  std::vector<PageState> was(pages.count, PageState::kEmpty);  // kEmpty: not ours to drop
  uint64_t resident = 0;
  bool remote = false;
  absl::Status status;
  for (uint64_t i = 0; i < pages.count && status.ok(); ++i) {
    PageState state;
    const absl::StatusOr<bool> got = Seize(segment, pages.first + i, &state, deadline_ns);
    status = got.status();
    if (!status.ok() || !*got) continue;
    was[i] = state;
    resident += IsResident(state);
    remote |= state != PageState::kCleanEmpty && state != PageState::kDirtyEmpty;
  }
  const auto end_all = [&](auto becomes) {
    for (uint64_t i = 0; i < pages.count; ++i) {
      if (was[i] == PageState::kEmpty) continue;
      if (segment->word(pages.first + i).End(becomes(was[i]))) {
        userfault_->Wake(segment->address(pages.first + i), segment->page_bytes);
      }
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
  // Servers first: if they cannot be told, what is here must not be lost.
  if (remote) {
    for_each_run([&](uint64_t first, uint64_t count) {
      if (!status.ok()) return;
      const IoOptions options{.timeout_ms = std::max<int64_t>((deadline_ns - MonotonicNs()) / kNsPerMs, 1)};
      status = segment->region->Trim(first * segment->page_bytes, count * segment->page_bytes, options,
                                     Region::TrimRoom::kKeep);
    });
  }
  if (!status.ok()) {
    // Servers may have dropped it or not: what is here goes there whole, whatever it was.
    for (uint64_t i = 0; i < pages.count; ++i) {
      if (IsResident(was[i])) userfault_->Unprotect(segment->address(pages.first + i), segment->page_bytes);
    }
    end_all([](PageState state) { return IsResident(state) ? PageState::kDirty : state; });
    enter_all();
    return status;
  }
  for_each_run(
      [&](uint64_t first, uint64_t count) { DropLocally(segment->address(first), count * segment->page_bytes); });
  residency_->ReturnRoom(resident);
  end_all([](PageState) { return PageState::kEmpty; });
  return absl::OkStatus();
}

}  // namespace nram
