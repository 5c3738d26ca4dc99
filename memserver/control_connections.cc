#include "memserver/control_connections.h"

#include <errno.h>
#include <fcntl.h>
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
#include <deque>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/socket.h"
#include "base/status.h"
#include "memserver/listen.h"

namespace nram {

// The table's lock guards all members but the constants.
struct ControlConnections::Connection {
  const uint64_t number;  // never the same again
  const int fd;           // gRPC's
  UniqueFd watched;       // the duplicate; invalid after it was closed
  const std::string source;
  const std::string identity;
  const std::shared_ptr<const Pump::Link> link;
  const int64_t accepted_ns;
  const bool charged;   // to the arena
  uint64_t rules;       // the version that it was judged by
  TenantNumber tenant;  // by these rules
  bool called = false;
  bool told_to_go = false;
  int under_way = 0;               // calls, including those that have their answers
  int64_t used_ns = 0;             // when a call last began or ended
  std::multiset<int64_t> sending;  // for each answer that is being sent, since when
  std::deque<Answer*> waiting;     // answers that are to be sent after these

  size_t untaken() const { return sending.size() + waiting.size(); }

  bool TakesNothing(int64_t now_ns, int64_t limit_ns) const {
    return !sending.empty() && now_ns - *sending.begin() > limit_ns;
  }
};

namespace {

// The names of epoll's events: the three descriptors of all, and connections by their numbers from here on. (Not by
// address: an event may be late, and its connection gone.)
enum Watched : uint64_t { kStop, kTcp, kUnix, kFirstConnection };

constexpr int kSweepMs = 1'000;
constexpr int kUnreadMs = 15'000;
constexpr int64_t kTakesNothingNs = kNsPerSecond;
// gRPC closes a connection a moment after its shutdown. Until then it exists beside its successor: at most this many in
// each turn.
constexpr int kDisplacedPerTurn = 32;
constexpr int64_t kTurnNs = 50 * kNsPerMs;
// A closed connection's peer has this time to take the last bytes. At most so many have it at once.
constexpr int64_t kLeavingNs = kNsPerSecond;
constexpr size_t kLeavingMax = 32;

}  // namespace

ControlConnections::ControlConnections(const ControlConnectionsOptions& options, FrameArena* arena)
    : options_(options),
      arena_(arena),
      epoll_(epoll_create1(EPOLL_CLOEXEC)),
      stop_event_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  PCHECK(epoll_.valid() && stop_event_.valid());
}

ControlConnections::~ControlConnections() {
  Stop();
  MutexLock lock(&mu_);
  while (!connections_.empty()) {
    const ConnectionPtr connection = connections_.begin()->second;
    ShutDownLocked(connection.get());
    connections_.erase(connections_.begin());
    if (connection->charged) arena_->ReleaseFixed(ConnectionBytes());
  }
}

absl::Status ControlConnections::Listen() {
  if (!options_.address.empty()) {
    NRAM_ASSIGN_OR_RETURN(tcp_listener_, ListenTcp(options_.address, options_.port));
    NRAM_ASSIGN_OR_RETURN(port_, BoundPort(tcp_listener_.get()));
  }
  if (!options_.socket_path.empty()) {
    NRAM_ASSIGN_OR_RETURN(unix_listener_, ListenUnix(options_.socket_path));
  }
  return absl::OkStatus();
}

void ControlConnections::Start(std::function<void(int fd)> serve) {
  serve_ = std::move(serve);
  const auto watch = [&](const UniqueFd& fd, Watched name) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = name}};
    if (fd.valid()) PCHECK(epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd.get(), &event) == 0);
  };
  watch(stop_event_, kStop);
  watch(tcp_listener_, kTcp);
  watch(unix_listener_, kUnix);
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "nram-control");
}

void ControlConnections::Stop() {
  if (!thread_.joinable()) return;
  stopping_ = true;
  const uint64_t one = 1;
  (void)!write(stop_event_.get(), &one, sizeof one);
  thread_.join();
  tcp_listener_.reset();
  if (unix_listener_.valid()) unlink(options_.socket_path.c_str());
  unix_listener_.reset();
}

void ControlConnections::Run() {
  constexpr int kEventsMax = 64;
  int64_t next_sweep_ns = DeadlineAfterMs(kSweepMs);
  while (!stopping_) {
    epoll_event events[kEventsMax];
    const int count = epoll_wait(epoll_.get(), events, kEventsMax, kSweepMs);
    if (count < 0) PCHECK(errno == EINTR) << "epoll_wait";
    bool tcp = false;
    bool unix_socket = false;
    for (int i = 0; i < count; ++i) {
      const uint64_t of = events[i].data.u64;
      tcp = tcp || of == kTcp;
      unix_socket = unix_socket || of == kUnix;
      if (of < kFirstConnection) continue;
      MutexLock lock(&mu_);
      NoteClosedLocked(of);
    }
    if (tcp) Accept(tcp_listener_.get(), true);
    if (unix_socket) Accept(unix_listener_.get(), false);
    if (MonotonicNs() >= next_sweep_ns) {
      Sweep();
      next_sweep_ns = DeadlineAfterMs(kSweepMs);
    }
  }
}

