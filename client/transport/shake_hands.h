#ifndef NRAM_CLIENT_TRANSPORT_SHAKE_HANDS_H_
#define NRAM_CLIENT_TRANSPORT_SHAKE_HANDS_H_

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/tls/context.h"
#include "base/tls/handshake.h"

namespace nram {

// Waits until the socket is ready for `events` (POLLIN, POLLOUT). False: not before the deadline.
bool AwaitSocket(int fd, short events, int64_t deadline_ns);

// A client's handshake over a connected, non-blocking socket. Blocks until the deadline at most. `host`: the dialled
// name or address. UNAUTHENTICATED, INVALID_ARGUMENT: the server is not the right one, or speaks no TLS; the text says
// which side lacks what. UNAVAILABLE, DEADLINE_EXCEEDED.
absl::StatusOr<TlsSession> ShakeHands(int fd, TlsContext* context, const std::string& host, int64_t deadline_ns);

}  // namespace nram

#endif  // NRAM_CLIENT_TRANSPORT_SHAKE_HANDS_H_
