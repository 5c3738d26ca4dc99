#include "tests/sim/sim_edge.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "tests/sim/fiber_control.h"
#include "tests/sim/fibers.h"
#include "tests/sim/sim_control.h"
#include "tests/sim/sim_transport.h"

namespace nram::sim {
namespace {

constexpr int64_t kJoinNs = 60 * kNsPerSecond;

SimTransport* AsSim(const std::unique_ptr<Transport>& transport) { return static_cast<SimTransport*>(transport.get()); }

}  // namespace

// The counterpart of thread_driver.cc, which uses a thread. One action is under way at a time.
class SimDriver : public SessionDriver {
 public:
  SimDriver(SimEdge* edge, ServerSession* session)
      : edge_(edge),
        world_(&edge->cluster_->world),
        session_(session),
        server_(edge->cluster_->servers[session->index()].get()),
        control_(world_, &edge->cluster_->network, edge->host_, server_),
        blocking_control_(NewFiberControl(world_, &edge->cluster_->network, edge->host_, server_)) {
    session_->SetDriver(this);
    edge_->drivers_.push_back(this);
    Wake();
  }
  ~SimDriver() override {
    Join();
    world_->Cancel(look_);
    std::erase(edge_->drivers_, this);
  }

  void Wake() override {
    woken_ = true;
    LookAt(world_->NowNs());
  }
  void Join() override {
    const int64_t until_ns = world_->NowNs() + kJoinNs;
    while (!finished_) {
      if (Fibers::InOne()) {
        CHECK_LT(world_->NowNs(), until_ns) << "a session does not stop";
        Fibers::Current()->Sleep(kNsPerMs);
      } else {
        CHECK(world_->Step(until_ns)) << "a session does not stop";
      }
    }
  }
  ControlClient* control() override {
    CHECK(Fibers::InOne()) << "only fibers block in a simulation";
    return blocking_control_.get();
  }

  void Tick() {
    if (!finished_) session_->Tick();
  }

 private:
  using Kind = SessionAction::Kind;

  // Has Look run at that time, if it is not to run before.
  void LookAt(int64_t time_ns);
  void Look();
  void Trace(absl::string_view what) const;
  // Ends in End, at once or later.
  void Perform();
  void End();

  template <typename Request, typename Reply, typename T>
  void Ask(const Request& request, absl::Status (ControlService::*handler)(const Caller&, const Request&, Reply*),
           T* value);
  void EndLease(LeaseId lease);
  void Undo();
  void Dial();
  void Connect();
  void ConnectOne(SimTransport* transport, SimTransport* next);
  void Ping();
  void DestroyAll();
  void EndDestroys();

  SimEdge* const edge_;
  World* const world_;
  ServerSession* const session_;
  SimServer* const server_;
  SimControl control_;
  const std::unique_ptr<ControlClient> blocking_control_;
  bool finished_ = false;
  bool woken_ = false;  // since Next was asked
  World::Timer look_ = 0;
  int64_t look_ns_ = INT64_MAX;

