#include "tests/sim/episode_run.h"

#include <limits>

#include "absl/strings/str_cat.h"

namespace nram::sim {
namespace {

constexpr int64_t kSettleNs = 30 * kNsPerSecond;
constexpr int64_t kFaultPauseNs = 500 * kNsPerMs;
// Events that only cause each other at one time, or that run too few operations, have no end.
constexpr uint64_t kEventsPerTimeMax = 1'000'000;

}  // namespace

EpisodeRun::EpisodeRun(const EpisodeOptions& options, const ClusterOptions& cluster, const FaultWeights& faults)
    : options_(options),
      cluster_(options.seed, cluster),
      faults_(&cluster_, faults, kFaultPauseNs),
      pump_scheduled_(cluster_.clients.size()) {
  cluster_.checker.SetVerbose(options.verbose);
}

void EpisodeRun::SchedulePump(size_t client, int64_t max_ns) {
  if (pump_scheduled_[client]) return;
  pump_scheduled_[client] = true;
  cluster_.world.After(cluster_.world.rng().Between(0, max_ns), cluster_.clients[client], [this, client] {
    pump_scheduled_[client] = false;
    Pump(client);
  });
}

void EpisodeRun::RunFaults() {
  faults_.Begin();
  for (size_t i = 0; i < cluster_.clients.size(); ++i) Pump(i);
  RunUntil([this] { return started_ >= options_.operations; }, std::numeric_limits<int64_t>::max());
  faults_.EndAll();
  stopping_ = true;
  AwaitIdle("after the faults");
}

void EpisodeRun::AwaitIdle(const char* when) {
  const int64_t until_ns = cluster_.world.NowNs() + kQuietNs;
  if (!RunUntil([this] { return cluster_.checker.under_way() == 0; }, until_ns) && !failed()) {
    cluster_.checker.Fail(absl::StrCat(cluster_.checker.under_way(), " operations have no end ", when));
  }
}

void EpisodeRun::Settle() {
  RunUntil([] { return false; }, cluster_.world.NowNs() + kSettleNs);
}

EpisodeResult EpisodeRun::Result() const {
  EpisodeResult result;
  result.failure = cluster_.checker.failure();
  if (!result.failure.empty()) result.report = cluster_.checker.Report();
  result.operations = started_;
  result.events = cluster_.world.event_count();
  result.digest = cluster_.world.digest();
  result.virtual_ns = cluster_.world.NowNs();
  return result;
}

void EpisodeRun::CheckThatTimeGoesBy() {
  const World& world = cluster_.world;
  if (world.NowNs() != last_ns_) {
    last_ns_ = world.NowNs();
    last_count_ = world.event_count();
  } else if (world.event_count() - last_count_ > kEventsPerTimeMax) {
    cluster_.checker.Fail("time stands still");
  }
}

}  // namespace nram::sim
