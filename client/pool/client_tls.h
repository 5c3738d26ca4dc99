#ifndef NRAM_CLIENT_POOL_CLIENT_TLS_H_
#define NRAM_CLIENT_POOL_CLIENT_TLS_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/endpoint.h"
#include "base/tls/context.h"

namespace nram {

// The certificates with which this process dials these servers: of $NRAM_TLS_DIR, else of /etc/nram/tls if that has a
// client's. Null, and nothing is read, if all are Unix sockets, or if there are no certificates: then it speaks plain.
// Files that are there and cannot be used are an error, which names them: a client that has certificates never speaks
// plain. `directory`: replaces the variable's; "": none.
absl::StatusOr<std::shared_ptr<TlsContext>> FindClientTls(absl::Span<const Endpoint> servers,
                                                          const std::string& directory = "");

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_CLIENT_TLS_H_