  // The action under way.
  bool acting_ = false;
  SessionAction action_;
  SessionOutcome outcome_;
  std::unique_ptr<Call[]> calls_;
  size_t calls_left_ = 0;
};

void SimDriver::LookAt(int64_t time_ns) {
  if (finished_ || acting_ || time_ns >= look_ns_) return;
  world_->Cancel(look_);
  look_ns_ = time_ns;
  look_ = world_->At(time_ns, edge_->host_, [this] { Look(); });
}

void SimDriver::Look() {
  look_ns_ = INT64_MAX;
  acting_ = true;
  woken_ = false;
  outcome_ = SessionOutcome();
  action_ = session_->Next();
  switch (action_.kind) {
    case Kind::kFinished:
      finished_ = true;
      return;
    case Kind::kNone:
      acting_ = false;
      return LookAt(woken_ ? world_->NowNs() : action_.deadline_ns);
    default:
      Trace("begins");
      return Perform();
  }
}

void SimDriver::Trace(absl::string_view what) const {
  Checker& checker = edge_->cluster_->checker;
  if (!checker.verbose()) return;
  static constexpr const char* kNames[] = {"none",  "hello",   "grant",   "dial", "connect",   "ping",
                                           "renew", "reserve", "destroy", "undo", "end lease", "finished"};
  checker.Trace(absl::StrCat(world_->NameOf(edge_->host_), " at ", server_->name(), ": ",
                             kNames[static_cast<int>(action_.kind)], " ", action_.pages, " ", what));
}

void SimDriver::Perform() {
  const LeaseId lease = session_->lease();
  switch (action_.kind) {
    case Kind::kHello:
      return Ask(ControlCodec::Hello(), &ControlService::Hello, &outcome_.hello);
    case Kind::kGrant:
      return Ask(ControlCodec::GrantLease(lease, session_->options().client_name, action_.ttl_ms,
                                          session_->options().expendable),
                 &ControlService::GrantLease, &outcome_.lease);
    case Kind::kDial:
      return Dial();
    case Kind::kConnect:
      return Connect();
    case Kind::kPing:
      return Ping();
    case Kind::kRenew:
      return Ask(ControlCodec::RenewLease(lease, action_.copies), &ControlService::RenewLease, &outcome_.lease);
    case Kind::kReserve:
      return Ask(ControlCodec::Reserve(lease, action_.pages, action_.order), &ControlService::Reserve, &outcome_.lease);
    case Kind::kDestroy:
      return DestroyAll();
    case Kind::kUndo:
      return Undo();
    case Kind::kEndLease:
      return EndLease(lease);
    case Kind::kNone:
    case Kind::kFinished:
      break;
  }
  LOG(FATAL) << "nothing is to be done";
}

void SimDriver::End() {
  Trace(outcome_.status.ok() ? "OK" : outcome_.status.message());
  calls_.reset();
  acting_ = false;
  session_->Done(std::move(action_), std::move(outcome_));
  Wake();
}

template <typename Request, typename Reply, typename T>
void SimDriver::Ask(const Request& request,
                    absl::Status (ControlService::*handler)(const Caller&, const Request&, Reply*), T* value) {
  control_.Call<Request, Reply>(request, handler, action_.deadline_ns,
                                [this, value](const absl::Status& status, const Reply& reply) {
                                  outcome_.status = status;
                                  if (status.ok()) {
                                    auto parsed = control_.codec().Parse(reply);
                                    outcome_.status = parsed.status();
                                    if (parsed.ok()) *value = *std::move(parsed);
                                  }
                                  End();
                                });
}

void SimDriver::EndLease(LeaseId lease) {
  control_.Call<v1::EndLeaseRequest, v1::EndLeaseReply>(ControlCodec::EndLease(lease), &ControlService::EndLease,
                                                        action_.deadline_ns,
                                                        [this](const absl::Status& status, const v1::EndLeaseReply&) {
                                                          outcome_.status = status;
                                                          if (status.ok() && action_.kind == Kind::kUndo) return Undo();
                                                          End();
                                                        });
}

void SimDriver::Undo() {
  if (action_.undo.lease != LeaseId{}) return EndLease(std::exchange(action_.undo.lease, LeaseId{}));
  control_.Call<v1::DestroyRegionRequest, v1::DestroyRegionReply>(
      ControlCodec::DestroyRegion(session_->lease(), action_.undo.region, /*force=*/false),
      &ControlService::DestroyRegion, action_.deadline_ns,
      [this](const absl::Status& status, const v1::DestroyRegionReply&) {
        outcome_.status = status;
        End();
      });
}

void SimDriver::Dial() {
  SimTransportOptions options;
  options.client = edge_->host_;
  options.server = server_->host();
  options.lease = session_->lease();
  options.incarnation = action_.hello.incarnation;
  options.silence_limit_ms = session_->options().silence_limit_ms;
  options.on_request = [on_request = &edge_->on_request_, server = server_->index()](const MessageHeader& request) {
    if (*on_request != nullptr) (*on_request)(server, request);
  };
  outcome_.life = std::make_unique<ServerLife>();
  outcome_.life->incarnation = options.incarnation;
  for (auto* const transport : {&outcome_.life->bulk, &outcome_.life->urgent}) {
    options.urgent = transport == &outcome_.life->urgent;
    *transport = std::make_unique<SimTransport>(world_, &edge_->cluster_->network, options);
  }
  outcome_.data_plane = server_->name();
  End();
}

void SimDriver::Connect() {
  for (const auto* transport : {&action_.life->bulk, &action_.life->urgent}) {
    absl::StrAppend(&outcome_.broken, (*transport)->TakeBreakReason());
  }
  ConnectOne(AsSim(action_.life->bulk), AsSim(action_.life->urgent));
}

void SimDriver::ConnectOne(SimTransport* transport, SimTransport* next) {
  transport->StartConnect(action_.deadline_ns, [this, next](const absl::Status& status) {
    outcome_.status = Annotate(status, absl::StrCat("memory server ", session_->name()));
    if (outcome_.status.ok() && next != nullptr) return ConnectOne(next, nullptr);
    End();
  });
}

void SimDriver::Ping() {
  calls_.reset(new Call[1]);
  Call& ping = calls_[0];
  ping.request = MessageHeader(PingRequest());
  ping.deadline_ns = action_.deadline_ns;
  ping.context = this;
  ping.done = [](Call* call) {
    auto* const driver = static_cast<SimDriver*>(call->context);
    driver->outcome_.status = CallStatus(*call, driver->session_->name());
    driver->outcome_.reason = call->reason;
    driver->outcome_.asks_back = call->asks_back;
    if (call->code == absl::StatusCode::kOk) driver->outcome_.status = absl::OkStatus();
    driver->End();
  };
  action_.life->urgent->Start(&ping);
}

void SimDriver::DestroyAll() {
  const size_t count = action_.destroys.size();
  calls_.reset(new Call[count]);
  calls_left_ = count + 1;
  for (size_t i = 0; i < count; ++i) {
    Call& call = calls_[i];
    call.request =
        MessageHeader(DestroyRequest{.region = action_.destroys[i].region, .epoch = action_.destroys[i].epoch});
    call.deadline_ns = action_.deadline_ns;
    call.context = this;
    call.done = [](Call* ended) { static_cast<SimDriver*>(ended->context)->EndDestroys(); };
    action_.life->bulk->Start(&call);
  }
  EndDestroys();
}

void SimDriver::EndDestroys() {
  if (--calls_left_ > 0) return;
  for (size_t i = 0; i < action_.destroys.size(); ++i) {
    const bool answered = calls_[i].code == absl::StatusCode::kOk;
    const bool executed = answered && calls_[i].reason != Reason::kLeaseEnded && calls_[i].reason != Reason::kFenced;
    action_.destroys[i].answered = executed;
    if (answered && !executed) outcome_.reason = calls_[i].reason;
  }
  End();
}

SimEdge::SimEdge(Cluster* cluster, HostId host, OnRequest on_request)
    : cluster_(cluster), host_(host), on_request_(std::move(on_request)) {
  tick_ = cluster_->world.After(kTickNs, host_, [this] { TickAll(); });
}

SimEdge::~SimEdge() { cluster_->world.Cancel(tick_); }

std::unique_ptr<SessionDriver> SimEdge::Drive(ServerSession* session) {
  return std::make_unique<SimDriver>(this, session);
}

void SimEdge::TickAll() {
  for (SimDriver* const driver : drivers_) driver->Tick();
  Tick(NowNs());
  tick_ = cluster_->world.After(kTickNs, host_, [this] { TickAll(); });
}

}  // namespace nram::sim
