#include "client/transport/control_client.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/sync.h"
#include "base/utf8.h"
#include "proto/control.grpc.pb.h"
#include "proto/version.h"

namespace nram {
namespace {

// What a reply may be: a server that says more is broken, or lies.
constexpr int kReplyBytesMax = 4 << 20;
constexpr size_t kListBytesMax = 256 << 20;  // of a whole list, on the wire
constexpr uint64_t kBytesMax = uint64_t{1} << 60;
constexpr int kIncarnationsMax = 65'535;
constexpr int64_t kLeaseTtlMinMs = 10;
constexpr int64_t kLeaseTtlMaxMs = 6 * 3'600'000;
constexpr size_t kTextBytesMax = 2000;
constexpr size_t kNameBytesMax = 255;

// Sums of a few of these do not overflow.
uint64_t Bounded(uint64_t bytes) { return std::min(bytes, kBytesMax); }

ServerCapacity FromProto(const v1::Capacity& capacity) {
  return {Bounded(capacity.donated_bytes()), Bounded(capacity.used_bytes()),     Bounded(capacity.promised_bytes()),
          Bounded(capacity.free_bytes()),    Bounded(capacity.overhead_bytes()), capacity.draining()};
}

ServerHost FromProto(const v1::HostState& host) {
  return {Printable(host.boot_id(), kNameBytesMax),
          Printable(host.hostname(), kNameBytesMax),
          Bounded(host.total_bytes()),
          Bounded(host.available_bytes()),
          Bounded(host.idle_bytes()),
          Bounded(host.lendable_bytes()),
          Bounded(host.reserve_bytes())};
}

RegionInfo FromProto(const v1::RegionInfo& region) {
  return {RegionId{region.region_id()},
          region.name(),
          Epoch{region.epoch()},
          region.gc(),
          Printable(region.owner(), kTextBytesMax),
          region.orphan(),
          Bounded(region.stored_bytes()),
          region.spans(),
          {region.incarnations().begin(), region.incarnations().end()},
          region.size_bytes(),
          LeaseId{region.lease_id()}};
}

class GrpcControlClient final : public ControlClient {
 public:
  explicit GrpcControlClient(const Endpoint& endpoint) : name_(endpoint.ToString()), stub_(NewStub()) {}

