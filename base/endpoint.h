#ifndef NRAM_BASE_ENDPOINT_H_
#define NRAM_BASE_ENDPOINT_H_

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

// A Unix socket, or an address of the loopback network: never another machine, unless it is forwarded (ssh -L).
bool IsThisMachine(const Endpoint& endpoint);

// A host without a port gets `default_port`. INVALID_ARGUMENT names the accepted forms.
absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text, int default_port);

struct SocketAddress {
  sockaddr_storage storage;
  socklen_t length = 0;
};

// getaddrinfo, or a test's. freeaddrinfo frees the result.
using HostLookup = std::function<int(const char* host, const char* port, const addrinfo* hints, addrinfo** found)>;

// Looks the host up; numeric addresses need no lookup. If it has several addresses, the call takes:
//   with a deadline     the first address that accepts a connection, or the last if none does
//   without a deadline  the first; the lookup itself has 10 seconds
// A thread of its own looks each name up, because the system's resolver has no deadline. The thread may outlive the
// call; at most 16 hang at once. UNAVAILABLE: the name is not known, the path is bad, or too many lookups hang.
// DEADLINE_EXCEEDED.
absl::StatusOr<SocketAddress> ResolveEndpoint(const Endpoint& endpoint, int64_t deadline_ns = 0,
                                              const HostLookup& lookup = &getaddrinfo);

// A connected, non-blocking stream socket. UNAVAILABLE: refused or unreachable. DEADLINE_EXCEEDED.
absl::StatusOr<UniqueFd> ConnectSocket(const SocketAddress& address, int64_t deadline_ns);

}  // namespace nram

#endif  // NRAM_BASE_ENDPOINT_H_
