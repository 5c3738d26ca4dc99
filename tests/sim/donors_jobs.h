#ifndef NRAM_TESTS_SIM_DONORS_JOBS_H_
#define NRAM_TESTS_SIM_DONORS_JOBS_H_

// The memory that a donor's own programs take over time.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "tests/sim/rng.h"

namespace nram::sim {

struct Job {
  int64_t begin_ms = 0;
  int64_t end_ms = 0;
  uint64_t bytes = 0;     // at the most
  int64_t ramp_ms = 0;    // the time in which it takes all its memory, and gives it back; 0: at once
  int64_t period_ms = 0;  // it takes its memory in the first half of each period; 0: all the time
};

// The jobs of one host. Not thread-safe.
class Jobs {
 public:
  void Add(const Job& job) { jobs_.push_back(job); }
  // The bytes that the jobs want. Times are in order.
  uint64_t BytesAt(int64_t now_ms);

 private:
  std::vector<Job> jobs_;
};

// The kinds of jobs, and their frequencies.
struct JobMix {
  // The number of each kind a minute and host, in thousandths.
  int64_t steps = 0;         // for 5 to 60 s
  int64_t spikes = 0;        // for 0.3 to 3 s
  int64_t ramps = 0;         // up and down within 2 to 20 s
  int64_t periodics = 0;     // of periods of 1 to 60 s
  int64_t racks = 0;         // a step of all hosts of a rack within a second
  int64_t percent_max = 60;  // a job takes from 5 to this per cent of the host's memory
};

// Appends the jobs of the time from `begin_ms` to `end_ms`. `totals`: the hosts' memory.
void AddJobs(const JobMix& mix, int64_t begin_ms, int64_t end_ms, const std::vector<uint64_t>& totals, size_t rack,
             Rng* rng, std::vector<Jobs>* jobs);

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_DONORS_JOBS_H_
