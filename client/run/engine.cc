#include "client/run/engine.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace nram {
namespace {

constexpr int64_t kLookMs = 100;
constexpr int64_t kPinLookMs = 2;
// For so long nobody waits for budget: nothing can leave.
constexpr int64_t kBudgetPatienceMs = 60'000;
// Faults in a row at addresses that nobody knows. One or two come when memory is just being unmapped.
constexpr uint64_t kUnknownMax = 1'000'000;

}  // namespace

RunEngine::RunEngine(const RunOptions& options, AddressSpace* space, PageStore* store, RunCounters* counters,
                     OnFatal on_fatal)
    : options_(options),
      low_pages_(std::min<uint64_t>(options.budget_pages / 8, 2048)),
      space_(space),
      store_(store),
      counters_(counters),
      on_fatal_(std::move(on_fatal)),
      left_lately_(options.budget_pages, ~uint64_t{0}) {
  CHECK_GE(options.budget_pages, RunOptions::kBudgetPagesMin);
}

void RunEngine::Start() {
  for (int i = 0; i < options_.evictors; ++i) evictors_.emplace_back([this] { Evict(); });
}

void RunEngine::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wanted_.SignalAll();
    left_.SignalAll();
    idle_.SignalAll();
  }
  for (std::thread& evictor : evictors_) evictor.join();
  evictors_.clear();
}

void RunEngine::Fail(const absl::Status& status) {
  if (!failed_.exchange(true)) on_fatal_(status);
}

void RunEngine::HandleFault(const RunFault& fault, absl::Span<std::byte> buffer) {
  counters_->faults.fetch_add(1, std::memory_order_relaxed);
  if (failed_.load()) return;
  if (const std::optional<Bringing> bringing = Choose(fault)) Bring(*bringing, buffer);
}

std::optional<RunEngine::Bringing> RunEngine::Choose(const RunFault& fault) {
  const uint64_t address = RoundDown(fault.address, kPageBytes);
  int64_t until_ns = 0;
  MutexLock lock(&mu_);
  while (!stopping_ && !failed_.load()) {
    const std::optional<uint64_t> home = ranges_.HomeOf(address);
    if (!home.has_value()) {
      OnUnknown(address);
      return std::nullopt;
    }
    RunPage& page = pages_[*home];
    if (page.busy()) {
      page.waiter = true;
      return std::nullopt;
    }
    if (page.resident()) {
      if (fault.write_protected) {
        unknown_faults_ = 0;
        counters_->first_writes.fetch_add(1, std::memory_order_relaxed);
        page.state = RunState::kDirty;
        space_->Unprotect(address, 1);
      } else {
        // Another thread's fault has brought it meanwhile. It cannot be so for long.
        OnUnknown(address);
      }
      return std::nullopt;
    }
    unknown_faults_ = 0;
    uint64_t room = options_.budget_pages - std::min(options_.budget_pages, resident_);
    if (room > 0) {
      const RunState from = page.state;
      const uint64_t count = std::min(room, WindowLocked(*home, from));
      for (uint64_t i = 0; i < count; ++i) {
        RunPage& coming = pages_[*home + i];
        coming.state = RunState::kComing;
        coming.waiter = false;
      }
      resident_ += count;
      if (from == RunState::kRemote) remote_ -= count;
      if (resident_ > counters_->peak_pages.load(std::memory_order_relaxed)) counters_->peak_pages = resident_;
      if (WantedLocked()) wanted_.Signal();
      return Bringing{*home, address, count, from, fault.write};
    }
    if (until_ns == 0) {
      until_ns = DeadlineAfterMs(kBudgetPatienceMs);
      counters_->budget_waits.fetch_add(1, std::memory_order_relaxed);
    }
    if (MonotonicNs() > until_ns) {
      Fail(absl::ResourceExhaustedError(
          "no page of the program could leave memory for a minute: all that the budget holds is locked or in use"));
      return std::nullopt;
    }
    wanted_.SignalAll();
    left_.WaitUntil(&mu_, DeadlineAfterMs(kLookMs));
  }
  return std::nullopt;
}

