#ifndef NRAM_MEMSERVER_CONTROL_SERVER_H_
#define NRAM_MEMSERVER_CONTROL_SERVER_H_

// The control plane: the only part of the server that includes gRPC.

#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "memserver/surroundings.h"

namespace nram {

class Access;
class Handshakes;
class ServerCore;

struct ControlServerOptions {
  std::string address = "127.0.0.1";  // numeric IPv4 or IPv6
  int port = 0;                       // 0: the kernel chooses
  std::string socket_path;            // of a Unix socket; empty: none
  size_t connections_max = 64;
  const Access* access = nullptr;    // the callers' rights; not null, and not owned
  Handshakes* handshakes = nullptr;  // not owned; stopped before the server ends
  bool has_tls = false;              // connections over TCP speak TLS
};

class ControlServer {
 public:
  // Listens and serves. `core` must outlive the server, and so must everything that `look_around` uses. The server puts
  // its own address into the result of `look_around`.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(const ControlServerOptions& options, ServerCore* core,
                                                              LookAround look_around);
  // Waits for calls that are under way, and a second at most until clients have taken the answers.
  virtual ~ControlServer() = default;
  virtual int port() const = 0;
  // As ControlConnections::CutNewest. Thread-safe.
  virtual size_t CutNewest(size_t most) = 0;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_CONTROL_SERVER_H_
