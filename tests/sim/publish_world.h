#ifndef NRAM_TESTS_SIM_PUBLISH_WORLD_H_
#define NRAM_TESTS_SIM_PUBLISH_WORLD_H_

// The world of an episode of publications: servers, programs that publish and observe, and the states that these must
// find.

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "client/pool/pool.h"
#include "tests/sim/cluster.h"
#include "tests/sim/episode.h"
#include "tests/sim/faults.h"
#include "tests/sim/fibers.h"
#include "tests/sim/publish_model.h"
#include "tests/sim/sim_edge.h"

namespace nram::sim {

// The plan that the seed makes before anything happens.
struct PublishPlan {
  ClusterOptions cluster;
  FaultWeights faults{};
  int copies = 1;
  size_t observers = 3;
  size_t history = 4;         // publications that an owner keeps
  uint64_t death_one_in = 3;  // publications; 0: owners stay alive
  int64_t takeover_ns = 0;    // an owner is shut out after this time; 0: never
  int64_t lasts_ns = 0;       // the whole episode
  bool calm = false;          // there are no faults: only the operations of a shut-out owner fail
  bool full = false;          // versions have to yield
  bool with_owner = false;    // some versions end with their owner
  int64_t silence_limit_ms = 0;
  int64_t replace_after_ms = 10'000;
};
PublishPlan MakePublishPlan(const EpisodeOptions& options);

// One thread.
class PublishWorld {
 public:
  explicit PublishWorld(const EpisodeOptions& options);

  // Makes a program's pool on `host` and waits for its servers. Called in a fiber.
  std::unique_ptr<Pool> MakePool(HostId host, OnRequest on_request = nullptr);
  static constexpr const char* kName = "m";

  bool failed() const { return !cluster.checker.failure().empty(); }
  // Programs must end.
  bool ends() const { return stopping || failed(); }
  void Fail(const std::string& what) { cluster.checker.Fail(what); }
  void Trace(const std::string& what) { cluster.checker.Trace(what); }
  // Versions may be lost without a drop: they have yielded, or servers have ended, or the region has left servers that
  // were away or drained for too long.
  bool LosesVersions() const;
  // Nothing that was acknowledged may be lost.
  bool KeepsAll() const { return deaths_of_servers == 0; }

  const PublishPlan plan;
  Cluster cluster;
  Fibers fibers{&cluster.world};
  PublishModel model;
  Faults faults;
  bool stopping = false;
  uint64_t operations = 0;
  uint64_t deaths_of_servers = 0;
  uint64_t leases_ended = 0;   // not by their clients
  uint64_t records_owner = 0;  // the owner that may commit
  bool records_made = false;   // at least once
  bool region_made = false;    // at least once
  uint64_t takeovers = 0;      // begun, of the region or its records
  uint64_t observed = 0;       // states that were read in part
  Rng& rng() { return cluster.world.rng(); }
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_PUBLISH_WORLD_H_
