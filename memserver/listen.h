#ifndef NRAM_MEMSERVER_LISTEN_H_
#define NRAM_MEMSERVER_LISTEN_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/fd.h"

namespace nram {

// A listening TCP socket; `address` numeric. The message names what could not be bound and why.
absl::StatusOr<UniqueFd> ListenTcp(const std::string& address, int port);
// The port that the kernel gave it.
absl::StatusOr<int> BoundPort(int fd);

// A listening Unix socket. Replaces a socket file that nobody listens on; refuses one that somebody does, or any other
// file.
absl::StatusOr<UniqueFd> ListenUnix(const std::string& path);

// The peer's name for people, and where it comes from: a host, or a user of this one.
struct Peer {
  std::string name;
  std::string source;
};
// Of a connected socket.
Peer PeerOf(int fd, bool is_tcp);

// A dead host's connection ends after a minute; the system would keep it for two hours.
void KeepAlive(int fd);

// Raises the soft limit of descriptors to `wanted` as far as the hard limit allows. Returns how many may be open.
uint64_t RaiseDescriptorLimit(uint64_t wanted);

// True for 127.0.0.0/8 and ::1. INVALID_ARGUMENT if it is not a numeric address.
absl::StatusOr<bool> IsLoopback(const std::string& address);

}  // namespace nram

#endif  // NRAM_MEMSERVER_LISTEN_H_
