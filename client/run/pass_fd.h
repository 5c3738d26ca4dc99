#ifndef NRAM_CLIENT_RUN_PASS_FD_H_
#define NRAM_CLIENT_RUN_PASS_FD_H_

#include <sys/types.h>

#include <cstddef>

#include "absl/types/span.h"
#include "base/fd.h"

namespace nram {

// Sends one message of a few bytes with a copy of the borrowed descriptor. Allocates nothing. Blocks while the socket
// is full. False: it could not be sent.
bool SendWithFd(int socket, absl::Span<const std::byte> bytes, int fd);

// Receives one message, and `fd`, its descriptor, close-on-exec, if it has one. Returns the number of bytes; less than
// 0: errno says why. Blocks until there is a message.
ssize_t ReceiveWithFd(int socket, absl::Span<std::byte> to, UniqueFd* fd);

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_PASS_FD_H_
