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
  const bool is_slow = pace == Pace::kSlow;
  Waiting& waiting = is_slow ? slow_ : quick_;
  const size_t most = is_slow ? kSlowWaitingMax : kQuickWaitingMax;
  if (waiting.count >= most) return false;
  const auto own = waiting.calls.find(tenant);
  if (own != waiting.calls.end() && own->second.size() >= 3 * (most - waiting.count - 1)) return false;
  waiting.calls[tenant].push_back(std::move(call));
  ++waiting.count;
  changed_.Signal();
  return true;
}

std::function<void()> CallThreads::TakeLocked(Waiting* from) {
  auto it = from->calls.upper_bound(from->turn);
  for (size_t looked = 0; looked < from->calls.size(); ++looked, ++it) {
    if (it == from->calls.end()) it = from->calls.begin();
    const auto running = running_.find(it->first);
    if (running != running_.end() && running->second >= kTenantMax) continue;
    from->turn = it->first;
    std::function<void()> call = std::move(it->second.front());
    it->second.pop_front();
    if (it->second.empty()) from->calls.erase(it);
    --from->count;
    return call;
  }
  return nullptr;
}

void CallThreads::Run() {
  MutexLock lock(&mu_);
  while (true) {
    std::function<void()> call = TakeLocked(&quick_);
    const bool is_slow = call == nullptr;
    if (is_slow && slow_running_ < kSlowMax) call = TakeLocked(&slow_);
    if (call == nullptr) {
      if (stopping_ && quick_.count + slow_.count == 0) return;
      changed_.WaitUntil(&mu_, DeadlineAfterMs(60'000));
      continue;
    }
    const uint32_t tenant = (is_slow ? slow_ : quick_).turn;
    ++running_[tenant];
    if (is_slow) ++slow_running_;
    mu_.Unlock();
    call();
    call = nullptr;  // its objects may take a while to go
    mu_.Lock();
    if (is_slow) --slow_running_;
    if (--running_[tenant] == 0) running_.erase(tenant);
    // A call that waits for a thread of its tenant or pace may begin, or the threads may end.
    if (stopping_ || quick_.count + slow_.count > 0) changed_.SignalAll();
  }
}

}  // namespace nram
