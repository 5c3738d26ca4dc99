#ifndef NRAM_TESTS_SIM_RUNS_H_
#define NRAM_TESTS_SIM_RUNS_H_

// Many episodes, in processes that each run a batch of them.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tests/sim/episode.h"

namespace nram::sim {

struct RunOptions {
  EpisodeOptions episode;  // its seed: the first episode's; the others count up from it
  uint64_t episodes = 10;
  bool raw = false;
  bool publish = false;
  int jobs = 1;            // processes at a time
  std::string state_path;  // finished episodes are noted there, and not run again; empty: nowhere
  std::string what;        // the options that episodes depend on, as text; they must be those of the state
};

// Runs the episodes of this process, one after the other. FAILED_PRECONDITION: one has failed; the message says how.
// *operations: their number.
absl::Status RunHere(const RunOptions& options, uint64_t* operations);

// Runs the episodes in other processes, each of publications in one of its own, and reports its progress on stdout.
// FAILED_PRECONDITION: an episode has failed; the message says how. Others: the state is invalid or of other options,
// or no process can be made.
absl::Status RunJobs(const RunOptions& options, uint64_t* operations);

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_RUNS_H_
