#ifndef NRAM_CLIENT_TRANSPORT_CONTROL_CODEC_H_
#define NRAM_CLIENT_TRANSPORT_CONTROL_CODEC_H_

// The client's side of the control plane's messages: makes requests from plain values, and plain structs from replies.
// Messages travel over a channel; ControlClient has gRPC's.

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/units.h"
#include "client/transport/control_client.h"
#include "proto/control.pb.h"

namespace nram {

// For one server. Immutable and pure, so any number of threads may use it.
//
// Servers are not trusted. Numbers of bytes are bounded, so that their sums do not overflow. Texts for people are
// Printable. An answer that cannot be true is FAILED_PRECONDITION.
class ControlCodec {
 public:
  // `server` names the server in errors: "10.0.0.7:7070".
  explicit ControlCodec(std::string server) : server_(std::move(server)) {}

  const std::string& server() const { return server_; }

  static v1::HelloRequest Hello();
  static v1::GrantLeaseRequest GrantLease(LeaseId lease, const std::string& client_name, int64_t ttl_ms,
                                          bool expendable = false);
  static v1::RenewLeaseRequest RenewLease(LeaseId lease, const CopiesReport& copies);
  static v1::EndLeaseRequest EndLease(LeaseId lease);
  static v1::ReserveRequest Reserve(LeaseId lease, int64_t pages, ReserveOrder order);
  static v1::CreateRegionRequest CreateRegion(const CreateRegionArgs& args);
  static v1::AttachRegionRequest AttachRegion(const AttachRegionArgs& args);
  static v1::SetViewRequest SetView(const SetViewArgs& args);
  static v1::DestroyRegionRequest DestroyRegion(LeaseId lease, RegionId region, bool force);
  static v1::ListRegionsRequest ListRegions(bool orphans_only, bool all_tenants);
  static v1::ListSpansRequest ListSpans(RegionId region, VersionNumber version = {});
  static v1::ListVersionsRequest ListVersions(RegionId region);
  static v1::HoldVersionRequest HoldVersion(LeaseId lease, RegionId region, VersionNumber version, bool release);
  static v1::ListChangesRequest ListChanges(RegionId region, VersionNumber from, VersionNumber to);
  static v1::DrainRequest Drain(bool draining, bool leaving);

  // FAILED_PRECONDITION also if the server speaks another version.
  absl::StatusOr<ServerHello> Parse(const v1::HelloReply& reply) const;
  absl::StatusOr<LeaseInfo> Parse(const v1::LeaseReply& reply) const;
  // `args`: of the request.
  absl::StatusOr<RegionInfo> Parse(const v1::AttachRegionReply& reply, const AttachRegionArgs& args) const;
  static ServerStatistics Parse(const v1::Statistics& reply);
  absl::StatusOr<VersionList> Parse(const v1::ListVersionsReply& reply) const;

  struct RegionList {
    std::vector<RegionInfo> regions;  // without their incarnations and manifests
    size_t bytes = 0;                 // of all pages on the wire, and of `regions`
  };
  // Appends a page to `list`, which is empty at first. True: `request` now asks for the next page. RESOURCE_EXHAUSTED:
  // the list is longer than 256 MiB.
  absl::StatusOr<bool> AddPage(const v1::ListRegionsReply& reply, v1::ListRegionsRequest* request,
                               RegionList* list) const;
  // Calls `visit` for each span of a page, in order, until the first error. True: `request` now asks for the next page.
  absl::StatusOr<bool> VisitPage(const v1::ListSpansReply& reply, v1::ListSpansRequest* request,
                                 absl::FunctionRef<absl::Status(uint64_t, SpanGeneration)> visit) const;
  absl::StatusOr<bool> VisitPage(const v1::ListChangesReply& reply, v1::ListChangesRequest* request,
                                 absl::FunctionRef<absl::Status(uint64_t, const ChangedPages&)> visit) const;

  // The error of a call that has no reply. `message` is the server's; it may quote names that others chose.
  absl::Status Refusal(absl::StatusCode code, absl::string_view message) const;

 private:
  absl::Status Nonsense(absl::string_view what) const;

  const std::string server_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_TRANSPORT_CONTROL_CODEC_H_
