#include "client/run/helper.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstring>

#include "base/status.h"
#include "base/units.h"
#include "client/run/pass_fd.h"

namespace nram {

namespace {

constexpr int kEndMs = 1000;

// The message of recvmsg(2) and sendmsg(2) in the helper: one byte, with a descriptor.
struct LendPayload {
  msghdr header = {};
  iovec part = {};
  char byte[8] = {};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};

  // `at`: where this is in the helper.
  void Place(uint64_t at) {
    part = {reinterpret_cast<void*>(at + offsetof(LendPayload, byte)), 1};
    header.msg_iov = reinterpret_cast<iovec*>(at + offsetof(LendPayload, part));
    header.msg_iovlen = 1;
    header.msg_control = reinterpret_cast<void*>(at + offsetof(LendPayload, control));
    header.msg_controllen = sizeof(control);
  }
  void Put(int fd) {
    cmsghdr rights = {};
    rights.cmsg_level = SOL_SOCKET;
    rights.cmsg_type = SCM_RIGHTS;
    rights.cmsg_len = CMSG_LEN(sizeof(fd));
    memcpy(control, &rights, sizeof(rights));
    memcpy(control + CMSG_LEN(0), &fd, sizeof(fd));
  }
};
constexpr uint64_t kLendAt = Helper::PayloadAddress(1);

absl::Span<std::byte> BytesOf(LendPayload* payload) {
  return absl::MakeSpan(reinterpret_cast<std::byte*>(payload), sizeof(*payload));
}

}  // namespace

absl::Status Helper::Make(std::vector<HelperCall>* calls, absl::Span<std::byte> payload) {
  MutexLock lock(&mu_);
  return MakeLocked(calls, payload, /*lent=*/-1);
}

absl::Status Helper::MakeLocked(std::vector<HelperCall>* calls, absl::Span<std::byte> payload, int lent,
                                UniqueFd* taken) {
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
  if (done >= 0 && lent >= 0 && !SendWithFd(socket_.get(), absl::MakeConstSpan(message_).first(1), lent)) done = -1;
  UniqueFd fd;
  if (done >= 0) done = HasAnswered() ? ReceiveWithFd(socket_.get(), absl::MakeSpan(message_), &fd) : -1;
  if (done == 1 && taken != nullptr) {
    *taken = std::move(fd);
    done = HasAnswered() ? ReceiveWithFd(socket_.get(), absl::MakeSpan(message_), &fd) : -1;
  }
  if (done != static_cast<ssize_t>(bytes)) {
    return absl::UnavailableError("the helper in the program's memory has ended");
  }
  memcpy(calls->data(), message_.data() + sizeof(header), calls_bytes);
  if (!payload.empty()) memcpy(payload.data(), message_.data() + sizeof(header) + calls_bytes, payload.size());
  return absl::OkStatus();
}

bool Helper::HasAnswered() const {
  // One that has been injected has the only other end of the socket.
  if (reach_ == Reach::kTraces) return true;
  pollfd fds[] = {{socket_.get(), POLLIN, 0}, {pidfd_.get(), POLLIN, 0}};
  while (poll(fds, 2, -1) < 0 && errno == EINTR) {
  }
  return fds[0].revents != 0;
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
  LendPayload payload;
  payload.Place(kLendAt);
  std::vector<HelperCall> calls(1);
  calls[0] = {SYS_recvmsg, {static_cast<uint64_t>(its_socket_), kLendAt, MSG_CMSG_CLOEXEC}};
  {
    MutexLock lock(&mu_);
    NRAM_RETURN_IF_ERROR(MakeLocked(&calls, BytesOf(&payload), fd));
  }
  if (calls[0].result < 0) return calls[0].result;
  if (payload.header.msg_controllen < CMSG_LEN(sizeof(int))) return -EMFILE;  // it has no room for one more
  int number;
  memcpy(&number, payload.control + CMSG_LEN(0), sizeof(number));
  return number;
}

absl::StatusOr<UniqueFd> Helper::Take(int number) {
  LendPayload payload;
  payload.Place(kLendAt);
  payload.Put(number);
  std::vector<HelperCall> calls(1);
  calls[0] = {SYS_sendmsg, {static_cast<uint64_t>(its_socket_), kLendAt, MSG_NOSIGNAL}};
  UniqueFd taken;
  {
    MutexLock lock(&mu_);
    NRAM_RETURN_IF_ERROR(MakeLocked(&calls, BytesOf(&payload), /*lent=*/-1, &taken));
  }
  if (calls[0].result < 0) return ErrnoStatus(static_cast<int>(-calls[0].result), "a descriptor of the helper");
  if (!taken.valid()) return absl::ResourceExhaustedError("a descriptor of the helper: this process has too many");
  return taken;
}

absl::Status Helper::Settle(int pidfd) {
  std::vector<uint64_t> kept = {static_cast<uint64_t>(its_socket_)};
  if (pidfd >= 0) kept.push_back(static_cast<uint64_t>(pidfd));
  std::sort(kept.begin(), kept.end());
  std::vector<HelperCall> calls = {{SYS_setsid, {}}};
  uint64_t next = 0;
  for (const uint64_t number : kept) {
    if (number > next) calls.push_back({SYS_close_range, {next, number - 1, 0}});
    next = number + 1;
  }
  calls.push_back({SYS_close_range, {next, ~0u, 0}});
  calls.push_back({SYS_prctl, {PR_SET_NAME, PayloadAddress(calls.size() + 1)}});
  char name[16] = "nram-helper";
  return Make(&calls, absl::MakeSpan(reinterpret_cast<std::byte*>(name), sizeof(name)));
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
