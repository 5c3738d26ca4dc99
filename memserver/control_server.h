#ifndef NRAM_MEMSERVER_CONTROL_SERVER_H_
#define NRAM_MEMSERVER_CONTROL_SERVER_H_

// The control plane: the only part of the server that includes gRPC.

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"

namespace nram {

class MemServer;

class ControlServer {
 public:
  // Listens where `server`'s options say. `server` must outlive it.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(MemServer* server, size_t connections_max);
  // Waits for calls that are under way; for their answers to be taken a second at most.
  virtual ~ControlServer() = default;
  virtual int port() const = 0;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_CONTROL_SERVER_H_
