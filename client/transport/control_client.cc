#include "client/transport/control_client.h"

#include <errno.h>
#include <grpcpp/create_channel_posix.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/http2/frame_meter.h"
#include "base/status.h"
#include "base/sync.h"
#include "base/tls/pump.h"
#include "client/transport/control_codec.h"
#include "client/transport/data_socket.h"
#include "client/transport/shake_hands.h"
#include "proto/control.grpc.pb.h"
#include "proto/grpc_log.h"

namespace nram {
namespace {

// A server whose reply is longer is broken, or lies.
constexpr int kReplyBytesMax = 4 << 20;

class GrpcControlClient final : public ControlClient {
 public:
  GrpcControlClient(const Endpoint& endpoint, std::shared_ptr<TlsContext> tls)
      : codec_(endpoint.ToString()), endpoint_(endpoint), tls_(endpoint.is_unix() ? nullptr : std::move(tls)) {}

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
                                       int64_t deadline_ns, bool expendable) override {
    return RunLease(&v1::Control::Stub::GrantLease, codec_.GrantLease(lease, client_name, ttl_ms, expendable),
                    deadline_ns);
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

  absl::StatusOr<bool> DestroyOf(const std::string& tenant, RegionId region, bool force, int64_t deadline_ns) override {
    v1::DestroyRegionReply reply;
    v1::DestroyRegionRequest request = codec_.DestroyRegion(LeaseId{0}, region, force);
    request.set_tenant(tenant);
    NRAM_RETURN_IF_ERROR(Run(&v1::Control::Stub::DestroyRegion, request, &reply, deadline_ns));
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

  absl::StatusOr<std::vector<RegionInfo>> ListRegions(bool orphans_only, bool all_tenants,
                                                      int64_t deadline_ns) override {
    ControlCodec::RegionList list;
    v1::ListRegionsRequest request = codec_.ListRegions(orphans_only, all_tenants);
    for (bool more = true; more;) {
      v1::ListRegionsReply reply;
      NRAM_RETURN_IF_ERROR(Read(&v1::Control::Stub::ListRegions, request, &reply, deadline_ns));
      NRAM_ASSIGN_OR_RETURN(more, codec_.AddPage(reply, &request, &list));
    }
    return std::move(list.regions);
  }

  absl::Status ListSpans(RegionId region, int64_t deadline_ns,
                         absl::FunctionRef<absl::Status(uint64_t, SpanGeneration)> visit,
                         VersionNumber version) override {
    v1::ListSpansRequest request = codec_.ListSpans(region, version);
    for (bool more = true; more;) {
      v1::ListSpansReply reply;
      NRAM_RETURN_IF_ERROR(Read(&v1::Control::Stub::ListSpans, request, &reply, deadline_ns));
      NRAM_ASSIGN_OR_RETURN(more, codec_.VisitPage(reply, &request, visit));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<VersionList> ListVersions(RegionId region, int64_t deadline_ns) override {
    v1::ListVersionsReply reply;
    NRAM_RETURN_IF_ERROR(Read(&v1::Control::Stub::ListVersions, codec_.ListVersions(region), &reply, deadline_ns));
    return codec_.Parse(reply);
  }

  absl::StatusOr<uint64_t> HoldVersion(LeaseId lease, RegionId region, VersionNumber version, bool release,
                                       int64_t deadline_ns) override {
    v1::HoldVersionReply reply;
    NRAM_RETURN_IF_ERROR(
        Run(&v1::Control::Stub::HoldVersion, codec_.HoldVersion(lease, region, version, release), &reply, deadline_ns));
    return reply.incarnation();
  }

  absl::Status ListChanges(RegionId region, VersionNumber from, VersionNumber to, int64_t deadline_ns,
                           absl::FunctionRef<absl::Status(uint64_t, const ChangedPages&)> visit) override {
    v1::ListChangesRequest request = codec_.ListChanges(region, from, to);
    for (bool more = true; more;) {
      v1::ListChangesReply reply;
      NRAM_RETURN_IF_ERROR(Read(&v1::Control::Stub::ListChanges, request, &reply, deadline_ns));
      NRAM_ASSIGN_OR_RETURN(more, codec_.VisitPage(reply, &request, visit));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<ServerStatistics> GetStatistics(int64_t deadline_ns) override {
    v1::Statistics reply;
    NRAM_RETURN_IF_ERROR(Read(&v1::Control::Stub::GetStatistics, v1::GetStatisticsRequest(), &reply, deadline_ns));
    return codec_.Parse(reply);
  }

  absl::Status Drain(bool draining, bool leaving, int64_t deadline_ns) override {
    v1::DrainReply reply;
    return Run(&v1::Control::Stub::Drain, codec_.Drain(draining, leaving), &reply, deadline_ns);
  }

 private:
  using Stub = v1::Control::Stub;
  // One connection.
  struct Way {
    std::shared_ptr<Stub> stub;
    std::shared_ptr<const Pump::Link> link;
    bool is_new = false;  // made for the call that has it
    bool good() const { return stub != nullptr && !link->ended(); }
  };

  static grpc::ChannelArguments Arguments() {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    // Each client has a connection of its own, so that a client that hangs does not hang another.
    args.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    args.SetMaxReceiveMessageSize(kReplyBytesMax);
    // The probes would let servers send longer frames than the meter takes.
    args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    return args;
  }

  // gRPC gets a socket of the pump: it cannot be held to TLS 1.3, does not say why a server refuses it (adr/0015), and
  // takes whatever a server sends (adr/0027).
  absl::StatusOr<Way> Dial(int64_t deadline_ns) {
    NRAM_ASSIGN_OR_RETURN(const SocketAddress address, ResolveEndpoint(endpoint_, deadline_ns));
    NRAM_ASSIGN_OR_RETURN(UniqueFd fd, ConnectSocket(address, deadline_ns));
    std::optional<TlsSession> session;
    if (endpoint_.is_unix()) NRAM_RETURN_IF_ERROR(CheckUnixListener(fd.get()));
    if (tls_ != nullptr) {
      NRAM_ASSIGN_OR_RETURN(session, ShakeHands(fd.get(), tls_.get(), endpoint_.host, deadline_ns));
    }
    int ends[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends) != 0) {
      return ErrnoStatus(errno, "socketpair");
    }
    static Pump* const pump = new Pump;  // for all servers; stays until the process ends
    Way way;
    way.link = pump->Add(std::move(fd), session.has_value() ? &*session : nullptr, UniqueFd(ends[0]),
                         {FrameMeter(FrameScanner::Sender::kServer), nullptr});
    way.stub = v1::Control::NewStub(grpc::CreateCustomInsecureChannelFromFd(codec_.server(), ends[1], Arguments()));
    return way;
  }

  // gRPC does not check the listener.
  absl::Status CheckUnixListener(int fd) {
    NRAM_RETURN_IF_ERROR(CheckListener(fd, endpoint_.path));
    ucred peer{};
    socklen_t length = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return ErrnoStatus(errno, "SO_PEERCRED");
    // One thread dials at a time.
    if (listener_.has_value() && *listener_ != peer.uid && peer.uid != 0) {
      return absl::PermissionDeniedError(
          absl::StrCat("user ", peer.uid, " listens there now instead of user ", *listener_));
    }
    listener_ = peer.uid;
    return absl::OkStatus();
  }

  absl::StatusOr<Way> GetWay(int64_t deadline_ns) {
    MutexLock lock(&mu_);
    while (!way_.good() && dialling_) {
      if (MonotonicNs() >= deadline_ns) return absl::DeadlineExceededError("no connection in time");
      dialled_.WaitUntil(&mu_, deadline_ns);
    }
    if (way_.good()) return way_;
    dialling_ = true;
    mu_.Unlock();
    absl::StatusOr<Way> way = Dial(deadline_ns);
    mu_.Lock();
    dialling_ = false;
    dialled_.SignalAll();
    if (!way.ok()) return way;
    way_ = *way;
    way->is_new = true;
    return way;
  }

  // An error of a connection: it is not there, but if the two do not trust each other, trying again does not help.
  static absl::StatusCode CodeOf(const absl::Status& why) {
    const bool is_kept = absl::IsUnauthenticated(why) || absl::IsPermissionDenied(why) || absl::IsDeadlineExceeded(why);
    return is_kept ? why.code() : absl::StatusCode::kUnavailable;
  }

  // Says why a connection has ended, which gRPC does not know.
  absl::Status Explain(const Way& way, const grpc::Status& status) const {
    const bool is_lost = status.error_code() == grpc::StatusCode::UNAVAILABLE;
    const absl::Status why = is_lost ? way.link->status() : absl::OkStatus();
    return why.ok() ? absl::OkStatus() : codec_.Refusal(CodeOf(why), why.message());
  }

  // A call that changes nothing. A server may end an idle connection (it gives way to others, or gRPC lacks memory)
  // just when a call begins there, and gRPC does not connect anew: then the call is made once more.
  template <typename Method, typename Request, typename Reply>
  absl::Status Read(Method method, const Request& request, Reply* reply, int64_t deadline_ns) {
    bool is_lost = false;
    const absl::Status status = Run(method, request, reply, deadline_ns, &is_lost);
    return is_lost ? Run(method, request, reply, deadline_ns) : status;
  }

  // Sets *is_lost if the call was lost with a connection that was there before it.
  template <typename Method, typename Request, typename Reply>
  absl::Status Run(Method method, const Request& request, Reply* reply, int64_t deadline_ns, bool* is_lost = nullptr) {
    grpc::ClientContext context;
    const int64_t left_ns = std::max<int64_t>(deadline_ns - MonotonicNs(), 0);
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::nanoseconds(left_ns));
    // Waits until the deadline only while a connection is being made; a refused one fails at once.
    const absl::StatusOr<Way> way = GetWay(deadline_ns);
    if (!way.ok()) return codec_.Refusal(CodeOf(way.status()), way.status().message());
    const grpc::Status status = (way->stub.get()->*method)(&context, request, reply);
    if (status.ok()) return absl::OkStatus();
    if (is_lost != nullptr) *is_lost = status.error_code() == grpc::StatusCode::UNAVAILABLE && !way->is_new;
    if (status.error_code() == grpc::StatusCode::UNAVAILABLE ||
        status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      // The connection may wait for a network that was cut, long after the network is back; and gRPC cannot make a
      // connection again that it was given. The next call gets another.
      MutexLock lock(&mu_);
      if (way_.stub == way->stub) way_ = {};
    }
    NRAM_RETURN_IF_ERROR(Explain(*way, status));
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
  const Endpoint endpoint_;
  const std::shared_ptr<TlsContext> tls_;  // null: plain
  Mutex mu_;
  CondVar dialled_;
  bool dialling_ ABSL_GUARDED_BY(mu_) = false;
  Way way_ ABSL_GUARDED_BY(mu_);
  std::optional<uid_t> listener_;  // of the first connection to a Unix socket; the dialling thread has it
};

}  // namespace

std::unique_ptr<ControlClient> ControlClient::Create(const Endpoint& endpoint, std::shared_ptr<TlsContext> tls) {
  TakeGrpcLog();
  return std::make_unique<GrpcControlClient>(endpoint, std::move(tls));
}

}  // namespace nram
