#include "memserver/data_server.h"

#include <arpa/inet.h>
#include <errno.h>
#include <glog/logging.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/socket.h"
#include "base/status.h"
#include "memserver/listen.h"

namespace nram {
namespace {

void Signal(int event_fd) {
  const uint64_t one = 1;
  // The write fails only if the counter is full; then the reader wakes anyway.
  (void)!write(event_fd, &one, sizeof one);
}

}  // namespace

// One thread with its connections and its reply buffers.
class DataServer::Worker {
 public:
  Worker(DataServer* server, bool urgent)
      : server_(server),
        urgent_(urgent),
        spin_(server->options_.spin),
        buffers_(kReplyBuffersPerWorker),
        epoll_(epoll_create1(EPOLL_CLOEXEC)),
        inbox_event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
    PCHECK(epoll_.valid() && inbox_event_.valid());
    epoll_event event{.events = EPOLLIN, .data = {.ptr = nullptr}};
    PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, inbox_event_.get(), &event) == 0);
    thread_ = std::thread([this] { Run(); });
    pthread_setname_np(thread_.native_handle(), urgent ? "nram-urgent" : "nram-bulk");
  }
  ~Worker() {
    Signal(inbox_event_.get());
    thread_.join();
  }

  // From any thread.
  void Adopt(std::unique_ptr<Connection> connection) {
    ++count_;
    {
      MutexLock lock(&mu_);
      inbox_.push_back(std::move(connection));
    }
    Signal(inbox_event_.get());
  }

  int connections() const { return count_; }

 private:
  static constexpr int kEventsMax = 64;
  static constexpr int kLookAroundEvery = 16;
  static constexpr int64_t kSweepNs = kNsPerSecond;
  // The time to move bytes for a connection that holds buffers or frames that others wait for, and to end a message
  // whose frames others of its tenant wait for.
  static constexpr int64_t kHoldNs = 2 * kNsPerSecond;

  void Run() {
    int64_t idle_since_ns = MonotonicNs();
    while (!server_->stopping_.load(std::memory_order_relaxed)) {
      int timeout_ms = 500;
      if (!again_.empty()) timeout_ms = starved_ ? 1 : 0;
      epoll_event events[kEventsMax];
      const int count = epoll_wait(epoll_.get(), events, kEventsMax, timeout_ms);
      if (count < 0) PCHECK(errno == EINTR) << "epoll_wait";
      int64_t then_ns = MonotonicNs();
      bool worked = false;
      for (int i = 0; i < count; ++i) {
        auto* connection = static_cast<Connection*>(events[i].data.ptr);
        if (connection == nullptr) {
          TakeInbox();
        } else {
          worked = true;
          Pump(connection, then_ns);
        }
      }
      PumpAgain(then_ns);
      if (worked && spin_.enabled()) {
        spin_.Report(then_ns - idle_since_ns);
        idle_since_ns = SpinOnHot(spin_.NextBudgetNs());
      }
      if (then_ns >= next_sweep_ns_) Sweep(then_ns);
    }
    while (!connections_.empty()) Close(connections_.begin()->first, absl::OkStatus());
  }

  // Polls the connection that had the last request, and now and then all others, until nothing has come for
  // `budget_ns`, or a sweep is due. Returns the time when the last request was done.
  int64_t SpinOnHot(int64_t budget_ns) {
    int64_t idle_since_ns = MonotonicNs();
    int64_t now_ns = idle_since_ns;
    for (int i = 1; now_ns - idle_since_ns < budget_ns && now_ns < next_sweep_ns_ && connections_.contains(hot_); ++i) {
      const bool pumped = Pump(hot_, now_ns);
      const int64_t then_ns = MonotonicNs();
      if (pumped) {
        spin_.Report(now_ns - idle_since_ns);
        idle_since_ns = then_ns;
        if (connections_.contains(hot_)) Unwatch(hot_);
      } else {
        SpinPause();
      }
      now_ns = then_ns;
      // A peer that does not take its replies is waited for, not polled.
      if (!again_.empty() || (connections_.contains(hot_) && hot_->has_output())) break;
      epoll_event event;
      if (i % kLookAroundEvery == 0 && epoll_wait(epoll_.get(), &event, 1, 0) > 0 && event.data.ptr != hot_) break;
    }
    if (Connection* const back = std::exchange(unwatched_, nullptr); back != nullptr) {
      if (!Control(EPOLL_CTL_ADD, back)) Close(back, absl::ResourceExhaustedError("it cannot be watched"));
    }
    return idle_since_ns;
  }

  // While a connection is polled, the epoll set need not know of its messages. Telling the set costs the kernel a
  // quarter of a microsecond for each message.
  void Unwatch(Connection* connection) {
    if (unwatched_ != nullptr) return;
    Control(EPOLL_CTL_DEL, connection);
    unwatched_ = connection;
  }

  // False, with the reason logged: the kernel has no memory or no watch left, so no worker will notice the connection's
  // messages.
  bool Control(int operation, Connection* connection) {
    if (connection == unwatched_) return true;
    epoll_event event{.events = connection->epoll_events, .data = {.ptr = connection}};
    if (epoll_ctl(epoll_.get(), operation, connection->fd(), &event) == 0) return true;
    PLOG(ERROR) << "epoll_ctl for " << connection->peer();
    return false;
  }

  void TakeInbox() {
    uint64_t count;
    (void)!read(inbox_event_.get(), &count, sizeof count);
    std::vector<std::unique_ptr<Connection>> arrived;
    {
      MutexLock lock(&mu_);
      arrived.swap(inbox_);
    }
    for (auto& connection : arrived) {
      Connection* raw = connection.get();
      raw->SetBuffers(&buffers_);
      raw->epoll_events = EPOLLIN;
      connections_[raw] = std::move(connection);
      if (!Control(EPOLL_CTL_ADD, raw)) {
        Close(raw, absl::ResourceExhaustedError("it cannot be watched"));
        continue;
      }
      Requeue(raw);  // the connection may have read ahead before it moved here
    }
  }

  // True: messages had come.
  bool Pump(Connection* connection, int64_t now_ns) {
    if (!connections_.contains(connection)) return false;
    hot_ = connection;
    const absl::StatusOr<Connection::State> state = connection->Pump(now_ns);
    if (!state.ok()) {
      Close(connection, state.status());
      return true;
    }
    uint32_t wanted = EPOLLIN;
    switch (*state) {
      case Connection::State::kIdle:
      case Connection::State::kNothing:
        break;
      case Connection::State::kMore:
        Requeue(connection);
        break;
      case Connection::State::kWantsOut:
        wanted = EPOLLOUT;
        break;
      case Connection::State::kStarved:
        wanted = 0;
        starved_ = true;
        server_->starved_ns_ = now_ns;
        Requeue(connection);
        break;
      case Connection::State::kEnded:
        Close(connection, absl::OkStatus());
        return true;
    }
    if (connection->session().urgent() && !urgent_ && !connection->has_output()) {
      Move(connection);
      return true;
    }
    if (connection->epoll_events != wanted) {
      connection->epoll_events = wanted;
      Control(EPOLL_CTL_MOD, connection);
    }
    return *state != Connection::State::kNothing;
  }

  void Requeue(Connection* connection) {
    if (std::exchange(connection->queued, true)) return;
    again_.push_back(connection);
  }

  void PumpAgain(int64_t now_ns) {
    starved_ = false;
    pumping_.swap(again_);
    for (Connection* connection : pumping_) {
      if (!connections_.contains(connection)) continue;
      connection->queued = false;
      Pump(connection, now_ns);
    }
    pumping_.clear();
  }

  void Move(Connection* connection) {
    auto node = connections_.extract(connection);
    --count_;
    std::erase(again_, connection);
    connection->queued = false;
    Control(EPOLL_CTL_DEL, connection);
    if (connection == unwatched_) unwatched_ = nullptr;
    server_->MoveToUrgent(std::move(node.mapped()));
  }

  void Close(Connection* connection, const absl::Status& why) {
    if (!why.ok()) {
      server_->log_.Post(absl::StrCat("closing ", connection->peer(), ": ", why.message()));
      ++server_->counters_.closed_for_error;
    }
    std::erase(again_, connection);
    if (connection == unwatched_) unwatched_ = nullptr;
    if (connection->charged) {
      server_->spared_ns_ = MonotonicNs();
      ++server_->spares_;
    } else {
      --server_->prepaid_open_;
    }
    --count_;
    --server_->counters_.open;
    connections_.erase(connection);  // last: the acceptor may wait until the connection is gone
  }

  void Sweep(int64_t now_ns) {
    next_sweep_ns_ = now_ns + kSweepNs;
    server_->ReleaseOldSpares(now_ns);
    std::vector<std::pair<Connection*, absl::Status>> stalled;
    const bool starved = now_ns - server_->starved_ns_ < 2 * kSweepNs;
    const Access* const access = server_->options_.access;
    const uint64_t rules = access != nullptr ? access->version() : 0;
    for (const auto& [raw, connection] : connections_) {
      absl::Status status = raw->CheckStall(now_ns, server_->options_.stall_limit_ms * kNsPerMs);
      if (status.ok() && starved && raw->HoldsIdly(now_ns, kHoldNs)) {
        status = absl::DeadlineExceededError(
            absl::StrCat("no progress for ", kHoldNs / kNsPerMs, " ms in a message whose buffers others need"));
      }
      if (status.ok() && raw->KeepsOthersWaiting(now_ns, kHoldNs)) {
        status = absl::DeadlineExceededError(absl::StrCat(
            "a message not done in ", kHoldNs / kNsPerMs, " ms, or of a replaced connection, has frames others need"));
      }
      if (status.ok() && std::exchange(raw->rules, rules) != rules) status = server_->CheckStillMay(*raw);
      if (!status.ok()) stalled.emplace_back(raw, std::move(status));
    }
    for (const auto& [connection, status] : stalled) Close(connection, status);
  }

  DataServer* const server_;
  const bool urgent_;
  SpinPolicy spin_;
  ReplyBuffers buffers_;
  const UniqueFd epoll_;
  const UniqueFd inbox_event_;
  absl::flat_hash_map<Connection*, std::unique_ptr<Connection>> connections_;
  std::vector<Connection*> again_;    // pumped again without waiting for an event
  std::vector<Connection*> pumping_;  // PumpAgain's own
  bool starved_ = false;
  std::atomic<int> count_{0};        // of connections, including those in the inbox
  Connection* hot_ = nullptr;        // was pumped last; may be gone
  Connection* unwatched_ = nullptr;  // polled, and not in the epoll set
  int64_t next_sweep_ns_ = 0;

  Mutex mu_;
  std::vector<std::unique_ptr<Connection>> inbox_ ABSL_GUARDED_BY(mu_);

  std::thread thread_;  // the last member: it uses all others
};

