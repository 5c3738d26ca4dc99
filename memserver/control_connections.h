#ifndef NRAM_MEMSERVER_CONTROL_CONNECTIONS_H_
#define NRAM_MEMSERVER_CONTROL_CONNECTIONS_H_

// The control plane's sockets. gRPC serves connections, but bounds neither their number nor their frames.
// ControlConnections accepts connections, asks the rules whether their identities may connect, puts the pump with its
// frame meter between each peer and gRPC (adr/0027), knows which connections are in use, and shuts down those that give
// way, those whose identity the rules admit no longer, and those that send too many frames. Each costs four
// descriptors: the peer's, a socket pair, and a duplicate of gRPC's end that tells when gRPC has closed it.
//
// When the table is full, one connection gives way to a newcomer. The first rule that finds one decides:
//   1. the oldest that has never made a call,
//   2. one without a call under way: of the address that has most, the one not used for longest (its client connects
//      again with its next call),
//   3. one that has not taken an answer for a second.
// If the rules name several tenants, one may have half of the table: beyond that, one of its own gives way.

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "base/fd.h"
#include "base/late_log.h"
#include "base/sync.h"
#include "base/tls/pump.h"
#include "memserver/access.h"
#include "memserver/frame_arena.h"
#include "memserver/handshakes.h"
#include "memserver/listen.h"
#include "memserver/tenant_limits.h"

namespace nram {

struct ControlConnectionsOptions {
  std::string address = "127.0.0.1";  // numeric; empty: no TCP
  int port = 0;                       // 0: the kernel chooses
  std::string socket_path;            // empty: no Unix socket
  size_t connections_max = 256;
  // A client that has made no call, or has not taken an answer, for this time is cut off.
  int64_t limit_ms = 10'000;
  bool has_tls = false;  // connections over TCP speak TLS
  // Has the handshakes, and sends away peers that may not connect. Not owned, and stopped before the connections go
  // away.
  Handshakes* handshakes = nullptr;
  const Access* access = nullptr;  // the rules; not owned; null: each peer over a plain connection may connect
};

// Thread-safe.
class ControlConnections {
 public:
  // The memory of one connection in gRPC, beside the pump's: 24 KiB and 15.4 KiB a call, measured. That pays for two
  // untaken answers of each connection, and more are not sent at once. If there are more in all, those that wait
  // included, the connection that has most of them is cut off. (gRPC may tell late, and of many at once, that answers
  // were taken. It could not tell a client that calls again and again from one that takes nothing, if all were sent.)
  static constexpr uint64_t kConnectionBytes = 64 * kKiB;
  static constexpr size_t kUntakenPerConnection = 2;
  static constexpr size_t kUntakenSpare = 32;
  // How many connections are paid for from the start. Others are charged to the arena.
  static constexpr size_t kPrepaid = 32;
  static constexpr uint64_t kFixedBytes = kPrepaid * kConnectionBytes;

  // A connection that gRPC serves. Each call under way holds it.
  struct Connection;
  using ConnectionPtr = std::shared_ptr<Connection>;

  ControlConnections(const ControlConnectionsOptions& options, FrameArena* arena);
  // Shuts all connections down and joins the threads. gRPC must not serve any more.
  ~ControlConnections();

  // Sets port(). Errors name the address.
  absl::Status Listen();
  // Begins to accept. `serve` owns the descriptor that it is given.
  void Start(std::function<void(int fd)> serve);
  // Accepts no more.
  void Stop();
  int port() const { return port_; }

  // A call's answer. The call owns it.
  class Answer {
   public:
    // Begins to send it. `began_ns` is for EndCall. Called once, with no lock held.
    virtual void Send(int64_t began_ns) = 0;

   protected:
    ~Answer() = default;
  };

