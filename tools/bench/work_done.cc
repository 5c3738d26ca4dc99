#include "tools/bench/work_done.h"

#include <sys/resource.h>

#include <cstdio>

#include "base/file.h"

namespace nram {

Work WorkSoFar() {
  Work work;
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  work.cpu_s = static_cast<double>(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
               static_cast<double>(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) * 1e-6;
  // user nice system idle iowait irq softirq steal
  unsigned long long ticks[8] = {};
  if (sscanf(ReadLine("/proc/stat").c_str(), "cpu %llu %llu %llu %llu %llu %llu %llu %llu", &ticks[0], &ticks[1],
             &ticks[2], &ticks[3], &ticks[4], &ticks[5], &ticks[6], &ticks[7]) == 8) {
    work.idle_ticks = ticks[3] + ticks[4];
    work.busy_ticks = ticks[0] + ticks[1] + ticks[2] + ticks[5] + ticks[6] + ticks[7];
  }
  return work;
}

Work WorkSince(const Work& before) {
  Work work = WorkSoFar();
  work.cpu_s -= before.cpu_s;
  work.busy_ticks -= before.busy_ticks;
  work.idle_ticks -= before.idle_ticks;
  const uint64_t all = work.busy_ticks + work.idle_ticks;
  work.busy = all > 0 ? static_cast<double>(work.busy_ticks) / static_cast<double>(all) : 0;
  return work;
}

}  // namespace nram
