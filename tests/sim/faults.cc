#include "tests/sim/faults.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"

namespace nram::sim {
namespace {

constexpr std::array<const char*, kFaultCount> kNames = {"kill",  "power",    "freeze",  "stop",      "cut",
                                                         "slow",  "break",    "wirebit", "memorybit", "fill",
                                                         "drain", "endlease", "press"};

}  // namespace

absl::StatusOr<FaultWeights> ParseFaults(absl::string_view text) {
  if (text == "all") return kAllFaults;
  FaultWeights weights{};
  if (text == "none") return weights;
  for (const absl::string_view part : absl::StrSplit(text, ',')) {
    const std::pair<absl::string_view, absl::string_view> pair = absl::StrSplit(part, absl::MaxSplits(':', 1));
    const auto it = std::find(kNames.begin(), kNames.end(), pair.first);
    uint32_t weight = 1;
    if (it == kNames.end() || (!pair.second.empty() && !absl::SimpleAtoi(pair.second, &weight))) {
      return absl::InvalidArgumentError(
          absl::StrCat("--faults: \"", part, "\" is none of all, none, ", absl::StrJoin(kNames, ", ")));
    }
    weights[static_cast<size_t>(it - kNames.begin())] = weight;
  }
  return weights;
}

Faults::Faults(Cluster* cluster, const FaultWeights& weights, int64_t pause_ns)
    : cluster_(cluster), world_(&cluster->world), weights_(weights), pause_ns_(pause_ns) {}

void Faults::Begin() {
  running_ = true;
  ScheduleNext();
}

void Faults::InjectWithin(int64_t ns) {
  world_->After(world_->rng().Between(0, ns), World::kNobody, [this] {
    if (running_) Inject();
  });
}

void Faults::EndAll() {
  running_ = false;
  world_->Cancel(next_);
  for (size_t i = 0; i < ends_.size(); ++i) RunEnd(i);
  ends_.clear();
}

void Faults::ScheduleNext() {
  if (std::accumulate(weights_.begin(), weights_.end(), uint64_t{0}) == 0) return;
  // Some follow at once.
  const int64_t pause_ns = world_->rng().OneIn(3) ? 5 * kNsPerMs : 2 * pause_ns_;
  next_ = world_->After(world_->rng().Between(0, pause_ns), World::kNobody, [this] {
    if (!running_) return;
    Inject();
    ScheduleNext();
  });
}

bool Faults::MayCome() {
  if (may_come == nullptr) return true;
  // The effect of a fault shows after a while.
  if (world_->NowNs() < last_ns_ + 15 * kNsPerSecond) return false;
  for (const auto& end : ends_) {
    if (end != nullptr) return false;
  }
  if (!may_come()) return false;
  last_ns_ = world_->NowNs();
  return true;
}

void Faults::Inject() {
  if (!MayCome()) return;
  const uint64_t sum = std::accumulate(weights_.begin(), weights_.end(), uint64_t{0});
  if (sum == 0) return;
  uint64_t at = world_->rng().Below(sum);
  for (size_t i = 0; i < kFaultCount; ++i) {
    if (at < weights_[i]) return Apply(static_cast<Fault>(i));
    at -= weights_[i];
  }
}

void Faults::EndAfter(int64_t max_ns, std::function<void()> end) {
  const size_t index = ends_.size();
  ends_.push_back(std::move(end));
  // Short faults are as interesting as long ones: from the time of one operation to times beyond all deadlines.
  const int64_t scale_ns = std::max<int64_t>(max_ns >> world_->rng().Below(18), 1);
  world_->After(world_->rng().Between(0, scale_ns), World::kNobody, [this, index] { RunEnd(index); });
}

void Faults::RunEnd(size_t index) {
  if (index >= ends_.size() || ends_[index] == nullptr) return;
  std::exchange(ends_[index], nullptr)();
}

void Faults::Apply(Fault fault) {
  Rng& rng = world_->rng();
  SimServer* const server = cluster_->servers[rng.Below(cluster_->servers.size())].get();
  const HostId client = cluster_->clients[rng.Below(cluster_->clients.size())];
  const auto trace = [&](absl::string_view what) { cluster_->checker.Trace(std::string(what)); };
  switch (fault) {
    case Fault::kKill:
    case Fault::kPower:
      if (server->alive()) KillServer(server, fault == Fault::kPower);
      return;
    case Fault::kFreeze:
    case Fault::kStop: {
      const HostId host = fault == Fault::kFreeze ? server->host() : client;
      if (world_->frozen(host)) return;
      trace(absl::StrCat(world_->NameOf(host), " freezes"));
      world_->Freeze(host);
      EndAfter(30 * kNsPerSecond, [this, host] {
        if (world_->frozen(host)) cluster_->checker.Trace(absl::StrCat(world_->NameOf(host), " goes on"));
        world_->Thaw(host);
      });
      return;
    }
    case Fault::kCut:
      return CutSome(client, server->host());
    case Fault::kSlow: {
      const int64_t slow_ns = rng.Between(kNsPerMs, 20 * kNsPerSecond >> rng.Below(14));
      trace(absl::StrCat(world_->NameOf(client), " and ", server->name(), ": messages take up to ", slow_ns / kNsPerMs,
                         " ms"));
      cluster_->network.SetSlow(client, server->host(), slow_ns);
      if (rng.OneIn(2)) cluster_->network.SetSlow(server->host(), client, slow_ns);
      EndAfter(10 * kNsPerSecond, [this, client, host = server->host()] {
        cluster_->network.SetSlow(client, host, 0);
        cluster_->network.SetSlow(host, client, 0);
      });
      return;
    }
    case Fault::kBreak:
      if (cluster_->network.BreakOne(client, server->host())) {
        trace(absl::StrCat(world_->NameOf(client), " and ", server->name(), ": a connection breaks"));
      }
      return;
    case Fault::kWireBit:
      if (cluster_->network.FlipBit()) trace("a bit changes on its way");
      return;
    case Fault::kMemoryBit:
      if (server->alive()) DamageSome(server);
      return;
    case Fault::kFill:
      if (!server->alive() || server->filled()) return;
      trace(absl::StrCat(server->name(), " is filled"));
      server->Fill(rng.OneIn(2) ? 0 : rng.Below(512));
      EndAfter(10 * kNsPerSecond, [server] {
        if (server->alive()) server->Unfill();
      });
      return;
    case Fault::kDrain:
      if (!server->alive()) return;
      trace(absl::StrCat(server->name(), " is drained"));
      server->core()->SetDraining(true, /*leaving=*/rng.OneIn(2));
      EndAfter(10 * kNsPerSecond, [server] {
        if (server->alive()) server->core()->SetDraining(false, false);
      });
      return;
    case Fault::kPress:
      return Press(server);
    case Fault::kEndLease:
      return EndLeases(rng.OneIn(3) ? cluster_->servers.size() : static_cast<size_t>(server->index()));
  }
}

void Faults::Press(SimServer* server) {
  if (!server->alive() || server->pressed()) return;
  Rng& rng = world_->rng();
  const uint64_t percent = rng.OneIn(3) ? 0 : rng.Below(100);
  cluster_->checker.Trace(absl::StrCat(server->name(), " may hold ", percent, " % of what it does"));
  server->Press(percent);
  EndAfter(120 * kNsPerSecond, [this, server] {
    if (!server->pressed()) return;
    cluster_->checker.Trace(absl::StrCat(server->name(), " may hold all again"));
    server->Unpress();
  });
}

void Faults::KillServer(SimServer* server, bool power_fails) {
  cluster_->checker.Trace(absl::StrCat(server->name(), power_fails ? " loses its power" : " is killed"));
  server->Kill(power_fails);
  EndAfter(20 * kNsPerSecond, [this, server] {
    if (server->alive()) return;
    server->Start();
    cluster_->checker.Trace(
        absl::StrCat(server->name(), " starts, incarnation ", FormatId(server->core()->incarnation())));
  });
}

void Faults::CutSome(HostId client, HostId server) {
  const uint64_t which = world_->rng().Below(4);  // 0 and 1: both
  cluster_->checker.Trace(absl::StrCat("cut ", world_->NameOf(client), which != 3 ? " -> " : " ",
                                       world_->NameOf(server), which != 2 ? " <-" : ""));
  if (which != 3) cluster_->network.Cut(client, server);
  if (which != 2) cluster_->network.Cut(server, client);
  EndAfter(40 * kNsPerSecond, [this, client, server] {
    cluster_->checker.Trace(absl::StrCat("heal ", world_->NameOf(client), " and ", world_->NameOf(server)));
    cluster_->network.Heal(client, server);
    cluster_->network.Heal(server, client);
  });
}

void Faults::DamageSome(SimServer* server) {
  Rng& rng = world_->rng();
  if (cluster_->regions.empty()) return;
  const RegionId region = cluster_->regions[rng.Below(cluster_->regions.size())];
  const auto spans = server->core()->store().ListSpans({region, 0}, 0, 64);
  if (!spans.ok() || spans->empty()) return;
  const uint64_t span = (*spans)[rng.Below(spans->size())].span;
  for (int tries = 0; tries < 16; ++tries) {
    const uint64_t page = span * kPagesPerSpan + rng.Below(kPagesPerSpan);
    if (!server->FlipBit(region, page)) continue;
    cluster_->checker.NoteDamaged(region, page);
    return;
  }
}

void Faults::EndLeases(size_t server) {
  if (lease_of == nullptr) return;
  const size_t client = world_->rng().Below(cluster_->clients.size());
  for (size_t i = 0; i < cluster_->servers.size(); ++i) {
    ServerCore* const core = cluster_->servers[i]->core();
    if ((server < cluster_->servers.size() && i != server) || core == nullptr) continue;
    const auto ended = core->leases().End(lease_of(client, i));
    if (ended == nullptr) continue;
    core->store().CollectLease(*ended);
    cluster_->servers[i]->on_lease_ended(*ended);
  }
}

}  // namespace nram::sim
