#ifndef NRAM_CLIENT_POOL_POOL_SPEC_H_
#define NRAM_CLIENT_POOL_POOL_SPEC_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/state_dir.h"
#include "client/transport/endpoint.h"

namespace nram {

inline constexpr int kDefaultServerPort = 7070;
inline constexpr size_t kPoolServersMax = 4096;

// Which servers make up a pool: "host:port,host2,unix:/path", or the path of a host file (anything with a slash, or
// after an "@"): one server a line, '#' begins a comment. INVALID_ARGUMENT names the word or the line that is wrong; a
// server that is named twice counts as wrong. NOT_FOUND: no such file.
absl::StatusOr<std::vector<Endpoint>> ParsePoolSpec(absl::string_view spec);
// The text of a host file; `path` stands in messages.
absl::StatusOr<std::vector<Endpoint>> ParseHostFile(absl::string_view text, absl::string_view path);

// The pool that a command means: `flag` if not empty, else $NRAM_POOL, else the local pool that `nram up` started, else
// /etc/nram/pool. The path of a file is made absolute. FAILED_PRECONDITION with advice if there is none of them;
// PERMISSION_DENIED as CheckStateDir.
absl::StatusOr<std::string> ChoosePoolSpec(const std::string& flag);

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_POOL_SPEC_H_
