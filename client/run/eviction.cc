// The half of RunEngine that takes pages out.

#include <glog/logging.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "client/run/engine.h"

namespace nram {
namespace {

constexpr uint64_t kBatchPages = 256;
constexpr int64_t kRestMs = 200;  // between looks while nothing has to leave
constexpr int64_t kStuckMs = 2;   // while nothing can

bool IsZeroPage(const std::byte* page) {
  return page[0] == std::byte{0} && memcmp(page, page + 1, kPageBytes - 1) == 0;
}

}  // namespace

bool RunEngine::WantedLocked() const { return resident_ - leaving_ + low_pages_ > options_.budget_pages; }

void RunEngine::EnqueueLocked(uint64_t home, RunPage* page) {
  if (page->queued || page->pinned) return;
  // Entries of pages that were unmapped, or emptied and filled anew, remain until they are met; too many are taken out
  // at once.
  if (queue_.size() > 2 * (resident_ + options_.budget_pages)) {
    std::deque<uint64_t> rest;
    for (const uint64_t one : queue_) {
      if (!pages_.Get(one).queued) continue;
      pages_[one].queued = false;  // a second entry is one too many
      rest.push_back(one);
    }
    for (const uint64_t one : rest) pages_[one].queued = true;
    queue_.swap(rest);
  }
  page->queued = true;
  queue_.push_back(home);
}

void RunEngine::ChooseLeaving(std::vector<Leaving>* dirty, std::vector<Leaving>* clean) {
  dirty->clear();
  clean->clear();
  MutexLock lock(&mu_);
  if (frozen_) return;
  const size_t most = std::min<size_t>(queue_.size(), 8 * kBatchPages);
  // A page that enters again may shrink the queue.
  for (size_t seen = 0; seen < most && !queue_.empty(); ++seen) {
    if (dirty->size() == kBatchPages || clean->size() == kBatchPages) break;
    const uint64_t home = queue_.front();
    queue_.pop_front();
    if (!pages_.Get(home).resident()) {
      if (pages_.Get(home).queued) pages_[home].queued = false;
      continue;
    }
    RunPage& page = pages_[home];
    page.queued = false;
    const std::optional<uint64_t> address = ranges_.AddressOf(home);
    if (page.again || !address.has_value()) {
      page.again = false;
      EnqueueLocked(home, &page);
      continue;
    }
    if (page.pinned) continue;
    (page.state == RunState::kDirty ? dirty : clean)->push_back({home, *address});
    page.state = RunState::kLeaving;
    page.waiter = false;
    ++leaving_;
  }
  const auto by_address = [](const Leaving& a, const Leaving& b) { return a.address < b.address; };
  std::sort(dirty->begin(), dirty->end(), by_address);
  std::sort(clean->begin(), clean->end(), by_address);
}

void RunEngine::Evict() {
  std::vector<Leaving> dirty;
  std::vector<Leaving> clean;
  std::vector<std::byte> buffer(kBatchPages * kPageBytes);
  while (true) {
    {
      MutexLock lock(&mu_);
      while ((frozen_ || !WantedLocked()) && !stopping_) wanted_.WaitUntil(&mu_, DeadlineAfterMs(kRestMs));
      if (stopping_ || failed_.load()) return;
    }
    ChooseLeaving(&dirty, &clean);
    bool moved = !clean.empty() && DropClean(clean);
    if (!dirty.empty()) moved |= TakeDirty(dirty, absl::MakeSpan(buffer));
    if (moved || failed_.load()) continue;
    MutexLock lock(&mu_);
    if (!stopping_) wanted_.WaitUntil(&mu_, DeadlineAfterMs(kStuckMs));
  }
}

namespace {

template <typename Pages>
std::vector<AddressRun> RunsOf(const Pages& pages) {
  std::vector<AddressRun> runs;
  for (const auto& page : pages) {
    if (!runs.empty() && runs.back().begin + runs.back().pages * kPageBytes == page.address) {
      ++runs.back().pages;
    } else {
      runs.push_back({page.address, 1});
    }
  }
  return runs;
}

}  // namespace

void RunEngine::EndLeaving(const Leaving& leaving, RunState state) {
  RunPage& page = pages_[leaving.home];
  if (page.state != RunState::kLeaving) {
    CHECK(failed_.load() || stopping_);  // Detach has not waited for it
    return;
  }
  page.state = state;
  --leaving_;
  if (page.resident()) {
    EnqueueLocked(leaving.home, &page);
  } else {
    --resident_;
    if (state == RunState::kRemote) {
      ++remote_;
      page.stored = true;
    }
    left_lately_[leaving.home % left_lately_.size()] = leaving.home;
  }
  if (page.waiter) {
    page.waiter = false;
    // At its present address. If it is just being moved, EndChange wakes the waiters.
    if (const auto address = ranges_.AddressOf(leaving.home)) space_->Wake(*address, 1);
  }
}

bool RunEngine::DropClean(const std::vector<Leaving>& pages) {
  std::vector<bool> taken;
  if (const absl::Status status = space_->Drop(RunsOf(pages), &taken); !status.ok()) {
    Fail(status);
    return false;
  }
  // One that the kernel shares with a copy by fork does not move before it is written to. So it is let through, and has
  // a try as a dirty one.
  const bool shares = Shares();
  for (size_t i = 0; shares && i < pages.size(); ++i) {
    if (!taken[i]) space_->Unprotect(pages[i].address, 1);
  }
  uint64_t left = 0;
  MutexLock lock(&mu_);
  for (size_t i = 0; i < pages.size(); ++i) {
    left += taken[i] ? 1 : 0;
    EndLeaving(pages[i], taken[i] ? RunState::kRemote : shares ? RunState::kDirty : RunState::kClean);
  }
  counters_->evicted_pages.fetch_add(left, std::memory_order_relaxed);
  counters_->stayed_pages.fetch_add(pages.size() - left, std::memory_order_relaxed);
  left_.SignalAll();
  if (frozen_ || !changing_.empty()) idle_.SignalAll();
  return left > 0;
}

absl::Status RunEngine::Store(const std::vector<Leaving>& pages, absl::Span<const std::byte> data,
                              const std::vector<bool>& taken, std::vector<bool>* zero) {
  zero->assign(pages.size(), false);
  std::vector<PageStore::Write> writes;
  uint64_t written = 0;
  size_t last = pages.size();  // the page that the last write ends with
  for (size_t i = 0; i < pages.size(); ++i) {
    if (!taken[i]) continue;
    const std::byte* const page = data.data() + i * kPageBytes;
    if (IsZeroPage(page)) {
      (*zero)[i] = true;
      continue;
    }
    ++written;
    if (last + 1 == i && pages[last].home + 1 == pages[i].home) {
      writes.back().data = {writes.back().data.data(), writes.back().data.size() + kPageBytes};
    } else {
      writes.push_back({pages[i].home, {page, kPageBytes}});
    }
    last = i;
  }
  counters_->written_pages.fetch_add(written, std::memory_order_relaxed);
  return writes.empty() ? absl::OkStatus() : store_->WritePages(writes);
}

bool RunEngine::TakeDirty(const std::vector<Leaving>& pages, absl::Span<std::byte> buffer) {
  std::vector<bool> taken;
  std::vector<bool> zero;
  absl::Status status = space_->Take(RunsOf(pages), buffer.first(pages.size() * kPageBytes), &taken);
  if (status.ok()) status = Store(pages, buffer, taken, &zero);
  if (!status.ok()) {
    Fail(status);
    return false;
  }
  uint64_t left = 0;
  MutexLock lock(&mu_);
  for (size_t i = 0; i < pages.size(); ++i) {
    left += taken[i] ? 1 : 0;
    EndLeaving(pages[i], !taken[i] ? RunState::kDirty : zero[i] ? RunState::kEmpty : RunState::kRemote);
  }
  counters_->evicted_pages.fetch_add(left, std::memory_order_relaxed);
  counters_->stayed_pages.fetch_add(pages.size() - left, std::memory_order_relaxed);
  left_.SignalAll();
  if (frozen_ || !changing_.empty()) idle_.SignalAll();
  return left > 0;
}

}  // namespace nram
