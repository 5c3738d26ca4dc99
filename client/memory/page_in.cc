#include "client/memory/page_in.h"

#include <glog/logging.h>
#include <signal.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace nram {
namespace {

constexpr int64_t kWindowPatienceMs = 200;

// Before Linux 6.6 there is no way to tell the one thread that touches a lost page: the program ends, as it does by
// default with SIGBUS. A handler of its own would return to the same fault for ever.
[[noreturn]] void EndBySigbus() {
  signal(SIGBUS, SIG_DFL);
  sigset_t bus;
  sigemptyset(&bus);
  sigaddset(&bus, SIGBUS);
  pthread_sigmask(SIG_UNBLOCK, &bus, nullptr);
  raise(SIGBUS);
  abort();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PageIn>> PageIn::New(PageInOptions options, Userfault* userfault, SegmentIndex* index,
                                                    Residency* residency, ChunkSums* sums, Counters* counters) {
  auto in = std::unique_ptr<PageIn>(new PageIn(std::move(options), userfault, index, residency, sums, counters));
  in->arrived_fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
  if (!in->arrived_fd_.valid()) return ErrnoStatus(errno, "eventfd");
  const size_t window_bytes = in->options_.window_pages * in->options_.page_bytes;
  NRAM_ASSIGN_OR_RETURN(in->memory_, Mapping::Anonymous((in->options_.buffers + 1) * window_bytes));
  for (size_t i = 0; i < in->options_.buffers; ++i) {
    in->buffers_.push_back(std::make_unique<Buffer>());
    in->buffers_[i]->data = in->memory_.data() + i * window_bytes;
    in->buffers_[i]->owner = in.get();
  }
  return in;
}

PageIn::PageIn(PageInOptions options, Userfault* userfault, SegmentIndex* index, Residency* residency, ChunkSums* sums,
               Counters* counters)
    : options_(std::move(options)),
      userfault_(userfault),
      index_(index),
      residency_(residency),
      sums_(sums),
      counters_(counters),
      streams_(options_.window_pages) {}

PageIn::~PageIn() {
  for (const auto& buffer : buffers_) CHECK(buffer->state == Buffer::State::kFree);
}

void PageIn::Handle(const Userfault::Fault& fault, std::byte* buffer) {
  const int64_t began_ns = MonotonicNs();
  const int64_t deadline_ns = began_ns + options_.timeout_ms * kNsPerMs;
  Counters::Add(&counters_->faults, 1);
  const SegmentRef segment = index_->Find(fault.address);
  if (!segment) {
    // It is being unmapped; whoever uses it still is to find that out.
    auto* const at = reinterpret_cast<std::byte*>(fault.address / 4096 * 4096);
    userfault_->Wake(at, 4096);
    return;
  }
  const uint64_t page = segment->PageOf(fault.address);
  PageWord& word = segment->word(page);
  for (bool answered = false; !answered;) {
    const PageState state = word.state();
    switch (state) {
      case PageState::kEmpty:
        answered = FillZeros(segment, page, fault.write, deadline_ns);
        break;
      case PageState::kRemote:
        answered = Fetch(segment, page, fault.write, buffer, deadline_ns);
        break;
      case PageState::kBusy:
        answered = Join(segment, page);
        break;
      case PageState::kCleanEmpty:
      case PageState::kClean:
        if (fault.write_protected) {
          answered = LetWrite(segment, page);
          break;
        }
        [[fallthrough]];
      case PageState::kDirtyEmpty:
      case PageState::kDirty:
      case PageState::kDirtyNoted:
      case PageState::kLost:
        // Answered already.
        userfault_->Wake(segment->address(page), options_.page_bytes);
        answered = true;
        break;
      case PageState::kWriting:
        if (fault.write_protected) {
          answered = word.WaitFor(PageState::kWriting);
        } else {
          userfault_->Wake(segment->address(page), options_.page_bytes);
          answered = true;
        }
        break;
    }
  }
  Counters::Add(&counters_->wait_ns, static_cast<uint64_t>(MonotonicNs() - began_ns));
}

uint64_t PageIn::Claim(const Segment& segment, const Run& run, PageState from) {
  uint64_t claimed = 0;
  while (claimed < run.count && segment.word(run.at(claimed)).Change(from, PageState::kBusy)) ++claimed;
  return claimed;
}

void PageIn::Unclaim(const SegmentRef& segment, const Run& run, PageState to) {
  for (uint64_t i = 0; i < run.count; ++i) {
    if (segment->word(run.at(i)).End(to)) userfault_->Wake(segment->address(run.at(i)), options_.page_bytes);
  }
}

absl::Status PageIn::TakeRoom(uint64_t pages, int64_t deadline_ns) {
  // Room for many is hard to come by while others take each page that becomes free.
  return residency_->TakeRoom(pages,
                              pages > 1 ? std::min(deadline_ns, DeadlineAfterMs(kWindowPatienceMs)) : deadline_ns);
}

bool PageIn::FillZeros(const SegmentRef& segment, uint64_t page, bool write, int64_t deadline_ns) {
  if (!segment->word(page).Change(PageState::kEmpty, PageState::kBusy)) return false;
  const StreamPlan plan = streams_.OnFault(*segment.get(), page, write);
  Run run = plan.demand;
  run.count = 1 + Claim(*segment.get(), run.rest(), PageState::kEmpty);
  absl::Status room = TakeRoom(run.count, deadline_ns);
  if (!room.ok() && run.count > 1) {
    Unclaim(segment, run.rest(), PageState::kEmpty);
    run.count = 1;
    room = TakeRoom(1, deadline_ns);
  }
  if (!room.ok()) {
    Lose(segment, page, std::string(room.message()));
    return true;
  }
  Counters::Add(&counters_->zero_pages, run.count);
  Install(segment, run.lowest(), run.count, memory_.data() + buffer_bytes(), plan.writable, /*empty=*/true);
  return true;
}

absl::Status PageIn::Read(const SegmentRef& segment, const Run& run, std::byte* to, int64_t deadline_ns) {
  IoOptions how;
  how.timeout_ms = std::max<int64_t>(1, (deadline_ns - MonotonicNs()) / kNsPerMs);
  how.io_class = IoClass::kUrgent;
  NRAM_RETURN_IF_ERROR(
      segment->region->Read(run.lowest() * options_.page_bytes, {to, run.count * options_.page_bytes}, how));
  return TakeRoom(run.count, deadline_ns);
}

bool PageIn::Fetch(const SegmentRef& segment, uint64_t page, bool write, std::byte* page_buffer, int64_t deadline_ns) {
  if (!segment->word(page).Change(PageState::kRemote, PageState::kBusy)) return false;
  const StreamPlan plan = streams_.OnFault(*segment.get(), page, write);
  Run run = plan.demand;
  Buffer* const window = run.count > 1 ? TakeBuffer() : nullptr;
  run.count = window == nullptr ? 1 : 1 + Claim(*segment.get(), run.rest(), PageState::kRemote);
  // What comes after it is on its way while this is waited for; not if pages in between are here already.
  if (plan.ahead.count > 0 && run.count == plan.demand.count) {
    StartAhead(segment, plan.ahead, plan.writable, /*wanted=*/false);
  }
  std::byte* const data = window == nullptr ? page_buffer : window->data;
  // Others of the window may be on a server that is away: what is waited for is one page, which has half of the time
  // for itself.
  const int64_t now_ns = MonotonicNs();
  const int64_t first_try_ns = run.count > 1 ? now_ns + (deadline_ns - now_ns) / 2 : deadline_ns;
  absl::Status status = Read(segment, run, data, first_try_ns);
  if (!status.ok() && run.count > 1) {
    Unclaim(segment, run.rest(), PageState::kRemote);
    run.count = 1;
    status = Read(segment, run, data, deadline_ns);
  }
  if (status.ok()) {
    Counters::Add(&counters_->fetched_bytes, run.count * options_.page_bytes);
    Counters::Add(&counters_->prefetched_bytes, (run.count - 1) * options_.page_bytes);
    if (residency_->LeftLately(segment->key(page))) segment->word(page).Set(PageWord::kReferenced);
    Install(segment, run.lowest(), run.count, data, plan.writable, /*empty=*/false);
  } else {
    Lose(segment, page, std::string(status.message()));
  }
  if (window != nullptr) Release(window);
  return true;
}

bool PageIn::LetWrite(const SegmentRef& segment, uint64_t page) {
  const Run run = streams_.OnFirstWrite(*segment.get(), page);
  uint64_t count = 0;
  while (count < run.count) {
    // Pages of one kind at a time, each taken while it is let through, so that the evictor does not protect it between.
    PageState was = segment->word(run.at(count)).state();
    if (!IsClean(was)) break;
    const Run same{run.at(count), run.count - count, run.step};
    const uint64_t taken = Claim(*segment.get(), same, was);
    if (taken == 0) break;
    const Run claimed{same.first, taken, same.step};
    PageState becomes = was == PageState::kClean ? PageState::kDirty : PageState::kDirtyEmpty;
    if (run.count == 1 && was == PageState::kClean) {
      sums_->Note(segment->key(page), segment->address(page));
      becomes = PageState::kDirtyNoted;
    }
    userfault_->Unprotect(segment->address(claimed.lowest()), taken * options_.page_bytes);
    Unclaim(segment, claimed, becomes);
    // One that was unpinned meanwhile.
    for (uint64_t i = 0; i < taken; ++i) {
      const PageWord& word = segment->word(claimed.at(i));
      if (!word.Has(PageWord::kQueued) && !word.Has(PageWord::kPinned))
        residency_->Enter(*segment.get(), claimed.at(i), 1);
    }
    count += taken;
  }
  if (count > 0) Counters::Add(&counters_->write_faults, 1);
  return count > 0;
}

void PageIn::Install(const SegmentRef& segment, uint64_t lowest, uint64_t count, const std::byte* data, bool writable,
                     bool empty) {
  const size_t page_bytes = options_.page_bytes;
  const bool dirty = writable && !segment->read_only;
  const bool protect = !dirty && !segment->read_only;
  const bool note = count == 1 && dirty && !empty;
  if (note) sums_->Note(segment->key(lowest), data);
  const PageState state = empty  ? (dirty ? PageState::kDirtyEmpty : PageState::kCleanEmpty)
                          : note ? PageState::kDirtyNoted
                                 : (dirty ? PageState::kDirty : PageState::kClean);
  if (userfault_->Copy(segment->address(lowest), data, count * page_bytes, protect).ok()) {
    Unclaim(segment, {lowest, count, 1}, state);
    residency_->Enter(*segment.get(), lowest, count);
    return;
  }
  // One at a time: the program may have split the range by an madvise(2) or mlock(2) of its own, or its memory cgroup
  // is full.
  for (uint64_t i = 0; i < count; ++i) {
    const absl::Status copied =
        userfault_->Copy(segment->address(lowest + i), data + i * page_bytes, page_bytes, protect);
    if (copied.ok() || copied.code() == absl::StatusCode::kAlreadyExists) {
      Unclaim(segment, {lowest + i, 1, 1}, state);
      residency_->Enter(*segment.get(), lowest + i, 1);
      continue;
    }
    // Of a large page part may be in place.
    DropLocally(segment->address(lowest + i), page_bytes);
    residency_->ReturnRoom(1);
    Lose(segment, lowest + i, absl::StrCat("the kernel does not take it: ", copied.message()));
  }
}

void PageIn::Lose(const SegmentRef& segment, uint64_t page, const std::string& reason) {
  Counters::Add(&counters_->lost_pages, 1);
  std::byte* const at = segment->address(page);
  const absl::Status poisoned = userfault_->Poison(at, options_.page_bytes);
  options_.on_loss(at, options_.page_bytes, reason);
  if (!poisoned.ok()) EndBySigbus();
  if (segment->word(page).End(PageState::kLost)) userfault_->Wake(at, options_.page_bytes);
  userfault_->Wake(at, options_.page_bytes);
}

}  // namespace nram
