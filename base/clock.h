#ifndef NRAM_BASE_CLOCK_H_
#define NRAM_BASE_CLOCK_H_

#include <atomic>
#include <cstdint>
#include <ctime>

namespace nram {

inline constexpr int64_t kNsPerUs = 1'000;
inline constexpr int64_t kNsPerMs = 1'000'000;
inline constexpr int64_t kNsPerSecond = 1'000'000'000;

// Nanoseconds on the monotonic clock. Deadlines everywhere are such absolute times.
inline int64_t MonotonicNs() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * kNsPerSecond + now.tv_nsec;
}

// The processor time that the calling thread has taken so far, in nanoseconds.
inline int64_t ThreadWorkedNs() {
  timespec taken;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &taken);
  return taken.tv_sec * kNsPerSecond + taken.tv_nsec;
}

inline int64_t DeadlineAfterMs(int64_t ms) { return MonotonicNs() + ms * kNsPerMs; }

// The clock of leases and timers; tests have one that they move by hand. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual int64_t NowNs() const = 0;
  // The machine's clock. It is never destroyed.
  static Clock* Real();
};

class FakeClock : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_.load(); }
  void AdvanceMs(int64_t ms) { now_ns_ += ms * kNsPerMs; }

 private:
  std::atomic<int64_t> now_ns_{kNsPerSecond};
};

}  // namespace nram

#endif  // NRAM_BASE_CLOCK_H_
