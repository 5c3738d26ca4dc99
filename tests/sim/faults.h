#ifndef NRAM_TESTS_SIM_FAULTS_H_
#define NRAM_TESTS_SIM_FAULTS_H_

// The faults of a simulation, and their times.

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "tests/sim/cluster.h"

namespace nram::sim {

enum class Fault {
  kKill,       // a server's process ends, and starts again
  kPower,      // a server's machine loses its power without a message to its peers, and starts again
  kFreeze,     // a server stops and goes on
  kStop,       // a client stops and goes on
  kCut,        // the network between a client and a server is cut, in both directions or in one
  kSlow,       // messages between a client and a server take longer, perhaps longer than deadlines
  kBreak,      // a connection breaks
  kWireBit,    // a bit of a message changes on its way
  kMemoryBit,  // a bit of a stored page changes
  kFill,       // others take a server's room
  kDrain,      // a server is drained
  kEndLease,   // a client's lease ends at one server, or at all
  kPress,      // a server's host needs memory, so that it asks its clients for some
};
inline constexpr size_t kFaultCount = 13;

// A weight for each fault; 0: never.
using FaultWeights = std::array<uint32_t, kFaultCount>;
inline constexpr FaultWeights kAllFaults = {4, 2, 4, 3, 8, 6, 8, 1, 2, 4, 2, 3, 6};

// "all", "none", or names with weights: "kill:4,cut". INVALID_ARGUMENT names the unknown word.
absl::StatusOr<FaultWeights> ParseFaults(absl::string_view text);

// One thread. Faults come one after the other while it runs, and each ends by itself.
class Faults {
 public:
  // `pause_ns`: between two faults, on average.
  Faults(Cluster* cluster, const FaultWeights& weights, int64_t pause_ns);

  // Returns the lease that a client has at a server; for kEndLease.
  std::function<LeaseId(size_t client, size_t server)> lease_of;
  // If set, a fault begins only while no other one lasts, and while this returns true.
  std::function<bool()> may_come;

  void Begin();
  // Has one more fault begin within `ns`, if faults have begun and not ended.
  void InjectWithin(int64_t ns);
  // Begins no more faults, and ends those under way now.
  void EndAll();

 private:
  void ScheduleNext();
  void Inject();
  void Apply(Fault fault);
  // Has a fault end after a random time up to `max_ns`, mostly much less; or by EndAll.
  void EndAfter(int64_t max_ns, std::function<void()> end);
  bool MayCome();
  void RunEnd(size_t index);

  void KillServer(SimServer* server, bool power_fails);
  void Press(SimServer* server);
  void CutSome(HostId client, HostId server);
  void DamageSome(SimServer* server);
  void EndLeases(size_t server);

  Cluster* const cluster_;
  World* const world_;
  const FaultWeights weights_;
  const int64_t pause_ns_;
  bool running_ = false;
  int64_t last_ns_ = 0;
  World::Timer next_ = 0;
  std::vector<std::function<void()>> ends_;  // null: has ended
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_FAULTS_H_
