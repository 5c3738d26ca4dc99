#include "memserver/call_threads.h"

#include <pthread.h>

#include <utility>

#include "base/clock.h"

namespace nram {

CallThreads::CallThreads() {
  for (int i = 0; i < kThreads; ++i) {
    threads_.emplace_back([this] { Run(); });
    pthread_setname_np(threads_.back().native_handle(), "nram-call");
  }
}

CallThreads::~CallThreads() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  for (std::thread& thread : threads_) thread.join();
}

bool CallThreads::Post(Pace pace, uint32_t tenant, std::function<void()> call) {
  MutexLock lock(&mu_);
  if (pace == Pace::kSlow) {
    if (slow_waiting_ >= kSlowWaitingMax) return false;
    ++slow_waiting_;
    slow_[tenant].push_back(std::move(call));
  } else {
    if (quick_.size() >= kQuickWaitingMax) return false;
    quick_.push_back(std::move(call));
  }
  changed_.Signal();
  return true;
}

std::function<void()> CallThreads::TakeSlowLocked() {
  auto it = slow_.upper_bound(turn_);
  if (it == slow_.end()) it = slow_.begin();
  turn_ = it->first;
  std::function<void()> call = std::move(it->second.front());
  it->second.pop_front();
  if (it->second.empty()) slow_.erase(it);
  --slow_waiting_;
  return call;
}

void CallThreads::Run() {
  MutexLock lock(&mu_);
  while (true) {
    const bool is_slow = quick_.empty() && !slow_.empty() && slow_running_ < kSlowMax;
    if (quick_.empty() && !is_slow) {
      if (stopping_ && slow_.empty()) return;
      changed_.WaitUntil(&mu_, DeadlineAfterMs(60'000));
      continue;
    }
    std::function<void()> call;
    if (is_slow) {
      call = TakeSlowLocked();
      ++slow_running_;
    } else {
      call = std::move(quick_.front());
      quick_.pop_front();
    }
    mu_.Unlock();
    call();
    mu_.Lock();
    if (is_slow) {
      --slow_running_;
      changed_.SignalAll();  // a slow call that waits may begin, or the threads may end
    }
  }
}

}  // namespace nram
