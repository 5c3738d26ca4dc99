#ifndef NRAM_BASE_TLS_PUMP_H_
#define NRAM_BASE_TLS_PUMP_H_

// Stands between the peers of the control plane and gRPC (adr/0027). It carries the bytes of each connection, TLS or
// plain, to and from a plain socket, which is all that gRPC can be given; and it cuts off a peer whose frames a meter
// refuses, before gRPC gets them.

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <thread>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "base/fd.h"
#include "base/http2/frame_meter.h"
#include "base/sync.h"
#include "base/tls/channel.h"

namespace nram {

// One thread for all connections. Thread-safe.
class Pump {
 public:
  // The watch over the peer's bytes.
  struct Watch {
    std::optional<FrameMeter> meter;  // none: they may be any
    // Called on the pump's thread when the meter has ended the connection, with its reason. Must not block. May be
    // null.
    std::function<void(const absl::Status& why)> cut;
  };

  // A connection, until one of its ends is closed.
  class Link {
   public:
    // The error that has ended it, if any: the peer's complaint about this end's certificate, or the meter's about the
    // peer.
    absl::Status status() const {
      MutexLock lock(&mu_);
      return status_;
    }

    // The connection is over, or the peer has closed its end, as the kernel knows at once.
    bool ended() const;
    // Ends it. Bytes under way to the peer may be lost. Does not block.
    void Cut() const;

   private:
    friend class Pump;
    static constexpr size_t kBufferBytes = 16 * 1024;
    // Bytes on their way in one direction.
    struct Buffer {
      std::unique_ptr<std::byte[]> data{new std::byte[kBufferBytes]};
      size_t begin = 0, end = 0;
      bool ended = false;  // nothing comes after these
      bool empty() const { return begin == end; }
    };

    Link(UniqueFd outer_fd, const TlsSession* session, UniqueFd inner_fd, Watch its_watch)
        : outer(std::move(outer_fd)),
          channel(outer.get(), session),
          inner(std::move(inner_fd)),
          watch(std::move(its_watch)) {}

    UniqueFd outer;  // the pump's thread replaces it under mu_
    Channel channel;
    UniqueFd inner;
    Watch watch;
    Buffer to_outer, to_inner;
    bool told_end = false;                        // the plain end knows that nothing comes any more
    uint32_t outer_events = 0, inner_events = 0;  // as registered
    mutable Mutex mu_;
    absl::Status status_ ABSL_GUARDED_BY(mu_);
  };

  // Memory of one connection.
  static size_t LinkBytes(bool is_tls) {
    return sizeof(Link) + 2 * Link::kBufferBytes + (is_tls ? Channel::TlsBytes() : 0);
  }

  Pump();
  // Closes all connections.
  ~Pump();

  // `outer`: a non-blocking socket. `session`: of its handshake; null: plain. `inner`: one end of a socket pair,
  // non-blocking. When the peer has sent all, the pair's other end reads its end, and may still write until it is
  // closed; that ends the connection.
  std::shared_ptr<const Link> Add(UniqueFd outer, const TlsSession* session, UniqueFd inner, Watch watch);
  size_t count() const;

 private:
  static constexpr int kRoundsMax = 16;

  void Run();
  // Moves what can be moved now. False: the connection has ended.
  bool Move(Link* link);
  // A step of one direction each. Returns whether something was moved.
  absl::StatusOr<bool> MoveOut(Link* link);
  absl::StatusOr<bool> MoveIn(Link* link);
  bool Register(Link* link);
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
