#ifndef NRAM_TESTS_SIM_EPISODE_H_
#define NRAM_TESTS_SIM_EPISODE_H_

#include <cstdint>
#include <string>

#include "tests/sim/faults.h"

namespace nram::sim {

struct EpisodeOptions {
  uint64_t seed = 1;
  uint64_t operations = 4000;
  FaultWeights faults = kAllFaults;
  bool verbose = false;  // all events go to stderr
};

struct EpisodeResult {
  std::string failure;  // empty: all is well
  std::string report;   // the events before the failure
  uint64_t operations = 0;
  uint64_t events = 0;
  uint64_t digest = 0;  // the same for the same seed
  int64_t virtual_ns = 0;
};

// Each runs a world of its own: servers, clients and faults, then a quiet phase in which everything must be well again.
// This one has real pools (pool_client.h). The seed leaves out some of the faults.
EpisodeResult RunPoolEpisode(const EpisodeOptions& options);
// With raw clients (raw_client.h).
EpisodeResult RunRawEpisode(const EpisodeOptions& options);
// With programs that publish versions of a region, and others that observe them (publish_world.h). It has its own
// count of operations.
EpisodeResult RunPublishEpisode(const EpisodeOptions& options);

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_EPISODE_H_