bool ControlConnections::HasItsShareLocked(TenantNumber tenant) const {
  if (options_.access == nullptr || !options_.access->has_several_tenants()) return false;
  const auto is_its = [&](const auto& entry) { return entry.second->tenant == tenant; };
  return std::count_if(connections_.begin(), connections_.end(), is_its) +
             std::count_if(ending_.begin(), ending_.end(), is_its) >=
         static_cast<ptrdiff_t>(options_.connections_max / 2);
}

bool ControlConnections::AdmitLocked(TenantNumber tenant, int64_t now_ns, bool* charged) {
  if (HasItsShareLocked(tenant) && !MakeRoomLocked(now_ns, tenant)) return false;
  return ChargeLocked(charged) || (MakeRoomLocked(now_ns, std::nullopt) && ChargeLocked(charged));
}

bool ControlConnections::ChargeLocked(bool* charged) {
  if (connections_.size() + ending_.size() >= options_.connections_max) return false;
  *charged = prepaid_used_ >= kPrepaid;
  if (*charged) return arena_->ChargeFixed(ConnectionBytes());
  ++prepaid_used_;
  return true;
}

void ControlConnections::Accept(int listener, bool is_tcp) {
  UniqueFd fd = AcceptConnection(listener, is_tcp, stop_event_.get());
  if (!fd.valid()) return;
  // Data that a peer does not read must not be held for it for ever: TLS ends before gRPC's own limits.
  const int unread_ms = kUnreadMs;
  if (is_tcp) setsockopt(fd.get(), IPPROTO_TCP, TCP_USER_TIMEOUT, &unread_ms, sizeof unread_ms);
  Peer peer = PeerOf(fd.get(), is_tcp);
  if (is_tcp && options_.has_tls) {
    options_.handshakes->Add(
        std::move(fd), std::move(peer),
        [this](UniqueFd done, const Peer& who, const TlsSession& session) { Take(std::move(done), who, &session); },
        // It is told that it needs a certificate.
        Access::Check(Principal{}, Action::kHello));
    return;
  }
  if (options_.access != nullptr) {
    const absl::Status may = Access::Check(options_.access->Judge(peer.identity), Action::kHello);
    if (!may.ok()) return options_.handshakes->SendAway(std::move(fd), std::move(peer), may);
  }
  Take(std::move(fd), peer, nullptr);
}

std::shared_ptr<const Pump::Link> ControlConnections::Connect(UniqueFd fd, const Peer& peer, const TlsSession* session,
                                                              UniqueFd* grpcs) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
    PLOG_EVERY_N(ERROR, 100) << "socketpair";
    return nullptr;
  }
  UniqueFd inner(ends[0]);
  grpcs->reset(ends[1]);
  // Answers that a client does not take must be seen, so nothing takes much of them in between.
  const int little = 4096;
  for (const int end : ends) setsockopt(end, SOL_SOCKET, SO_SNDBUF, &little, sizeof little);
  const auto cut = [this, name = peer.name](const absl::Status& why) {
    refusals_.Post(absl::StrCat("cutting off the control connection of ", name, ": ", why.message()));
  };
  return pump_.Add(std::move(fd), session, std::move(inner), {FrameMeter(FrameScanner::Sender::kClient), cut});
}

const std::string& ControlConnections::IdentityOf(const Connection& connection) { return connection.identity; }

