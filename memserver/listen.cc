#include "memserver/listen.h"

#include <arpa/inet.h>
#include <glog/logging.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "base/file.h"
#include "base/socket.h"
#include "base/status.h"

namespace nram {
namespace {

// The user number that the kernel gives for users that this user namespace does not know.
constexpr uid_t kOverflowUid = 65534;

// Whether this user namespace has all users, so that the overflow uid is a user as well.
bool KnowsAllUsers() {
  const absl::StatusOr<std::string> map = ReadFile("/proc/self/uid_map");
  const std::vector<absl::string_view> words =
      absl::StrSplit(map.value_or(""), absl::ByAnyChar(" \t\n"), absl::SkipEmpty());
  return words.size() == 3 && words[2] == "4294967295";
}

absl::StatusOr<socklen_t> MakeAddress(const std::string& address, int port, sockaddr_storage* storage) {
  memset(storage, 0, sizeof *storage);
  auto* v4 = reinterpret_cast<sockaddr_in*>(storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(storage);
  if (inet_pton(AF_INET, address.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(static_cast<uint16_t>(port));
    return sizeof *v4;
  }
  if (inet_pton(AF_INET6, address.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(static_cast<uint16_t>(port));
    return sizeof *v6;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("\"", address, "\" is not a numeric IPv4 or IPv6 address, such as 127.0.0.1 or ::1"));
}

absl::StatusOr<sockaddr_un> MakeUnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof address.sun_path) {
    return absl::InvalidArgumentError(
        absl::StrCat("socket path \"", path, "\" is longer than ", sizeof address.sun_path - 1, " bytes"));
  }
  memcpy(address.sun_path, path.data(), path.size());
  return address;
}

// The system would keep the connection of a dead host for two hours.
void KeepAlive(int fd) {
  const int on = 1, idle_s = 30, interval_s = 10, probes = 3;
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle_s, sizeof idle_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &interval_s, sizeof interval_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &probes, sizeof probes);
}

}  // namespace

Peer PeerOf(int fd, bool is_tcp) {
  if (!is_tcp) {
    ucred peer{};
    socklen_t length = sizeof peer;
    const bool said = getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) == 0 && length == sizeof peer;
    const bool is_known = said && peer.uid != static_cast<uid_t>(-1) && (peer.uid != kOverflowUid || KnowsAllUsers());
    return {absl::StrCat("unix:pid=", peer.pid), absl::StrCat("unix:uid=", said ? absl::StrCat(peer.uid) : "?"),
            is_known ? absl::StrCat("uid:", peer.uid) : ""};
  }
  sockaddr_storage storage;
  socklen_t length = sizeof storage;
  char text[INET6_ADDRSTRLEN] = "?";
  int port = 0;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) == 0) {
    if (storage.ss_family == AF_INET) {
      const auto* v4 = reinterpret_cast<sockaddr_in*>(&storage);
      inet_ntop(AF_INET, &v4->sin_addr, text, sizeof text);
      port = ntohs(v4->sin_port);
    } else {
      const auto* v6 = reinterpret_cast<sockaddr_in6*>(&storage);
      inet_ntop(AF_INET6, &v6->sin6_addr, text, sizeof text);
      port = ntohs(v6->sin6_port);
    }
  }
  return {absl::StrCat(text, ":", port), text, "anyone"};
}

absl::StatusOr<bool> IsLoopback(const std::string& address) {
  sockaddr_storage storage;
  NRAM_RETURN_IF_ERROR(MakeAddress(address, 0, &storage).status());
  if (storage.ss_family == AF_INET) {
    return ntohl(reinterpret_cast<sockaddr_in*>(&storage)->sin_addr.s_addr) >> 24 == 127;
  }
  return IN6_IS_ADDR_LOOPBACK(&reinterpret_cast<sockaddr_in6*>(&storage)->sin6_addr) != 0;
}

absl::StatusOr<UniqueFd> ListenTcp(const std::string& address, int port) {
  sockaddr_storage storage;
  NRAM_ASSIGN_OR_RETURN(const socklen_t length, MakeAddress(address, port, &storage));
  UniqueFd fd(socket(storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  const int on = 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(fd.get(), reinterpret_cast<sockaddr*>(&storage), length) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listen on ", address, " port ", port));
  }
  return fd;
}

absl::StatusOr<int> BoundPort(int fd) {
  sockaddr_storage storage;
  socklen_t length = sizeof storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return ErrnoStatus(errno, "getsockname");
  return storage.ss_family == AF_INET ? ntohs(reinterpret_cast<sockaddr_in*>(&storage)->sin_port)
                                      : ntohs(reinterpret_cast<sockaddr_in6*>(&storage)->sin6_port);
}

absl::StatusOr<UniqueFd> ListenUnix(const std::string& path) {
  NRAM_ASSIGN_OR_RETURN(sockaddr_un address, MakeUnixAddress(path));
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  struct stat info;
  if (lstat(path.c_str(), &info) == 0) {
    if (!S_ISSOCK(info.st_mode)) return absl::AlreadyExistsError(absl::StrCat(path, " exists and is not a socket"));
    UniqueFd probe(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(probe.get(), generic, sizeof address) == 0) {
      return absl::AlreadyExistsError(absl::StrCat("another process listens on ", path));
    }
    if (unlink(path.c_str()) != 0) return ErrnoStatus(errno, absl::StrCat("remove dead socket ", path));
  }
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  if (bind(fd.get(), generic, sizeof address) != 0 || listen(fd.get(), SOMAXCONN) != 0) {
    return ErrnoStatus(errno, absl::StrCat("listen on ", path));
  }
  return fd;
}

UniqueFd AcceptConnection(int listener, bool is_tcp, int stop) {
  UniqueFd fd(accept4(listener, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) {
    if (errno == EMFILE || errno == ENFILE || errno == ENOMEM || errno == ENOBUFS) {
      PLOG_EVERY_N(ERROR, 100) << "accept";
      pollfd stopped{stop, POLLIN, 0};
      poll(&stopped, 1, 100);
    }
    return fd;
  }
  if (is_tcp) {
    TuneTcp(fd.get());
    KeepAlive(fd.get());
  }
  return fd;
}

}  // namespace nram
