#include "client/transport/shake_hands.h"

#include <poll.h>

#include "base/clock.h"
#include "base/status.h"

namespace nram {

bool AwaitSocket(int fd, short events, int64_t deadline_ns) {
  while (true) {
    const int64_t left_ns = deadline_ns - MonotonicNs();
    if (left_ns <= 0) return false;
    pollfd waiting{fd, events, 0};
    if (poll(&waiting, 1, static_cast<int>(left_ns / kNsPerMs) + 1) > 0) return true;
  }
}

absl::StatusOr<TlsSession> ShakeHands(int fd, TlsContext* context, const std::string& host, int64_t deadline_ns) {
  TlsHandshake handshake(context, fd, host);
  while (true) {
    NRAM_ASSIGN_OR_RETURN(const TlsHandshake::Step step, handshake.Go());
    if (step == TlsHandshake::Step::kDone) return handshake.Take();
    if (!AwaitSocket(fd, step == TlsHandshake::Step::kWantsOutput ? POLLOUT : POLLIN, deadline_ns)) {
      return absl::DeadlineExceededError("TLS: no answer in time");
    }
  }
}

}  // namespace nram
