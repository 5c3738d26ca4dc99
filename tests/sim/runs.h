#ifndef NRAM_TESTS_SIM_RUNS_H_
#define NRAM_TESTS_SIM_RUNS_H_

// Many episodes, by processes that each do a batch of them.

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
  std::string state_path;  // what is done is noted there, and not done again; empty: nowhere
  std::string what;        // the options that episodes depend on, as text: those of a state must be the same
};

// Runs the episodes of this process, one after the other. FAILED_PRECONDITION: one has failed, and how.
// *operations: how many there have been.
absl::Status RunHere(const RunOptions& options, uint64_t* operations);

// Runs the episodes in other processes, each of publications in one of its own, and says on stdout how far it is.
// FAILED_PRECONDITION: an episode has failed, and how. Others: a state that is not one, or of other options; no
// process.
absl::Status RunJobs(const RunOptions& options, uint64_t* operations);

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_RUNS_H_
