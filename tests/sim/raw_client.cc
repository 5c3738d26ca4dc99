#include "tests/sim/raw_client.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace nram::sim {
namespace {

constexpr int64_t kControlTimeoutNs = 2 * kNsPerSecond;
constexpr int64_t kAgainNs = 50 * kNsPerMs;

}  // namespace

struct RawClient::Standing {
  Standing(World* world, Network* network, HostId host, SimServer* server)
      : server(server), control(world, network, host, server) {}

  bool connected() const { return bulk != nullptr && bulk->connected() && urgent->connected(); }
  bool usable() const { return !bringing_up && connected(); }

  SimServer* const server;
  SimControl control;
  bool bringing_up = false;
  uint64_t incarnation = 0;
  uint64_t term = 0;
  int64_t ttl_ms = 10'000;
  std::unique_ptr<SimTransport> bulk;
  std::unique_ptr<SimTransport> urgent;
  int connecting = 0;
  bool connect_failed = false;
  RegionId region{};
  bool gc = false;
};

struct RawClient::Operation {
  RawClient* client = nullptr;
  Standing* at = nullptr;
  Checker::Operation checked;
  Call call;
  bool gc = false;
  std::unique_ptr<std::byte[]> bytes;
  std::function<void()> done;
};

RawClient::RawClient(Cluster* cluster, size_t index)
    : cluster_(cluster),
      world_(&cluster->world),
      index_(index),
      host_(cluster->clients[index]),
      lease_(LeaseId{world_->rng().Next() | 1}) {
  for (const auto& server : cluster->servers) {
    standings_.push_back(std::make_unique<Standing>(world_, &cluster->network, host_, server.get()));
  }
}

RawClient::~RawClient() = default;

void RawClient::Begin() {
  for (const auto& at : standings_) {
    BringUp(at.get());
    Renew(at.get());
  }
}

bool RawClient::up() const {
  return std::all_of(standings_.begin(), standings_.end(), [](const auto& at) { return at->usable(); });
}

void RawClient::BringUp(Standing* at) {
  if (at->bringing_up) return;
  at->bringing_up = true;
  at->control.Call<v1::HelloRequest, v1::HelloReply>(
      ControlCodec::Hello(), &ControlService::Hello, world_->NowNs() + kControlTimeoutNs,
      [this, at](const absl::Status& status, const v1::HelloReply& reply) {
        if (!status.ok() || !at->control.codec().Parse(reply).ok()) return Fail(at);
        Grant(at);
      });
}

void RawClient::Grant(Standing* at) {
  at->control.Call<v1::GrantLeaseRequest, v1::LeaseReply>(
      ControlCodec::GrantLease(lease_, absl::StrCat("client", index_), 0), &ControlService::GrantLease,
      world_->NowNs() + kControlTimeoutNs, [this, at](const absl::Status& status, const v1::LeaseReply& reply) {
        const auto lease = at->control.codec().Parse(reply);
        if (!status.ok() || !lease.ok()) return Fail(at);
        TakeIn(at, *lease);
      });
}

void RawClient::TakeIn(Standing* at, const LeaseInfo& lease) {
  const bool is_new_life = lease.incarnation != at->incarnation;
  const bool is_new_term = is_new_life || lease.term != at->term;
  const bool lost = is_new_life || (at->gc && is_new_term);
  at->incarnation = lease.incarnation;
  at->term = lease.term;
  at->ttl_ms = lease.ttl_ms;
  if (lost) NewRegion(at);
  if (is_new_life) {
    Dial(at);
  } else if (is_new_term) {
    // The server executes no more of these messages.
    at->bulk->Disconnect();
    at->urgent->Disconnect();
  }
  Connect(at);
}

void RawClient::NewRegion(Standing* at) {
  cluster_->checker.RemoveRegion(at->region);
  std::erase(cluster_->regions, at->region);
  at->region = RegionId{world_->rng().Next() | 1};
  at->gc = world_->rng().OneIn(2);
  cluster_->checker.AddRegion(at->region, {0, kRegionChunks}, std::vector<LeaseId>(cluster_->servers.size(), lease_),
                              at->gc);
  cluster_->regions.push_back(at->region);
}

void RawClient::Dial(Standing* at) {
  SimTransportOptions options;
  options.client = host_;
  options.server = at->server->host();
  options.lease = lease_;
  options.incarnation = at->incarnation;
  options.on_request = [this, server = at->server->index()](const MessageHeader& request) {
    if (request.op == Op::kWrite) cluster_->checker.NoteSent(server, request.region());
  };
  for (auto* transport : {&at->bulk, &at->urgent}) {
    if (*transport != nullptr) {
      (*transport)->Disconnect();
      former_.push_back(std::move(*transport));
    }
    options.urgent = transport == &at->urgent;
    *transport = std::make_unique<SimTransport>(world_, &cluster_->network, options);
  }
}

void RawClient::Connect(Standing* at) {
  at->connecting = 2;
  at->connect_failed = false;
  const int64_t deadline_ns = world_->NowNs() + at->ttl_ms * kNsPerMs / 3;
  for (SimTransport* transport : {at->bulk.get(), at->urgent.get()}) {
    transport->StartConnect(deadline_ns, [this, at](const absl::Status& status) {
      if (!status.ok()) at->connect_failed = true;
      if (--at->connecting > 0) return;
      if (at->connect_failed || !at->connected()) return Fail(at);
      at->bringing_up = false;
    });
  }
}

void RawClient::Fail(Standing* at) {
  world_->After(world_->rng().Between(0, 2 * kAgainNs), host_, [this, at] {
    at->bringing_up = false;
    BringUp(at);
  });
}

