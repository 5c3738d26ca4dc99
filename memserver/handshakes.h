#ifndef NRAM_MEMSERVER_HANDSHAKES_H_
#define NRAM_MEMSERVER_HANDSHAKES_H_

// The handshakes of both planes, in a room of their own (adr/0015): until it has shown a certificate, a connection
// takes no worker's time, no connection's place, and no more memory than is bounded here. gRPC clients that may not
// come in hear why, without gRPC (adr/0027).

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/http2/farewell.h"
#include "base/sync.h"
#include "base/tls/context.h"
#include "base/tls/handshake.h"
#include "memserver/listen.h"

namespace nram {

struct HandshakesOptions {
  size_t most = 128;          // at a time
  int64_t limit_ms = 10'000;  // for all of one
  int64_t linger_ms = 1'000;  // for a refused peer to read why
  // Called on this room's thread, for one that failed after the peer had sent something.
  std::function<void(const Peer& peer, const absl::Status& why)> refused;
  // Called on this room's thread: whether a peer with this certificate may connect. Must not block. Null: each may.
  std::function<absl::Status(const TlsPeer& peer)> admit;
};

// Thread-safe. One thread does the work; each handshake costs it a millisecond or two.
class Handshakes {
 public:
  // Memory of one handshake in OpenSSL and here; measured: 74 KiB.
  static constexpr uint64_t kBytesEach = 96 * 1024;

  // `context` null: there is no TLS, and Add must not be called.
  Handshakes(std::shared_ptr<TlsContext> context, HandshakesOptions options);
  ~Handshakes();
  // Closes those that are under way, and from now on all that come. Afterwards nothing of this room's is called.
  void Stop();

  // Called on this room's thread, when the peer has shown a certificate that holds. Must not block.
  using Done = std::function<void(UniqueFd fd, const Peer& peer, const TlsSession& session)>;
  // `fd`: accepted, non-blocking. If there are too many, one of the network that has most gives way: perhaps this one.
  // `plain`: the answer to a gRPC client without TLS; OK: it is closed, as is each other peer without TLS.
  void Add(UniqueFd fd, Peer peer, Done done, absl::Status plain = absl::OkStatus());
  // Of a plain connection, whose peer may not connect. A gRPC client hears `why`; all are closed.
  void SendAway(UniqueFd fd, Peer peer, absl::Status why);
  size_t under_way() const;
  // Those that gave way.
  uint64_t displaced() const { return displaced_; }

 private:
  struct Entry {
    UniqueFd fd;
    Peer peer;
    Done done;            // null: the peer is sent away
    absl::Status plain;   // the answer to a gRPC client without TLS
    uint64_t number = 0;  // in the order of arrival
    int64_t deadline_ns = 0;
    std::unique_ptr<TlsHandshake> handshake;  // from the peer's first byte on; or
    std::unique_ptr<Farewell> farewell;
    bool lingers = false;  // refused: only until the peer has read why
    uint32_t events = 0;   // as registered
  };

  void Run();
  // False: it is over.
  bool Step(Entry* entry);
  bool Begin(Entry* entry);
  bool StepFarewell(Entry* entry);
  bool Refuse(Entry* entry, const absl::Status& why);
  static bool Drain(const Entry& entry);
  void MakeRoomLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::shared_ptr<TlsContext> context_;
  const HandshakesOptions options_;
  UniqueFd epoll_;
  UniqueFd wake_;
  std::atomic<uint64_t> displaced_{0};
  mutable Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t arrived_ ABSL_GUARDED_BY(mu_) = 0;
  std::mt19937_64 random_ ABSL_GUARDED_BY(mu_){std::random_device()()};
  // By number. The thread alone uses the contents of an entry; others remove it, and the thread lets go of it.
  absl::flat_hash_map<uint64_t, std::shared_ptr<Entry>> entries_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_HANDSHAKES_H_
