#include "client/pool/thread_driver.h"

#include <glog/logging.h>
#include <pthread.h>

#include <algorithm>
#include <atomic>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/host/host_memory.h"
#include "base/status.h"
#include "base/sync.h"
#include "client/pool/copies_log.h"
#include "client/transport/data_socket.h"
#include "client/transport/socket_transport.h"

namespace nram {
namespace {

constexpr int64_t kSilenceMinMs = 1'000;

class ThreadDriver : public SessionDriver, private Poller::Client {
 public:
  ThreadDriver(ServerSession* session, Poller* poller, WakeLatency* wake_latency)
      : session_(session),
        poller_(poller),
        wake_latency_(wake_latency),
        control_(ControlClient::Create(session->endpoint(), session->options().tls)) {}
  ~ThreadDriver() override {
    Join();
    if (begun_.load()) poller_->Remove(this);
  }
  // False: there is no thread (a limit of processes, or of memory). No other object knows of the driver then.
  bool Begin() {
    try {
      thread_ = std::thread([this] {
        begun_.wait(false);
        Run();
      });
    } catch (const std::system_error&) {
      return false;
    }
    pthread_setname_np(thread_.native_handle(), "nram-session");
    session_->SetDriver(this);
    poller_->Add(this);
    begun_.store(true);
    begun_.notify_all();
    return true;
  }

  void Wake() override {
    MutexLock lock(&mu_);
    woken_ = true;
    changed_.Signal();
  }
  void Join() override {
    if (thread_.joinable()) thread_.join();
  }
  ControlClient* control() override { return control_.get(); }

 private:
  using Kind = SessionAction::Kind;

  // Poller::Client. The driver's thread may be waiting for the server; the session's waiters do not wait for that.
  void OnReady() override {}
  void OnTick(int64_t) override { session_->Tick(); }

  void Run();
  // Blocks until the action's deadline at most.
  SessionOutcome Perform(SessionAction* action);
  void Dial(const SessionAction& action, SessionOutcome* outcome);
  // Where the data plane is. *owner: the user that must listen there, of a Unix socket.
  absl::StatusOr<Endpoint> FindDataPlane(const ServerHello& hello, std::optional<uid_t>* owner);
  void Connect(const SessionAction& action, SessionOutcome* outcome);
  void Ping(const SessionAction& action, SessionOutcome* outcome);
  void DestroyAll(SessionAction* action, SessionOutcome* outcome);

