#include <algorithm>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/episode.h"
#include "tests/sim/pool_client.h"

namespace nram::sim {
namespace {

constexpr size_t kUnderWayMax = 12;
constexpr int64_t kQuietNs = 120 * kNsPerSecond;
constexpr int64_t kSettleNs = 30 * kNsPerSecond;
constexpr int64_t kFaultPauseNs = 500 * kNsPerMs;
constexpr uint64_t kFaultEvery = 100;  // operations
constexpr uint64_t kBurst = 60;
constexpr int64_t kBurstPauseNs = 2 * kNsPerSecond;
constexpr uint64_t kQuietOperations = 50;
// What happens for nothing but itself at one time, or for so few operations, has no end.
constexpr uint64_t kEventsPerTimeMax = 1'000'000;

// What the seed decides before anything happens.
struct Plan {
  ClusterOptions cluster;
  WorkloadOptions workload;
  FaultWeights faults{};
  bool never_full = false;
  Checker::Servers servers = Checker::Servers::kMayBeAway;
};

// Those after which every request has an answer.
FaultWeights OnlyRoom(const FaultWeights& faults) {
  FaultWeights only{};
  for (const Fault fault : {Fault::kFill, Fault::kDrain}) {
    only[static_cast<size_t>(fault)] = faults[static_cast<size_t>(fault)];
  }
  return only;
}

Plan MakePlan(const EpisodeOptions& options) {
  Rng rng(options.seed ^ 0xC1);
  Plan plan;
  plan.cluster.servers = 1 + static_cast<int>(rng.Below(4));
  plan.cluster.clients = 1 + static_cast<int>(rng.Below(3));
  plan.cluster.server.ceiling_bytes = (12 + 2 * rng.Below(10)) * kMiB;
  plan.cluster.server.lease_ttl_ms = rng.OneIn(3) ? rng.Between(2'000, 10'000) : 10'000;
  plan.workload.regions = 1 + rng.Below(4);
  plan.workload.reserve_step_bytes = 64 * kKiB << rng.Below(7);
  plan.workload.impatient_one_in = rng.OneIn(2) ? 0 : 4 << rng.Below(5);
  plan.workload.destroy_one_in = 20 << rng.Below(5);
  plan.workload.reserve_one_in = rng.OneIn(3) ? 0 : 1 + rng.Below(6);
  plan.workload.hot_chunks = 16 << rng.Below(4);
  // Some faults at a time show what all together hide.
  const bool all = rng.OneIn(3);
  const uint64_t one_in = 2 + rng.Below(3);
  for (size_t i = 0; i < kFaultCount; ++i) {
    const uint32_t weight = options.faults[i] * (1 + static_cast<uint32_t>(rng.Below(8)));
    plan.faults[i] = all || rng.OneIn(one_in) ? weight : 0;
  }
  if (rng.OneIn(8)) plan.faults = OnlyRoom(plan.faults);
  const auto has = [&](std::initializer_list<Fault> faults) {
    return absl::c_any_of(faults, [&](Fault at) { return plan.faults[static_cast<size_t>(at)] > 0; });
  };
  if (!has({Fault::kKill, Fault::kPower, Fault::kFreeze, Fault::kStop, Fault::kCut, Fault::kSlow, Fault::kMemoryBit})) {
    plan.servers = Checker::Servers::kStumble;
    plan.workload.all_answered =
        plan.workload.impatient_one_in == 0 && !has({Fault::kBreak, Fault::kWireBit, Fault::kEndLease});
  }
  if (!has({Fault::kFill, Fault::kDrain}) && rng.OneIn(2)) {
    plan.never_full = true;
    plan.workload.drops = false;
    plan.cluster.server.ceiling_bytes = 512 * kMiB;
  }
  return plan;
}

class PoolEpisode {
 public:
  explicit PoolEpisode(const EpisodeOptions& options)
      : options_(options),
        plan_(MakePlan(options)),
        cluster_(options.seed, plan_.cluster),
        faults_(&cluster_, plan_.faults, kFaultPauseNs) {
    cluster_.checker.SetVerbose(options.verbose);
    cluster_.checker.SetNeverFull(plan_.never_full);
    // Pools send again what had no answer.
    cluster_.checker.SetEffect(RegisterHistory::Effect::kAgain);
    for (size_t i = 0; i < cluster_.clients.size(); ++i) {
      clients_.push_back(std::make_unique<PoolClient>(&cluster_, i, plan_.workload));
    }
    pump_scheduled_.resize(clients_.size());
    faults_.lease_of = [this](size_t client) { return clients_[client]->lease(); };
  }

  EpisodeResult Run() {
    AwaitUp();
    cluster_.checker.SetServers(plan_.servers);
    faults_.Begin();
    for (size_t i = 0; i < clients_.size(); ++i) Pump(i);
    RunUntil([this] { return started_ >= options_.operations; }, std::numeric_limits<int64_t>::max());
    faults_.EndAll();
    stopping_ = true;
    AwaitIdle("after the faults");
    cluster_.checker.SetServers(Checker::Servers::kMayBeAway);
    // So that each client has noticed what has become of its leases.
    Settle();
    AwaitUp();
    BeQuiet();
    DestroyAll();
    ClosePools();
    EpisodeResult result;
    result.failure = cluster_.checker.failure();
    if (!result.failure.empty()) result.report = cluster_.checker.Report();
    result.operations = started_;
    result.events = cluster_.world.event_count();
    result.digest = cluster_.world.digest();
    result.virtual_ns = cluster_.world.NowNs();
    // What is under way when an episode has failed has no end.
    if (failed()) Abandon();
    return result;
  }

