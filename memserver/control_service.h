#ifndef NRAM_MEMSERVER_CONTROL_SERVICE_H_
#define NRAM_MEMSERVER_CONTROL_SERVICE_H_

// The control plane's calls (proto/control.proto), without gRPC. ControlServer carries requests and replies.

#include <cstddef>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "memserver/server_core.h"
#include "memserver/surroundings.h"
#include "memserver/tenant.h"
#include "proto/control.pb.h"

namespace nram {

// The caller. `tenant` is null for a caller without one, which calls nothing that needs one.
struct Caller {
  Tenant* tenant = nullptr;
  std::string identity;
  std::string role;
  bool sees_others = false;  // what clients of other tenants have told of their copies
};

// The caller's right to a request was checked before (access.h). A tenant sees and changes only its own data.
//
// Thread-safe. Nothing waits for the network. After an error the reply is unspecified. Calls that free or list much may
// take long: DestroyRegion, EndLease, ListRegions, ListSpans, ListChanges and GetStatistics.
class ControlService {
 public:
  // Bounds on a request, and on a list in an answer.
  static constexpr size_t kRequestBytesMax = 64 << 10;
  static constexpr size_t kListBytes = 256 << 10;

  // `core` is not owned.
  ControlService(ServerCore* core, LookAround look_around) : core_(core), look_around_(std::move(look_around)) {}

  absl::Status Hello(const Caller& caller, const v1::HelloRequest& request, v1::HelloReply* reply);
  absl::Status GrantLease(const Caller& caller, const v1::GrantLeaseRequest& request, v1::LeaseReply* reply);
  absl::Status RenewLease(const Caller& caller, const v1::RenewLeaseRequest& request, v1::LeaseReply* reply);
  absl::Status EndLease(const Caller& caller, const v1::EndLeaseRequest& request, v1::EndLeaseReply* reply);
  // UNAVAILABLE: another Reserve of the lease is under way; nothing has changed.
  absl::Status Reserve(const Caller& caller, const v1::ReserveRequest& request, v1::LeaseReply* reply);
  absl::Status CreateRegion(const Caller& caller, const v1::CreateRegionRequest& request, v1::CreateRegionReply* reply);
  absl::Status AttachRegion(const Caller& caller, const v1::AttachRegionRequest& request, v1::AttachRegionReply* reply);
  absl::Status SetView(const Caller& caller, const v1::SetViewRequest& request, v1::SetViewReply* reply);
  absl::Status DestroyRegion(const Caller& caller, const v1::DestroyRegionRequest& request,
                             v1::DestroyRegionReply* reply);
  absl::Status ListRegions(const Caller& caller, const v1::ListRegionsRequest& request, v1::ListRegionsReply* reply);
  absl::Status ListSpans(const Caller& caller, const v1::ListSpansRequest& request, v1::ListSpansReply* reply);
  absl::Status ListVersions(const Caller& caller, const v1::ListVersionsRequest& request, v1::ListVersionsReply* reply);
  absl::Status HoldVersion(const Caller& caller, const v1::HoldVersionRequest& request, v1::HoldVersionReply* reply);
  absl::Status ListChanges(const Caller& caller, const v1::ListChangesRequest& request, v1::ListChangesReply* reply);
  absl::Status GetStatistics(const Caller& caller, const v1::GetStatisticsRequest& request, v1::Statistics* reply);
  absl::Status Drain(const Caller& caller, const v1::DrainRequest& request, v1::DrainReply* reply);

 private:
  // `tenant` (may be null): limits the free memory.
  void FillCapacity(const Tenant* tenant, v1::Capacity* capacity) const;
  // The tenant's quota and its use, if it has one.
  static void FillQuota(const Tenant& tenant, v1::Capacity* capacity);
  void FillHost(const Surroundings& around, v1::HostState* host) const;
  void FillLease(const Lease& lease, v1::LeaseReply* reply) const;
  absl::Status ReserveLocked(const Caller& caller, const v1::ReserveRequest& request, Lease* lease,
                             v1::LeaseReply* reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lease->reserve_mu);
  void FillCopies(const Caller& caller, v1::Statistics* reply) const;
  // Versions yield where that helps; `ahead` of need, those alone that are not held. False: there is no room.
  bool ReservePages(uint64_t pages, bool ahead, Lease* lease);

  ServerCore* const core_;
  const LookAround look_around_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_CONTROL_SERVICE_H_