uint64_t DataServer::FixedBytes(const DataServerOptions& options) {
  return uint64_t(options.workers_per_class) * 2 * kReplyBuffersPerWorker * ReplyBuffers::kBufferBytes +
         std::min(options.connections_max, kPrepaidConnections) * ConnectionBytes(options);
}

uint64_t DataServer::ConnectionBytes(const DataServerOptions& options) {
  return Connection::kFixedBytes + (options.handshakes != nullptr ? Channel::TlsBytes() : 0);
}

DataServer::DataServer(const DataServerOptions& options, const SessionContext& context)
    : options_(options),
      context_(context),
      stop_event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}

absl::StatusOr<std::unique_ptr<DataServer>> DataServer::Start(const DataServerOptions& options,
                                                              const SessionContext& context) {
  std::unique_ptr<DataServer> server(new DataServer(options, context));
  if (!options.address.empty()) {
    NRAM_ASSIGN_OR_RETURN(server->tcp_listener_, ListenTcp(options.address, options.port));
    NRAM_ASSIGN_OR_RETURN(server->port_, BoundPort(server->tcp_listener_.get()));
  }
  if (!options.socket_path.empty()) {
    NRAM_ASSIGN_OR_RETURN(server->unix_listener_, ListenUnix(options.socket_path));
  }
  for (int i = 0; i < options.workers_per_class; ++i) {
    server->bulk_.push_back(std::make_unique<Worker>(server.get(), false));
    server->urgent_.push_back(std::make_unique<Worker>(server.get(), true));
  }
  server->acceptor_ = std::thread([raw = server.get()] { raw->AcceptLoop(); });
  pthread_setname_np(server->acceptor_.native_handle(), "nram-accept");
  return server;
}

