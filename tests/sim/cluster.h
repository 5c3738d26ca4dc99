#ifndef NRAM_TESTS_SIM_CLUSTER_H_
#define NRAM_TESTS_SIM_CLUSTER_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "tests/sim/checker.h"
#include "tests/sim/network.h"
#include "tests/sim/sim_server.h"
#include "tests/sim/world.h"

namespace nram::sim {

struct ClusterOptions {
  int servers = 3;
  int clients = 2;
  SimServerOptions server;
};

// The machines of a simulation, and the judge of its clients' results.
struct Cluster {
  Cluster(uint64_t seed, const ClusterOptions& options);
  ~Cluster();

  World world;
  Network network{&world};
  Checker checker{&world};
  std::vector<std::unique_ptr<SimServer>> servers;
  std::vector<HostId> clients;
  std::vector<RegionId> regions;  // those whose pages may be damaged

 private:
  // Each counter of a sealed region is for one page with one content: the nonce of another would be the same.
  void NoteSealed(RegionId region, uint64_t page, const PageSeal& seal, uint32_t crc);

  // The page, and its ciphertext's checksum, by region and counter.
  std::map<std::pair<uint64_t, uint64_t>, std::pair<uint64_t, uint32_t>> nonces_;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_CLUSTER_H_
