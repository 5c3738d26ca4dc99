#ifndef NRAM_BASE_EVENT_COUNT_H_
#define NRAM_BASE_EVENT_COUNT_H_

#include <atomic>
#include <cstdint>

#include "base/sync.h"

namespace nram {

// Lets threads wait for a condition that no lock guards. A change of the condition costs one load while no thread
// waits, and never allocates. Thread-safe.
//
//   waiting:    const uint32_t seen = event.Prepare();
//               if (condition) event.Cancel(); else event.WaitUntil(seen, deadline_ns);   // and look again
//   changing:   make the condition true; event.Notify();
//
// The condition is read and changed by sequentially consistent operations: either the waiting thread sees the change,
// or the changing thread sees the waiter.
class EventCount {
 public:
  // Announces that this thread is about to wait. Cancel() or WaitUntil() must follow.
  uint32_t Prepare() {
    waiters_.fetch_add(1);
    return events_.load();
  }
  void Cancel() { waiters_.fetch_sub(1); }
  // Sleeps until the first Notify() after Prepare(), or spuriously less, or `deadline_ns` on the monotonic clock.
  void WaitUntil(uint32_t prepared, int64_t deadline_ns) {
    FutexWaitUntil(&events_, prepared, deadline_ns);
    Cancel();
  }
  void Notify() {
    if (waiters_.load() == 0) return;
    events_.fetch_add(1);
    FutexWakeAll(&events_);
  }

 private:
  std::atomic<uint32_t> waiters_{0};
  std::atomic<uint32_t> events_{0};
};

}  // namespace nram

#endif  // NRAM_BASE_EVENT_COUNT_H_
