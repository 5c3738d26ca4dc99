#include <algorithm>
#include <array>
#include <functional>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/sim/episode.h"
#include "tests/sim/raw_client.h"

namespace nram::sim {
namespace {

constexpr int kUnderWayMax = 12;
constexpr int64_t kQuietNs = 120 * kNsPerSecond;
constexpr int64_t kSettleNs = 30 * kNsPerSecond;
constexpr int64_t kFaultPauseNs = 500 * kNsPerMs;
constexpr uint64_t kBurst = 40;
constexpr int64_t kBurstPauseNs = 2 * kNsPerSecond;

class RawEpisode {
 public:
  explicit RawEpisode(const EpisodeOptions& options)
      : options_(options),
        cluster_(options.seed, Clients(options.seed)),
        faults_(&cluster_, options.faults, kFaultPauseNs) {
    for (size_t i = 0; i < cluster_.clients.size(); ++i) {
      clients_.push_back(std::make_unique<RawClient>(&cluster_, i));
    }
    faults_.lease_of = [this](size_t client) { return clients_[client]->lease(); };
  }

  EpisodeResult Run() {
    cluster_.checker.SetVerbose(options_.verbose);
    for (const auto& client : clients_) client->Begin();
    AwaitUp();
    faults_.Begin();
    for (size_t i = 0; i < clients_.size(); ++i) Pump(i);
    RunUntil([this] { return started_ >= options_.operations; }, INT64_MAX);
    faults_.EndAll();
    stopping_ = true;
    AwaitIdle("after the faults");
    // So that each client has noticed what has become of its leases.
    RunUntil([] { return false; }, cluster_.world.NowNs() + kSettleNs);
    AwaitUp();
    ReadAll();
    DestroyAll();
    EpisodeResult result;
    result.failure = cluster_.checker.failure();
    if (!result.failure.empty()) result.report = cluster_.checker.Report();
    result.operations = started_;
    result.events = cluster_.world.event_count();
    result.digest = cluster_.world.digest();
    result.virtual_ns = cluster_.world.NowNs();
    return result;
  }

 private:
  static ClusterOptions Clients(uint64_t seed) {
    Rng rng(seed ^ 0xC1);
    ClusterOptions options;
    options.servers = 1 + static_cast<int>(rng.Below(3));
    options.clients = 1 + static_cast<int>(rng.Below(3));
    options.server.ceiling_bytes = (12 + 2 * rng.Below(8)) * kMiB;
    return options;
  }

  bool failed() const { return !cluster_.checker.failure().empty(); }

  template <typename Predicate>
  bool RunUntil(const Predicate& is_done, int64_t until_ns) {
    while (!failed() && !is_done()) {
      if (!cluster_.world.Step(until_ns)) return false;
    }
    return true;
  }

  // Keeps some operations of a client under way.
  void Pump(size_t client) {
    if (stopping_ || failed()) return;
    while (under_way_[client] < kUnderWayMax) {
      ++under_way_[client];
      if (!clients_[client]->StartSome([this, client] {
            --under_way_[client];
            SchedulePump(client, 100 * kNsPerUs);
          })) {
        --under_way_[client];
        return SchedulePump(client, 20 * kNsPerMs);
      }
      ++started_;
      // In bursts, so that operations meet each other and yet time goes by.
      if (cluster_.world.rng().OneIn(kBurst)) return SchedulePump(client, kBurstPauseNs);
    }
  }
  void SchedulePump(size_t client, int64_t max_ns) {
    if (pump_scheduled_[client]) return;
    pump_scheduled_[client] = true;
    cluster_.world.After(cluster_.world.rng().Between(0, max_ns), cluster_.clients[client], [this, client] {
      pump_scheduled_[client] = false;
      Pump(client);
    });
  }

  void AwaitIdle(const char* when) {
    const int64_t until_ns = cluster_.world.NowNs() + kQuietNs;
    if (!RunUntil([this] { return cluster_.checker.under_way() == 0; }, until_ns) && !failed()) {
      cluster_.checker.Fail(absl::StrCat(cluster_.checker.under_way(), " operations have no end ", when));
    }
  }
  void AwaitUp() {
    const int64_t until_ns = cluster_.world.NowNs() + kQuietNs;
    const auto all_up = [this] {
      return std::all_of(clients_.begin(), clients_.end(), [](const auto& client) { return client->up(); });
    };
    if (!RunUntil(all_up, until_ns) && !failed()) cluster_.checker.Fail("a client does not come up again");
  }

  void ReadAll() {
    for (int round = 0; round < 4 && !failed(); ++round) {
      // The first round finds out what is still of a former term. A damaged page breaks its reader's connection.
      const bool all_is_well = round > 0 && !cluster_.checker.HasDamage();
      cluster_.checker.SetServers(all_is_well ? Checker::Servers::kThere : Checker::Servers::kMayBeAway);
      for (const auto& client : clients_) {
        AwaitUp();
        if (!failed() && !client->StartReads(256, [] {})) cluster_.checker.Fail("a server is away without a fault");
        AwaitIdle("in the quiet phase");
      }
    }
    AwaitUp();
  }

  void DestroyAll() {
    if (failed()) return;
    for (const auto& client : clients_) client->DestroyAll([] {});
    AwaitIdle("when all is destroyed");
    if (failed()) return;
    for (const auto& server : cluster_.servers) {
      const ArenaUsage usage = server->core()->arena().usage();
      const uint64_t landing_bytes = server->core()->landing().size() * kPageBytes;
      if (server->core()->store().counters().regions != 0 || usage.frame_bytes != landing_bytes ||
          usage.reserved_bytes != 0) {
        // Regions of former leases or of clients that were replaced are orphans there.
        if (server->core()->store().CountOrphans() > 0) continue;
        cluster_.checker.Fail(absl::StrCat(
            server->name(), " is not empty at the end: ", server->core()->store().counters().regions.load(),
            " regions, ", usage.frame_bytes - landing_bytes, " bytes of frames, ", usage.reserved_bytes, " reserved"));
      }
    }
  }

  const EpisodeOptions options_;
  Cluster cluster_;
  Faults faults_;
  std::vector<std::unique_ptr<RawClient>> clients_;
  uint64_t started_ = 0;
  bool stopping_ = false;
  std::array<int, 8> under_way_{};
  std::array<bool, 8> pump_scheduled_{};
};

}  // namespace

EpisodeResult RunRawEpisode(const EpisodeOptions& options) { return RawEpisode(options).Run(); }

}  // namespace nram::sim