DataServer::~DataServer() {
  stopping_ = true;
  Signal(stop_event_.get());
  if (acceptor_.joinable()) acceptor_.join();
  bulk_.clear();
  urgent_.clear();
  if (unix_listener_.valid()) unlink(options_.socket_path.c_str());
}

void DataServer::AcceptLoop() {
  while (!stopping_) {
    pollfd fds[] = {{stop_event_.get(), POLLIN, 0},
                    {tcp_listener_.get(), POLLIN, 0},
                    {unix_listener_.get(), POLLIN, 0},
                    {arrivals_.event_fd(), POLLIN, 0}};
    if (poll(fds, 4, -1) < 0) continue;
    if ((fds[3].revents & POLLIN) != 0) TakeArrived();
    if ((fds[1].revents & POLLIN) != 0) Accept(tcp_listener_.get(), true);
    if ((fds[2].revents & POLLIN) != 0) Accept(unix_listener_.get(), false);
  }
}

bool DataServer::Admit(bool* prepaid) {
  // Only this thread raises the counts, so they are not too low here.
  if (counters_.open >= options_.connections_max) return false;
  *prepaid = prepaid_open_ < kPrepaidConnections;
  if (*prepaid) {
    ++prepaid_open_;
    return true;
  }
  return TakeSpare() || context_.store->arena()->ChargeFixed(ConnectionBytes());
}

