#include "client/run/helper.h"

#include <glog/logging.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/status.h"
#include "base/units.h"

namespace nram {

absl::Status Helper::Make(std::vector<HelperCall>* calls, absl::Span<std::byte> payload) {
  const size_t calls_bytes = calls->size() * sizeof(HelperCall);
  const size_t bytes = sizeof(HelperHeader) + calls_bytes + payload.size();
  CHECK_LE(calls->size(), kCallsMax);
  CHECK_LE(bytes, HelperPlace::kMessageBytes);
  MutexLock lock(&mu_);
  message_.resize(bytes);
  const HelperHeader header{.calls = calls->size()};
  memcpy(message_.data(), &header, sizeof(header));
  memcpy(message_.data() + sizeof(header), calls->data(), calls_bytes);
  if (!payload.empty()) memcpy(message_.data() + sizeof(header) + calls_bytes, payload.data(), payload.size());
  ssize_t done;
  do {
    done = send(socket_.get(), message_.data(), bytes, MSG_NOSIGNAL);
  } while (done < 0 && errno == EINTR);
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

void Helper::Dismiss(const std::vector<AddressRun>& unmapped) {
  for (size_t i = 0; i < unmapped.size(); i += kCallsMax) {
    std::vector<HelperCall> calls;
    for (size_t k = i; k < std::min(unmapped.size(), i + kCallsMax); ++k) {
      calls.push_back({SYS_munmap, {unmapped[k].begin, unmapped[k].pages * kPageBytes}});
    }
    if (!Make(&calls).ok()) return;
  }
  // It does not answer this one.
  (void)Call(SYS_exit_group, {0});
}

}  // namespace nram
