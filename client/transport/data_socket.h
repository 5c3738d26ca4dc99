#ifndef NRAM_CLIENT_TRANSPORT_DATA_SOCKET_H_
#define NRAM_CLIENT_TRANSPORT_DATA_SOCKET_H_

// Which Unix socket a client speaks to because a server has named it.

#include <sys/types.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nram {

// A server could name any socket of its host, so that this process, with its own rights, speaks to somebody whom the
// server may not reach. So a data socket must be what `nram-memserver --socket=PATH` makes: PATH.data beside PATH, both
// of them sockets (no links) of the same owner. Returns that owner: whoever listens must be it (CheckPeer).
// NOT_FOUND: there is none here, or this process may not use it: another container or user, which is nobody's fault.
// PERMISSION_DENIED: it is there, and not what it should be.
absl::StatusOr<uid_t> CheckDataSocket(const std::string& path);

// Where a server whose control plane is at `path` has its data plane, links in the path resolved.
std::string DataSocketBeside(const std::string& path);

// PERMISSION_DENIED unless the process that listens at the other end of the connected Unix socket `fd` is `owner`'s.
absl::Status CheckPeer(int fd, uid_t owner);

}  // namespace nram

#endif  // NRAM_CLIENT_TRANSPORT_DATA_SOCKET_H_
