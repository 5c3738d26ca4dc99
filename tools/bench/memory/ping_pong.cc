#include "tools/bench/memory/ping_pong.h"

#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/fd.h"
#include "base/socket.h"
#include "base/status.h"
#include "base/units.h"
#include "tools/bench/bare_socket.h"

namespace nram {
namespace {

constexpr size_t kRequestBytes = 64;
constexpr size_t kReplyBytes = 64 + kPageBytes;

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
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);
    if (apart) PinToProcessor(-1);
    const int fd = accept(listener.get(), nullptr, nullptr);
    if (fd < 0) _exit(1);
    TuneTcp(fd);
    Answer(fd);
    _exit(0);
  }
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
  if (!right) kill(child, SIGKILL);  // else it ends with the connection
  fd.reset();
  waitpid(child, nullptr, 0);
  if (!right) return absl::UnavailableError("the reference's connection broke");
  return took_ns;
}

}  // namespace nram
