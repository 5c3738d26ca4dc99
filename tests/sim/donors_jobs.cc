#include "tests/sim/donors_jobs.h"

#include <algorithm>

namespace nram::sim {
namespace {

uint64_t BytesOf(const Job& job, int64_t now_ms) {
  if (now_ms < job.begin_ms || now_ms >= job.end_ms) return 0;
  const int64_t since_ms = now_ms - job.begin_ms;
  if (job.period_ms > 0) return since_ms % job.period_ms < job.period_ms / 2 ? job.bytes : 0;
  const int64_t from_edge_ms = std::min(since_ms, job.end_ms - now_ms);
  if (from_edge_ms >= job.ramp_ms) return job.bytes;
  return job.bytes / static_cast<uint64_t>(job.ramp_ms) * static_cast<uint64_t>(from_edge_ms);
}

}  // namespace

uint64_t Jobs::BytesAt(int64_t now_ms) {
  std::erase_if(jobs_, [&](const Job& job) { return now_ms >= job.end_ms; });
  uint64_t bytes = 0;
  for (const Job& job : jobs_) bytes += BytesOf(job, now_ms);
  return bytes;
}

void AddJobs(const JobMix& mix, int64_t begin_ms, int64_t end_ms, const std::vector<uint64_t>& totals, size_t rack,
             Rng* rng, std::vector<Jobs>* jobs) {
  const size_t hosts = totals.size();
  const int64_t took_ms = end_ms - begin_ms;
  const auto count = [&](int64_t a_minute, size_t of) {
    return static_cast<int64_t>(of) * a_minute * took_ms / 60'000 / 1'000;
  };
  const auto bytes = [&](size_t host) {
    return totals[host] / 100 * static_cast<uint64_t>(rng->Between(5, mix.percent_max));
  };
  const auto add = [&](int64_t jobs_count, int64_t least_ms, int64_t most_ms, bool ramps, bool is_periodic) {
    for (int64_t i = 0; i < jobs_count; ++i) {
      const size_t host = rng->Below(hosts);
      Job job;
      job.begin_ms = rng->Between(begin_ms, end_ms);
      job.end_ms = job.begin_ms + rng->Between(least_ms, most_ms);
      job.bytes = bytes(host);
      if (ramps) job.ramp_ms = (job.end_ms - job.begin_ms) / 2;
      if (is_periodic) job.period_ms = rng->Between(1'000, 60'000);
      (*jobs)[host].Add(job);
    }
  };
  add(count(mix.steps, hosts), 5'000, 60'000, false, false);
  add(count(mix.spikes, hosts), 300, 3'000, false, false);
  add(count(mix.ramps, hosts), 4'000, 40'000, true, false);
  add(count(mix.periodics, hosts), 30'000, 180'000, false, true);
  const size_t racks = std::max<size_t>(hosts / rack, 1);
  for (int64_t i = 0; i < count(mix.racks, racks); ++i) {
    const size_t first = rng->Below(racks) * rack;
    const int64_t at_ms = rng->Between(begin_ms, end_ms);
    const int64_t lasts_ms = rng->Between(5'000, 60'000);
    for (size_t host = first; host < std::min(first + rack, hosts); ++host) {
      const int64_t late_ms = rng->Between(0, 1'000);
      (*jobs)[host].Add({.begin_ms = at_ms + late_ms, .end_ms = at_ms + late_ms + lasts_ms, .bytes = bytes(host)});
    }
  }
}

}  // namespace nram::sim
