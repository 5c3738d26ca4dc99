#include "tests/sim/fiber_control.h"

#include <glog/logging.h>

#include <string>
#include <utility>

#include "base/status.h"
#include "tests/sim/fibers.h"
#include "tests/sim/sim_control.h"

namespace nram::sim {
namespace {

// The counterpart of control_client.cc, which uses gRPC. Calls that regions do not need are missing.
class FiberControl : public ControlClient {
 public:
  FiberControl(World* world, Network* network, HostId client, SimServer* server)
      : control_(world, network, client, server) {}

  absl::StatusOr<ServerHello> Hello(int64_t) override { return NotHere(); }
  absl::StatusOr<LeaseInfo> GrantLease(LeaseId lease, const std::string& client_name, int64_t ttl_ms,
                                       int64_t deadline_ns, bool expendable) override {
    v1::LeaseReply reply;
    NRAM_RETURN_IF_ERROR(Run(ControlCodec::GrantLease(lease, client_name, ttl_ms, expendable),
                             &ControlService::GrantLease, deadline_ns, &reply));
    return codec().Parse(reply);
  }
  absl::StatusOr<LeaseInfo> RenewLease(LeaseId, const CopiesReport&, int64_t) override { return NotHere(); }
  absl::Status EndLease(LeaseId lease, int64_t deadline_ns) override {
    v1::EndLeaseReply reply;
    return Run(ControlCodec::EndLease(lease), &ControlService::EndLease, deadline_ns, &reply);
  }
  absl::StatusOr<LeaseInfo> Reserve(LeaseId, int64_t, ReserveOrder, int64_t) override { return NotHere(); }
  absl::Status CreateRegion(const CreateRegionArgs& args, int64_t deadline_ns) override {
    v1::CreateRegionReply reply;
    return Run(ControlCodec::CreateRegion(args), &ControlService::CreateRegion, deadline_ns, &reply);
  }
  absl::StatusOr<RegionInfo> AttachRegion(const AttachRegionArgs& args, int64_t deadline_ns) override {
    v1::AttachRegionReply reply;
    NRAM_RETURN_IF_ERROR(Run(ControlCodec::AttachRegion(args), &ControlService::AttachRegion, deadline_ns, &reply));
    return codec().Parse(reply, args);
  }
  absl::Status SetView(const SetViewArgs& args, int64_t deadline_ns) override {
    v1::SetViewReply reply;
    return Run(ControlCodec::SetView(args), &ControlService::SetView, deadline_ns, &reply);
  }
  absl::StatusOr<bool> DestroyRegion(LeaseId lease, RegionId region, bool force, int64_t deadline_ns) override {
    return Destroy(ControlCodec::DestroyRegion(lease, region, force), deadline_ns);
  }
  absl::StatusOr<bool> DestroyOf(const std::string&, RegionId, bool, int64_t) override { return NotHere(); }
  absl::StatusOr<bool> DestroyView(LeaseId lease, RegionId region, Epoch epoch, uint64_t view,
                                   int64_t deadline_ns) override {
    v1::DestroyRegionRequest request = ControlCodec::DestroyRegion(lease, region, /*force=*/true);
    request.set_epoch(Raw(epoch));
    request.set_view(view);
    return Destroy(request, deadline_ns);
  }
  absl::StatusOr<std::vector<RegionInfo>> ListRegions(bool, bool, int64_t) override { return NotHere(); }
  absl::Status ListSpans(RegionId region, int64_t deadline_ns,
                         absl::FunctionRef<absl::Status(uint64_t, SpanGeneration)> visit,
                         VersionNumber version) override {
    v1::ListSpansRequest request = ControlCodec::ListSpans(region, version);
    for (bool more = true; more;) {
      v1::ListSpansReply reply;
      NRAM_RETURN_IF_ERROR(Run(request, &ControlService::ListSpans, deadline_ns, &reply));
      NRAM_ASSIGN_OR_RETURN(more, codec().VisitPage(reply, &request, visit));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<VersionList> ListVersions(RegionId region, int64_t deadline_ns) override {
    v1::ListVersionsReply reply;
    NRAM_RETURN_IF_ERROR(Run(ControlCodec::ListVersions(region), &ControlService::ListVersions, deadline_ns, &reply));
    return codec().Parse(reply);
  }
  absl::StatusOr<uint64_t> HoldVersion(LeaseId lease, RegionId region, VersionNumber version, bool release,
                                       int64_t deadline_ns) override {
    v1::HoldVersionReply reply;
    NRAM_RETURN_IF_ERROR(Run(ControlCodec::HoldVersion(lease, region, version, release), &ControlService::HoldVersion,
                             deadline_ns, &reply));
    return reply.incarnation();
  }
  absl::Status ListChanges(RegionId region, VersionNumber from, VersionNumber to, int64_t deadline_ns,
                           absl::FunctionRef<absl::Status(uint64_t, const ChangedPages&)> visit) override {
    v1::ListChangesRequest request = ControlCodec::ListChanges(region, from, to);
    for (bool more = true; more;) {
      v1::ListChangesReply reply;
      NRAM_RETURN_IF_ERROR(Run(request, &ControlService::ListChanges, deadline_ns, &reply));
      NRAM_ASSIGN_OR_RETURN(more, codec().VisitPage(reply, &request, visit));
    }
    return absl::OkStatus();
  }
  absl::StatusOr<ServerStatistics> GetStatistics(int64_t) override { return NotHere(); }
  absl::Status Drain(bool, bool, int64_t) override { return NotHere(); }

 private:
  static absl::Status NotHere() {
    LOG(FATAL) << "sessions ask that, and administrators do";
    return absl::UnimplementedError("");
  }
  const ControlCodec& codec() const { return control_.codec(); }

  absl::StatusOr<bool> Destroy(const v1::DestroyRegionRequest& request, int64_t deadline_ns) {
    v1::DestroyRegionReply reply;
    NRAM_RETURN_IF_ERROR(Run(request, &ControlService::DestroyRegion, deadline_ns, &reply));
    return reply.existed();
  }

  template <typename Request, typename Reply>
  absl::Status Run(const Request& request,
                   absl::Status (ControlService::*handler)(const Caller&, const Request&, Reply*), int64_t deadline_ns,
                   Reply* reply) {
    struct Answer {
      bool came = false;
      absl::Status status;
      Reply reply;
    };
    // The program may be dead by then.
    const auto answer = std::make_shared<Answer>();
    control_.Call<Request, Reply>(request, handler, deadline_ns, [answer](absl::Status status, const Reply& came) {
      *answer = {true, std::move(status), came};
      Fibers::Current()->Wake(answer.get());
    });
    while (!answer->came) (void)Fibers::Current()->WaitFor(answer.get(), INT64_MAX / 2);
    *reply = std::move(answer->reply);
    return answer->status;
  }

  SimControl control_;
};

}  // namespace

std::unique_ptr<ControlClient> NewFiberControl(World* world, Network* network, HostId client, SimServer* server) {
  return std::make_unique<FiberControl>(world, network, client, server);
}

}  // namespace nram::sim
