#include <array>
#include <memory>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/episode_run.h"
#include "tests/sim/raw_client.h"

namespace nram::sim {
namespace {

constexpr int kUnderWayMax = 12;
constexpr uint64_t kBurst = 40;
constexpr int64_t kBurstPauseNs = 2 * kNsPerSecond;

class RawEpisode : private EpisodeRun {
 public:
  explicit RawEpisode(const EpisodeOptions& options) : EpisodeRun(options, Clients(options.seed), options.faults) {
    for (size_t i = 0; i < cluster_.clients.size(); ++i) {
      clients_.push_back(std::make_unique<RawClient>(&cluster_, i));
    }
    faults_.lease_of = [this](size_t client, size_t) { return clients_[client]->lease(); };
  }

  EpisodeResult Run() {
    for (const auto& client : clients_) client->Begin();
    AwaitUp();
    RunFaults();
    Settle();
    AwaitUp();
    ReadAll();
    DestroyAll();
    return Result();
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

  void Pump(size_t client) override {
    if (!is_busy()) return;
    while (under_way_[client] < kUnderWayMax) {
      ++under_way_[client];
      if (!clients_[client]->StartSome([this, client] {
            --under_way_[client];
            SchedulePump(client, 100 * kNsPerUs);
          })) {
        --under_way_[client];
        return SchedulePump(client, 20 * kNsPerMs);
      }
      NoteStarted();
      // In bursts, so that operations meet each other, and yet time passes.
      if (cluster_.world.rng().OneIn(kBurst)) return SchedulePump(client, kBurstPauseNs);
    }
  }
  void AwaitUp() {
    Await([this] { return absl::c_all_of(clients_, [](const auto& client) { return client->up(); }); },
          "a client does not come up again");
  }

  void ReadAll() {
    for (int round = 0; round < 4 && !failed(); ++round) {
      // The first round finds the remains of a former term. A damaged page breaks its reader's connection.
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
      if (server->core()->store().counters().regions != 0 || server->page_frame_bytes() != 0 ||
          usage.reserved_bytes != 0) {
        // Regions of former leases or of clients that were replaced are orphans there.
        if (server->core()->store().CountOrphans() > 0) continue;
        cluster_.checker.Fail(absl::StrCat(
            server->name(), " is not empty at the end: ", server->core()->store().counters().regions.load(),
            " regions, ", server->page_frame_bytes(), " bytes of frames, ", usage.reserved_bytes, " reserved"));
      }
    }
  }

  std::vector<std::unique_ptr<RawClient>> clients_;
  std::array<int, 8> under_way_{};
};

}  // namespace

EpisodeResult RunRawEpisode(const EpisodeOptions& options) { return RawEpisode(options).Run(); }

}  // namespace nram::sim
