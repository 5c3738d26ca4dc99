#ifndef NRAM_BASE_SOCKET_H_
#define NRAM_BASE_SOCKET_H_

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace nram {

// What every TCP connection of the data plane is set to. No Nagle: requests are small and awaited. And CUBIC where it
// can be had: a cluster's network is short and fat, and BBR, some systems' default, paces senders with timers there
// (measured over loopback: 5.6 GB/s instead of 9; docs/performance.md). Failures are ignored: the system's own choice
// then stands.
inline void TuneTcp(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  constexpr char kCubic[] = "cubic";
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kCubic, sizeof kCubic - 1);
}

}  // namespace nram

#endif  // NRAM_BASE_SOCKET_H_
