#ifndef NRAM_CLIENT_TRANSPORT_DATA_SOCKET_H_
#define NRAM_CLIENT_TRANSPORT_DATA_SOCKET_H_

// Checks the Unix sockets of a server: which user listens there.

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nram {

// A server could name any socket of its host. This process would then speak, with its own rights, to a process that the
// server may not reach. So a data socket must be one that `nram-memserver --socket=PATH` makes: PATH.data beside PATH,
// both of them sockets (no links) of the same owner. Returns that owner, which must also be the listener's (CheckPeer).
// NOT_FOUND: there is no such socket here, or this process may not use it (another container or user).
// PERMISSION_DENIED: the path is something else.
absl::StatusOr<uid_t> CheckDataSocket(const std::string& path);

// The path of the data plane of a server whose control plane is at `path`. Links in the path are resolved.
std::string DataSocketBeside(const std::string& path);

// Checks a control socket that the user has named. The listener at the other end of the connected `fd` must be root,
// this user, or a user who alone, but for root, can write to the socket's directory and to those above it (above it may
// be a /tmp). In a /tmp, another user may make a directory anew that is gone.
// PERMISSION_DENIED else: in a place where other users can write, any of them may listen.
absl::Status CheckListener(int fd, const std::string& path);

// PERMISSION_DENIED unless the listener at the other end of the connected Unix socket `fd` is a process of `owner`.
absl::Status CheckPeer(int fd, uid_t owner);

}  // namespace nram

#endif  // NRAM_CLIENT_TRANSPORT_DATA_SOCKET_H_
