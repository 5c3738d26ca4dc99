#include "experiments/memory/ping_pong.h"

#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/socket.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "base/units.h"
#include "tools/bench/bare_socket.h"

namespace nram {
namespace {

constexpr size_t kRequestBytes = 64;
constexpr size_t kReplyBytes = 64 + kPageBytes;
constexpr int64_t kEndMs = 5'000;

bool ReadAll(int fd, char* to, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = read(fd, to, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    to += n;
    bytes -= n;
  }
  return true;
}

bool WriteAll(int fd, const char* from, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = write(fd, from, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    from += n;
    bytes -= n;
  }
  return true;
}

void Answer(int fd) {
  static char request[kRequestBytes], reply[kReplyBytes];
  while (ReadAll(fd, request, sizeof request) && WriteAll(fd, reply, sizeof reply)) {
  }
}

bool Ask(int fd, int64_t count) {
  static char request[kRequestBytes], reply[kReplyBytes];
  for (int64_t i = 0; i < count; ++i) {
    if (!WriteAll(fd, request, sizeof request) || !ReadAll(fd, reply, sizeof reply)) return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<int64_t> PingPongNs(int64_t count, bool apart) {
  UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), generic, length) != 0 || listen(listener.get(), 1) != 0 ||
      getsockname(listener.get(), generic, &length) != 0) {
    return ErrnoStatus(errno, "the reference's socket");
  }
  SubprocessOptions options;
  options.death_signal = SIGKILL;
  NRAM_ASSIGN_OR_RETURN(Subprocess child, Subprocess::StartFunction(
                                              [&] {
                                                if (apart) PinToProcessor(-1);
                                                const int fd = accept(listener.get(), nullptr, nullptr);
                                                if (fd < 0) return 1;
                                                TuneTcp(fd);
                                                Answer(fd);
                                                return 0;
                                              },
                                              options));
  if (apart) PinToProcessor(0);
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  bool right = connect(fd.get(), generic, length) == 0;
  int64_t took_ns = 0;
  if (right) {
    TuneTcp(fd.get());
    right = Ask(fd.get(), count / 10);
    const int64_t began_ns = MonotonicNs();
    right = right && Ask(fd.get(), count);
    took_ns = MonotonicNs() - began_ns;
  }
  fd.reset();
  if (right) (void)child.WaitUntil(DeadlineAfterMs(kEndMs));  // it ends with the connection
  if (!right) return absl::UnavailableError("the reference's connection broke");
  return took_ns;
}

}  // namespace nram
