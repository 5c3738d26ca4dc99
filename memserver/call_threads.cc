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

bool CallThreads::Post(Pace pace, std::function<void()> call) {
  MutexLock lock(&mu_);
  auto& queue = pace == Pace::kSlow ? slow_ : quick_;
  if (queue.size() >= (pace == Pace::kSlow ? kSlowWaitingMax : kQuickWaitingMax)) return false;
  queue.push_back(std::move(call));
  changed_.Signal();
  return true;
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
    auto& queue = is_slow ? slow_ : quick_;
    const std::function<void()> call = std::move(queue.front());
    queue.pop_front();
    if (is_slow) ++slow_running_;
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
