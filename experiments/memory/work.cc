#include "experiments/memory/work.h"

#include <sys/resource.h>

#include <thread>

#include "base/clock.h"
#include "experiments/memory/backing.h"

namespace nram {
namespace {

double Seconds(const timeval& time) { return static_cast<double>(time.tv_sec) + 1e-6 * time.tv_usec; }

double CpuSeconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return Seconds(usage.ru_utime) + Seconds(usage.ru_stime);
}

}  // namespace

Timing::Timing(const Backing* backing)
    : backing_(backing), stats_(backing->Stats()), cpu_seconds_(CpuSeconds()), began_ns_(MonotonicNs()) {}

void Timing::Stop(WorkResult* result) const {
  result->seconds = static_cast<double>(MonotonicNs() - began_ns_) / kNsPerSecond;
  result->cpu_seconds = CpuSeconds() - cpu_seconds_;
  nram_stats now = backing_->Stats();
  for (uint64_t nram_stats::*counter :
       {&nram_stats::faults, &nram_stats::write_faults, &nram_stats::hits, &nram_stats::zero_pages,
        &nram_stats::fetched_bytes, &nram_stats::prefetched_bytes, &nram_stats::prefetch_wasted_bytes,
        &nram_stats::written_bytes, &nram_stats::evicted_pages, &nram_stats::lost_pages, &nram_stats::wait_ns}) {
    now.*counter -= stats_.*counter;
  }
  result->stats = now;
}

void RunThreads(int64_t count, const std::function<void(int64_t)>& run) {
  std::vector<std::thread> threads;
  for (int64_t number = 0; number + 1 < count; ++number) threads.emplace_back(run, number);
  run(count - 1);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace nram