void RawClient::NoteDown(Standing* at) {
  if (!at->connected() && !at->bringing_up) BringUp(at);
}

void RawClient::Renew(Standing* at) {
  at->control.Call<v1::RenewLeaseRequest, v1::LeaseReply>(
      ControlCodec::RenewLease(lease_, {}), &ControlService::RenewLease, world_->NowNs() + kControlTimeoutNs,
      [this, at](const absl::Status& status, const v1::LeaseReply&) {
        if (absl::IsNotFound(status) && !at->bringing_up) BringUp(at);
        NoteDown(at);
      });
  world_->After(at->ttl_ms * kNsPerMs / 3, host_, [this, at] { Renew(at); });
}

bool RawClient::StartSome(std::function<void()> done) {
  Rng& rng = world_->rng();
  Standing* const at = standings_[rng.Below(standings_.size())].get();
  if (!at->usable()) {
    NoteDown(at);
    return false;
  }
  const uint64_t dice = rng.Below(100);
  const Checker::Kind kind = dice < 45   ? Checker::Kind::kRead
                             : dice < 92 ? Checker::Kind::kWrite
                                         : Checker::Kind::kTrim;
  const uint64_t longest = rng.OneIn(16) ? kChunksPerMessage - kChunksPerPage : rng.OneIn(2) ? 1 : 24;
  // Few places, so that operations meet each other.
  const uint64_t hot = rng.OneIn(3) ? kRegionChunks : 64;
  ChunkRange range{rng.Below(hot), 1 + rng.Below(longest)};
  range.count = std::min(range.count, kRegionChunks - range.first);
  StartOperation(at, kind, range, std::move(done));
  return true;
}

bool RawClient::StartReads(uint64_t chunks, std::function<void()> done) {
  bool all = true;
  for (const auto& at : standings_) {
    if (at->usable()) {
      StartOperation(at.get(), Checker::Kind::kRead, {world_->rng().Below(kRegionChunks - chunks), chunks}, done);
    } else {
      all = false;
    }
  }
  return all;
}

void RawClient::DestroyAll(std::function<void()> done) {
  for (const auto& at : standings_) {
    std::erase(cluster_->regions, at->region);
    StartOperation(at.get(), Checker::Kind::kDestroy, {}, done);
  }
}

void RawClient::StartOperation(Standing* at, Checker::Kind kind, ChunkRange range, std::function<void()> done) {
  auto* const operation = new Operation;
  operation->client = this;
  operation->at = at;
  operation->gc = at->gc;
  operation->done = std::move(done);
  if (range.count > 0 && kind != Checker::Kind::kTrim) operation->bytes.reset(new std::byte[range.bytes()]);
  Call& call = operation->call;
  call.deadline_ns = world_->NowNs() + world_->rng().Between(kNsPerSecond, 10 * kNsPerSecond);
  constexpr Epoch kEpoch{1};
  Checker& checker = cluster_->checker;
  switch (kind) {
    case Checker::Kind::kRead:
      call.request = MessageHeader(ReadRequest{.region = at->region, .range = range, .epoch = kEpoch});
      call.in = operation->bytes.get();
      operation->checked = checker.BeginRead(at->region, range, host_, call.deadline_ns);
      break;
    case Checker::Kind::kWrite:
      call.request = MessageHeader(WriteRequest{.region = at->region, .range = range, .epoch = kEpoch},
                                   kFlagCreate | (at->gc ? kFlagGc : 0));
      call.out = operation->bytes.get();
      operation->checked = checker.BeginWrite(at->region, range, host_, call.deadline_ns, operation->bytes.get());
      break;
    default:
      call.request = kind == Checker::Kind::kTrim
                         ? MessageHeader(TrimRequest{.region = at->region, .range = range, .epoch = kEpoch})
                         : MessageHeader(DestroyRequest{.region = at->region, .epoch = kEpoch});
      operation->checked = checker.BeginOther(kind, at->region, range, host_, call.deadline_ns);
  }
  call.context = operation;
  call.done = [](Call* ended) {
    auto* const of = static_cast<Operation*>(ended->context);
    of->client->EndOperation(of);
  };
  (world_->rng().OneIn(2) ? at->bulk : at->urgent)->Start(&call);
}

absl::Status RawClient::StatusOf(Operation* operation) {
  const int server = operation->at->server->index();
  Call& call = operation->call;
  const absl::Status status = CallStatus(call, operation->at->server->name());
  if (call.code == absl::StatusCode::kDataLoss) {
    // Garbled on its way, or at the server: the reader cannot tell.
    return cluster_->checker.MayBeLost(operation->checked, {server}) ? status
                                                                     : absl::UnavailableError(status.message());
  }
  if (call.code != absl::StatusCode::kOk) return status;
  switch (call.reason) {
    case Reason::kUnknownRegion:
      if (operation->gc && cluster_->checker.MayBeLost(operation->checked, {server})) {
        return absl::DataLossError(status.message());
      }
      // Nothing was ever written there, or the checker finds that zeros are wrong.
      if (call.request.op == Op::kRead) memset(operation->bytes.get(), 0, call.request.range().bytes());
      return absl::OkStatus();
    case Reason::kLeaseEnded:
    case Reason::kFenced:
      return absl::UnavailableError(status.message());
    default:
      return status;
  }
}

void RawClient::EndOperation(Operation* operation) {
  const std::unique_ptr<Operation> owned(operation);
  cluster_->checker.End(operation->checked, StatusOf(operation), operation->bytes.get(),
                        {operation->at->server->index()});
  if (operation->call.reason == Reason::kLeaseEnded && !operation->at->bringing_up) BringUp(operation->at);
  NoteDown(operation->at);
  operation->done();
}

}  // namespace nram::sim
