// The half of RunEngine that answers faults.

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "client/run/engine.h"

namespace nram {
namespace {

constexpr int64_t kLookMs = 100;
constexpr int64_t kAheadLookMs = 1'000;  // between looks while nothing is read ahead
// A longer wait for budget shows that no page can be evicted.
constexpr int64_t kBudgetPatienceMs = 60'000;
// Faults in a row at unknown addresses. One or two happen when memory is just being unmapped.
constexpr uint64_t kUnknownMax = 1'000'000;
// Windows that are read ahead at a time.
constexpr size_t kAheadMax = 8;

}  // namespace

void RunEngine::HandleFault(const RunFault& fault, absl::Span<std::byte> buffer) {
  counters_->faults.fetch_add(1, std::memory_order_relaxed);
  if (failed_.load()) return;
  if (const std::optional<Coming> coming = Choose(fault)) Bring(*coming, buffer);
}

std::optional<RunEngine::Coming> RunEngine::Choose(const RunFault& fault) {
  const uint64_t address = RoundDown(fault.address, kPageBytes);
  int64_t until_ns = 0;
  MutexLock lock(&mu_);
  while (!stopping_ && !failed_.load()) {
    if (frozen_) {
      thawed_.WaitUntil(&mu_, DeadlineAfterMs(kLookMs));
      continue;
    }
    const std::optional<uint64_t> home = ranges_.HomeOf(address);
    if (!home.has_value()) {
      OnUnknown(address);
      return std::nullopt;
    }
    RunPage& page = pages_[*home];
    if (page.busy()) {
      page.waiter = true;
      if (page.state == RunState::kComing) JoinAhead(*home);
      return std::nullopt;
    }
    if (page.resident()) {
      if (!fault.write_protected) {
        // Another thread's fault has brought it meanwhile. It cannot be so for long.
        OnUnknown(address);
        return std::nullopt;
      }
      unknown_faults_ = 0;
      counters_->first_writes.fetch_add(1, std::memory_order_relaxed);
      if (page.state == RunState::kClean) return ChooseProtected(*home);
      // Another thread's fault has let it through meanwhile, or it has moved, and its protection with it.
      space_->Unprotect(address, 1);
      return std::nullopt;
    }
    unknown_faults_ = 0;
    const uint64_t room = options_.budget_pages - std::min(options_.budget_pages, resident_);
    if (room > 0) return ChooseMissing(*home, fault.write, room);
    if (until_ns == 0) {
      until_ns = DeadlineAfterMs(kBudgetPatienceMs);
      counters_->budget_waits.fetch_add(1, std::memory_order_relaxed);
    }
    if (MonotonicNs() > until_ns) {
      Fail(absl::ResourceExhaustedError(
          "no page of the program could be evicted for a minute: all pages in the budget are in use, or the program "
          "has made them read-only (mprotect); use a larger --budget"));
      return std::nullopt;
    }
    wanted_.SignalAll();
    left_.WaitUntil(&mu_, DeadlineAfterMs(kLookMs));
  }
  return std::nullopt;
}

RunEngine::Coming RunEngine::ChooseMissing(uint64_t home, bool write, uint64_t room) {
  const RunState from = pages_[home].state;
  const StreamPlan plan = streams_.OnFault(homes_, home, write);
  Run run = plan.demand;
  run.count = std::min(run.count, room);
  Coming coming = Claim(&run, from);
  TakeBudget(coming);
  coming.demanded = home;
  coming.writable = from == RunState::kEmpty || plan.writable || (run.count == 1 && habit_.ComesWritable());
  // The pages behind it are read ahead while the thread waits for this one; not if pages in between are here already.
  if (from == RunState::kRemote && run.count == plan.demand.count) StartAhead(plan.ahead, plan.writable);
  return coming;
}

RunEngine::Coming RunEngine::ChooseProtected(uint64_t home) {
  // A thread that writes in order gets the next ones at once.
  Run run = streams_.OnFirstWrite(homes_, home).run;
  if (run.count == 1) habit_.OnFirstWrite();
  Coming coming = Claim(&run, RunState::kClean);
  coming.writable = true;
  return coming;
}

RunEngine::Coming RunEngine::Claim(Run* run, RunState from) {
  const uint64_t follow = run->step > 0 ? ranges_.RunFrom(run->first) : ranges_.RunTo(run->first);
  const uint64_t most = std::min(run->count, follow);
  run->count = 0;
  while (run->count < most && pages_.Get(run->at(run->count)).state == from) {
    RunPage& page = pages_[run->at(run->count)];
    page.state = RunState::kComing;
    page.waiter = false;
    ++run->count;
  }
  coming_ += run->count;
  if (run->count == 0) return {};
  return {run->lowest(), *ranges_.AddressOf(run->lowest()), run->count, from, /*writable=*/false, std::nullopt};
}

void RunEngine::TakeBudget(const Coming& coming) {
  resident_ += coming.count;
  if (coming.from == RunState::kRemote) remote_ -= coming.count;
  if (resident_ > counters_->peak_pages.load(std::memory_order_relaxed)) counters_->peak_pages = resident_;
  if (WantedLocked()) wanted_.Signal();
}

void RunEngine::StartAhead(Run run, bool writable) {
  if (run.count == 0 || ahead_.size() >= kAheadMax) return;
  // Faults have the last of the budget for themselves.
  const uint64_t kept = resident_ + low_pages_ / 2;
  if (kept >= options_.budget_pages) return;
  run.count = std::min(run.count, options_.budget_pages - kept);
  Coming coming = Claim(&run, RunState::kRemote);
  if (run.count == 0) return;
  TakeBudget(coming);
  coming.writable = writable;
  ahead_.push_back({run, coming});
  to_read_.Signal();
}

void RunEngine::JoinAhead(uint64_t home) {
  for (Ahead& one : ahead_) {
    if (one.used || home < one.run.lowest() || home >= one.run.lowest() + one.run.count) continue;
    one.used = true;
    const StreamPlan plan = streams_.OnAheadUsed(homes_, one.run);
    StartAhead(plan.ahead, plan.writable);
    return;
  }
}

RunEngine::Ahead* RunEngine::NextAhead() {
  MutexLock lock(&mu_);
  while (!stopping_) {
    for (Ahead& one : ahead_) {
      if (!std::exchange(one.begun, true)) return &one;
    }
    to_read_.WaitUntil(&mu_, DeadlineAfterMs(kAheadLookMs));
  }
  return nullptr;
}

void RunEngine::ReadAhead() {
  std::vector<std::byte> buffer(window_pages() * kPageBytes);
  while (Ahead* const one = NextAhead()) {
    Bring(one->coming, absl::MakeSpan(buffer));
    MutexLock lock(&mu_);
    // If no thread has waited for it, the next fault is behind it.
    if (!one->used) (void)streams_.OnAheadUsed(homes_, one->run);
    ahead_.remove_if([one](const Ahead& other) { return &other == one; });
  }
}

void RunEngine::Bring(const Coming& coming, absl::Span<std::byte> buffer) {
  if (coming.from == RunState::kClean) {
    space_->Unprotect(coming.address, coming.count);
    return EndComing(coming, RunState::kDirty, /*wake=*/false);
  }
  const absl::Span<std::byte> data = buffer.first(coming.count * kPageBytes);
  const bool remote = coming.from == RunState::kRemote;
  if (remote) {
    const absl::Status status = store_->ReadPages(coming.home, data);
    if (!status.ok()) return OnUnread(coming, status, buffer);
    counters_->fetched_pages.fetch_add(coming.count, std::memory_order_relaxed);
    if (!coming.demanded.has_value()) counters_->ahead_pages.fetch_add(coming.count, std::memory_order_relaxed);
  } else {
    std::fill(data.begin(), data.end(), std::byte{0});
    counters_->zero_pages.fetch_add(coming.count, std::memory_order_relaxed);
  }
  const absl::Status status = space_->Copy(coming.address, data, /*protect=*/!coming.writable);
  const bool gone = absl::IsNotFound(status);
  if (!status.ok() && !gone && (remote || !absl::IsAlreadyExists(status))) return Fail(status);
  EndComing(coming, gone ? coming.from : coming.writable ? RunState::kDirty : RunState::kClean, !status.ok());
}

void RunEngine::OnUnread(const Coming& coming, const absl::Status& status, absl::Span<std::byte> buffer) {
  Coming rest = coming;
  std::optional<Coming> demanded;
  if (coming.demanded.has_value()) {
    if (coming.count == 1) return Fail(status);
    demanded = coming;
    demanded->home = *coming.demanded;
    demanded->address = coming.address + (demanded->home - coming.home) * kPageBytes;
    demanded->count = 1;
    --rest.count;
    if (demanded->home == coming.home) {
      ++rest.home;
      rest.address += kPageBytes;
    }
  }
  // A thread that waits for one of them looks again, and demands it.
  EndComing(rest, rest.from, /*wake=*/false);
  if (demanded.has_value()) Bring(*demanded, buffer);
}

void RunEngine::EndComing(const Coming& coming, RunState state, bool wake) {
  {
    MutexLock lock(&mu_);
    const bool came = state != coming.from;
    coming_ -= coming.count;
    for (uint64_t i = 0; i < coming.count; ++i) {
      const uint64_t home = coming.home + i;
      RunPage& page = pages_[home];
      page.state = state;
      wake |= page.waiter;
      page.waiter = false;
      if (!came) continue;
      if (coming.from != RunState::kClean) page.again = left_lately_[home % left_lately_.size()] == home;
      EnqueueLocked(home, &page);
    }
    if (!came) {
      resident_ -= coming.count;
      if (coming.from == RunState::kRemote) remote_ += coming.count;
      left_.SignalAll();
    }
    if (frozen_ || !changing_.empty()) idle_.SignalAll();
  }
  if (wake) space_->Wake(coming.address, coming.count);
}

void RunEngine::OnUnknown(uint64_t address) {
  for (const AddressRun& run : changing_) {
    if (address >= run.begin && address < run.begin + run.pages * kPageBytes) return;  // EndChange wakes it
  }
  if (space_->HasOwn(address)) {
    Fail(absl::FailedPreconditionError(
        absl::StrCat("it has accessed 0x", absl::Hex(address),
                     ", where nram run keeps pages during eviction. Programs "
                     "that scan all of /proc/self/maps do this, such as memory checks of crash handlers")));
    return;
  }
  if (++unknown_faults_ > kUnknownMax) {
    Fail(absl::InternalError(absl::StrCat("a fault at 0x", absl::Hex(address), ", which is in no known mapping")));
    return;
  }
  space_->Wake(address, 1);
}

}  // namespace nram
