#ifndef NRAM_TESTS_SIM_EPISODE_RUN_H_
#define NRAM_TESTS_SIM_EPISODE_RUN_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "tests/sim/cluster.h"
#include "tests/sim/episode.h"
#include "tests/sim/faults.h"

namespace nram::sim {

// The common parts of episodes of every kind: a cluster, faults, operations that are kept under way meanwhile, and
// waits that have an end. One thread.
class EpisodeRun {
 public:
  virtual ~EpisodeRun() = default;
  EpisodeRun(const EpisodeRun&) = delete;
  EpisodeRun& operator=(const EpisodeRun&) = delete;

 protected:
  EpisodeRun(const EpisodeOptions& options, const ClusterOptions& cluster, const FaultWeights& faults);

  // Keeps some operations of a client under way while is_busy(); goes on after SchedulePump.
  virtual void Pump(size_t client) = 0;
  // Has Pump run within `max_ns`, once for all calls until then.
  void SchedulePump(size_t client, int64_t max_ns);
  void NoteStarted() { ++started_; }
  // Faults and operations, until enough operations have started and all have ended.
  void RunFaults();

  bool failed() const { return !cluster_.checker.failure().empty(); }
  bool is_busy() const { return !stopping_ && !failed(); }
  // False: it is not done at that time.
  template <typename Predicate>
  bool RunUntil(const Predicate& is_done, int64_t until_ns) {
    while (!failed() && !is_done()) {
      if (!cluster_.world.Step(until_ns)) return false;
      CheckThatTimeGoesBy();
    }
    return true;
  }
  // Waits until it is done, which must not take long; otherwise fails with `what`.
  template <typename Predicate>
  void Await(const Predicate& is_done, const char* what) {
    if (!RunUntil(is_done, cluster_.world.NowNs() + kQuietNs) && !failed()) cluster_.checker.Fail(what);
  }
  // Waits until no operation is under way.
  void AwaitIdle(const char* when);
  // Waits until each client has noticed the state of its leases.
  void Settle();
  EpisodeResult Result() const;

  const EpisodeOptions options_;
  Cluster cluster_;
  Faults faults_;

 private:
  static constexpr int64_t kQuietNs = 120 * kNsPerSecond;

  void CheckThatTimeGoesBy();

  std::vector<bool> pump_scheduled_;
  uint64_t started_ = 0;
  bool stopping_ = false;
  int64_t last_ns_ = 0;
  uint64_t last_count_ = 0;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_EPISODE_RUN_H_