  ServerSession* const session_;
  Poller* const poller_;
  WakeLatency* const wake_latency_;
  const std::unique_ptr<ControlClient> control_;
  Mutex mu_;
  CondVar changed_;
  bool woken_ ABSL_GUARDED_BY(mu_) = false;
  CopiesLog copies_log_;        // the thread's own
  std::string said_of_socket_;  // the last that was logged; the thread's own
  std::atomic<bool> begun_{false};
  std::thread thread_;
};

void ThreadDriver::Run() {
  while (true) {
    {
      MutexLock lock(&mu_);
      woken_ = false;
    }
    if (session_->index() == 0) copies_log_.Note(session_->copies());  // all sessions are told the same
    SessionAction action = session_->Next();
    if (action.kind == Kind::kFinished) return;
    if (action.kind == Kind::kNone) {
      MutexLock lock(&mu_);
      while (!woken_ && MonotonicNs() < action.deadline_ns) changed_.WaitUntil(&mu_, action.deadline_ns);
      continue;
    }
    SessionOutcome outcome = Perform(&action);
    session_->Done(std::move(action), std::move(outcome));
  }
}

template <typename T>
void Take(absl::StatusOr<T> answer, absl::Status* status, T* value) {
  *status = answer.status();
  if (answer.ok()) *value = *std::move(answer);
}

SessionOutcome ThreadDriver::Perform(SessionAction* action) {
  SessionOutcome outcome;
  const LeaseId lease = session_->lease();
  const int64_t deadline_ns = action->deadline_ns;
  switch (action->kind) {
    case Kind::kHello:
      Take(control_->Hello(deadline_ns), &outcome.status, &outcome.hello);
      break;
    case Kind::kGrant:
      Take(control_->GrantLease(lease, session_->options().client_name, action->ttl_ms, deadline_ns,
                                session_->options().expendable),
           &outcome.status, &outcome.lease);
      break;
    case Kind::kDial:
      Dial(*action, &outcome);
      break;
    case Kind::kConnect:
      Connect(*action, &outcome);
      break;
    case Kind::kPing:
      Ping(*action, &outcome);
      break;
    case Kind::kRenew:
      Take(control_->RenewLease(lease, action->copies, deadline_ns), &outcome.status, &outcome.lease);
      break;
    case Kind::kReserve:
      Take(control_->Reserve(lease, action->pages, action->order, deadline_ns), &outcome.status, &outcome.lease);
      break;
    case Kind::kDestroy:
      DestroyAll(action, &outcome);
      break;
    case Kind::kUndo:
      outcome.status = control_->EndLease(action->undo.lease, deadline_ns);
      if (outcome.status.ok()) {
        outcome.status = control_->DestroyRegion(lease, action->undo.region, false, deadline_ns).status();
      }
      break;
    case Kind::kEndLease:
      outcome.status = control_->EndLease(lease, deadline_ns);
      break;
    case Kind::kNone:
    case Kind::kFinished:
      break;
  }
  return outcome;
}

absl::StatusOr<Endpoint> ThreadDriver::FindDataPlane(const ServerHello& hello, std::optional<uid_t>* owner) {
  const Endpoint& endpoint = session_->endpoint();
  const bool same_host = hello.host.boot_id == BootId() && hello.host.boot_id != "unknown";
  absl::Status no_socket = absl::NotFoundError("it names none");
  // This client's identity at the server must not depend on the plane: a certificate on both, or a user on both.
  const bool may_be_local = session_->options().unix_sockets && session_->options().tls == nullptr && same_host;
  if (!hello.data_socket.empty() && (endpoint.is_unix() || may_be_local)) {
    // If the control plane is a Unix socket, the data plane is beside it, wherever the server has its own files.
    const std::string path = endpoint.is_unix() ? DataSocketBeside(endpoint.path) : hello.data_socket;
    const absl::StatusOr<uid_t> listener = CheckDataSocket(path);
    if (listener.ok()) {
      *owner = *listener;
      return Endpoint{"", 0, path};
    }
    no_socket = listener.status();
    if (absl::IsPermissionDenied(no_socket) && said_of_socket_ != no_socket.message()) {
      said_of_socket_ = std::string(no_socket.message());
      LOG(WARNING) << "memory server " << session_->name() << ": " << said_of_socket_;
    }
  }
  if (endpoint.is_unix() || hello.data_port == 0) {
    return absl::UnavailableError(absl::StrCat("memory server ", session_->name(),
                                               " has no data plane that this client can reach: ", no_socket.message()));
  }
  Endpoint data = endpoint;
  data.port = hello.data_port;
  return data;
}

void ThreadDriver::Dial(const SessionAction& action, SessionOutcome* outcome) {
  const PoolOptions& options = session_->options();
  std::optional<uid_t> owner;
  absl::StatusOr<Endpoint> data = FindDataPlane(action.hello, &owner);
  if (data.ok() && options.reroute_data_for_test) {
    *data = options.reroute_data_for_test(session_->index(), *data);
    owner = std::nullopt;
  }
  absl::StatusOr<SocketAddress> address =
      data.ok() ? ResolveEndpoint(*data, action.deadline_ns) : absl::StatusOr<SocketAddress>(data.status());
  outcome->status = address.status();
  if (!address.ok()) return;
  // Early enough that an operation has the time to be sent again.
  const int64_t silence_timeout_ms = std::max(options.io_timeout_ms / 2, kSilenceMinMs);
  const auto make = [&](bool urgent) {
    SocketTransportOptions of{session_->lease(), urgent, action.hello.incarnation, options.spin, silence_timeout_ms};
    of.silence_limit_ms = options.silence_limit_ms;
    of.wake_latency = wake_latency_;
    of.peer = owner;
    of.version = action.hello.version;
    if (!data->is_unix()) of.tls = options.tls;
    of.host = data->host;
    return std::make_unique<SocketTransport>(*address, of, poller_);
  };
  outcome->life = std::make_unique<ServerLife>();
  outcome->life->incarnation = action.hello.incarnation;
  outcome->life->bulk = make(false);
  outcome->life->urgent = make(true);
  outcome->data_plane = data->ToString();
}

void ThreadDriver::Connect(const SessionAction& action, SessionOutcome* outcome) {
  for (Transport* const transport : {action.life->bulk.get(), action.life->urgent.get()}) {
    absl::StrAppend(&outcome->broken, transport->TakeBreakReason());
  }
  for (Transport* const transport : {action.life->bulk.get(), action.life->urgent.get()}) {
    outcome->status =
        Annotate(transport->Connect(action.deadline_ns), absl::StrCat("memory server ", session_->name()));
    if (!outcome->status.ok()) return;
  }
}

void ThreadDriver::Ping(const SessionAction& action, SessionOutcome* outcome) {
  Call ping;
  ping.request = MessageHeader(PingRequest());
  ping.deadline_ns = action.deadline_ns;
  action.life->urgent->Start(&ping);
  action.life->urgent->Wait(&ping);
  outcome->status = CallStatus(ping, session_->name());
  outcome->reason = ping.reason;
  outcome->asks_back = ping.asks_back;
  if (ping.code == absl::StatusCode::kOk) outcome->status = absl::OkStatus();
}

void ThreadDriver::DestroyAll(SessionAction* action, SessionOutcome* outcome) {
  std::vector<Call> calls(action->destroys.size());
  Transport* const bulk = action->life->bulk.get();
  for (size_t i = 0; i < calls.size(); ++i) {
    calls[i].request =
        MessageHeader(DestroyRequest{.region = action->destroys[i].region, .epoch = action->destroys[i].epoch});
    calls[i].deadline_ns = action->deadline_ns;
    bulk->Start(&calls[i]);
  }
  for (size_t i = 0; i < calls.size(); ++i) {
    bulk->Wait(&calls[i]);
    const bool answered = calls[i].code == absl::StatusCode::kOk;
    const bool executed = answered && calls[i].reason != Reason::kLeaseEnded && calls[i].reason != Reason::kFenced;
    action->destroys[i].answered = executed;
    if (answered && !executed) outcome->reason = calls[i].reason;
  }
}

class ThreadEdge : public PoolEdge, private Poller::Client {
 public:
  explicit ThreadEdge(const PoolOptions& options)
      : wake_latency_(options.fast_wake, options.wake_device), poller_(options.spin) {
    poller_.Add(this);
  }
  ~ThreadEdge() override { poller_.Remove(this); }
  Environment* environment() override { return Environment::Real(); }
  std::unique_ptr<SessionDriver> Drive(ServerSession* session) override {
    auto driver = std::make_unique<ThreadDriver>(session, &poller_, &wake_latency_);
    return driver->Begin() ? std::move(driver) : nullptr;
  }
  Poller* poller() override { return &poller_; }
  WakeLatency* wake_latency() override { return &wake_latency_; }

 private:
  // Poller::Client
  void OnReady() override {}
  void OnTick(int64_t now_ns) override { Tick(now_ns); }

  WakeLatency wake_latency_;
  Poller poller_;
};

}  // namespace

std::unique_ptr<PoolEdge> NewThreadEdge(const PoolOptions& options) { return std::make_unique<ThreadEdge>(options); }

}  // namespace nram
