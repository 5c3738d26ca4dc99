#include "client/memory/ahead_windows.h"

#include <glog/logging.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/clock.h"
#include "base/status.h"

namespace nram {

absl::StatusOr<std::unique_ptr<AheadWindows>> AheadWindows::New(const AheadOptions& options, PagePlacer* placer,
                                                                Streams* streams, Counters* counters) {
  auto ahead = std::unique_ptr<AheadWindows>(new AheadWindows(options, placer, streams, counters));
  ahead->arrived_fd_ = UniqueFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK | EFD_SEMAPHORE));
  if (!ahead->arrived_fd_.valid()) return ErrnoStatus(errno, "eventfd");
  const size_t window_bytes = options.most_window_pages * options.page_bytes;
  NRAM_ASSIGN_OR_RETURN(ahead->memory_, Mapping::Untouched(options.windows * window_bytes));
  for (size_t i = 0; i < options.windows; ++i) {
    auto buffer = std::make_unique<Buffer>();
    buffer->data = ahead->memory_.data() + i * window_bytes;
    buffer->owner = ahead.get();
    buffer->index = i;
    ahead->buffers_.push_back(std::move(buffer));
  }
  MutexLock lock(&ahead->mu_);
  ahead->windows_.resize(options.windows);
  return ahead;
}

AheadWindows::~AheadWindows() {
  MutexLock lock(&mu_);
  for (const Window& window : windows_) CHECK(window.state == State::kFree);
}

bool AheadWindows::Join(const SegmentRef& segment, uint64_t page) {
  std::optional<size_t> arrived;
  Run used;
  {
    MutexLock lock(&mu_);
    if (!segment->word(page).WaitFor(PageState::kBusy)) return false;
    for (size_t i = 0; i < windows_.size(); ++i) {
      Window& window = windows_[i];
      if (window.state == State::kFree || window.segment.get() != segment.get()) continue;
      if (page < window.run.lowest() || page >= window.run.lowest() + window.run.count) continue;
      if (!std::exchange(window.used, true)) used = window.run;
      if (window.state == State::kReading) window.wanted = true;
      if (window.state == State::kReady) {
        window.state = State::kPlacing;
        arrived = i;
      }
      break;
    }
  }
  Counters::Add(&counters_->hits, 1);
  if (used.count > 0) {
    const StreamPlan plan = streams_->OnAheadUsed(*segment.get(), used);
    if (plan.ahead.count > 0) Start(segment, plan.ahead, plan.writable, /*wanted=*/false);
  }
  if (arrived.has_value()) Place(*arrived);
  return true;
}

std::optional<size_t> AheadWindows::FindFreeLocked() {
  std::optional<size_t> oldest;
  for (size_t i = 0; i < windows_.size(); ++i) {
    if (windows_[i].state == State::kFree) return i;
    if (windows_[i].state != State::kReady || windows_[i].wanted) continue;
    if (!oldest.has_value() || windows_[i].stamp < windows_[*oldest].stamp) oldest = i;
  }
  if (oldest.has_value()) GiveUpLocked(*oldest);
  return oldest;
}

std::optional<size_t> AheadWindows::Borrow() {
  MutexLock lock(&mu_);
  const std::optional<size_t> index = FindFreeLocked();
  if (index.has_value()) windows_[*index].state = State::kPlacing;
  return index;
}

void AheadWindows::Return(size_t index) {
  MutexLock lock(&mu_);
  windows_[index].segment.Reset();
  windows_[index].state = State::kFree;
  freed_.SignalAll();
}

void AheadWindows::SetWindow(uint64_t window_pages) {
  MutexLock lock(&mu_);
  window_pages_.store(std::min(window_pages, options_.most_window_pages));
  held_pages_.store(std::max(held_pages_.load(), window_pages_.load()));
}

void AheadWindows::Trim() {
  MutexLock lock(&mu_);
  const uint64_t window = window_pages_.load();
  const uint64_t held = held_pages_.load();
  if (held == window) return;
  bool all = true;
  for (size_t i = 0; i < windows_.size(); ++i) {
    if (windows_[i].state == State::kReady && !windows_[i].wanted) GiveUpLocked(i);
    if (windows_[i].state == State::kFree) {
      madvise(data(i) + window * options_.page_bytes, (held - window) * options_.page_bytes, MADV_DONTNEED);
    } else {
      all = false;
    }
  }
  if (all) held_pages_.store(window);
}

void AheadWindows::GiveUpLocked(size_t index) {
  Window& window = windows_[index];
  const absl::Status status = buffers_[index]->io.Wait();  // is done
  placer_->Unclaim(window.segment, window.run, PageState::kRemote);
  if (status.ok()) Counters::Add(&counters_->prefetch_wasted_bytes, window.run.count * options_.page_bytes);
  window.segment.Reset();
  window.state = State::kFree;
  freed_.SignalAll();
}

