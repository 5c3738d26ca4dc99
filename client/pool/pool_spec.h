#ifndef NRAM_CLIENT_POOL_POOL_SPEC_H_
#define NRAM_CLIENT_POOL_POOL_SPEC_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/endpoint.h"
#include "base/state_dir.h"
#include "client/pool/options.h"
#include "members/find_members.h"
#include "members/host_file.h"

namespace nram {

// The servers that make up a pool:
//   host:port,host2,unix:/path   these
//   PATH or @PATH                those of a host file (anything with a slash, or after an "@"): one server a line, '#'
//                                begins a comment
//   dns:NAME[:PORT]              the addresses of a name
//   etcd:HOST[:PORT],.../NAME    those that are registered in etcd
// INVALID_ARGUMENT names the word or the line that is wrong; a server that is named twice counts as wrong. NOT_FOUND:
// no such file. Asks DNS or etcd once, and blocks for a few seconds at most; if they do not answer, their former answer
// counts. The result's source is to be watched by pools that stay open; null where the list never changes: servers by
// name, and files that are none (a pipe can be read once).
absl::StatusOr<FoundMembers> FindPool(absl::string_view spec);

// The servers alone.
absl::StatusOr<std::vector<Endpoint>> ParsePoolSpec(absl::string_view spec);

// Has `options` use the pool, and the certificates for it ($NRAM_TLS_DIR): FindPool and FindClientTls.
absl::Status UsePool(absl::string_view spec, PoolOptions* options);

// The pool that a command means: `flag` if not empty, else $NRAM_POOL, else the local pool that `nram up` started, else
// /etc/nram/pool. The path of a file is made absolute. FAILED_PRECONDITION with advice if there is none of them;
// PERMISSION_DENIED as CheckStateDir.
absl::StatusOr<std::string> ChoosePoolSpec(const std::string& flag);

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_POOL_SPEC_H_