bool DataServer::TakeSpare() {
  int spares = spares_;
  while (spares > 0 && !spares_.compare_exchange_weak(spares, spares - 1)) {
  }
  return spares > 0;
}

void DataServer::ReleaseOldSpares(int64_t now_ns) {
  if (now_ns < spared_ns_ + kSpareNs) return;
  for (int left = spares_.exchange(0); left > 0; --left) {
    context_.store->arena()->ReleaseFixed(ConnectionBytes());
  }
}

void DataServer::Accept(int listener, bool is_tcp) {
  UniqueFd fd = AcceptConnection(listener, is_tcp, stop_event_.get());
  if (!fd.valid()) return;
  Peer peer = PeerOf(fd.get(), is_tcp);
  if (!is_tcp || options_.handshakes == nullptr) return Take(std::move(fd), std::move(peer), nullptr);
  options_.handshakes->Add(std::move(fd), std::move(peer),
                           [this](UniqueFd done, const Peer& who, const TlsSession& session) {
                             arrivals_.Add({std::move(done), who, session});
                           });
}

void DataServer::TakeArrived() {
  for (Arrivals::Arrival& of : arrivals_.Take()) {
    if (stopping_) return;
    Take(std::move(of.fd), std::move(of.peer), &of.session);
  }
}

QuotaShare DataServer::TakeShare(Tenant* tenant) {
  const auto take = [&] { return QuotaShare(tenant->connections.Take() ? &tenant->connections : nullptr); };
  QuotaShare share = take();
  if (!share.taken() && table_.MakeRoomFor(tenant, DeadlineAfterMs(kGiveWayMs))) {
    ++counters_.displaced;
    share = take();
  }
  return share;
}

absl::Status DataServer::CheckStillMay(const Connection& connection) const {
  const Principal who = options_.access->Judge(connection.identity());
  NRAM_RETURN_IF_ERROR(Access::Check(who, Action::kLease));
  if (options_.tenants->Of(who.tenant) == connection.session().tenant()) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(who.identity, " has another tenant now"));
}

void DataServer::Take(UniqueFd fd, Peer peer, const TlsSession* tls) {
  const auto refuse = [&](absl::string_view why) {
    refusals_.Post(absl::StrCat("refusing ", peer.name, ": ", why));
    ++counters_.refused;
  };
  SessionContext context = context_;
  QuotaShare share;
  std::string identity;
  uint64_t rules = 0;
  if (options_.access != nullptr) {
    rules = options_.access->version();
    identity = tls != nullptr ? tls->peer.identity() : peer.identity;
    const Principal who = options_.access->Judge(identity);
    if (const absl::Status may = Access::Check(who, Action::kLease); !may.ok()) return refuse(may.message());
    context.tenant = options_.tenants->Of(who.tenant);
    share = TakeShare(context.tenant);
    if (!share.taken()) return refuse(absl::StrCat("tenant ", context.tenant->name, " has all its data connections"));
  }
  bool prepaid = false;
  bool admitted = Admit(&prepaid);
  if (!admitted && table_.MakeRoomFor(peer.source, DeadlineAfterMs(kGiveWayMs))) {
    ++counters_.displaced;
    admitted = Admit(&prepaid);
  }
  if (!admitted) return refuse(absl::StrCat(counters_.open.load(), " connections are open"));
  ++counters_.open;
  ++counters_.accepted;
  const int64_t now_ns = MonotonicNs();
  auto connection = std::make_unique<Connection>(std::move(fd), tls, std::move(peer.name), context,
                                                 /*buffers=*/nullptr, now_ns);
  connection->SetIdentity(std::move(identity), std::move(share));
  connection->rules = rules;
  connection->charged = !prepaid;
  connection->TakePlace(&table_, std::move(peer.source), now_ns);
  LeastBusy(bulk_)->Adopt(std::move(connection));
}

DataServer::Worker* DataServer::LeastBusy(const std::vector<std::unique_ptr<Worker>>& workers) {
  return std::min_element(workers.begin(), workers.end(),
                          [](const auto& a, const auto& b) { return a->connections() < b->connections(); })
      ->get();
}

void DataServer::MoveToUrgent(std::unique_ptr<Connection> connection) {
  LeastBusy(urgent_)->Adopt(std::move(connection));
}

}  // namespace nram
