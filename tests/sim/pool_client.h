#ifndef NRAM_TESTS_SIM_POOL_CLIENT_H_
#define NRAM_TESTS_SIM_POOL_CLIENT_H_

// A client of a simulation with a real pool: regions of several kinds, and random operations on them.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "client/pool/pool.h"
#include "tests/sim/cluster.h"

namespace nram::sim {

struct WorkloadOptions {
  size_t regions = 3;  // of each client
  uint64_t reserve_step_bytes = kMiB;
  // One in this number of operations has a timeout below two seconds; 0: none. Each expired one breaks a connection.
  uint64_t impatient_one_in = 50;
  uint64_t destroy_one_in = 80;  // operations
  uint64_t reserve_one_in = 4;   // regions; 0: none has room of its own
  uint64_t copied_one_in = 0;    // regions; 0: each page has one copy
  bool moves = false;            // plain regions of one copy move
  bool expendable = false;       // servers that need memory may destroy the regions
  uint64_t sealed_one_in = 0;    // regions; 0: donors see the stored data
  bool survives = false;         // two copies, and all faults shorter than a lease are survived
  // As in PoolOptions.
  int64_t silence_limit_ms = 0;
  int64_t replace_after_ms = 10'000;
  uint64_t repair_bytes_per_s = PoolOptions::kRepairQuarter;
  uint64_t hot_chunks = 64;  // of each region, where most operations are
  // Every request gets an answer, so that regions know exactly the room that they have reserved.
  bool all_answered = false;
  // Some handles are dropped, and their regions remain.
  bool drops = true;
};

// One thread. Lives at most as long as the cluster.
class PoolClient {
 public:
  PoolClient(Cluster* cluster, size_t index, const WorkloadOptions& options);
  // Closes the pool, which steps the world. Nothing may be under way, and the client must not be frozen.
  ~PoolClient();

  LeaseId lease(size_t server) const { return pool_->session(server)->lease(); }
  // All servers can be used.
  bool up() const;
  size_t under_way() const { return under_way_; }

  // Starts a random operation; `done` runs when it ends, perhaps at once. False: none can be started now.
  bool StartSome(std::function<void()> done);
  // Starts reads of each region: the part that is used most, and others. `done` runs for each.
  void StartReads(std::function<void()> done);
  // Destroys all regions, and makes no others. Nothing may be under way.
  void DestroyAll(std::function<void()> done);
  // No more short timeouts, dropped handles and destroyed regions.
  void SetCalm() { calm_ = true; }

  // No request for room at a server is without an answer.
  bool settled() const;
  // All servers can be used, and all spans of copies have all of them on present servers.
  bool whole() const;
  // All copies in sync must be equal, byte for byte. Nothing may be under way.
  void CheckCopies();
  // Copies made anew or moved.
  uint64_t copies_made() const { return pool_->copies().made; }
  // The client's room at the server must be its reservation there. Nothing may be under way.
  void CheckRoom(SimServer* server);
  // Regions that are left without a handle, except GC regions.
  const std::vector<RegionId>& dropped() const { return dropped_; }
  bool has_dropped_gc() const { return has_dropped_gc_; }

 private:
  struct Handle;
  struct Operation;

  void MakeRegion(Handle* handle);
  // The region, which has no handle from now on, is not checked any more.
  void Forget(const Handle& handle);
  Handle* Choose();
  ChunkRange ChooseRange(const Handle& handle) const;
  IoOptions ChooseOptions() const;
  int64_t DeadlineOf(const IoOptions& options) const;

  Operation* NewOperation(Handle* handle, std::function<void()> done);
  void StartRead(Operation* operation, ChunkRange range);
  void StartWrite(Operation* operation, ChunkRange range);
  void StartTrim(Operation* operation, ChunkRange range);
  void StartReserve(Operation* operation, ChunkRange range);
  void StartDestroy(Operation* operation);
  void End(Operation* operation, const absl::Status& status);
  // The server's lease of the pool. Null if the server has ended it, or died, and the pool does not know.
  std::shared_ptr<Lease> KnownLease(SimServer* server) const;
  // The pool must never count on more room than the servers have reserved for it.
  void CheckNoMoreRoom();
  // Repeats that check.
  void Watch();
  void CheckPage(RegionId region, const CopyMap& copies, ChunkRange range);
  // Closes a handle that must be closed, once it has no operation under way.
  void CloseIfIdle(Handle* handle);

  Cluster* const cluster_;
  World* const world_;
  Checker* const checker_;
  const HostId host_;
  const WorkloadOptions options_;
  World::Timer watch_ = 0;
  std::unique_ptr<Pool> pool_;
  std::vector<std::unique_ptr<Handle>> handles_;
  std::vector<std::unique_ptr<Operation>> operations_;  // all operations
  std::vector<Operation*> unused_;
  std::vector<RegionId> dropped_;
  size_t under_way_ = 0;
  bool calm_ = false;
  bool stopping_ = false;
  bool has_dropped_gc_ = false;
  bool keeps_trims_ = false;  // some trim has kept its room
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_POOL_CLIENT_H_
