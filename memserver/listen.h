#ifndef NRAM_MEMSERVER_LISTEN_H_
#define NRAM_MEMSERVER_LISTEN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/fd.h"

namespace nram {

// A listening TCP socket. `address` is numeric. The error's message names what could not be bound and why.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& address, int port);
// The port that the kernel gave the socket.
absl::StatusOr<int> BoundPort(int fd);

// A listening Unix socket. Replaces a socket file without a listener. Refuses a socket that has one, and any other
// file.
absl::StatusOr<UniqueFd> ListenUnix(const std::string& path);

// The peer's name for people, and its source: a host, or a user of this one.
struct Peer {
  std::string name;
  std::string source;
  // "uid:N" of a Unix socket, as the kernel says; over TCP, the one without a voucher (adr/0015); "" if the
  // kernel does not say, or only that it is a user of another user namespace.
  std::string identity;
};
// The peer of a connected socket.
Peer PeerOf(int fd, bool is_tcp);

// Takes a connection that waits at `listener`, tuned for messages; a dead host's ends after a minute. Invalid: there is
// none. A process without a free descriptor leaves it pending, logs that, and waits 100 ms, or until `stop` is
// readable.
UniqueFd AcceptConnection(int listener, bool is_tcp, int stop);

// True for 127.0.0.0/8 and ::1. INVALID_ARGUMENT if it is not a numeric address.
absl::StatusOr<bool> IsLoopback(const std::string& address);

}  // namespace nram

#endif  // NRAM_MEMSERVER_LISTEN_H_
