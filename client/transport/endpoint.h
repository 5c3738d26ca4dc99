#ifndef NRAM_CLIENT_TRANSPORT_ENDPOINT_H_
#define NRAM_CLIENT_TRANSPORT_ENDPOINT_H_

#include <sys/socket.h>

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/fd.h"

namespace nram {

// Where a server listens: "host:port", "[v6]:port" or "unix:/path".
struct Endpoint {
  std::string host;  // empty for a Unix socket
  int port = 0;
  std::string path;

  bool is_unix() const { return !path.empty(); }
  std::string ToString() const;
  friend bool operator==(const Endpoint&, const Endpoint&) = default;
};

// INVALID_ARGUMENT says what is accepted. A host without a port gets `default_port`.
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text, int default_port);

struct SocketAddress {
  sockaddr_storage storage;
  socklen_t length = 0;
};

// Looks the host up (blocks as long as the system's resolver does). UNAVAILABLE if it is not known. With a deadline, of
// several addresses the first where somebody answers; the last if nobody does.
absl::StatusOr<SocketAddress> ResolveEndpoint(const Endpoint& endpoint, int64_t deadline_ns = 0);

// A connected, non-blocking stream socket. UNAVAILABLE: refused or unreachable. DEADLINE_EXCEEDED.
absl::StatusOr<UniqueFd> ConnectSocket(const SocketAddress& address, int64_t deadline_ns);

}  // namespace nram

#endif  // NRAM_CLIENT_TRANSPORT_ENDPOINT_H_
