#ifndef NRAM_FSD_ASIDE_THREAD_H_
#define NRAM_FSD_ASIDE_THREAD_H_

#include <pthread.h>

#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/sync.h"

namespace nram {

// Runs what may wait for the kernel to write pages back or to unlock them, which it may do only when other requests
// have been served: such work must keep no worker. One thing after the other, on a thread of its own, which is there
// from the beginning: later the process may not have one more. Thread-safe. The queue has what callers leave in it.
class AsideThread {
 public:
  // `stopping`: it need not do anything but reply.
  using Work = std::function<void(bool stopping)>;

  // `name`, of the thread: at most 15 bytes.
  explicit AsideThread(const char* name) : thread_([this] { Run(); }) {
    pthread_setname_np(thread_.native_handle(), name);
  }
  ~AsideThread() { Stop(); }

  void Add(Work work) {
    {
      MutexLock lock(&mu_);
      if (!stopping_) {
        queue_.push_back(std::move(work));
        added_.Signal();
        return;
      }
    }
    work(true);
  }
  // Waits for what is being done; the rest, and what is added from now on, is told that it stops.
  void Stop() {
    {
      MutexLock lock(&mu_);
      if (std::exchange(stopping_, true)) return;
      added_.SignalAll();
    }
    thread_.join();
  }

 private:
  void Run() {
    MutexLock lock(&mu_);
    while (!stopping_ || !queue_.empty()) {
      if (queue_.empty()) {
        added_.WaitUntil(&mu_, DeadlineAfterMs(60'000));
        continue;
      }
      const Work work = std::move(queue_.front());
      queue_.pop_front();
      const bool stopping = stopping_;
      mu_.Unlock();
      work(stopping);
      mu_.Lock();
    }
  }

  Mutex mu_;
  CondVar added_;
  std::deque<Work> queue_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace nram

#endif  // NRAM_FSD_ASIDE_THREAD_H_
