#include "client/memory/residency.h"

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace nram {
namespace {

// While too many pages are here, faults get one of this many evicted pages.
constexpr uint64_t kFaultsShare = 8;

uint64_t LowOf(uint64_t limit_pages, uint64_t window_pages) {
  return std::max(limit_pages / 64, std::min(2 * window_pages, limit_pages / 8));
}

// Half as many again: pages that the evictor did not drop may still have their entries.
size_t EntriesFor(uint64_t pages) { return pages + pages / 2; }

}  // namespace

absl::StatusOr<std::unique_ptr<Residency>> Residency::New(Policy policy, uint64_t limit_pages, uint64_t window_pages,
                                                          uint64_t most_pages, const SegmentIndex* index) {
  most_pages = std::max(most_pages, limit_pages);
  auto residency = std::unique_ptr<Residency>(new Residency(policy, limit_pages, window_pages, most_pages, index));
  NRAM_ASSIGN_OR_RETURN(auto queue, EvictionQueue::New(policy, EntriesFor(most_pages)));
  MutexLock lock(&residency->queue_mu_);
  residency->queue_ = std::move(queue);
  residency->sweep_at_ = EntriesFor(limit_pages);
  return residency;
}

Residency::Residency(Policy policy, uint64_t limit_pages, uint64_t window_pages, uint64_t most_pages,
                     const SegmentIndex* index)
    : policy_(policy),
      goal_(limit_pages),
      limit_(limit_pages),
      low_(LowOf(limit_pages, window_pages)),
      index_(index),
      ghosts_(limit_pages, most_pages) {}

void Residency::SetLimit(uint64_t limit_pages, uint64_t window_pages) {
  {
    MutexLock lock(&mu_);
    goal_.store(limit_pages);
    low_.store(LowOf(limit_pages, window_pages));
    left_ = 0;
    limit_.store(std::max(limit_pages, resident_.load()));
    // Either there is room now, or something to do.
    if (waiters_ > 0) returned_.SignalAll();
    pressure_.Signal();
  }
  // A small change is not worth forgetting for.
  const uint64_t generation = ghosts_.generation();
  if (limit_pages > generation + generation / 4 || limit_pages < generation - generation / 4) {
    ghosts_.Resize(limit_pages);
  }
}

void Residency::LowerLimit(uint64_t left, uint64_t resident) {
  const uint64_t goal = goal_.load(std::memory_order_relaxed);
  const uint64_t limit = limit_.load(std::memory_order_relaxed);
  if (limit == goal) return;
  left_ += left;
  const uint64_t for_faults = left_ / kFaultsShare;
  left_ -= for_faults * kFaultsShare;
  const uint64_t lower = limit - std::min(limit, left - std::min(left, for_faults));
  // Room that faults do not use now need not be there for them later.
  limit_.store(std::max(goal, std::min(lower, resident + low_.load(std::memory_order_relaxed))));
}

void Residency::Trim() {
  MutexLock lock(&queue_mu_);
  sweep_at_ = std::min(queue_->capacity(), EntriesFor(std::max<uint64_t>(goal_.load(), queue_->size())));
  queue_->Trim();
}

absl::Status Residency::TakeBudget(uint64_t pages, int64_t deadline_ns) {
  uint64_t seen = resident_.load(std::memory_order_relaxed);
  const uint64_t limit = limit_.load(std::memory_order_relaxed);
  while (seen + pages <= limit) {
    if (!resident_.compare_exchange_weak(seen, seen + pages)) continue;
    if (limit - seen - pages < low_.load(std::memory_order_relaxed) && !evicting_.load()) {
      MutexLock lock(&mu_);
      pressure_.Signal();
    }
    return absl::OkStatus();
  }
  MutexLock lock(&mu_);
  ++waiters_;
  missing_ += pages;
  absl::Status status;
  while (true) {
    seen = resident_.load(std::memory_order_acquire);
    if (seen + pages <= limit_.load()) {
      if (resident_.compare_exchange_weak(seen, seen + pages, std::memory_order_acq_rel)) break;
      continue;
    }
    pressure_.Signal();
    if (!returned_.WaitUntil(&mu_, deadline_ns) && resident_.load() + pages > limit_.load()) {
      status = absl::ResourceExhaustedError(
          absl::StrCat("no page could be evicted in time: ",
                       reported_.ok() ? "all pages are pinned or in use" : reported_.message()));
      break;
    }
  }
  --waiters_;
  missing_ -= pages;
  return status;
}

void Residency::ReturnBudget(uint64_t pages) {
  const uint64_t before = resident_.fetch_sub(pages, std::memory_order_acq_rel);
  CHECK_GE(before, pages);
  MutexLock lock(&mu_);
  LowerLimit(pages, before - pages);
  if (waiters_ > 0) returned_.SignalAll();
}

void Residency::Enter(const Segment& segment, uint64_t first, uint64_t count) {
  MutexLock lock(&queue_mu_);
  for (uint64_t page = first; page < first + count; ++page) {
    if (segment.word(page).Set(PageWord::kQueued)) continue;
    if (queue_->size() >= sweep_at_) {
      queue_->RemoveIf([this](uintptr_t key) {
        const SegmentRef found = index_->Find(key);
        if (!found) return true;
        PageWord& word = found->word(found->PageOf(key));
        const PageState state = word.state();
        // A page that is on its way enters again when it has come in.
        if (IsResident(state)) return false;
        word.Clear(PageWord::kQueued);
        return true;
      });
      // While the limit falls, more pages are here than it says. There is room: all that are here fit twice, or almost.
      sweep_at_ = std::min(queue_->capacity(), EntriesFor(std::max<uint64_t>(goal_.load(), queue_->size())));
    }
    queue_->Add(segment.key(page));
  }
}

uint64_t Residency::Wanted() const {
  MutexLock lock(&mu_);
  return WantedLocked();
}

uint64_t Residency::WantedLocked() const {
  const uint64_t resident = resident_.load();
  const uint64_t goal = goal_.load();
  const uint64_t low = low_.load();
  if (resident > goal) return std::min(resident - goal + 2 * low + missing_, resident);
  const uint64_t left = goal - resident;
  return left < low + missing_ ? std::min(2 * low + missing_ - left, resident) : 0;
}

void Residency::AwaitWanted(int64_t deadline_ns) {
  evicting_.store(false);
  {
    MutexLock lock(&mu_);
    while (WantedLocked() == 0 && !interrupted_ && pressure_.WaitUntil(&mu_, deadline_ns)) {
    }
  }
  evicting_.store(true);
}

void Residency::Interrupt() {
  MutexLock lock(&mu_);
  interrupted_ = true;
  pressure_.Signal();
}

size_t Residency::Take(uintptr_t* pages, size_t max) {
  MutexLock lock(&queue_mu_);
  return queue_->Take(pages, max);
}

void Residency::NoteLeft(uintptr_t page) {
  if (policy_ == Policy::kSecondChance) ghosts_.Note(page);
}

bool Residency::LeftLately(uintptr_t page) const { return policy_ == Policy::kSecondChance && ghosts_.Knows(page); }

void Residency::Report(const absl::Status& status) {
  MutexLock lock(&mu_);
  reported_ = status;
}

void Residency::Remove(const Segment& segment) {
  MutexLock lock(&queue_mu_);
  queue_->RemoveIf([&](uintptr_t key) { return segment.Contains(key); });
}

uint64_t Residency::metadata_bytes() const {
  MutexLock lock(&queue_mu_);
  return queue_->memory_bytes() + ghosts_.memory_bytes();
}

}  // namespace nram
