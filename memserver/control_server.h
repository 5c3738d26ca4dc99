#ifndef NRAM_MEMSERVER_CONTROL_SERVER_H_
#define NRAM_MEMSERVER_CONTROL_SERVER_H_

// The control plane: the only part of the server that includes gRPC.

#include <memory>

#include "absl/status/statusor.h"

namespace grpc {
class Service;
}  // namespace grpc

namespace nram {

class MemServer;

class ControlServer {
 public:
  // Listens where `server`'s options say. `server` must outlive it.
  static absl::StatusOr<std::unique_ptr<ControlServer>> Start(MemServer* server);
  // Waits for calls that are under way, for a second at most.
  virtual ~ControlServer() = default;
  virtual int port() const = 0;
};

// The service's handlers (a v1::Control::Service) without gRPC's server, for who calls them himself. `server` must
// outlive it.
std::unique_ptr<grpc::Service> NewControlService(MemServer* server);

}  // namespace nram

#endif  // NRAM_MEMSERVER_CONTROL_SERVER_H_
