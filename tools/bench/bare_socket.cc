#include "tools/bench/bare_socket.h"

#include <errno.h>
#include <glog/logging.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/socket.h"
#include "base/status.h"

namespace nram {
namespace {

constexpr size_t kBufferBytes = 4 << 20;
constexpr size_t kStoreBytes = 256 << 20;
constexpr int64_t kEndMs = 5'000;
constexpr size_t kHeadBytes = 64;  // of a request and of a reply, as a message's

struct Head {
  uint32_t request_bytes;
  uint32_t reply_bytes;
  uint32_t spin;
  uint32_t unused;
};

ssize_t Receive(int fd, char* to, size_t bytes, bool spin) {
  while (true) {
    const ssize_t n = recv(fd, to, bytes, spin ? MSG_DONTWAIT : 0);
    if (n >= 0 || (errno != EAGAIN && errno != EINTR)) return n;
  }
}

bool SendAll(int fd, const char* from, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = send(fd, from, bytes, MSG_NOSIGNAL);
    if (n < 0) return false;
    from += n;
    bytes -= n;
  }
  return true;
}

void Answer(int fd) {
  static char reply[kBufferBytes];
  static char in[kBufferBytes];
  size_t have = 0;
  bool spin = false;
  while (true) {
    const ssize_t n = Receive(fd, in + have, sizeof in - have, spin);
    if (n <= 0) return;
    have += n;
    size_t at = 0;
    size_t owed = 0;
    Head head;
    while (have - at >= sizeof head) {
      memcpy(&head, in + at, sizeof head);
      if (have - at < head.request_bytes) break;
      at += head.request_bytes;
      owed += head.reply_bytes;
      spin = head.spin != 0;
    }
    memmove(in, in + at, have - at);
    have -= at;
    while (owed > 0) {
      const size_t step = std::min(owed, sizeof reply);
      if (!SendAll(fd, reply, step)) return;
      owed -= step;
    }
  }
}

void AnswerFromStore(int fd) {
  auto* const store =
      static_cast<char*>(mmap(nullptr, kStoreBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (store == MAP_FAILED) return;
  madvise(store, kStoreBytes, MADV_HUGEPAGE);
  memset(store, 1, kStoreBytes);
  char bytes[kHeadBytes];
  size_t have = 0;
  for (size_t at = 0;;) {
    while (have < sizeof bytes) {
      const ssize_t n = Receive(fd, bytes + have, sizeof bytes - have, false);
      if (n <= 0) return;
      have += n;
    }
    Head head;
    memcpy(&head, bytes, sizeof head);
    size_t wanted = head.request_bytes - kHeadBytes;
    size_t owed = head.reply_bytes - kHeadBytes;
    if (at + wanted + owed > kStoreBytes) at = 0;
    // Receives the payload into its place, and the next request's head with it.
    for (have = 0; wanted > 0;) {
      iovec to[] = {{store + at, wanted}, {bytes, sizeof bytes}};
      const ssize_t n = readv(fd, to, 2);
      if (n <= 0) return;
      const size_t landed = std::min<size_t>(n, wanted);
      at += landed;
      wanted -= landed;
      have = n - landed;
    }
    char reply[kHeadBytes] = {};
    iovec from[] = {{reply, sizeof reply}, {store + at, owed}};
    msghdr message{};
    message.msg_iov = from;
    message.msg_iovlen = 2;
    const ssize_t n = sendmsg(fd, &message, MSG_NOSIGNAL);
    if (n < static_cast<ssize_t>(kHeadBytes)) return;
    if (!SendAll(fd, store + at + (n - kHeadBytes), owed - (n - kHeadBytes))) return;
    at += owed;
  }
}

}  // namespace

void PinToProcessor(int number) {
  const int count = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(number < 0 ? count + number : number, &set);
  PCHECK(sched_setaffinity(0, sizeof set, &set) == 0);
}

absl::StatusOr<BareSocket> BareSocket::Start(Memory memory) {
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
  BareSocket bare;
  SubprocessOptions options;
  options.death_signal = SIGKILL;
  NRAM_ASSIGN_OR_RETURN(bare.child_, Subprocess::StartFunction(
                                         [&] {
                                           PinToProcessor(-1);
                                           const int fd = accept(listener.get(), nullptr, nullptr);
                                           TuneTcp(fd);
                                           memory == Memory::kStore ? AnswerFromStore(fd) : Answer(fd);
                                           return 0;
                                         },
                                         options));
  bare.fd_.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (connect(bare.fd_.get(), generic, length) != 0) return ErrnoStatus(errno, "connect to the reference");
  TuneTcp(bare.fd_.get());
  bare.buffer_.resize(kBufferBytes);
  return bare;
}

BareSocket::~BareSocket() {
  if (!fd_.valid()) return;  // moved from
  fd_.reset();
  (void)child_.WaitUntil(DeadlineAfterMs(kEndMs));  // it ends with the connection
}

std::vector<int64_t> BareSocket::PingPong(const Shape& shape, int count) {
  std::vector<int64_t> took_ns;
  took_ns.reserve(count);
  Head head{shape.request_bytes, shape.reply_bytes, shape.spin, 0};
  for (int i = 0; i < count; ++i) {
    // The other end stops polling here: another user of the same processor is next.
    if (i == count - 1) head.spin = 0;
    memcpy(buffer_.data(), &head, sizeof head);
    const int64_t began_ns = MonotonicNs();
    PCHECK(SendAll(fd_.get(), buffer_.data(), shape.request_bytes));
    for (size_t have = 0; have < shape.reply_bytes;) {
      const ssize_t n = Receive(fd_.get(), buffer_.data() + 4096, shape.reply_bytes - have, shape.spin);
      PCHECK(n > 0);
      have += n;
    }
    took_ns.push_back(MonotonicNs() - began_ns);
  }
  return took_ns;
}

int64_t BareSocket::Stream(const Shape& shape, int count, int depth) {
  const Head head{shape.request_bytes, shape.reply_bytes, shape.spin, 0};
  std::vector<char> request(shape.request_bytes);
  memcpy(request.data(), &head, sizeof head);
  const int64_t began_ns = MonotonicNs();
  int sent = 0;
  int answered = 0;
  size_t partial = 0;
  while (answered < count) {
    for (; sent < count && sent - answered < depth; ++sent) PCHECK(SendAll(fd_.get(), request.data(), request.size()));
    const ssize_t n = Receive(fd_.get(), buffer_.data(), buffer_.size(), shape.spin);
    PCHECK(n > 0);
    partial += n;
    answered += partial / shape.reply_bytes;
    partial %= shape.reply_bytes;
  }
  return MonotonicNs() - began_ns;
}

}  // namespace nram
