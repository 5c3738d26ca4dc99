#include <initializer_list>
#include <memory>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "tests/sim/episode_run.h"
#include "tests/sim/pool_client.h"

namespace nram::sim {
namespace {

constexpr size_t kUnderWayMax = 12;
constexpr uint64_t kFaultEvery = 100;  // operations
constexpr uint64_t kBurst = 60;
constexpr int64_t kBurstPauseNs = 2 * kNsPerSecond;
constexpr uint64_t kQuietOperations = 50;

// The plan that the seed makes before anything happens.
struct Plan {
  ClusterOptions cluster;
  WorkloadOptions workload;
  FaultWeights faults{};
  bool never_full = false;
  bool survives = false;     // one fault at a time, and two copies
  uint64_t evil_one_in = 0;  // replies to reads of sealed pages; 0: no server lies
  bool one_is_evil = false;  // and there are no other faults: the other copy is always good
  Checker::Servers servers = Checker::Servers::kMayBeAway;
};

// The faults after which every request has an answer.
FaultWeights OnlyRoom(const FaultWeights& faults) {
  FaultWeights only{};
  for (const Fault fault : {Fault::kFill, Fault::kDrain}) {
    only[static_cast<size_t>(fault)] = faults[static_cast<size_t>(fault)];
  }
  return only;
}

// No fault may cause an error, because one copy is left.
void MakeSurviving(Plan* plan) {
  plan->survives = plan->never_full = true;
  plan->cluster.servers = std::max(plan->cluster.servers, 3);
  plan->cluster.server.ceiling_bytes = 512 * kMiB;
  plan->cluster.server.lease_ttl_ms = 10'000;
  plan->workload.survives = true;
  plan->workload.copied_one_in = 1;
  plan->workload.impatient_one_in = 0;
  plan->workload.drops = plan->workload.all_answered = false;
  for (const Fault fault : {Fault::kStop, Fault::kFill, Fault::kEndLease, Fault::kMemoryBit}) {
    plan->faults[static_cast<size_t>(fault)] = 0;
  }
  plan->servers = Checker::Servers::kStumble;
}

// Servers may be pressed. This is decided apart, so that the seed's other worlds do not change.
void MakePressed(const EpisodeOptions& options, Plan* plan) {
  Rng rng(options.seed ^ 0x9E55);
  const auto press = static_cast<size_t>(Fault::kPress);
  const bool presses = options.faults[press] > 0 && !plan->one_is_evil && rng.OneIn(3);
  plan->faults[press] = presses ? options.faults[press] * (1 + static_cast<uint32_t>(rng.Below(4))) : 0;
  if (!presses) return;
  if (plan->survives) return;  // a server without room does no harm where another one has some
  plan->never_full = false;
  plan->workload.expendable = rng.OneIn(3);
  // Its lease may end.
  if (plan->workload.expendable) plan->workload.all_answered = false;
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
  plan.workload.copied_one_in = rng.OneIn(2) ? 0 : 1 + rng.Below(3);
  plan.workload.sealed_one_in = rng.OneIn(2) ? 0 : 1 + rng.Below(3);
  plan.workload.silence_limit_ms = rng.OneIn(2) ? 0 : 1'000;
  plan.workload.replace_after_ms = rng.Between(100, 10'000 >> rng.Below(4));
  plan.workload.repair_bytes_per_s = rng.OneIn(3) ? PoolOptions::kRepairQuarter : PoolOptions::kRepairUnbounded;
  // A few faults at a time show errors that all faults together hide.
  const bool all = rng.OneIn(3);
  const uint64_t one_in = 2 + rng.Below(3);
  for (size_t i = 0; i < static_cast<size_t>(Fault::kPress); ++i) {
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
  if (plan.workload.copied_one_in > 0 && rng.OneIn(3)) MakeSurviving(&plan);
  if (plan.workload.sealed_one_in > 0 && rng.OneIn(3)) {
    plan.evil_one_in = 1 + rng.Below(20);
    plan.one_is_evil = plan.survives;
    if (plan.one_is_evil) plan.faults = {};
  }
  plan.workload.moves = rng.OneIn(2);
  MakePressed(options, &plan);
  return plan;
}

class PoolEpisode : private EpisodeRun {
 public:
  explicit PoolEpisode(const EpisodeOptions& options) : PoolEpisode(options, MakePlan(options)) {}

  EpisodeResult Run() {
    AwaitUp();
    cluster_.checker.SetServers(plan_.servers);
    RunFaults();
    cluster_.checker.SetServers(Checker::Servers::kMayBeAway);
    SetEvil(0);
    Settle();
    AwaitUp();
    BeQuiet();
    DestroyAll();
    ClosePools();
    EpisodeResult result = Result();
    // Operations under way when an episode has failed have no end.
    if (failed()) Abandon();
    return result;
  }

 private:
  PoolEpisode(const EpisodeOptions& options, const Plan& plan)
      : EpisodeRun(options, plan.cluster, plan.faults), plan_(plan) {
    cluster_.checker.SetNeverFull(plan_.never_full);
    cluster_.checker.SetNeverLost(plan_.survives);
    SetEvil(plan_.evil_one_in);
    // Pools send unanswered requests again.
    cluster_.checker.SetEffect(RegisterHistory::Effect::kAgain);
    for (size_t i = 0; i < cluster_.clients.size(); ++i) {
      clients_.push_back(std::make_unique<PoolClient>(&cluster_, i, plan_.workload));
    }
    if (plan_.survives) {
      faults_.may_come = [this] {
        return absl::c_all_of(clients_, [](const auto& client) { return client->whole(); });
      };
    }
    faults_.lease_of = [this](size_t client, size_t server) { return clients_[client]->lease(server); };
  }

  void SetEvil(uint64_t one_in) {
    cluster_.checker.SetLies(plan_.evil_one_in > 0 && !plan_.one_is_evil);
    for (const auto& server : cluster_.servers) {
      if (!plan_.one_is_evil || server->index() == 0) server->SetEvil(one_in);
    }
  }

  void Pump(size_t client) override {
    if (!is_busy()) return;
    while (clients_[client]->under_way() < kUnderWayMax) {
      if (!clients_[client]->StartSome([this, client] { SchedulePump(client, 100 * kNsPerUs); })) {
        return SchedulePump(client, 20 * kNsPerMs);
      }
      NoteStarted();
      // Also while much is under way.
      if (cluster_.world.rng().OneIn(kFaultEvery)) faults_.InjectWithin(kNsPerMs);
      // In bursts, so that operations meet each other, and yet time passes.
      if (cluster_.world.rng().OneIn(kBurst)) return SchedulePump(client, kBurstPauseNs);
    }
  }
  // Waits until all clients are well.
  void AwaitAll(bool (PoolClient::*are_well)() const, const char* what) {
    Await([&] { return absl::c_all_of(clients_, [&](const auto& client) { return (*client.*are_well)(); }); }, what);
  }
  void AwaitUp() { AwaitAll(&PoolClient::up, "a client does not come up again"); }

  // No server is away: everything succeeds, except for lost data.
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
    // Every span gets its copies again, if nothing prevents it.
    if (plan_.survives) AwaitAll(&PoolClient::whole, "copies are not made anew");
    for (const auto& client : clients_) {
      if (!failed()) client->CheckCopies();
    }
  }

  void CheckRooms() {
    AwaitAll(&PoolClient::settled, "what a client has asked for has no answer");
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
  // As an administrator would do.
  void DestroyDropped(RegionId region) {
    for (const auto& server : cluster_.servers) {
      v1::DestroyRegionRequest request;
      request.set_region_id(Raw(region));
      request.set_force(true);
      v1::DestroyRegionReply reply;
      (void)server->control()->DestroyRegion(server->caller(), request, &reply);
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
    const uint64_t frame_bytes = server->page_frame_bytes();
    // GC regions without a handle end with their leases.
    const bool may_hold = !closed && absl::c_any_of(clients_, [](const auto& at) { return at->has_dropped_gc(); });
    const uint64_t regions = core->store().counters().regions;
    uint64_t reserved_bytes = usage.reserved_bytes;
    if (!closed) {
      for (const auto& client : clients_) {
        const auto lease = core->leases().Find(client->lease(server->index()));
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

  const Plan plan_;
  std::vector<std::unique_ptr<PoolClient>> clients_;
};

}  // namespace

EpisodeResult RunPoolEpisode(const EpisodeOptions& options) { return PoolEpisode(options).Run(); }

}  // namespace nram::sim