void RunEngine::OnUnknown(uint64_t address) {
  for (const AddressRun& run : changing_) {
    if (address >= run.begin && address < run.begin + run.pages * kPageBytes) return;  // EndChange wakes it
  }
  if (++unknown_faults_ > kUnknownMax) {
    Fail(absl::InternalError(absl::StrCat("a fault at 0x", absl::Hex(address), ", which nothing is known of")));
    return;
  }
  space_->Wake(address, 1);
}

uint64_t RunEngine::WindowLocked(uint64_t home, RunState state) {
  Stream* stream = &streams_[0];
  for (Stream& one : streams_) {
    if (one.window > 0 && one.next == home) {
      stream = &one;
      break;
    }
    if (one.stamp < stream->stamp) stream = &one;
  }
  const bool goes_on = stream->window > 0 && stream->next == home;
  const uint64_t most = std::min(options_.window_pages, options_.budget_pages / 32);
  stream->window = goes_on ? std::min(most, stream->window * 4) : 1;
  stream->stamp = ++clock_;
  const uint64_t end = std::min(stream->window, ranges_.RunFrom(home));
  uint64_t count = 1;
  while (count < end && pages_.Get(home + count).state == state) ++count;
  stream->next = home + count;
  return count;
}

void RunEngine::Bring(const Bringing& bringing, absl::Span<std::byte> buffer) {
  const absl::Span<std::byte> data = buffer.first(bringing.count * kPageBytes);
  const bool remote = bringing.from == RunState::kRemote;
  if (remote) {
    const absl::Status status = store_->ReadPages(bringing.home, data);
    if (!status.ok()) return Fail(status);
    counters_->fetched_pages.fetch_add(bringing.count, std::memory_order_relaxed);
  } else {
    std::fill(data.begin(), data.end(), std::byte{0});
    counters_->zero_pages.fetch_add(bringing.count, std::memory_order_relaxed);
  }
  const bool protect = remote && !bringing.write;
  const absl::Status status = space_->Copy(bringing.address, data, protect);
  const bool gone = absl::IsNotFound(status);
  if (!status.ok() && !gone && (remote || !absl::IsAlreadyExists(status))) return Fail(status);
  bool wake = !status.ok();
  {
    MutexLock lock(&mu_);
    for (uint64_t i = 0; i < bringing.count; ++i) {
      RunPage& page = pages_[bringing.home + i];
      page.state = gone ? bringing.from : protect ? RunState::kClean : RunState::kDirty;
      wake |= page.waiter;
      page.waiter = false;
      if (gone) continue;
      page.again = left_lately_[(bringing.home + i) % left_lately_.size()] == bringing.home + i;
      EnqueueLocked(bringing.home + i, &page);
    }
    if (gone) {
      resident_ -= bringing.count;
      if (remote) remote_ += bringing.count;
    }
    if (!changing_.empty()) idle_.SignalAll();
  }
  if (wake) space_->Wake(bringing.address, bringing.count);
}

void RunEngine::Attach(uint64_t begin, uint64_t pages, const std::vector<bool>& present) {
  MutexLock lock(&mu_);
  // Large ranges begin at a span of their own.
  if (pages >= kPagesPerSpan) next_home_ = RoundUp(next_home_, kPagesPerSpan);
  const uint64_t home = next_home_;
  next_home_ += pages;
  ranges_.Add({begin, pages, home});
  for (uint64_t i = 0; i < present.size(); ++i) {
    if (!present[i]) continue;
    RunPage& page = pages_[home + i];
    page.state = RunState::kDirty;
    ++resident_;
    EnqueueLocked(home + i, &page);
  }
  if (resident_ > counters_->peak_pages.load(std::memory_order_relaxed)) counters_->peak_pages = resident_;
  if (WantedLocked()) wanted_.SignalAll();
}

