#ifndef NRAM_BASE_SOCKET_H_
#define NRAM_BASE_SOCKET_H_

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cstdint>

namespace nram {

// Sets up a TCP connection of the data plane. Nagle's algorithm is off, because requests are small and awaited. CUBIC
// is on where the system has it: a cluster's network is short and fat, and BBR, some systems' default, paces senders
// with timers there (measured over loopback: 5.6 GB/s instead of 9; docs/performance.md). Failures are ignored: the
// system's own choice stands then.
inline void TuneTcp(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  constexpr char kCubic[] = "cubic";
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kCubic, sizeof kCubic - 1);
}

// Makes the kernel give up a TCP connection when the other machine has answered nothing for `timeout_ms`, although it
// was asked. Without this the kernel repeats bytes that it sent into a cut network ever more rarely: after the cut they
// may take as long again as the cut lasted.
inline void LimitTcpSilence(int fd, int64_t timeout_ms) {
  const int on = 1;
  const int probe_s = 1;
  const auto timeout = static_cast<unsigned>(timeout_ms);
  setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof on);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &probe_s, sizeof probe_s);
  setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &probe_s, sizeof probe_s);
  setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &timeout, sizeof timeout);
}

}  // namespace nram

#endif  // NRAM_BASE_SOCKET_H_
