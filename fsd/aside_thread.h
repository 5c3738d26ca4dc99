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

// Runs work that may wait for the kernel to write pages back or to unlock them. The kernel may do so only when other
// requests have been served, so such work must not hold a worker. The works run one after the other, on a thread that
// is there from the beginning: later the process may not get one more. Thread-safe. Callers bound the queue: each work
// is for a request that the kernel waits for, or for one of its inodes.
class AsideThread {
 public:
  // `stopping`: the work need only reply.
  using Work = std::function<void(bool stopping)>;

  // The thread's `name` has at most 15 bytes.
  explicit AsideThread(const char* name) : thread_([this] { Run(); }) {
    pthread_setname_np(thread_.native_handle(), name);
  }
  ~AsideThread() { Stop(); }

  // Runs `work` later; once Stop was called, here and now.
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
  // Waits for the work in hand, and has the rest run with `stopping`.
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