void ControlConnections::Take(UniqueFd fd, const Peer& peer, const TlsSession* session) {
  // Connections that gRPC has let go of may still have bytes to send.
  if (pump_.count() >= 2 * options_.connections_max) return;
  const std::string identity = session != nullptr ? session->peer.identity() : peer.identity;
  // The version first: if the rules change after this, LookAtRules judges the connection again. They may have changed
  // since the handshake; the peer's next one tells it why.
  const uint64_t rules = options_.access != nullptr ? options_.access->version() : 0;
  TenantNumber tenant = 0;
  if (options_.access != nullptr) {
    const Principal who = options_.access->Judge(identity);
    if (!Access::Check(who, Action::kHello).ok()) return;
    tenant = who.tenant;
  }
  UniqueFd grpcs;
  std::shared_ptr<const Pump::Link> link = Connect(std::move(fd), peer, session, &grpcs);
  if (link == nullptr) return;
  UniqueFd watched(fcntl(grpcs.get(), F_DUPFD_CLOEXEC, 0));
  if (!watched.valid()) {
    PLOG_EVERY_N(ERROR, 100) << "accept";
    return;
  }
  const int64_t now_ns = MonotonicNs();
  {
    MutexLock lock(&mu_);
    // The kernel has given this descriptor again, so gRPC has closed the connection that had it.
    if (const auto it = connections_.find(grpcs.get()); it != connections_.end()) NoteClosedLocked(it->second->number);
    bool charged = false;
    if (!AdmitLocked(tenant, now_ns, &charged)) return;
    auto connection =
        std::make_shared<Connection>(Connection{++last_number_, grpcs.get(), std::move(watched), peer.source, identity,
                                                std::move(link), now_ns, charged, rules, tenant});
    connection->used_ns = now_ns;
    // The only event is EPOLLHUP, which epoll always reports: both directions are closed.
    epoll_event event{.events = 0, .data = {.u64 = connection->number}};
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, connection->watched.get(), &event) != 0) {
      // The kernel has no memory or no watch left for it.
      PLOG_EVERY_N(ERROR, 100) << "epoll_ctl";
      ForgetLocked(connection.get());
      return;
    }
    connections_.emplace(grpcs.get(), std::move(connection));
  }
  serve_(grpcs.release());
}

bool ControlConnections::MakeRoomLocked(int64_t now_ns, std::optional<TenantNumber> tenant) {
  if (now_ns - turn_began_ns_ > kTurnNs) {
    turn_began_ns_ = now_ns;
    displaced_in_turn_ = 0;
  }
  if (displaced_in_turn_ == kDisplacedPerTurn) return false;
  absl::flat_hash_map<absl::string_view, int> by_source;
  for (const auto& [fd, connection] : connections_) ++by_source[connection->source];
  // The connection with the lowest claim gives way. A claim: rank, how many its source has, since when it is not used.
  using Claim = std::tuple<int, int, int64_t>;
  Claim lowest;
  Connection* chosen = nullptr;
  for (const auto& [fd, connection] : connections_) {
    if (connection->told_to_go || (tenant.has_value() && connection->tenant != *tenant)) continue;
    Claim claim;
    if (!connection->called) {
      claim = {0, 0, connection->accepted_ns};
    } else if (connection->under_way == 0) {
      claim = {1, -by_source[connection->source], connection->used_ns};
    } else if (connection->TakesNothing(now_ns, kTakesNothingNs)) {
      claim = {2, 0, *connection->sending.begin()};
    } else {
      continue;
    }
    if (chosen == nullptr || claim < lowest) {
      lowest = claim;
      chosen = connection.get();
    }
  }
  if (chosen == nullptr) return false;
  ++displaced_;
  ++displaced_in_turn_;
  ShutDownLocked(chosen);
  NoteClosedLocked(chosen->number);
  return true;
}

void ControlConnections::ShutDownLocked(Connection* connection) {
  connection->told_to_go = true;
  connection->link->Cut();
  if (connection->watched.valid()) shutdown(connection->watched.get(), SHUT_RDWR);
}

void ControlConnections::NoteClosedLocked(uint64_t number) {
  // The end may be noticed twice: the connection may be gone already.
  const auto it = std::find_if(connections_.begin(), connections_.end(),
                               [&](const auto& entry) { return entry.second->number == number; });
  if (it == connections_.end()) return;
  const ConnectionPtr held = it->second;
  connections_.erase(it);
  epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, held->watched.get(), nullptr);
  held->watched.reset();
  const int64_t now_ns = MonotonicNs();
  leaving_.push_back({held->link, now_ns});
  CutLeavingLocked(now_ns - kLeavingNs);
  if (held->under_way > 0) {
    ending_.emplace(held.get(), held);
  } else {
    ForgetLocked(held.get());
  }
}

void ControlConnections::ForgetLocked(Connection* connection) {
  if (connection->charged) {
    arena_->ReleaseFixed(ConnectionBytes());
  } else {
    --prepaid_used_;
  }
}

void ControlConnections::CutLeavingLocked(int64_t closed_before_ns) {
  std::erase_if(leaving_, [](const Leaving& one) { return one.link.expired(); });
  const size_t most = std::min(kLeavingMax, options_.connections_max);
  while (!leaving_.empty() && (leaving_.size() > most || leaving_.front().closed_ns <= closed_before_ns)) {
    if (const auto link = leaving_.front().link.lock()) link->Cut();
    leaving_.pop_front();
  }
}

