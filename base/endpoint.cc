#include "base/endpoint.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <poll.h>
#include <sys/un.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/socket.h"
#include "base/status.h"
#include "base/sync.h"

namespace nram {
namespace {

constexpr int64_t kProbeMs = 500;
constexpr int64_t kLookupMs = 10'000;  // for callers without a deadline
constexpr int kLookupsMax = 16;

std::atomic<int> lookups{0};  // under way

// One lookup. Its thread and its caller share it.
struct Lookup {
  ~Lookup() {
    if (found != nullptr) freeaddrinfo(found);
  }
  std::string host;
  std::string port;
  addrinfo* found = nullptr;
  int error = 0;
  Mutex mu;
  CondVar ended;
  bool has_ended ABSL_GUARDED_BY(mu) = false;
};

addrinfo StreamHints(int flags) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  return hints;
}

absl::Status LookUpOnAThread(const HostLookup& resolver, const std::shared_ptr<Lookup>& lookup, int64_t deadline_ns) {
  if (lookups.fetch_add(1) >= kLookupsMax) {
    --lookups;
    return absl::UnavailableError(
        absl::StrCat("cannot look up host ", lookup->host, ": ", kLookupsMax, " lookups hang already"));
  }
  try {
    std::thread([resolver, lookup] {
      const addrinfo hints = StreamHints(0);
      lookup->error = resolver(lookup->host.c_str(), lookup->port.c_str(), &hints, &lookup->found);
      MutexLock lock(&lookup->mu);
      lookup->has_ended = true;
      --lookups;
      lookup->ended.SignalAll();
    }).detach();
  } catch (const std::system_error& error) {
    --lookups;
    return absl::UnavailableError(
        absl::StrCat("cannot look up host ", lookup->host, ": cannot start a thread (", error.what(), ")"));
  }
  MutexLock lock(&lookup->mu);
  while (!lookup->has_ended && MonotonicNs() < deadline_ns) lookup->ended.WaitUntil(&lookup->mu, deadline_ns);
  if (lookup->has_ended) return absl::OkStatus();
  return absl::DeadlineExceededError(
      absl::StrCat("cannot look up host ", lookup->host, ": the resolver does not answer"));
}

}  // namespace

std::string Endpoint::ToString() const {
  if (is_unix()) return absl::StrCat("unix:", path);
  return absl::StrContains(host, ':') ? absl::StrCat("[", host, "]:", port) : absl::StrCat(host, ":", port);
}

bool IsThisMachine(const Endpoint& endpoint) {
  if (endpoint.is_unix() || endpoint.host == "localhost") return true;
  in_addr v4{};
  if (inet_pton(AF_INET, endpoint.host.c_str(), &v4) == 1) return ntohl(v4.s_addr) >> 24 == 127;
  in6_addr v6{};
  return inet_pton(AF_INET6, endpoint.host.c_str(), &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6);
}

absl::StatusOr<Endpoint> ParseEndpoint(absl::string_view text, int default_port) {
  const auto bad = [&](absl::string_view why) {
    return absl::InvalidArgumentError(
        absl::StrCat("\"", text, "\" is not a server: ", why, "; expected host:port, [ipv6]:port or unix:/path"));
  };
  Endpoint endpoint;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    if (!absl::StartsWith(rest, "/")) return bad("the path is not absolute");
    if (rest.size() >= sizeof(sockaddr_un::sun_path)) return bad("the path is too long for a socket");
    endpoint.path = std::string(rest);
    return endpoint;
  }
  absl::string_view port;
  if (absl::ConsumePrefix(&rest, "[")) {
    const size_t close = rest.find(']');
    if (close == absl::string_view::npos) return bad("no closing bracket");
    endpoint.host = std::string(rest.substr(0, close));
    rest.remove_prefix(close + 1);
    if (!rest.empty() && !absl::ConsumePrefix(&rest, ":")) return bad("text after the bracket");
    port = rest;
  } else {
    const size_t colon = rest.find(':');
    if (colon != absl::string_view::npos && rest.find(':', colon + 1) != absl::string_view::npos) {
      return bad("an IPv6 address needs brackets");
    }
    endpoint.host = std::string(rest.substr(0, colon));
    if (colon != absl::string_view::npos) {
      port = rest.substr(colon + 1);
      if (port.empty()) return bad("no port after the colon");
    }
  }
  if (endpoint.host.empty()) return bad("no host");
  for (char c : endpoint.host) {
    if (!absl::ascii_isalnum(c) && !absl::StrContains(".-_:%", c)) return bad("odd characters in the host");
  }
  endpoint.port = default_port;
  if (!port.empty() && (!absl::SimpleAtoi(port, &endpoint.port) || endpoint.port < 1 || endpoint.port > 65535)) {
    return bad("the port is not a number from 1 to 65535");
  }
  return endpoint;
}

