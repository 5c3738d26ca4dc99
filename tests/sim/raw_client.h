#ifndef NRAM_TESTS_SIM_RAW_CLIENT_H_
#define NRAM_TESTS_SIM_RAW_CLIENT_H_

// A client made of single calls: it has a lease and two connections at each server, one region there, and no retries.
// It tests the servers, the wire's rules, and this simulation, without the pool client.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/sim/cluster.h"
#include "tests/sim/sim_control.h"
#include "tests/sim/sim_transport.h"

namespace nram::sim {

// One thread. Lives at most as long as the cluster.
class RawClient {
 public:
  static constexpr uint64_t kRegionChunks = 2 * kChunksPerSpan;

  RawClient(Cluster* cluster, size_t index);
  ~RawClient();

  LeaseId lease() const { return lease_; }
  void Begin();
  // All servers can be used.
  bool up() const;
  // Starts a random operation; `done` runs when it ends. False: none can be started now.
  bool StartSome(std::function<void()> done);
  // Starts a read of `chunks` chunks from a random place of each region; true if all could be started.
  bool StartReads(uint64_t chunks, std::function<void()> done);
  // Destroys all regions. To be called while all servers can be used and nothing is under way.
  void DestroyAll(std::function<void()> done);

 private:
  struct Standing;
  struct Operation;

  void BringUp(Standing* at);
  void Grant(Standing* at);
  void TakeIn(Standing* at, const LeaseInfo& lease);
  void Dial(Standing* at);
  void Connect(Standing* at);
  void Fail(Standing* at);
  void Renew(Standing* at);
  void NewRegion(Standing* at);
  void StartOperation(Standing* at, Checker::Kind kind, ChunkRange range, std::function<void()> done);
  void EndOperation(Operation* operation);
  absl::Status StatusOf(Operation* operation);
  void NoteDown(Standing* at);

  Cluster* const cluster_;
  World* const world_;
  const size_t index_;
  const HostId host_;
  const LeaseId lease_;
  std::vector<std::unique_ptr<Standing>> standings_;
  std::vector<std::unique_ptr<SimTransport>> former_;  // calls may still name them
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_RAW_CLIENT_H_