  absl::StatusOr<ServerHello> Hello(int64_t deadline_ns) override {
    v1::HelloRequest request;
    const WireVersions ours;
    request.set_version_min(ours.lowest);
    request.set_version_max(ours.highest);
    v1::HelloReply reply;
    const absl::Status status = Run(&v1::Control::Stub::Hello, request, &reply, deadline_ns);
    // A server of wire 6 says which versions do not fit, and not what to do.
    if (absl::IsFailedPrecondition(status) && !absl::StrContains(status.message(), "install the same release")) {
      return absl::FailedPreconditionError(
          absl::StrCat(status.message(), ": install the same release of nram on both machines"));
    }
    NRAM_RETURN_IF_ERROR(status);
    if (!ours.Has(reply.version())) {
      return absl::FailedPreconditionError(
          NoCommonVersion(absl::StrCat("memory server ", name_), {reply.version(), reply.version()}, ours));
    }
    if (reply.incarnation() == 0) return Nonsense("incarnation 0");
    if (reply.data_port() > 65'535) return Nonsense(absl::StrCat("data port ", reply.data_port()));
    return ServerHello{reply.incarnation(),     static_cast<int>(reply.data_port()),
                       reply.data_socket(),     FromProto(reply.capacity()),
                       FromProto(reply.host()), static_cast<int64_t>(reply.lease_ttl_ms()),
                       reply.version()};
  }

  absl::StatusOr<LeaseInfo> GrantLease(LeaseId lease, const std::string& owner, int64_t ttl_ms,
                                       int64_t deadline_ns) override {
    v1::GrantLeaseRequest request;
    request.set_lease_id(Raw(lease));
    request.set_owner(owner);
    request.set_ttl_ms(ttl_ms);
    return RunLease(&v1::Control::Stub::GrantLease, request, deadline_ns);
  }

  absl::StatusOr<LeaseInfo> RenewLease(LeaseId lease, int64_t deadline_ns) override {
    v1::RenewLeaseRequest request;
    request.set_lease_id(Raw(lease));
    return RunLease(&v1::Control::Stub::RenewLease, request, deadline_ns);
  }

  absl::Status EndLease(LeaseId lease, int64_t deadline_ns) override {
    v1::EndLeaseRequest request;
    request.set_lease_id(Raw(lease));
    v1::EndLeaseReply reply;
    return Run(&v1::Control::Stub::EndLease, request, &reply, deadline_ns);
  }

  absl::StatusOr<LeaseInfo> Reserve(LeaseId lease, int64_t pages, ReserveOrder order, int64_t deadline_ns) override {
    v1::ReserveRequest request;
    request.set_lease_id(Raw(lease));
    request.set_pages(pages);
    request.set_term(order.term);
    request.set_order(order.number);
    return RunLease(&v1::Control::Stub::Reserve, request, deadline_ns);
  }

  absl::Status CreateRegion(const CreateRegionArgs& args, int64_t deadline_ns) override {
    v1::CreateRegionRequest request;
    request.set_lease_id(Raw(args.lease));
    request.set_region_id(Raw(args.region));
    request.set_epoch(Raw(args.epoch));
    request.set_gc(args.gc);
    request.set_name(args.name);
    request.mutable_incarnations()->Assign(args.incarnations.begin(), args.incarnations.end());
    request.set_size_bytes(args.size_bytes);
    v1::CreateRegionReply reply;
    return Run(&v1::Control::Stub::CreateRegion, request, &reply, deadline_ns);
  }

  absl::StatusOr<RegionInfo> AttachRegion(const AttachRegionArgs& args, int64_t deadline_ns) override {
    v1::AttachRegionRequest request;
    request.set_lease_id(Raw(args.lease));
    request.set_region_id(Raw(args.region));
    request.set_name(args.name);
    request.set_read_only(args.read_only);
    request.set_epoch(Raw(args.epoch));
    request.set_force(args.force);
    v1::AttachRegionReply reply;
    NRAM_RETURN_IF_ERROR(Run(&v1::Control::Stub::AttachRegion, request, &reply, deadline_ns));
    const v1::RegionInfo& region = reply.region();
    const bool is_other = Raw(args.region) != 0 ? region.region_id() != Raw(args.region) : region.name() != args.name;
    if (region.region_id() == 0 || is_other) return Nonsense("a region that was not asked for");
    if (region.size_bytes() > kRegionBytesMax) return Nonsense(absl::StrCat("a size of ", region.size_bytes()));
    if (region.incarnations_size() > kIncarnationsMax) return Nonsense("a region on more than 65535 servers");
    return FromProto(region);
  }

  absl::StatusOr<bool> DestroyRegion(LeaseId lease, RegionId region, bool force, int64_t deadline_ns) override {
    v1::DestroyRegionRequest request;
    request.set_lease_id(Raw(lease));
    request.set_region_id(Raw(region));
    request.set_force(force);
    v1::DestroyRegionReply reply;
    NRAM_RETURN_IF_ERROR(Run(&v1::Control::Stub::DestroyRegion, request, &reply, deadline_ns));
    return reply.existed();
  }

  absl::StatusOr<std::vector<RegionInfo>> ListRegions(bool orphans_only, bool named_only,
                                                      int64_t deadline_ns) override {
    std::vector<RegionInfo> regions;
    size_t bytes = 0;
    v1::ListRegionsRequest request;
    request.set_orphans_only(orphans_only);
    request.set_named_only(named_only);
    while (true) {
      v1::ListRegionsReply reply;
      NRAM_RETURN_IF_ERROR(Run(&v1::Control::Stub::ListRegions, request, &reply, deadline_ns));
      bytes += reply.ByteSizeLong() + reply.regions_size() * sizeof(RegionInfo);
      if (bytes > kListBytesMax) {
        return absl::ResourceExhaustedError(
            absl::StrCat("memory server ", name_, " has more regions than fit into a list: ask for orphans only"));
      }
      uint64_t next = request.from_id();
      for (const v1::RegionInfo& region : reply.regions()) {
        if (region.region_id() < next || region.region_id() == UINT64_MAX) return Nonsense("a list without order");
        next = region.region_id() + 1;
        regions.push_back(FromProto(region));
        regions.back().incarnations = {};
      }
      if (reply.next_id() == 0) return regions;
      if (reply.next_id() < next || reply.regions().empty()) return Nonsense("a list without end");
      request.set_from_id(reply.next_id());
    }
  }

  absl::Status ListSpans(RegionId region, int64_t deadline_ns,
                         absl::FunctionRef<absl::Status(uint64_t)> visit) override {
    v1::ListSpansRequest request;
    request.set_region_id(Raw(region));
    while (true) {
      v1::ListSpansReply reply;
      NRAM_RETURN_IF_ERROR(Run(&v1::Control::Stub::ListSpans, request, &reply, deadline_ns));
      uint64_t next = request.from_span();
      for (const uint64_t span : reply.spans()) {
        if (span < next) return Nonsense("a list without order");
        if (span >= kRegionBytesMax / kSpanBytes) return Nonsense("a span beyond 2^62 bytes");
        next = span + 1;
        NRAM_RETURN_IF_ERROR(visit(span));
      }
      if (reply.next_span() == 0) return absl::OkStatus();
      if (reply.next_span() < next || reply.spans().empty()) return Nonsense("a list without end");
      request.set_from_span(reply.next_span());
    }
  }

  absl::StatusOr<ServerStatistics> GetStatistics(int64_t deadline_ns) override {
    v1::Statistics reply;
    NRAM_RETURN_IF_ERROR(Run(&v1::Control::Stub::GetStatistics, v1::GetStatisticsRequest(), &reply, deadline_ns));
    ServerStatistics statistics{reply.incarnation(),
                                Printable(reply.address(), kNameBytesMax),
                                FromProto(reply.capacity()),
                                FromProto(reply.host()),
                                {}};
    // Every plain number of the message under its own name, so that none is forgotten here.
    const auto* descriptor = reply.GetDescriptor();
    for (int i = 0; i < descriptor->field_count(); ++i) {
      const auto* field = descriptor->field(i);
      if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_UINT64 || field->name() == "incarnation")
        continue;
      statistics.counters.emplace_back(field->name(), reply.GetReflection()->GetUInt64(reply, field));
    }
    return statistics;
  }