void AheadWindows::Start(const SegmentRef& segment, const Run& run, bool writable, bool wanted) {
  Buffer* buffer = nullptr;
  Run claimed = run;
  {
    MutexLock lock(&mu_);
    // Its pages are claimed under the lock, so that a thread that meets a claimed page finds the window.
    if (segment->leaving || segment->word(run.first).state() != PageState::kRemote) return;
    const std::optional<size_t> index = FindFreeLocked();
    if (!index.has_value()) return;
    claimed.count = std::min(run.count, window_pages());
    claimed.count = placer_->Claim(*segment.get(), claimed, PageState::kRemote);
    if (claimed.count == 0) return;
    Window& window = windows_[*index];
    window.segment = segment.Share();
    window.run = claimed;
    window.state = State::kReading;
    window.wanted = wanted;
    window.used = false;
    window.writable = writable;
    window.stamp = ++clock_;
    buffer = buffers_[*index].get();
  }
  const size_t bytes = claimed.count * options_.page_bytes;
  Counters::Add(&counters_->fetched_bytes, bytes);
  Counters::Add(&counters_->prefetched_bytes, bytes);
  segment->region()->StartRead(
      &buffer->io, claimed.lowest() * options_.page_bytes, {buffer->data, bytes}, {},
      [](Io*, void* context) {
        auto* const read = static_cast<Buffer*>(context);
        read->owner->OnRead(read->index);
      },
      buffer);
}

void AheadWindows::OnRead(size_t index) {
  MutexLock lock(&mu_);
  windows_[index].state = State::kReady;
  if (!windows_[index].wanted) {
    windows_[index].segment->ended.Notify();  // a thread that waits for its pages gives it up
    freed_.SignalAll();
    return;
  }
  const uint64_t one = 1;
  PCHECK(write(arrived_fd_.get(), &one, sizeof(one)) == sizeof(one));
}

void AheadWindows::HandleArrived() {
  uint64_t count;
  if (read(arrived_fd_.get(), &count, sizeof(count)) != sizeof(count)) return;
  std::optional<size_t> arrived;
  {
    MutexLock lock(&mu_);
    for (size_t i = 0; i < windows_.size() && !arrived.has_value(); ++i) {
      if (windows_[i].state != State::kReady || !windows_[i].wanted) continue;
      windows_[i].state = State::kPlacing;
      arrived = i;
    }
  }
  if (arrived.has_value()) Place(*arrived);
}

void AheadWindows::Place(size_t index) {
  SegmentRef segment;
  Run run;
  bool writable = false;
  {
    MutexLock lock(&mu_);
    segment = windows_[index].segment.Share();
    run = windows_[index].run;
    writable = windows_[index].writable;
  }
  absl::Status status = buffers_[index]->io.Wait();  // is done
  if (status.ok()) status = placer_->TakeBudget(run.count, DeadlineAfterMs(options_.timeout_ms));
  if (status.ok()) {
    placer_->Place(segment, run.lowest(), run.count, data(index), writable, /*empty=*/false, std::nullopt);
  } else {
    // Threads that wait look again, and fetch the page that they need themselves or learn why not.
    placer_->Unclaim(segment, run, PageState::kRemote);
  }
  Return(index);
}

void AheadWindows::Prefetch(const SegmentRef& segment, uint64_t first, uint64_t count) {
  for (uint64_t page = first; page < first + count;) {
    if (segment->word(page).state() != PageState::kRemote) {
      ++page;
      continue;
    }
    Run run{page, std::min(first + count - page, window_pages()), 1};
    uint64_t remote = 1;
    while (remote < run.count && segment->word(page + remote).state() == PageState::kRemote) ++remote;
    run.count = remote;
    {
      MutexLock lock(&mu_);
      // Each of them ends by the deadline of its read.
      while (!FindFreeLocked().has_value()) freed_.WaitUntil(&mu_, DeadlineAfterMs(100));
    }
    Start(segment, run, /*writable=*/false, /*wanted=*/true);
    page += run.count;
  }
}

void AheadWindows::Cancel(const Segment& segment, uint64_t first, uint64_t count) {
  MutexLock lock(&mu_);
  for (size_t i = 0; i < windows_.size(); ++i) {
    const Window& window = windows_[i];
    if (window.state != State::kReady || window.wanted || window.segment.get() != &segment) continue;
    if (window.run.lowest() < first + count && first < window.run.lowest() + window.run.count) GiveUpLocked(i);
  }
}

void AheadWindows::Forget(Segment* segment) {
  MutexLock lock(&mu_);
  segment->leaving = true;
  while (true) {
    bool busy = false;
    for (size_t i = 0; i < windows_.size(); ++i) {
      const Window& window = windows_[i];
      if (window.state == State::kFree || window.segment.get() != segment) continue;
      if (window.state == State::kReady && !window.wanted) {
        GiveUpLocked(i);
      } else {
        busy = true;
      }
    }
    if (!busy) return;
    freed_.WaitUntil(&mu_, DeadlineAfterMs(100));
  }
}

}  // namespace nram
