#include "client/run/helper.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/status.h"
#include "base/units.h"

namespace nram {

namespace {

constexpr int kEndMs = 1000;

// What recvmsg(2) in the helper works on.
struct LendPayload {
  msghdr header = {};
  iovec part = {};
  char byte[8] = {};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
};

bool SendDescriptor(int socket, int fd) {
  LendPayload message;
  message.part = {message.byte, 1};
  message.header.msg_iov = &message.part;
  message.header.msg_iovlen = 1;
  message.header.msg_control = message.control;
  message.header.msg_controllen = sizeof(message.control);
  cmsghdr* const rights = CMSG_FIRSTHDR(&message.header);
  rights->cmsg_level = SOL_SOCKET;
  rights->cmsg_type = SCM_RIGHTS;
  rights->cmsg_len = CMSG_LEN(sizeof(fd));
  memcpy(CMSG_DATA(rights), &fd, sizeof(fd));
  ssize_t done;
  do {
    done = sendmsg(socket, &message.header, MSG_NOSIGNAL);
  } while (done < 0 && errno == EINTR);
  return done == 1;
}

}  // namespace

absl::Status Helper::Make(std::vector<HelperCall>* calls, absl::Span<std::byte> payload) {
  MutexLock lock(&mu_);
  return MakeLocked(calls, payload, /*lent=*/-1);
}

absl::Status Helper::MakeLocked(std::vector<HelperCall>* calls, absl::Span<std::byte> payload, int lent) {
  const size_t calls_bytes = calls->size() * sizeof(HelperCall);
  const size_t bytes = sizeof(HelperHeader) + calls_bytes + payload.size();
  CHECK_LE(calls->size(), kCallsMax);
  CHECK_LE(bytes, HelperPlace::kMessageBytes);
  message_.resize(bytes);
  const HelperHeader header{.calls = calls->size()};
  memcpy(message_.data(), &header, sizeof(header));
  memcpy(message_.data() + sizeof(header), calls->data(), calls_bytes);
  if (!payload.empty()) memcpy(message_.data() + sizeof(header) + calls_bytes, payload.data(), payload.size());
  ssize_t done;
  do {
    done = send(socket_.get(), message_.data(), bytes, MSG_NOSIGNAL);
  } while (done < 0 && errno == EINTR);
  if (done >= 0 && lent >= 0 && !SendDescriptor(socket_.get(), lent)) done = -1;
  if (done >= 0) {
    do {
      done = recv(socket_.get(), message_.data(), bytes, 0);
    } while (done < 0 && errno == EINTR);
  }
  if (done != static_cast<ssize_t>(bytes)) {
    return absl::UnavailableError("the helper in the program's memory has ended");
  }
  memcpy(calls->data(), message_.data() + sizeof(header), calls_bytes);
  if (!payload.empty()) memcpy(payload.data(), message_.data() + sizeof(header) + calls_bytes, payload.size());
  return absl::OkStatus();
}

absl::StatusOr<int64_t> Helper::Call(uint64_t number, std::initializer_list<uint64_t> arguments,
                                     absl::Span<std::byte> payload) {
  std::vector<HelperCall> calls(1);
  calls[0].number = number;
  std::copy(arguments.begin(), arguments.end(), calls[0].arguments);
  NRAM_RETURN_IF_ERROR(Make(&calls, payload));
  return calls[0].result;
}

absl::StatusOr<int64_t> Helper::Lend(int fd) {
  constexpr uint64_t kAt = PayloadAddress(1);
  LendPayload payload;
  payload.part = {reinterpret_cast<void*>(kAt + offsetof(LendPayload, byte)), 1};
  payload.header.msg_iov = reinterpret_cast<iovec*>(kAt + offsetof(LendPayload, part));
  payload.header.msg_iovlen = 1;
  payload.header.msg_control = reinterpret_cast<void*>(kAt + offsetof(LendPayload, control));
  payload.header.msg_controllen = sizeof(payload.control);
  std::vector<HelperCall> calls(1);
  calls[0] = {SYS_recvmsg, {static_cast<uint64_t>(its_socket_), kAt, MSG_CMSG_CLOEXEC}};
  {
    MutexLock lock(&mu_);
    NRAM_RETURN_IF_ERROR(
        MakeLocked(&calls, absl::MakeSpan(reinterpret_cast<std::byte*>(&payload), sizeof(payload)), fd));
  }
  if (calls[0].result < 0) return calls[0].result;
  if (payload.header.msg_controllen < CMSG_LEN(sizeof(int))) return -EMFILE;  // it has no room for one more
  int number;
  memcpy(&number, payload.control + CMSG_LEN(0), sizeof(number));
  return number;
}

bool Helper::End(const std::vector<AddressRun>& unmapped) {
  for (size_t i = 0; i < unmapped.size(); i += kCallsMax) {
    std::vector<HelperCall> calls;
    for (size_t k = i; k < std::min(unmapped.size(), i + kCallsMax); ++k) {
      calls.push_back({SYS_munmap, {unmapped[k].begin, unmapped[k].pages * kPageBytes}});
    }
    if (!Make(&calls).ok()) return false;
  }
  // It does not answer this one.
  (void)Call(SYS_exit_group, {0});
  return true;
}

bool Helper::Dismiss(const std::vector<AddressRun>& unmapped) {
  const bool dismissed = End(unmapped);
  pollfd end = {.fd = pidfd_.get(), .events = POLLIN, .revents = 0};
  (void)poll(&end, 1, kEndMs);
  siginfo_t info = {};
  // It may have been reaped, or have another parent.
  (void)waitid(P_PIDFD, static_cast<id_t>(pidfd_.get()), &info, WEXITED | WNOHANG | __WALL);
  return dismissed;
}

}  // namespace nram