 private:
  bool failed() const { return !cluster_.checker.failure().empty(); }

  template <typename Predicate>
  bool RunUntil(const Predicate& is_done, int64_t until_ns) {
    World& world = cluster_.world;
    while (!failed() && !is_done()) {
      if (!world.Step(until_ns)) return false;
      if (world.NowNs() != last_ns_) {
        last_ns_ = world.NowNs();
        last_count_ = world.event_count();
      } else if (world.event_count() - last_count_ > kEventsPerTimeMax) {
        cluster_.checker.Fail("time stands still");
      }
    }
    return true;
  }
  void Settle() {
    RunUntil([] { return false; }, cluster_.world.NowNs() + kSettleNs);
  }

  // Keeps some operations of a client under way.
  void Pump(size_t client) {
    if (stopping_ || failed()) return;
    while (clients_[client]->under_way() < kUnderWayMax) {
      if (!clients_[client]->StartSome([this, client] { SchedulePump(client, 100 * kNsPerUs); })) {
        return SchedulePump(client, 20 * kNsPerMs);
      }
      ++started_;
      // Also while much is under way.
      if (cluster_.world.rng().OneIn(kFaultEvery)) faults_.InjectWithin(kNsPerMs);
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
  // Until all clients are as they should be.
  void Await(bool (PoolClient::*is_well)() const, const char* what) {
    const auto all_are = [this, is_well] {
      return std::all_of(clients_.begin(), clients_.end(), [&](const auto& client) { return (*client.*is_well)(); });
    };
    if (!RunUntil(all_are, cluster_.world.NowNs() + kQuietNs) && !failed()) cluster_.checker.Fail(what);
  }
  void AwaitUp() { Await(&PoolClient::up, "a client does not come up again"); }

  // No server is away: everything succeeds, but for what was lost.
  void BeQuiet() {
    if (failed()) return;
    cluster_.checker.SetServers(Checker::Servers::kThere);
    for (const auto& client : clients_) client->SetCalm();
    for (int round = 0; round < 2 && !failed(); ++round) {
      for (const auto& client : clients_) client->StartReads(nullptr);
      AwaitIdle("in the quiet phase");
      for (uint64_t i = 0; i < kQuietOperations && !failed(); ++i) {
        for (const auto& client : clients_) client->StartSome(nullptr);
        if (cluster_.world.rng().OneIn(8)) AwaitIdle("in the quiet phase");
      }
      AwaitIdle("in the quiet phase");
    }
    Settle();
    CheckRooms();
  }

  void CheckRooms() {
    Await(&PoolClient::settled, "what a client has asked for has no answer");
    for (const auto& client : clients_) {
      for (const auto& server : cluster_.servers) {
        if (!failed()) client->CheckRoom(server.get());
      }
    }
  }

  void DestroyAll() {
    if (failed()) return;
    for (const auto& client : clients_) client->DestroyAll(nullptr);
    AwaitIdle("when all is destroyed");
    for (const auto& client : clients_) {
      for (const RegionId region : client->dropped()) DestroyDropped(region);
    }
    Settle();
    CheckRooms();
    for (const auto& server : cluster_.servers) CheckEmpty(server.get(), /*closed=*/false);
  }
  // As an administrator would.
  void DestroyDropped(RegionId region) {
    for (const auto& server : cluster_.servers) {
      v1::DestroyRegionRequest request;
      request.set_region_id(Raw(region));
      request.set_force(true);
      v1::DestroyRegionReply reply;
      (void)server->control()->DestroyRegion(request, &reply);
    }
  }

  void ClosePools() {
    if (failed()) return;
    clients_.clear();
    Settle();
    for (const auto& server : cluster_.servers) CheckEmpty(server.get(), /*closed=*/true);
  }

  void CheckEmpty(SimServer* server, bool closed) {
    if (failed()) return;
    ServerCore* const core = server->core();
    const ArenaUsage usage = core->arena().usage();
    const uint64_t frame_bytes = usage.frame_bytes - core->landing().size() * kPageBytes;
    // GC regions without a handle go with their leases.
    const bool may_hold = !closed && absl::c_any_of(clients_, [](const auto& at) { return at->has_dropped_gc(); });
    const uint64_t regions = core->store().counters().regions;
    uint64_t reserved_bytes = usage.reserved_bytes;
    if (!closed) {
      for (const auto& client : clients_) {
        const auto lease = core->leases().Find(client->lease());
        if (lease != nullptr) reserved_bytes -= core->arena().left_bytes(lease->reservation);
      }
    }
    const size_t leases = closed ? core->leases().count() : 0;
    if ((may_hold || (regions == 0 && frame_bytes == 0)) && reserved_bytes == 0 && leases == 0) return;
    cluster_.checker.Fail(absl::StrCat(server->name(), " is not empty when all is ", closed ? "closed" : "destroyed",
                                       ": ", regions, " regions, ", frame_bytes, " bytes of frames, ", reserved_bytes,
                                       " reserved for nobody, ", leases, " leases"));
  }

  void Abandon() {
    for (auto& client : clients_) (void)client.release();
  }

  const EpisodeOptions options_;
  const Plan plan_;
  Cluster cluster_;
  Faults faults_;
  std::vector<std::unique_ptr<PoolClient>> clients_;
  std::vector<bool> pump_scheduled_;
  uint64_t started_ = 0;
  bool stopping_ = false;
  int64_t last_ns_ = 0;
  uint64_t last_count_ = 0;
};

}  // namespace

EpisodeResult RunPoolEpisode(const EpisodeOptions& options) { return PoolEpisode(options).Run(); }

}  // namespace nram::sim