void ControlConnections::Sweep() {
  const int64_t now_ns = MonotonicNs();
  const int64_t limit_ns = options_.limit_ms * kNsPerMs;
  LookAtRules();
  MutexLock lock(&mu_);
  CutLeavingLocked(now_ns - kLeavingNs);
  for (const auto& [fd, connection] : connections_) {
    const bool silent = !connection->called && now_ns - connection->accepted_ns > limit_ns;
    if (silent || connection->TakesNothing(now_ns, limit_ns)) ShutDownLocked(connection.get());
  }
}

void ControlConnections::LookAtRules() {
  if (options_.access == nullptr) return;
  const uint64_t version = options_.access->version();
  std::vector<ConnectionPtr> others;
  {
    MutexLock lock(&mu_);
    for (const auto& [fd, connection] : connections_) {
      if (connection->rules != version) others.push_back(connection);
    }
  }
  // There may be many rules: not under the lock.
  for (const ConnectionPtr& connection : others) {
    const Principal who = options_.access->Judge(connection->identity);
    const bool may = Access::Check(who, Action::kHello).ok();
    MutexLock lock(&mu_);
    connection->rules = version;
    connection->tenant = who.tenant;
    if (!may) ShutDownLocked(connection.get());
  }
}

size_t ControlConnections::CutNewest(size_t most) {
  MutexLock lock(&mu_);
  std::vector<Connection*> open;
  for (const auto& [fd, connection] : connections_) {
    if (!connection->told_to_go) open.push_back(connection.get());
  }
  std::sort(open.begin(), open.end(), [](const auto* a, const auto* b) { return a->number > b->number; });
  if (open.size() > most) open.resize(most);
  for (Connection* const connection : open) ShutDownLocked(connection);
  return open.size();
}

void ControlConnections::CutOffSlowest() {
  const int64_t now_ns = MonotonicNs();
  MutexLock lock(&mu_);
  Connection* slowest = nullptr;
  for (const auto& [fd, connection] : connections_) {
    if (connection->told_to_go || !connection->TakesNothing(now_ns, kTakesNothingNs)) continue;
    if (slowest == nullptr || *connection->sending.begin() < *slowest->sending.begin()) slowest = connection.get();
  }
  if (slowest != nullptr) ShutDownLocked(slowest);
}

ControlConnections::ConnectionPtr ControlConnections::BeginCall(absl::string_view peer) {
  int fd = -1;
  if (!absl::ConsumePrefix(&peer, "fd:") || !absl::SimpleAtoi(peer, &fd)) return nullptr;
  MutexLock lock(&mu_);
  const auto it = connections_.find(fd);
  if (it == connections_.end()) return nullptr;
  it->second->called = true;
  it->second->used_ns = MonotonicNs();
  ++it->second->under_way;
  return it->second;
}

void ControlConnections::Send(const ConnectionPtr& connection, Answer* answer) {
  const int64_t now_ns = MonotonicNs();
  if (connection != nullptr) {
    MutexLock lock(&mu_);
    ++untaken_;
    const bool waits = connection->sending.size() >= kUntakenPerConnection;
    if (waits) {
      connection->waiting.push_back(answer);
    } else {
      connection->sending.insert(now_ns);
    }
    BoundUntakenLocked();
    if (waits) return;
  }
  answer->Send(now_ns);
}

void ControlConnections::BoundUntakenLocked() {
  const size_t most = kUntakenPerConnection * connections_.size() + kUntakenSpare;
  if (untaken_ <= most) return;
  size_t untaken = 0;  // without those of connections that are shut down
  Connection* worst = nullptr;
  for (const auto& [fd, connection] : connections_) {
    if (connection->told_to_go) continue;
    untaken += connection->untaken();
    if (worst == nullptr || connection->untaken() > worst->untaken()) worst = connection.get();
  }
  if (untaken > most) ShutDownLocked(worst);
}

void ControlConnections::EndCall(const ConnectionPtr& connection, int64_t began_ns) {
  if (connection == nullptr) return;
  const int64_t now_ns = MonotonicNs();
  Answer* next = nullptr;
  {
    MutexLock lock(&mu_);
    connection->sending.erase(connection->sending.find(began_ns));
    --untaken_;
    connection->used_ns = now_ns;
    if (!connection->waiting.empty()) {
      next = connection->waiting.front();
      connection->waiting.pop_front();
      connection->sending.insert(now_ns);
    }
    if (--connection->under_way == 0) {
      if (const auto it = ending_.find(connection.get()); it != ending_.end()) {
        ForgetLocked(it->first);
        ending_.erase(it);
      }
    }
  }
  if (next != nullptr) next->Send(now_ns);
}

size_t ControlConnections::open() const {
  MutexLock lock(&mu_);
  return connections_.size() + ending_.size();
}

}  // namespace nram
