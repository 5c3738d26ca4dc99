#ifndef NRAM_CLIENT_TRANSPORT_ENDPOINT_H_
#define NRAM_CLIENT_TRANSPORT_ENDPOINT_H_

#include <netdb.h>
#include <sys/socket.h>

#include <functional>
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

// getaddrinfo, or a test's; freeaddrinfo frees what it finds.
using HostLookup = std::function<int(const char* host, const char* port, const addrinfo* hints, addrinfo** found)>;

// Looks the host up. With a deadline, of several addresses the first where somebody answers; the last if nobody does.
// Without one, the first, and the lookup itself has 10 seconds. Addresses in digits need no lookup. Names are looked up
// on a thread of their own, which may outlive the call, because the system's resolver knows no deadline; at most 16 of
// them hang at once. UNAVAILABLE: not known, a bad path, or too many that hang. DEADLINE_EXCEEDED.
absl::StatusOr<SocketAddress> ResolveEndpoint(const Endpoint& endpoint, int64_t deadline_ns = 0,
                                              const HostLookup& lookup = &getaddrinfo);

// A connected, non-blocking stream socket. UNAVAILABLE: refused or unreachable. DEADLINE_EXCEEDED.
absl::StatusOr<UniqueFd> ConnectSocket(const SocketAddress& address, int64_t deadline_ns);

}  // namespace nram

#endif  // NRAM_CLIENT_TRANSPORT_ENDPOINT_H_