  absl::Status Drain(bool draining, int64_t deadline_ns) override {
    v1::DrainRequest request;
    request.set_draining(draining);
    v1::DrainReply reply;
    return Run(&v1::Control::Stub::Drain, request, &reply, deadline_ns);
  }

 private:
  std::shared_ptr<v1::Control::Stub> NewStub() const {
    grpc::ChannelArguments args;
    // Also how long one attempt to connect may take.
    args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);
    args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
    args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 1000);
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // Each client its own connection, so that one that hangs does not hang another.
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args.SetMaxReceiveMessageSize(kReplyBytesMax);
    return v1::Control::NewStub(grpc::CreateCustomChannel(name_, grpc::InsecureChannelCredentials(), args));
  }

  template <typename Method, typename Request, typename Reply>
  absl::Status Run(Method method, const Request& request, Reply* reply, int64_t deadline_ns) {
    grpc::ClientContext context;
    const int64_t left_ns = std::max<int64_t>(deadline_ns - MonotonicNs(), 0);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(left_ns));
    // Tries to connect until the deadline only if a connection is being made; a refused one fails at once.
    std::shared_ptr<v1::Control::Stub> stub;
    {
      MutexLock lock(&mu_);
      stub = stub_;
    }
    const grpc::Status status = (stub.get()->*method)(&context, request, reply);
    if (status.ok()) return absl::OkStatus();
    if (status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      // Its connection may wait for a network that was cut, long after that is there again. The next call has another.
      MutexLock lock(&mu_);
      if (stub_ == stub) stub_ = NewStub();
    }
    auto code = static_cast<absl::StatusCode>(status.error_code());
    // gRPC says RESOURCE_EXHAUSTED itself when it is short of threads; a server without room says OUT_OF_RANGE.
    if (code == absl::StatusCode::kResourceExhausted) code = absl::StatusCode::kUnavailable;
    if (code == absl::StatusCode::kOutOfRange) code = absl::StatusCode::kResourceExhausted;
    // It may quote names that others chose.
    return absl::Status(code,
                        absl::StrCat("memory server ", name_, ": ", Printable(status.error_message(), kTextBytesMax)));
  }

  absl::Status Nonsense(absl::string_view what) const {
    return absl::FailedPreconditionError(
        absl::StrCat("memory server ", name_, " answers nonsense (", what,
                     "): it is broken, or no memory server; restart it, or take it out of the pool"));
  }

  template <typename Method, typename Request>
  absl::StatusOr<LeaseInfo> RunLease(Method method, const Request& request, int64_t deadline_ns) {
    v1::LeaseReply reply;
    NRAM_RETURN_IF_ERROR(Run(method, request, &reply, deadline_ns));
    const auto ttl_ms = static_cast<int64_t>(reply.ttl_ms());
    if (ttl_ms < kLeaseTtlMinMs || ttl_ms > kLeaseTtlMaxMs) {
      return Nonsense(absl::StrCat("a lease of ", reply.ttl_ms(), " ms"));
    }
    return LeaseInfo{ttl_ms, reply.incarnation(), Bounded(reply.promised_bytes()), FromProto(reply.capacity()),
                     reply.term()};
  }

  const std::string name_;
  Mutex mu_;
  std::shared_ptr<v1::Control::Stub> stub_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

std::unique_ptr<ControlClient> ControlClient::Create(const Endpoint& endpoint) {
  return std::make_unique<GrpcControlClient>(endpoint);
}

}  // namespace nram
