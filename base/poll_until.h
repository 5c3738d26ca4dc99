#ifndef NRAM_BASE_POLL_UNTIL_H_
#define NRAM_BASE_POLL_UNTIL_H_

#include <poll.h>

#include <cstdint>

#include "base/clock.h"

namespace nram {

// Sleeps for `ms`, or less if a signal comes.
inline void SleepMs(int64_t ms) { (void)poll(nullptr, 0, static_cast<int>(ms)); }

// Calls `done` every `every_ms` until it returns true or `deadline_ns` on the monotonic clock has passed. Calls it at
// least once, and returns its last result.
//
// Only for changes that no thread can signal: a file that another process writes, a lock of flock(2), a table of the
// kernel's, or the end of a teardown that happens once. Other changes that this process makes have a CondVar, an
// EventCount or an eventfd; the end of a process has base/subprocess.h.
template <typename Done>
bool PollUntil(int64_t deadline_ns, int64_t every_ms, Done done) {
  while (!done()) {
    if (MonotonicNs() >= deadline_ns) return false;
    SleepMs(every_ms);
  }
  return true;
}

}  // namespace nram

#endif  // NRAM_BASE_POLL_UNTIL_H_