  // A call began on the connection that gRPC names `peer`. Null if the connection is gone: the caller is unknown.
  ConnectionPtr BeginCall(absl::string_view peer);
  // The caller's identity (access.h); "" if there is none.
  static const std::string& IdentityOf(const Connection& connection);
  // The call has its answer, which is sent now, or when earlier ones have been taken.
  void Send(const ConnectionPtr& connection, Answer* answer);
  // The answer was taken, or given up.
  void EndCall(const ConnectionPtr& connection, int64_t began_ns);
  // Too many answers are on their way. Shuts down the connection whose client has not taken an answer for longest, if
  // that is a second or more.
  void CutOffSlowest();
  // Shuts down the `most` newest connections, and returns how many there were; for a server that is short of memory.
  // Their calls end without an answer, and clients connect anew. Does not block.
  size_t CutNewest(size_t most);
  size_t CutAll() { return CutNewest(std::numeric_limits<size_t>::max()); }

  size_t open() const;
  uint64_t displaced() const { return displaced_; }

 private:
  void Run();
  void Accept(int listener, bool is_tcp);
  // Gives the connection to gRPC, or closes it if there are too many. `session`: of its handshake; null: plain.
  void Take(UniqueFd fd, const Peer& peer, const TlsSession* session);
  // The pump between the peer and *grpcs, the descriptor that gRPC is given. Null: the kernel has none left.
  std::shared_ptr<const Pump::Link> Connect(UniqueFd fd, const Peer& peer, const TlsSession* session, UniqueFd* grpcs);
  // Whether one more connection of the tenant may come. Charges for it.
  bool AdmitLocked(TenantNumber tenant, int64_t now_ns, bool* charged) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool ChargeLocked(bool* charged) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Closed connections with calls count, too.
  bool HasItsShareLocked(TenantNumber tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The bytes of the arena that a connection takes.
  uint64_t ConnectionBytes() const { return kConnectionBytes + Pump::LinkBytes(options_.has_tls); }
  // `tenant`: whose connection gives way; none: any.
  bool MakeRoomLocked(int64_t now_ns, std::optional<TenantNumber> tenant) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ShutDownLocked(Connection* connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // gRPC has closed the connection. It counts until its last call has ended, because gRPC keeps memory for it until
  // then.
  void NoteClosedLocked(uint64_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetLocked(Connection* connection) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Cuts the links of closed connections that are older than that, and all beyond their bound.
  void CutLeavingLocked(int64_t closed_before_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Sweep();
  // Judges connections anew that were judged by other rules than the present ones, and shuts down those whose identity
  // these do not admit.
  void LookAtRules();
  void BoundUntakenLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const ControlConnectionsOptions options_;
  FrameArena* const arena_;
  std::function<void(int fd)> serve_;
  int port_ = 0;
  UniqueFd tcp_listener_;
  UniqueFd unix_listener_;
  UniqueFd epoll_;
  UniqueFd stop_event_;
  std::atomic<bool> stopping_{false};
  std::atomic<uint64_t> displaced_{0};

  mutable Mutex mu_;
  // By gRPC's descriptor. A new connection takes the place of an old one that has been closed.
  absl::flat_hash_map<int, ConnectionPtr> connections_ ABSL_GUARDED_BY(mu_);
  // Closed connections with calls that have not ended.
  absl::flat_hash_map<Connection*, ConnectionPtr> ending_ ABSL_GUARDED_BY(mu_);
  // Links of closed connections, in the order of their ends: a peer that does not read could keep its own for ever.
  struct Leaving {
    std::weak_ptr<const Pump::Link> link;
    int64_t closed_ns = 0;
  };
  std::deque<Leaving> leaving_ ABSL_GUARDED_BY(mu_);
  size_t untaken_ ABSL_GUARDED_BY(mu_) = 0;  // answers that are sent or wait for it, of all connections
  int displaced_in_turn_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t last_number_ ABSL_GUARDED_BY(mu_) = 3;  // of a connection; those before stand for other descriptors
  int64_t turn_began_ns_ ABSL_GUARDED_BY(mu_) = 0;
  size_t prepaid_used_ ABSL_GUARDED_BY(mu_) = 0;
  LateLog refusals_{nullptr, LateLog::kRefusalPeriodMs};
  Pump pump_;
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_CONTROL_CONNECTIONS_H_
