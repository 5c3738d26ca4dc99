#ifndef NRAM_TESTS_SIM_SIM_EDGE_H_
#define NRAM_TESTS_SIM_SIM_EDGE_H_

// Everything below a pool in a simulation: the virtual clock, chance from the seed, and drivers that carry out the
// sessions' actions by messages in virtual time.

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "client/pool/environment.h"
#include "client/pool/server_session.h"
#include "proto/message.h"
#include "tests/sim/cluster.h"

namespace nram::sim {

// Called with each request that a pool sends to a server.
using OnRequest = std::function<void(int server, const MessageHeader& request)>;

class SimDriver;

// One thread. The pool's server number i is the cluster's.
class SimEdge : public PoolEdge, private Environment {
 public:
  // The period in which a session looks at its waiters, as under the product's poller.
  static constexpr int64_t kTickNs = 20 * kNsPerMs;

  // `cluster` outlives it. `host`: the client's, whose events stop when it is frozen.
  SimEdge(Cluster* cluster, HostId host, OnRequest on_request);
  ~SimEdge() override;

  Environment* environment() override { return this; }
  // Its Join steps the world until the session has stopped.
  std::unique_ptr<SessionDriver> Drive(ServerSession* session) override;
  Poller* poller() override { return nullptr; }
  WakeLatency* wake_latency() override { return nullptr; }

 private:
  friend class SimDriver;

  // Environment
  int64_t NowNs() const override { return cluster_->world.NowNs(); }
  uint64_t RandomId() override { return cluster_->world.rng().Next() >> 1 | 1; }

  void TickAll();

  Cluster* const cluster_;
  const HostId host_;
  const OnRequest on_request_;
  std::vector<SimDriver*> drivers_;  // the present ones
  World::Timer tick_ = 0;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_SIM_EDGE_H_