std::vector<HomeRange> RunEngine::Detach(uint64_t begin, uint64_t end) {
  MutexLock lock(&mu_);
  std::vector<HomeRange> ranges = ranges_.Remove(begin, end);
  changing_.push_back({begin, (end - begin) / kPageBytes});
  for (const HomeRange& range : ranges) {
    for (uint64_t i = 0; i < range.pages;) {
      i += pages_.UnknownFrom(range.home + i, range.pages - i);
      while (i < range.pages && pages_.Get(range.home + i).busy() && !stopping_ && !failed_.load()) {
        idle_.WaitUntil(&mu_, DeadlineAfterMs(kLookMs));
      }
      ++i;
    }
  }
  return ranges;
}

void RunEngine::Reattach(const HomeRange& range, bool moved) {
  MutexLock lock(&mu_);
  ranges_.Add(range);
  if (!moved) return;
  for (uint64_t i = 0; i < range.pages; ++i) {
    i += pages_.UnknownFrom(range.home + i, range.pages - i);
    if (i >= range.pages) break;
    RunPage& page = pages_[range.home + i];
    if (page.state == RunState::kClean) page.state = RunState::kDirty;
  }
}

void RunEngine::Forget(const HomeRange& range) {
  bool stored = false;
  {
    MutexLock lock(&mu_);
    for (uint64_t i = 0; i < range.pages; ++i) {
      i += pages_.UnknownFrom(range.home + i, range.pages - i);
      if (i >= range.pages) break;
      const RunPage page = pages_.Get(range.home + i);
      resident_ -= page.resident() ? 1 : 0;
      remote_ -= page.state == RunState::kRemote ? 1 : 0;
      stored |= page.stored;
    }
    pages_.Clear(range.home, range.pages);
    left_.SignalAll();
  }
  if (stored) store_->Forget(range.home, range.pages);
}

void RunEngine::EndChange() {
  std::vector<AddressRun> ended;
  {
    MutexLock lock(&mu_);
    ended.swap(changing_);
  }
  for (const AddressRun& run : ended) {
    if (run.pages > 0) space_->Wake(run.begin, run.pages);
  }
}

bool RunEngine::Overlaps(uint64_t begin, uint64_t end) const {
  MutexLock lock(&mu_);
  return ranges_.Overlaps(begin, end);
}

bool RunEngine::Pin(uint64_t address, absl::Span<std::byte> buffer) {
  while (true) {
    {
      MutexLock lock(&mu_);
      const std::optional<uint64_t> home = ranges_.HomeOf(address);
      if (!home.has_value()) return false;
      RunPage& page = pages_[*home];
      page.pinned = true;
      if (page.resident() || stopping_ || failed_.load()) return true;
      if (page.busy()) {
        idle_.WaitUntil(&mu_, DeadlineAfterMs(kPinLookMs));
        continue;
      }
    }
    HandleFault({.address = address, .write = true}, buffer);
  }
}

uint64_t RunEngine::resident_pages() const {
  MutexLock lock(&mu_);
  return resident_;
}

uint64_t RunEngine::attached_pages() const {
  MutexLock lock(&mu_);
  return ranges_.pages();
}

std::vector<AddressRun> RunEngine::attached() const {
  MutexLock lock(&mu_);
  std::vector<AddressRun> runs;
  for (const HomeRange& range : ranges_.Within(0, ~uint64_t{0})) runs.push_back({range.begin, range.pages});
  return runs;
}

bool RunEngine::HasRemotePages() const {
  MutexLock lock(&mu_);
  return remote_ > 0 || leaving_ > 0;
}

uint64_t RunEngine::metadata_bytes() const {
  MutexLock lock(&mu_);
  return pages_.memory_bytes() + (queue_.size() + left_lately_.size()) * sizeof(uint64_t);
}

}  // namespace nram
