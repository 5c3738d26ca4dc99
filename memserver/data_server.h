#ifndef NRAM_MEMSERVER_DATA_SERVER_H_
#define NRAM_MEMSERVER_DATA_SERVER_H_

// The data plane's sockets and threads. One thread accepts. Bulk workers and urgent workers (one of each per core, up
// to a limit) serve the connections that they have. A connection begins with a bulk worker, and moves to an urgent one
// if its hello says urgent. So a page fault never waits behind megabytes of write-back in the same thread.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fd.h"
#include "base/late_log.h"
#include "base/spin.h"
#include "base/sync.h"
#include "memserver/access.h"
#include "memserver/arrivals.h"
#include "memserver/connection.h"
#include "memserver/connection_table.h"
#include "memserver/handshakes.h"
#include "memserver/listen.h"
#include "memserver/session.h"

namespace nram {

struct DataServerOptions {
  std::string address = "127.0.0.1";  // numeric IPv4 or IPv6; empty: no TCP
  int port = 0;                       // 0: the kernel chooses
  std::string socket_path;            // of a Unix socket, which replaces a dead one there; empty: none
  int workers_per_class = 1;          // 1..64
  int connections_max = 512;          // ConnectionTable says which one gives way to the next
  // A peer is cut off if it moves no byte for this time in the middle of a message or of its replies, or if it needs
  // six times as long for all of it.
  int64_t stall_limit_ms = 10'000;
  SpinOptions spin;
  // Connections over TCP speak TLS; null: plain. Not owned; must be stopped before the server is destroyed.
  Handshakes* handshakes = nullptr;
  // Which peers may connect, and whose data they find; null: all peers, as the context says. Not owned.
  const Access* access = nullptr;
  const Tenants* tenants = nullptr;
};

struct DataServerCounters {
  std::atomic<uint64_t> closed_for_error{0}, accepted{0}, refused{0}, displaced{0};
  std::atomic<int64_t> open{0};
};

class DataServer {
 public:
  // The most that the server's threads, buffers and prepaid connections take.
  static uint64_t FixedBytes(const DataServerOptions& options);

  // Listens and starts its threads. Errors: an address cannot be bound; the message names it.
  static absl::StatusOr<std::unique_ptr<DataServer>> Start(const DataServerOptions& options,
                                                           const SessionContext& context);
  // Closes all connections and joins the threads.
  ~DataServer();

  int port() const { return port_; }
  const DataServerCounters& counters() const { return counters_; }

 private:
  class Worker;
  static constexpr size_t kReplyBuffersPerWorker = 16;
  // Connections that are paid for from the start, so that clients can connect again to a full server. Others are
  // charged to the arena when they come.
  static constexpr int kPrepaidConnections = 64;
  // The charge of a closed connection is kept for the next one for this time.
  static constexpr int64_t kSpareNs = 15 * kNsPerSecond;
  // For how long the acceptor waits for a connection to give way. A worker closes one in a few milliseconds.
  static constexpr int64_t kGiveWayMs = 100;

  DataServer(const DataServerOptions& options, const SessionContext& context);
  void AcceptLoop();
  void Accept(int listener, bool is_tcp);
  // Gives an accepted connection to a worker, or closes it if there are too many. `tls`: of its handshake; null: plain.
  void Take(UniqueFd fd, Peer peer, const TlsSession* tls);
  void TakeArrived();
  // The bytes of the arena that a connection takes.
  uint64_t ConnectionBytes() const { return ConnectionBytes(options_); }
  static uint64_t ConnectionBytes(const DataServerOptions& options);
  // The tenant's place for one more connection. If it has as many as it may have, an idle one of its own gives way.
  QuotaShare TakeShare(Tenant* tenant);
  // OK: the connection may still be used, by the present rules.
  absl::Status CheckStillMay(const Connection& connection) const;
  // False: one more connection is too many, or the arena has no room for it. *prepaid: it is one of the prepaid ones.
  bool Admit(bool* prepaid);
  bool TakeSpare();
  void ReleaseOldSpares(int64_t now_ns);
  static Worker* LeastBusy(const std::vector<std::unique_ptr<Worker>>& workers);
  // Gives a connection whose hello says urgent to an urgent worker.
  void MoveToUrgent(std::unique_ptr<Connection> connection);

  const DataServerOptions options_;
  const SessionContext context_;
  DataServerCounters counters_;
  ConnectionTable table_;
  LateLog log_;
  LateLog refusals_{nullptr, LateLog::kRefusalPeriodMs};
  std::atomic<int> prepaid_open_{0};
  // Charges of closed connections that are kept. Clients that come back to a full server find them.
  std::atomic<int> spares_{0};
  std::atomic<int64_t> spared_ns_{0};  // when the last spare came
  UniqueFd tcp_listener_;
  UniqueFd unix_listener_;
  UniqueFd stop_event_;
  Arrivals arrivals_;
  int port_ = 0;
  std::atomic<bool> stopping_{false};
  std::atomic<int64_t> starved_ns_{0};  // when a connection last waited for buffers or frames that others hold
  std::vector<std::unique_ptr<Worker>> bulk_;
  std::vector<std::unique_ptr<Worker>> urgent_;
  std::thread acceptor_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_DATA_SERVER_H_
