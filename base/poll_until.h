#ifndef NRAM_BASE_POLL_UNTIL_H_
#define NRAM_BASE_POLL_UNTIL_H_

#include <poll.h>

#include <cstdint>

#include "base/clock.h"

namespace nram {

// Sleeps for `ms`, or less if a signal comes.
inline void SleepMs(int64_t ms) { (void)poll(nullptr, 0, static_cast<int>(ms)); }

// Looks every `every_ms` whether `done()`, until it is or `deadline_ns` on the monotonic clock has passed; looks once at
// least, and returns what it saw last. Only for what nobody can signal: the state of a process that is not a child, a
// file that another process writes, a table of the kernel's. What this process itself changes has a CondVar, a futex
// or an eventfd; the end of a child or of an open pidfd has poll(2).
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
