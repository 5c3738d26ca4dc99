#ifndef NRAM_BASE_TLS_PUMP_H_
#define NRAM_BASE_TLS_PUMP_H_

// Carries the bytes of TLS connections to and from plain sockets, for a library that can only speak on these: gRPC.

#include <atomic>
#include <cstddef>
#include <memory>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/fd.h"
#include "base/sync.h"
#include "base/tls/channel.h"

namespace nram {

// One thread for all connections. Thread-safe.
class TlsPump {
 public:
  // A connection, until one of its ends is closed.
  class Link {
   public:
    // The error that has ended it, if any: the peer's complaint about this end's certificate, for one.
    absl::Status status() const {
      MutexLock lock(&mu_);
      return status_;
    }

    bool ended() const { return ended_.load(std::memory_order_acquire); }

   private:
    friend class TlsPump;
    static constexpr size_t kBufferBytes = 16 * 1024;
    // Bytes on their way in one direction.
    struct Buffer {
      std::unique_ptr<std::byte[]> data{new std::byte[kBufferBytes]};
      size_t begin = 0, end = 0;
      bool ended = false;  // nothing comes after these
      bool empty() const { return begin == end; }
    };

    Link(UniqueFd outer_fd, const TlsSession& session, UniqueFd inner_fd)
        : outer(std::move(outer_fd)), channel(outer.get(), &session), inner(std::move(inner_fd)) {}

    UniqueFd outer;
    Channel channel;
    UniqueFd inner;
    Buffer to_outer, to_inner;
    bool told_end = false;                        // the plain end knows that nothing comes any more
    uint32_t outer_events = 0, inner_events = 0;  // as registered
    std::atomic<bool> ended_{false};
    mutable Mutex mu_;
    absl::Status status_ ABSL_GUARDED_BY(mu_);
  };

  // Memory of one connection.
  static size_t LinkBytes() { return sizeof(Link) + 2 * Link::kBufferBytes + Channel::TlsBytes(); }

  TlsPump();
  // Closes all connections.
  ~TlsPump();

  // `outer`: a non-blocking socket after its handshake. `inner`: one end of a socket pair, non-blocking. When the peer
  // has sent all, the pair's other end reads its end, and may still write until it is closed; that ends the connection.
  std::shared_ptr<const Link> Add(UniqueFd outer, const TlsSession& session, UniqueFd inner);
  size_t count() const;

 private:
  static constexpr int kRoundsMax = 16;

  void Run();
  // Moves what can be moved now. False: the connection has ended.
  bool Move(Link* link);
  // A step of one direction each. Returns whether something was moved.
  absl::StatusOr<bool> MoveOut(Link* link);
  absl::StatusOr<bool> MoveIn(Link* link);
  bool Watch(Link* link);
  void End(Link* link);

  UniqueFd epoll_;
  UniqueFd wake_;
  mutable Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<Link*, std::shared_ptr<Link>> links_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_BASE_TLS_PUMP_H_
