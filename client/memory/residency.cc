#include "client/memory/residency.h"

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace nram {

absl::StatusOr<std::unique_ptr<Residency>> Residency::New(Policy policy, uint64_t limit_pages, uint64_t window_pages,
                                                          const SegmentIndex* index) {
  auto residency = std::unique_ptr<Residency>(new Residency(policy, limit_pages, window_pages, index));
  // Half as many again: pages that the evictor did not drop may still have their entries.
  NRAM_ASSIGN_OR_RETURN(auto queue, EvictionQueue::New(policy, limit_pages + limit_pages / 2));
  MutexLock lock(&residency->queue_mu_);
  residency->queue_ = std::move(queue);
  return residency;
}

Residency::Residency(Policy policy, uint64_t limit_pages, uint64_t window_pages, const SegmentIndex* index)
    : policy_(policy),
      limit_(limit_pages),
      low_(std::max(limit_pages / 64, std::min(2 * window_pages, limit_pages / 8))),
      high_(2 * low_),
      index_(index),
      ghosts_(limit_pages) {}

absl::Status Residency::TakeBudget(uint64_t pages, int64_t deadline_ns) {
  uint64_t seen = resident_.load(std::memory_order_relaxed);
  while (seen + pages <= limit_) {
    if (!resident_.compare_exchange_weak(seen, seen + pages)) continue;
    if (limit_ - seen - pages < low_ && !evicting_.load()) {
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
    if (seen + pages <= limit_) {
      if (resident_.compare_exchange_weak(seen, seen + pages, std::memory_order_acq_rel)) break;
      continue;
    }
    pressure_.Signal();
    if (!returned_.WaitUntil(&mu_, deadline_ns) && resident_.load() + pages > limit_) {
      status = absl::ResourceExhaustedError(
          absl::StrCat("no page could leave the budget in time: ",
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
  if (waiters_ > 0) returned_.SignalAll();
}

void Residency::Enter(const Segment& segment, uint64_t first, uint64_t count) {
  MutexLock lock(&queue_mu_);
  for (uint64_t page = first; page < first + count; ++page) {
    if (segment.word(page).Set(PageWord::kQueued)) continue;
    if (queue_->size() == queue_->capacity()) {
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
  const uint64_t left = limit_ - resident;
  return left < low_ + missing_ ? std::min(high_ + missing_ - left, resident) : 0;
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
  return queue_->capacity() * sizeof(uintptr_t) + ghosts_.memory_bytes();
}

}  // namespace nram
