#include "client/run/engine.h"

#include <glog/logging.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace nram {
namespace {

constexpr int64_t kLookMs = 100;
constexpr int64_t kPinLookMs = 2;

}  // namespace

RunEngine::RunEngine(const RunOptions& options, AddressSpace* space, PageStore* store, RunCounters* counters,
                     OnFatal on_fatal)
    : options_(options),
      low_pages_(std::min<uint64_t>(options.budget_pages / 8, 2048)),
      space_(space),
      store_(store),
      counters_(counters),
      on_fatal_(std::move(on_fatal)),
      left_lately_(options.budget_pages, ~uint64_t{0}),
      streams_(window_pages()) {
  CHECK_GE(options.budget_pages, RunOptions::kBudgetPagesMin);
}

void RunEngine::Start() {
  for (int i = 0; i < options_.evictors; ++i) threads_.emplace_back([this] { Evict(); });
  for (int i = 0; i < options_.readers; ++i) threads_.emplace_back([this] { ReadAhead(); });
}

void RunEngine::Stop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wanted_.SignalAll();
    left_.SignalAll();
    idle_.SignalAll();
    to_read_.SignalAll();
    thawed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
  threads_.clear();
}

void RunEngine::Fail(const absl::Status& status) {
  if (!failed_.exchange(true)) on_fatal_(status);
}

std::vector<HomeRange> RunEngine::TakeHomes(uint64_t pages) {
  // Large ranges begin at a span of their own.
  const uint64_t first = pages >= kPagesPerSpan ? RoundUp(next_home_, kPagesPerSpan) : next_home_;
  if (first <= options_.homes && pages <= options_.homes - first) {
    GiveHomes(next_home_, first - next_home_);
    next_home_ = first + pages;
    return {{0, pages, first}};
  }
  GiveHomes(next_home_, options_.homes - next_home_);
  next_home_ = options_.homes;
  std::vector<HomeRange> taken;
  while (pages > 0 && !free_homes_.empty()) {
    const auto [home, count] = *free_homes_.begin();
    const uint64_t takes = std::min(pages, count);
    free_homes_.erase(free_homes_.begin());
    if (takes < count) free_homes_.emplace(home + takes, count - takes);
    taken.push_back({0, takes, home});
    pages -= takes;
  }
  if (pages > 0) taken.clear();
  return taken;
}

void RunEngine::GiveHomes(uint64_t home, uint64_t pages) {
  if (pages == 0) return;
  auto after = free_homes_.lower_bound(home);
  if (after != free_homes_.end() && after->first == home + pages) {
    pages += after->second;
    after = free_homes_.erase(after);
  }
  if (after != free_homes_.begin()) {
    const auto before = std::prev(after);
    if (before->first + before->second == home) {
      before->second += pages;
      return;
    }
  }
  free_homes_.emplace_hint(after, home, pages);
}

void RunEngine::Attach(uint64_t begin, uint64_t pages, const std::vector<bool>& present) {
  MutexLock lock(&mu_);
  const std::vector<HomeRange> taken = TakeHomes(pages);
  if (taken.empty() && pages > 0) {
    Fail(absl::ResourceExhaustedError(
        absl::StrCat("the program has mapped more pages at a time than the maximum, ", options_.homes)));
    return;
  }
  uint64_t done = 0;
  for (const HomeRange& part : taken) {
    ranges_.Add({begin + done * kPageBytes, part.pages, part.home});
    for (uint64_t i = 0; i < part.pages && done + i < present.size(); ++i) {
      if (!present[done + i]) continue;
      RunPage& page = pages_[part.home + i];
      page.state = RunState::kDirty;
      ++resident_;
      EnqueueLocked(part.home + i, &page);
    }
    done += part.pages;
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

void RunEngine::Release(const HomeRange& range) {
  Forget(range);
  MutexLock lock(&mu_);
  GiveHomes(range.home, range.pages);
}

uint64_t RunEngine::homes() const {
  MutexLock lock(&mu_);
  return next_home_;
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
    bool is_clean = false;
    {
      MutexLock lock(&mu_);
      const std::optional<uint64_t> home = ranges_.HomeOf(address);
      if (!home.has_value()) return false;
      RunPage& page = pages_[*home];
      page.pinned = true;
      if (page.state == RunState::kDirty || stopping_ || failed_.load()) return true;
      if (page.busy()) {
        idle_.WaitUntil(&mu_, DeadlineAfterMs(kPinLookMs));
        continue;
      }
      is_clean = page.state == RunState::kClean;
    }
    // A clean one is protected: code that gets no faults could not write to it.
    HandleFault({.address = address, .write = true, .write_protected = is_clean}, buffer);
  }
}

bool RunEngine::Freeze() {
  MutexLock lock(&mu_);
  frozen_ = true;
  shares_ = true;
  while ((leaving_ > 0 || coming_ > 0) && !stopping_ && !failed_.load()) {
    idle_.WaitUntil(&mu_, DeadlineAfterMs(kLookMs));
  }
  return !stopping_ && !failed_.load();
}

void RunEngine::Thaw() {
  MutexLock lock(&mu_);
  frozen_ = false;
  thawed_.SignalAll();
  if (WantedLocked()) wanted_.SignalAll();
}

void RunEngine::CopyFrom(const RunEngine& parent) {
  MutexLock parent_lock(&parent.mu_);
  MutexLock lock(&mu_);
  CHECK(parent.frozen_);
  ranges_ = parent.ranges_;
  next_home_ = parent.next_home_;
  free_homes_ = parent.free_homes_;
  shares_ = true;
  uint64_t resident = 0;
  uint64_t remote = 0;
  pages_.CopyFrom(parent.pages_, [&](RunPage* page) {
    CHECK(!page->busy());
    resident += page->resident() ? 1 : 0;
    remote += page->state == RunState::kRemote ? 1 : 0;
    RunPage copy;
    copy.pinned = page->pinned;
    copy.stored = page->state == RunState::kRemote;
    // Clean pages are not protected any more, and the store does not have them for this one.
    copy.state = page->resident() ? RunState::kDirty : page->state;
    *page = copy;
  });
  resident_ = resident;
  remote_ = remote;
  for (const uint64_t home : parent.queue_) {
    if (pages_.Get(home).resident()) EnqueueLocked(home, &pages_[home]);
  }
}

RunEngine::Stored RunEngine::stored() const {
  MutexLock lock(&mu_);
  CHECK(frozen_);
  Stored found;
  const auto add = [](uint64_t home, std::vector<PageRun>* runs) {
    if (!runs->empty() && runs->back().first + runs->back().count == home) {
      ++runs->back().count;
    } else {
      runs->push_back({home, 1});
    }
  };
  pages_.ForEach([&](uint64_t home, const RunPage& page) {
    if (page.stored) add(home, &found.all);
    if (page.state == RunState::kRemote) add(home, &found.remote);
  });
  return found;
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
