#include "tests/sim/publish_world.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nram::sim {
namespace {

constexpr int kPort = 7070;
constexpr int64_t kUpNs = 5 * kNsPerSecond;
constexpr int64_t kFaultPauseNs = 700 * kNsPerMs;

}  // namespace

PublishPlan MakePublishPlan(const EpisodeOptions& options) {
  Rng rng(options.seed ^ 0x9B11);
  PublishPlan plan;
  plan.cluster.servers = 1 + static_cast<int>(rng.Below(4));
  plan.copies = 1 + static_cast<int>(rng.Below(std::min(plan.cluster.servers, 3)));
  plan.observers = 1 + rng.Below(4);
  plan.cluster.clients = 1 + static_cast<int>(plan.observers);
  plan.history = 1 + rng.Below(6);
  plan.death_one_in = rng.OneIn(3) ? 0 : 2 + rng.Below(12);
  plan.takeover_ns = rng.OneIn(2) ? 0 : rng.Between(kNsPerSecond / 2, 15 * kNsPerSecond);
  plan.lasts_ns = rng.Between(2 * kNsPerSecond, 20 * kNsPerSecond);
  plan.with_owner = rng.OneIn(4);
  plan.silence_limit_ms = rng.OneIn(2) ? 0 : 1'000;
  plan.replace_after_ms = rng.Between(500, 10'000 >> rng.Below(3));
  plan.full = rng.OneIn(3);
  plan.cluster.server.ceiling_bytes = plan.full ? 8 * kMiB + rng.Below(8) * 256 * kKiB : 64 * kMiB;
  plan.calm = rng.OneIn(3);
  if (plan.calm) return plan;
  const uint64_t one_in = 1 + rng.Below(4);
  for (size_t i = 0; i < kFaultCount; ++i) {
    const auto fault = static_cast<Fault>(i);
    // Damage concerns pages of any kind alike; giving back moves only spans of the head.
    const bool is_left_out = fault == Fault::kMemoryBit || fault == Fault::kPress;
    if (!is_left_out && rng.OneIn(one_in)) plan.faults[i] = options.faults[i];
  }
  return plan;
}

PublishWorld::PublishWorld(const EpisodeOptions& options)
    : plan(MakePublishPlan(options)),
      cluster(options.seed, plan.cluster),
      faults(&cluster, plan.faults, kFaultPauseNs) {
  cluster.checker.SetVerbose(options.verbose);
  Trace(absl::StrCat(plan.cluster.servers, " servers, ", plan.copies, " copies, ", plan.observers, " observers",
                     plan.calm ? ", calm" : "", plan.full ? ", full" : ""));
  for (auto& server : cluster.servers) {
    server->on_death = [this] { ++deaths_of_servers; };
    server->on_lease_ended = [this, index = server->index()](const Lease& lease) {
      Trace(absl::StrCat("server", index, ": lease ", FormatId(Raw(lease.id)), " ends"));
      ++leases_ended;
    };
  }
}

std::unique_ptr<Pool> PublishWorld::MakePool(HostId host, OnRequest on_request) {
  PoolOptions options;
  for (const auto& server : cluster.servers) options.servers.push_back({server->name(), kPort, ""});
  options.client_name = cluster.world.NameOf(host);
  options.reserve_step_bytes = 256 * kKiB;
  options.silence_limit_ms = plan.silence_limit_ms;
  options.replace_after_ms = plan.replace_after_ms;
  options.seal = Seal::kNo;
  auto pool = Pool::Make(options, std::make_unique<SimEdge>(&cluster, host, std::move(on_request))).value();
  const int64_t until_ns = cluster.world.NowNs() + kUpNs;
  for (size_t i = 0; i < pool->server_count(); ++i) (void)pool->session(i)->AwaitUp(until_ns);
  return pool;
}

bool PublishWorld::LosesVersions() const {
  for (const Fault fault : {Fault::kFreeze, Fault::kStop, Fault::kCut, Fault::kSlow, Fault::kDrain}) {
    if (plan.faults[static_cast<size_t>(fault)] > 0) return true;
  }
  uint64_t yielded = 0;
  for (const auto& server : cluster.servers) {
    if (server->alive()) yielded += server->core()->store().counters().versions.yielded;
  }
  return yielded > 0 || deaths_of_servers > 0;
}

}  // namespace nram::sim
