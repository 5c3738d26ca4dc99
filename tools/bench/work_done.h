#ifndef NRAM_TOOLS_BENCH_WORK_DONE_H_
#define NRAM_TOOLS_BENCH_WORK_DONE_H_

// The processor time of a workload's phase, and how busy the whole machine was meanwhile.

#include <cstdint>

namespace nram {

struct Work {
  double cpu_s = 0;         // of this process
  double busy = 0;          // share of the time of all processors, 0 to 1
  uint64_t busy_ticks = 0;  // of all processors, since boot
  uint64_t idle_ticks = 0;
};

// Counts since the process began and the machine booted. Reads /proc/stat; all zeros if it cannot.
Work WorkSoFar();
Work WorkSince(const Work& before);

}  // namespace nram

#endif  // NRAM_TOOLS_BENCH_WORK_DONE_H_