absl::StatusOr<SocketAddress> ResolveEndpoint(const Endpoint& endpoint, int64_t deadline_ns, const HostLookup& lookup) {
  SocketAddress address;
  memset(&address.storage, 0, sizeof address.storage);
  if (endpoint.is_unix()) {
    if (endpoint.path.size() >= sizeof(sockaddr_un::sun_path) || absl::StrContains(endpoint.path, '\0')) {
      return absl::UnavailableError("the path of a socket is too long, or has a zero in it");
    }
    auto* un = reinterpret_cast<sockaddr_un*>(&address.storage);
    un->sun_family = AF_UNIX;
    memcpy(un->sun_path, endpoint.path.data(), endpoint.path.size());
    address.length = sizeof *un;
    return address;
  }
  const auto shared = std::make_shared<Lookup>();
  shared->host = endpoint.host;
  shared->port = absl::StrCat(endpoint.port);
  const addrinfo digits = StreamHints(AI_NUMERICHOST | AI_NUMERICSERV);
  shared->error = getaddrinfo(shared->host.c_str(), shared->port.c_str(), &digits, &shared->found);
  if (shared->error != 0) {
    NRAM_RETURN_IF_ERROR(LookUpOnAThread(lookup, shared, deadline_ns == 0 ? DeadlineAfterMs(kLookupMs) : deadline_ns));
  }
  if (shared->error != 0 || shared->found == nullptr) {
    const char* const why = shared->error == 0 ? "no address" : gai_strerror(shared->error);
    return absl::UnavailableError(absl::StrCat("cannot look up host ", endpoint.host, ": ", why));
  }
  for (const addrinfo* one = shared->found; one != nullptr; one = one->ai_next) {
    memcpy(&address.storage, one->ai_addr, one->ai_addrlen);
    address.length = one->ai_addrlen;
    if (deadline_ns == 0 || shared->found->ai_next == nullptr) break;
    if (ConnectSocket(address, std::min(deadline_ns, DeadlineAfterMs(kProbeMs))).ok()) break;
  }
  return address;
}

absl::StatusOr<UniqueFd> ConnectSocket(const SocketAddress& address, int64_t deadline_ns) {
  UniqueFd fd(socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  if (address.storage.ss_family != AF_UNIX) TuneTcp(fd.get());
  if (connect(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.length) == 0) return fd;
  if (errno != EINPROGRESS) return absl::UnavailableError(absl::StrCat("connect: ", strerror(errno)));
  while (true) {
    const int64_t left_ns = deadline_ns - MonotonicNs();
    if (left_ns <= 0) return absl::DeadlineExceededError("connect: no answer in time");
    pollfd waiting{fd.get(), POLLOUT, 0};
    if (poll(&waiting, 1, static_cast<int>(left_ns / kNsPerMs) + 1) > 0) break;
  }
  int error = 0;
  socklen_t length = sizeof error;
  getsockopt(fd.get(), SOL_SOCKET, SO_ERROR, &error, &length);
  if (error != 0) return absl::UnavailableError(absl::StrCat("connect: ", strerror(error)));
  return fd;
}

}  // namespace nram
