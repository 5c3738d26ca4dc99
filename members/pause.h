#ifndef NRAM_MEMBERS_PAUSE_H_
#define NRAM_MEMBERS_PAUSE_H_

#include <cstdint>

#include "base/clock.h"
#include "base/sync.h"

namespace nram {

// A wait that others can end. Thread-safe.
class Pause {
 public:
  // Blocks for `ms`, until Wake since the last call, or until Stop.
  void Wait(int64_t ms) {
    const int64_t deadline_ns = DeadlineAfterMs(ms);
    MutexLock lock(&mu_);
    while (!stopped_ && !woken_ && MonotonicNs() < deadline_ns) changed_.WaitUntil(&mu_, deadline_ns);
    woken_ = false;
  }
  void Wake() {
    MutexLock lock(&mu_);
    woken_ = true;
    changed_.SignalAll();
  }
  void Stop() {
    MutexLock lock(&mu_);
    stopped_ = true;
    changed_.SignalAll();
  }
  bool stopped() const {
    MutexLock lock(&mu_);
    return stopped_;
  }

 private:
  mutable Mutex mu_;
  CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  bool stopped_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace nram

#endif  // NRAM_MEMBERS_PAUSE_H_
