#ifndef NRAM_MEMSERVER_CONTROL_SERVICE_H_
#define NRAM_MEMSERVER_CONTROL_SERVICE_H_

// What the control plane's calls do (proto/control.proto); how they come and go is ControlServer's.

#include <grpcpp/support/status.h>

#include <atomic>
#include <string>

#include "memserver/lease_table.h"
#include "proto/control.pb.h"

namespace nram {

class MemServer;

// Thread-safe. Nothing waits for the network. Those that free or list much may take long: DestroyRegion, EndLease,
// ListRegions, ListSpans and GetStatistics.
class ControlService {
 public:
  // What a request, and the answer to a list, may have in bytes.
  static constexpr size_t kRequestBytesMax = 64 << 10;
  static constexpr size_t kListBytes = 256 << 10;

  // `server` is not owned.
  explicit ControlService(MemServer* server);
  // Told by statistics.
  void SetPort(int port) { port_ = port; }

  grpc::Status Hello(const v1::HelloRequest& request, v1::HelloReply* reply);
  grpc::Status GrantLease(const v1::GrantLeaseRequest& request, v1::LeaseReply* reply);
  grpc::Status RenewLease(const v1::RenewLeaseRequest& request, v1::LeaseReply* reply);
  grpc::Status EndLease(const v1::EndLeaseRequest& request, v1::EndLeaseReply* reply);
  grpc::Status Reserve(const v1::ReserveRequest& request, v1::LeaseReply* reply);
  grpc::Status CreateRegion(const v1::CreateRegionRequest& request, v1::CreateRegionReply* reply);
  grpc::Status AttachRegion(const v1::AttachRegionRequest& request, v1::AttachRegionReply* reply);
  grpc::Status DestroyRegion(const v1::DestroyRegionRequest& request, v1::DestroyRegionReply* reply);
  grpc::Status ListRegions(const v1::ListRegionsRequest& request, v1::ListRegionsReply* reply);
  grpc::Status ListSpans(const v1::ListSpansRequest& request, v1::ListSpansReply* reply);
  grpc::Status GetStatistics(const v1::GetStatisticsRequest& request, v1::Statistics* reply);
  grpc::Status Drain(const v1::DrainRequest& request, v1::DrainReply* reply);

 private:
  void FillCapacity(v1::Capacity* capacity) const;
  void FillHost(v1::HostState* host) const;
  void FillLease(const Lease& lease, v1::LeaseReply* reply) const;

  MemServer* const server_;
  const std::string boot_id_;
  std::string hostname_;
  std::atomic<int> port_{0};
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_CONTROL_SERVICE_H_
