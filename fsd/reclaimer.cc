#include "fsd/reclaimer.h"

#include <malloc.h>
#include <pthread.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "base/clock.h"

namespace nram {
namespace {

constexpr int64_t kAwaitFreedMs = 2'000;
constexpr int64_t kBatchMs = 2;
constexpr int64_t kIdleMs = 60'000;
constexpr uint64_t kTrimAfter = 10'000;  // files
constexpr int64_t kTrimIdleMs = 1'000;

}  // namespace

Reclaimer::Reclaimer(BlockStore* blocks)
    : blocks_(blocks), freeing_thread_([this] { RunFreeing(); }), waiters_thread_([this] { RunWaiters(); }) {
  pthread_setname_np(freeing_thread_.native_handle(), "nram-free");
  pthread_setname_np(waiters_thread_.native_handle(), "nram-retry");
}

Reclaimer::~Reclaimer() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    work_.SignalAll();
    waiters_due_.SignalAll();
  }
  freeing_thread_.join();
  waiters_thread_.join();
}

void Reclaimer::Free(std::unique_ptr<BlockFile> file) {
  if (!frees_) return;
  MutexLock lock(&mu_);
  to_free_.push_back(std::move(file));
  ++given_;
  if (to_free_.size() == 1) work_.Signal();
}

uint64_t Reclaimer::Freed() {
  MutexLock lock(&mu_);
  return done_;
}

bool Reclaimer::AwaitFreed(uint64_t freed_before) {
  const int64_t deadline_ns = DeadlineAfterMs(kAwaitFreedMs);
  MutexLock lock(&mu_);
  const uint64_t until = given_;
  if (done_ >= until) return done_ > freed_before;
  hurry_ = true;
  work_.Signal();
  while (done_ < until && freed_.WaitUntil(&mu_, deadline_ns)) {
  }
  hurry_ = false;
  return true;
}

void Reclaimer::CallWhenFreed(Waiter* waiter) {
  MutexLock lock(&mu_);
  waiter->when_freed_ = given_;
  waiter->at_ns_ = DeadlineAfterMs(kAwaitFreedMs);
  waiters_.push_back(waiter);
  work_.Signal();
  waiters_due_.Signal();
}

std::vector<Reclaimer::Waiter*> Reclaimer::TakeDueLocked(int64_t* next_ns) {
  const int64_t now_ns = MonotonicNs();
  *next_ns = now_ns + kIdleMs * kNsPerMs;
  std::vector<Waiter*> due;
  size_t left = 0;
  for (Waiter* waiter : waiters_) {
    if (done_ >= waiter->when_freed_ || now_ns >= waiter->at_ns_) {
      due.push_back(waiter);
    } else {
      *next_ns = std::min(*next_ns, waiter->at_ns_);
      waiters_[left++] = waiter;
    }
  }
  waiters_.resize(left);
  return due;
}

void Reclaimer::RunWaiters() {
  MutexLock lock(&mu_);
  while (!stopping_ || !waiters_.empty()) {
    int64_t next_ns = 0;
    const std::vector<Waiter*> due = TakeDueLocked(&next_ns);
    if (due.empty()) {
      waiters_due_.WaitUntil(&mu_, next_ns);
      continue;
    }
    mu_.Unlock();
    for (Waiter* waiter : due) waiter->OnFreed();
    mu_.Lock();
  }
}

void Reclaimer::AwaitWorkLocked() {
  const bool trims = done_ - trimmed_at_ >= kTrimAfter;
  if (work_.WaitUntil(&mu_, DeadlineAfterMs(trims ? kTrimIdleMs : kIdleMs)) || !trims) return;
  // Nothing else goes on: the memory of all these names goes back to this machine. This never happens with swap, whose
  // heap must stay: it has one file.
  trimmed_at_ = done_;
  mu_.Unlock();
  malloc_trim(0);
  mu_.Lock();
}

std::vector<std::unique_ptr<BlockFile>> Reclaimer::TakeBatchLocked() {
  // A batch is freed in the time of one file.
  const int64_t deadline_ns = DeadlineAfterMs(kBatchMs);
  while (to_free_.size() < kFreeAtOnce && !hurry_ && !stopping_ && waiters_.empty() &&
         work_.WaitUntil(&mu_, deadline_ns)) {
  }
  const auto end = to_free_.begin() + static_cast<ptrdiff_t>(std::min(to_free_.size(), kFreeAtOnce));
  std::vector<std::unique_ptr<BlockFile>> batch(std::make_move_iterator(to_free_.begin()),
                                                std::make_move_iterator(end));
  to_free_.erase(to_free_.begin(), end);
  return batch;
}

void Reclaimer::RunFreeing() {
  MutexLock lock(&mu_);
  while (true) {
    if (to_free_.empty()) {
      if (stopping_) return;
      AwaitWorkLocked();
      continue;
    }
    std::vector<std::unique_ptr<BlockFile>> batch = TakeBatchLocked();
    const size_t count = batch.size();
    mu_.Unlock();
    blocks_->Destroy(std::move(batch));
    mu_.Lock();
    done_ += count;
    freed_.SignalAll();
    waiters_due_.Signal();
  }
}

}  // namespace nram
