#include "client/transport/control_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/sync.h"
#include "client/transport/control_codec.h"
#include "proto/control.grpc.pb.h"

namespace nram {
namespace {

// A server whose reply is longer is broken, or lies.
constexpr int kReplyBytesMax = 4 << 20;

class GrpcControlClient final : public ControlClient {
 public:
  explicit GrpcControlClient(const Endpoint& endpoint) : codec_(endpoint.ToString()), stub_(NewStub()) {}

  absl::StatusOr<ServerHello> Hello(int64_t deadline_ns) override {
    v1::HelloReply reply;
    const absl::Status status = Run(&v1::Control::Stub::Hello, codec_.Hello(), &reply, deadline_ns);
    // A server of wire 6 says which versions do not fit, but not what to do.
    if (absl::IsFailedPrecondition(status) && !absl::StrContains(status.message(), "install the same release")) {
      return absl::FailedPreconditionError(
          absl::StrCat(status.message(), ": install the same release of nram on both machines"));
    }
    NRAM_RETURN_IF_ERROR(status);
    return codec_.Parse(reply);
  }

  absl::StatusOr<LeaseInfo> GrantLease(LeaseId lease, const std::string& client_name, int64_t ttl_ms,
                                       int64_t deadline_ns) override {
    return RunLease(&v1::Control::Stub::GrantLease, codec_.GrantLease(lease, client_name, ttl_ms), deadline_ns);
  }

  absl::StatusOr<LeaseInfo> RenewLease(LeaseId lease, const CopiesReport& copies, int64_t deadline_ns) override {
    return RunLease(&v1::Control::Stub::RenewLease, codec_.RenewLease(lease, copies), deadline_ns);
  }

  absl::Status EndLease(LeaseId lease, int64_t deadline_ns) override {
    v1::EndLeaseReply reply;
    return Run(&v1::Control::Stub::EndLease, codec_.EndLease(lease), &reply, deadline_ns);
  }

  absl::StatusOr<LeaseInfo> Reserve(LeaseId lease, int64_t pages, ReserveOrder order, int64_t deadline_ns) override {
    return RunLease(&v1::Control::Stub::Reserve, codec_.Reserve(lease, pages, order), deadline_ns);
  }

  absl::Status CreateRegion(const CreateRegionArgs& args, int64_t deadline_ns) override {
    v1::CreateRegionReply reply;
    return Run(&v1::Control::Stub::CreateRegion, codec_.CreateRegion(args), &reply, deadline_ns);
  }

  absl::StatusOr<RegionInfo> AttachRegion(const AttachRegionArgs& args, int64_t deadline_ns) override {
    v1::AttachRegionReply reply;
    NRAM_RETURN_IF_ERROR(Run(&v1::Control::Stub::AttachRegion, codec_.AttachRegion(args), &reply, deadline_ns));
    return codec_.Parse(reply, args);
  }

  absl::Status SetView(const SetViewArgs& args, int64_t deadline_ns) override {
    v1::SetViewReply reply;
    return Run(&v1::Control::Stub::SetView, codec_.SetView(args), &reply, deadline_ns);
  }

  absl::StatusOr<bool> DestroyRegion(LeaseId lease, RegionId region, bool force, int64_t deadline_ns) override {
    v1::DestroyRegionReply reply;
    NRAM_RETURN_IF_ERROR(
        Run(&v1::Control::Stub::DestroyRegion, codec_.DestroyRegion(lease, region, force), &reply, deadline_ns));
    return reply.existed();
  }

  absl::StatusOr<bool> DestroyView(LeaseId lease, RegionId region, Epoch epoch, uint64_t view,
                                   int64_t deadline_ns) override {
    v1::DestroyRegionReply reply;
    v1::DestroyRegionRequest request = codec_.DestroyRegion(lease, region, /*force=*/true);
    request.set_epoch(Raw(epoch));
    request.set_view(view);
    NRAM_RETURN_IF_ERROR(Run(&v1::Control::Stub::DestroyRegion, request, &reply, deadline_ns));
    return reply.existed();
  }

