// What callers tell of their memory: Memory's advice, flush and drop.

#include <glog/logging.h>
#include <poll.h>
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
constexpr uint64_t kDropPagesMax = 4096;
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
void Memory::Settle(const Pages& pages) {
  const int64_t deadline_ns = DeadlineAfterMs(2 * options_.pool.io_timeout_ms);
  for (uint64_t page = pages.first; page < pages.end(); ++page) {
    while (pages.segment->word(page).state() == PageState::kBusy && MonotonicNs() < deadline_ns) {
      page_in_->CancelAhead(*pages.segment.get(), page, pages.end() - page);
      SleepUs(20);
    }
  }
}

absl::Status Memory::Evict(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length));
  Settle(pages);
  PageOut out(userfault_.get(), residency_.get(), &counters_, kLanes);
  out.Add(pages.segment, pages.first, pages.count, PageOut::After::kDrop);
  return out.Finish();
}

absl::Status Memory::Flush(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length));
  return FlushPages(pages);
}

absl::Status Memory::FlushPages(const Pages& pages) {
  PageOut out(userfault_.get(), residency_.get(), &counters_, kLanes);
  // Others may be writing some of them out; if that fails they are dirty again, and the second round sees to them.
  for (const bool again : {false, true}) {
    Settle(pages);
    out.Add(pages.segment, pages.first, pages.count, PageOut::After::kKeep);
    NRAM_RETURN_IF_ERROR(out.Finish());
    bool waited = false;
    for (uint64_t page = pages.first; page < pages.end(); ++page) {
      while (pages.segment->word(page).state() == PageState::kWriting) {
        waited = true;
        SleepUs(50);
      }
    }
    if (!waited || again) break;
  }
  return absl::OkStatus();
}

absl::Status Memory::Pin(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length));
  Segment* const segment = pages.segment.get();
  uint64_t fresh = 0;
  for (uint64_t page = pages.first; page < pages.end(); ++page) fresh += !segment->word(page).Has(PageWord::kPinned);
  const uint64_t most = residency_->limit_pages() / 2;
  if ((pinned_pages_ += fresh) > most) {
    pinned_pages_ -= fresh;
    return absl::OutOfRangeError(absl::StrCat(
        "pinning ", FormatByteSize(length), " more: at most ", FormatByteSize(most * segment->page_bytes),
        ", half of the budget, can be pinned, and ", FormatByteSize(pinned_pages_ * segment->page_bytes), " are"));
  }
  uint64_t set = 0;
  for (uint64_t page = pages.first; page < pages.end(); ++page) set += !segment->word(page).Set(PageWord::kPinned);
  pinned_pages_ -= fresh - std::min(set, fresh);  // another thread may have pinned some of them meanwhile
  segment->pinned_pages += set;
  page_in_->Prefetch(pages.segment, pages.first, pages.count);
  // As if it were touched, but a page that is lost is an error here, not a signal.
  const size_t bytes = pages.count * segment->page_bytes;
  if (bytes > 0 && madvise(segment->address(pages.first), bytes, MADV_POPULATE_READ) != 0) {
    const int error = errno;
    (void)Unpin(address, length);
    return absl::DataLossError(absl::StrCat("pinning: a page cannot be had (", strerror(error), ")"));
  }
  return absl::OkStatus();
}

absl::Status Memory::Unpin(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length));
  Segment* const segment = pages.segment.get();
  for (uint64_t page = pages.first; page < pages.end(); ++page) {
    PageWord& word = segment->word(page);
    if (!word.Clear(PageWord::kPinned)) continue;
    --pinned_pages_;
    --segment->pinned_pages;
    if (IsResident(word.state())) residency_->Enter(*segment, page, 1);
  }
  return absl::OkStatus();
}

absl::Status Memory::Drop(void* address, uint64_t length) {
  NRAM_ASSIGN_OR_RETURN(const Pages pages, FindPages(address, length, /*inner=*/true));
  if (pages.segment->read_only) return absl::InvalidArgumentError("this mapping is read-only");
  for (uint64_t page = pages.first; page < pages.end(); page += kDropPagesMax) {
    NRAM_RETURN_IF_ERROR(DropPages({pages.segment.Share(), page, std::min(kDropPagesMax, pages.end() - page)}));
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

absl::Status Memory::DropPages(const Pages& pages) {
  Segment* const segment = pages.segment.get();
  const int64_t deadline_ns = DeadlineAfterMs(2 * options_.pool.io_timeout_ms);
  std::vector<bool> seized(pages.count);
  uint64_t resident = 0;
  bool remote = false;
  absl::Status status;
  for (uint64_t i = 0; i < pages.count && status.ok(); ++i) {
    PageState was;
    const absl::StatusOr<bool> got = Seize(segment, pages.first + i, &was, deadline_ns);
    status = got.status();
    if (!status.ok() || !*got) continue;
    seized[i] = true;
    resident += IsResident(was);
    remote |=
        was == PageState::kRemote || was == PageState::kClean || was == PageState::kDirty || was == PageState::kLost;
  }
  // Pages that are empty now must not be filled by a trim that comes after: they are not part of it.
  const auto for_each_run = [&](auto function) {
    for (uint64_t i = 0; i < pages.count;) {
      uint64_t run = 0;
      while (i + run < pages.count && seized[i + run]) ++run;
      if (run > 0) function(pages.first + i, run);
      i += run + 1;
    }
  };
  PageState becomes = PageState::kEmpty;
  for_each_run([&](uint64_t first, uint64_t count) {
    PCHECK(madvise(segment->address(first), count * segment->page_bytes, MADV_DONTNEED) == 0);
  });
  if (remote && status.ok()) {
    for_each_run([&](uint64_t first, uint64_t count) {
      if (!status.ok()) return;
      status =
          segment->region->Trim(first * segment->page_bytes, count * segment->page_bytes, {}, Region::TrimRoom::kKeep);
    });
    // Servers may have some of it still.
    if (!status.ok()) becomes = PageState::kRemote;
  } else if (!status.ok()) {
    becomes = PageState::kRemote;
  }
  for_each_run([&](uint64_t first, uint64_t count) {
    for (uint64_t page = first; page < first + count; ++page) {
      if (segment->word(page).End(becomes)) userfault_->Wake(segment->address(page), segment->page_bytes);
    }
  });
  residency_->ReturnRoom(resident);
  return status;
}

}  // namespace nram
