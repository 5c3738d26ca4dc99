#ifndef NRAM_BASE_HOST_MEMORY_PRESSURE_H_
#define NRAM_BASE_HOST_MEMORY_PRESSURE_H_

// How much programs wait for memory, by the kernel's pressure stall information (PSI, Linux 4.20). Kernels without it
// say nothing here; base/host/memory_balance.h then has the available memory alone. base/host/host_memory.h reads that.

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "base/fd.h"

namespace nram {

// Since boot. A poller computes shares from two readings.
struct StallTotals {
  uint64_t some_us = 0;  // at least one thread waited for memory
  uint64_t full_us = 0;  // all threads that had work waited for memory
};

struct MemoryStalls {
  std::optional<StallTotals> machine;
  std::optional<StallTotals> cgroup;  // this process's cgroup v2; v1 has none
};

// Reads /proc/pressure/memory and the memory.pressure of this process's cgroup. `root` is put before every path, for
// tests.
MemoryStalls ReadMemoryStalls(const std::string& root = "");

// The share of the time in which some thread waited for memory, from reading to reading. Not thread-safe.
class StallMeter {
 public:
  // The share since the last call: 0 to 1, the higher one of the machine's and the cgroup's. 0 for the first reading,
  // and where the kernel reports none.
  double Share(const MemoryStalls& stalls, int64_t now_ns);

 private:
  std::optional<MemoryStalls> last_;
  int64_t last_ns_ = 0;
};

// Wakes a thread that waits between two readings as soon as programs wait for memory. Where the kernel gives no
// trigger (no PSI, no right to write, or no room for one more), it never wakes the thread, and the caller polls alone.
// Not thread-safe.
class PressureTrigger {
 public:
  // Watches the machine and the cgroup of ReadMemoryStalls. A trigger fires when programs have waited for 50 ms within
  // a second; without privileges, which Linux 6.5 needs for such windows, for 100 ms within two seconds.
  static PressureTrigger Open(const std::string& root = "");

  bool active() const { return fds_[0].valid() || fds_[1].valid(); }
  // Sleeps until a trigger fires, `other_fd` is readable, or `deadline_ns` (monotonic). True: a trigger has fired. A
  // trigger fires once in its window at most.
  bool WaitUntil(int other_fd, int64_t deadline_ns);

 private:
  std::array<UniqueFd, 2> fds_;
};

}  // namespace nram

#endif  // NRAM_BASE_HOST_MEMORY_PRESSURE_H_