  absl::StatusOr<std::vector<RegionInfo>> ListRegions(bool orphans_only, bool named_only,
                                                      int64_t deadline_ns) override {
    ControlCodec::RegionList list;
    v1::ListRegionsRequest request = codec_.ListRegions(orphans_only, named_only);
    for (bool more = true; more;) {
      v1::ListRegionsReply reply;
      NRAM_RETURN_IF_ERROR(Run(&v1::Control::Stub::ListRegions, request, &reply, deadline_ns));
      NRAM_ASSIGN_OR_RETURN(more, codec_.AddPage(reply, &request, &list));
    }
    return std::move(list.regions);
  }

  absl::Status ListSpans(RegionId region, int64_t deadline_ns,
                         absl::FunctionRef<absl::Status(uint64_t, SpanGeneration)> visit) override {
    v1::ListSpansRequest request = codec_.ListSpans(region);
    for (bool more = true; more;) {
      v1::ListSpansReply reply;
      NRAM_RETURN_IF_ERROR(Run(&v1::Control::Stub::ListSpans, request, &reply, deadline_ns));
      NRAM_ASSIGN_OR_RETURN(more, codec_.VisitPage(reply, &request, visit));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ServerStatistics> GetStatistics(int64_t deadline_ns) override {
    v1::Statistics reply;
    NRAM_RETURN_IF_ERROR(Run(&v1::Control::Stub::GetStatistics, v1::GetStatisticsRequest(), &reply, deadline_ns));
    return codec_.Parse(reply);
  }

  absl::Status Drain(bool draining, bool leaving, int64_t deadline_ns) override {
    v1::DrainReply reply;
    return Run(&v1::Control::Stub::Drain, codec_.Drain(draining, leaving), &reply, deadline_ns);
  }

 private:
  std::shared_ptr<v1::Control::Stub> NewStub() const {
    grpc::ChannelArguments args;
    // This also bounds one attempt to connect.
    args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // Each client has a connection of its own, so that a client that hangs does not hang another.
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args.SetMaxReceiveMessageSize(kReplyBytesMax);
    return v1::Control::NewStub(grpc::CreateCustomChannel(codec_.server(), grpc::InsecureChannelCredentials(), args));
  }

  template <typename Method, typename Request, typename Reply>
  absl::Status Run(Method method, const Request& request, Reply* reply, int64_t deadline_ns) {
    grpc::ClientContext context;
    const int64_t left_ns = std::max<int64_t>(deadline_ns - MonotonicNs(), 0);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(left_ns));
    // Waits until the deadline only while a connection is being made; a refused one fails at once.
    std::shared_ptr<v1::Control::Stub> stub;
    {
      MutexLock lock(&mu_);
      stub = stub_;
    }
    const grpc::Status status = (stub.get()->*method)(&context, request, reply);
    if (status.ok()) return absl::OkStatus();
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      // The connection may wait for a network that was cut, long after the network is back. The next call gets another.
      MutexLock lock(&mu_);
      if (stub_ == stub) stub_ = NewStub();
    }
    auto code = static_cast<absl::StatusCode>(status.error_code());
    // gRPC itself says RESOURCE_EXHAUSTED when it is short of threads; a full server says OUT_OF_RANGE.
    if (code == absl::StatusCode::kResourceExhausted) code = absl::StatusCode::kUnavailable;
    if (code == absl::StatusCode::kOutOfRange) code = absl::StatusCode::kResourceExhausted;
    return codec_.Refusal(code, status.error_message());
  }

  template <typename Method, typename Request>
  absl::StatusOr<LeaseInfo> RunLease(Method method, const Request& request, int64_t deadline_ns) {
    v1::LeaseReply reply;
    NRAM_RETURN_IF_ERROR(Run(method, request, &reply, deadline_ns));
    return codec_.Parse(reply);
  }

  const ControlCodec codec_;
  Mutex mu_;
  std::shared_ptr<v1::Control::Stub> stub_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<ControlClient> ControlClient::Create(const Endpoint& endpoint) {
  return std::make_unique<GrpcControlClient>(endpoint);
}

}  // namespace nram
