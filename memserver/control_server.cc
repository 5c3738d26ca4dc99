#include "memserver/control_server.h"

#include <google/protobuf/stubs/logging.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/server_posix.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/http2/frame_meter.h"
#include "base/status.h"
#include "memserver/access.h"
#include "memserver/answer_room.h"
#include "memserver/call_threads.h"
#include "memserver/control_connections.h"
#include "memserver/control_service.h"
#include "proto/control.grpc.pb.h"
#include "proto/grpc_log.h"

namespace nram {
namespace {

// A bound on the bytes of answers that are on their way. Beyond it, only small answers are sent; others are refused.
constexpr size_t kAnswerBytesMax = 2 << 20;
constexpr size_t kSmallAnswerBytes = 2 << 10;
constexpr int kCallsPerConnection = 16;
// gRPC itself has room for each call that it allows.
static_assert(kCallsPerConnection + 8 <= FrameMeter::kOpenStreamsMax);

grpc::Status ToGrpc(const absl::Status& status) {
  // absl and gRPC number their codes alike, on purpose. But gRPC uses RESOURCE_EXHAUSTED itself.
  const absl::StatusCode code = absl::IsResourceExhausted(status) ? absl::StatusCode::kOutOfRange : status.code();
  return {static_cast<grpc::StatusCode>(code), std::string(status.message())};
}

// Calls come from gRPC's threads, which must not block. They run on threads of our own. An answer that is being sent
// holds no thread, so clients that do not take their answers keep no other client out. (In gRPC's synchronous interface
// each answer would hold a thread.)
class GrpcControlServer final : public ControlServer, private v1::Control::CallbackService {
 public:
  GrpcControlServer(const ControlConnectionsOptions& options, const Access* access, ServerCore* core,
                    LookAround look_around)
      : look_around_(std::move(look_around)),
        access_(access),
        tenants_(&core->tenants()),
        service_(core, [this] { return Look(); }),
        connections_(options, &core->arena()),
        address_(options.address) {}
  ~GrpcControlServer() override {
    connections_.Stop();
    // Waits for all calls. Our threads still run them.
    if (grpc_ != nullptr) grpc_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
    grpc_.reset();
  }

  absl::Status Init() {
    // Protobuf would log each request that has a text that is not UTF-8.
    google::protobuf::SetLogHandler(nullptr);
    TakeGrpcLog();
    NRAM_RETURN_IF_ERROR(connections_.Listen());
    grpc::ServerBuilder builder;
    grpc::ResourceQuota quota("nram-control");
    quota.Resize(8 << 20);
    builder.SetResourceQuota(quota);
    builder.SetMaxReceiveMessageSize(ControlService::kRequestBytesMax);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kCallsPerConnection);
    builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 4 << 10);
    // HTTP/2's windows stay small: messages are small here.
    builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
    builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 600'000);
    builder.RegisterService(this);
    grpc_ = builder.BuildAndStart();
    if (grpc_ == nullptr) return absl::UnavailableError("gRPC cannot serve control");
    connections_.Start([this](int fd) { grpc::AddInsecureChannelFromFd(grpc_.get(), fd); });
    return absl::OkStatus();
  }
  int port() const override { return connections_.port(); }
  size_t CutNewest(size_t most) override { return connections_.CutNewest(most); }

 private:
  // One call, until its answer is sent or given up.
  class Call final : public grpc::ServerUnaryReactor, private ControlConnections::Answer {
   public:
    Call(GrpcControlServer* server, const std::string& peer)
        : server_(server), connection_(server->connections_.BeginCall(peer)) {}

    template <typename Reply>
    void EndWith(grpc::Status status, Reply* reply) {
      const size_t bytes = status.ok() ? reply->ByteSizeLong() : 0;
      if (bytes > kSmallAnswerBytes) {
        if (server_->answers_.Take(caller_.tenant, bytes, server_->access_->has_several_tenants())) {
          answer_bytes_ = bytes;
        } else {
          server_->connections_.CutOffSlowest();
          Free(reply);
          status = TooMuch();
        }
      }
      End(std::move(status));
    }
    void Refuse() { End(TooMuch()); }
    // False: the caller may not, or asks too often; and the call has ended.
    bool MayAsk(Action action) {
      absl::Status status = FindCaller(action);
      if (!status.ok()) End(ToGrpc(status));
      if (status.ok() && !share_.taken()) Refuse();
      return status.ok() && share_.taken();
    }
    const Caller& caller() const { return caller_; }
    void OnDone() override {
      if (answer_bytes_ > 0) server_->answers_.Give(caller_.tenant, answer_bytes_);
      server_->connections_.EndCall(connection_, began_ns_);
      delete this;
    }

   private:
    absl::Status FindCaller(Action action) {
      if (connection_ == nullptr) return absl::UnavailableError("the connection is gone");
      const Principal who = server_->access_->Judge(ControlConnections::IdentityOf(*connection_));
      NRAM_RETURN_IF_ERROR(Access::Check(who, action));
      caller_ = {server_->tenants_->Of(who.tenant), who.identity, std::string(Access::RoleName(who.role)),
                 /*sees_others=*/who.role != Role::kUser};
      Quota& calls = caller_.tenant->calls;
      share_ = QuotaShare(calls.Take() ? &calls : nullptr);
      return absl::OkStatus();
    }
    void End(grpc::Status status) {
      status_ = std::move(status);
      server_->connections_.Send(connection_, this);
    }
    void Send(int64_t began_ns) override {
      began_ns_ = began_ns;
      Finish(status_);
    }
    static grpc::Status TooMuch() { return {grpc::StatusCode::RESOURCE_EXHAUSTED, "too many calls at once"}; }

    GrpcControlServer* const server_;
    const ControlConnections::ConnectionPtr connection_;
    Caller caller_;
    QuotaShare share_;
    grpc::Status status_;
    size_t answer_bytes_ = 0;
    int64_t began_ns_ = 0;  // when it began to be sent
  };

  // Frees all memory that a message has; Clear() would keep it. gRPC keeps the message itself until the client has
  // taken the answer.
  template <typename Message>
  static void Free(Message* message) {
    Message().Swap(message);
  }

  template <typename Request, typename Reply>
  grpc::ServerUnaryReactor* Run(grpc::CallbackServerContext* context, const Request* request, Reply* reply,
                                Action action,
                                absl::Status (ControlService::*method)(const Caller&, const Request&, Reply*),
                                CallThreads::Pace pace = CallThreads::Pace::kQuick) {
    auto* const call = new Call(this, context->peer());
    auto* const own = const_cast<Request*>(request);  // gRPC does not look at it any more
    if (!call->MayAsk(action)) {
      Free(own);
      return call;
    }
    const bool posted = threads_.Post(pace, call->caller().tenant->number, [=, this] {
      const grpc::Status status = ToGrpc((service_.*method)(call->caller(), *own, reply));
      Free(own);
      call->EndWith(status, reply);
    });
    if (!posted) {
      Free(own);
      call->Refuse();
    }
    return call;
  }

  // Calls come only after the server listens, so the port is known.
  Surroundings Look() const {
    Surroundings around = look_around_();
    around.address = absl::StrCat(address_, ":", connections_.port());
    return around;
  }

  grpc::ServerUnaryReactor* Hello(grpc::CallbackServerContext* context, const v1::HelloRequest* request,
                                  v1::HelloReply* reply) override {
    return Run(context, request, reply, Action::kHello, &ControlService::Hello);
  }
  grpc::ServerUnaryReactor* GrantLease(grpc::CallbackServerContext* context, const v1::GrantLeaseRequest* request,
                                       v1::LeaseReply* reply) override {
    return Run(context, request, reply, Action::kLease, &ControlService::GrantLease);
  }
  grpc::ServerUnaryReactor* RenewLease(grpc::CallbackServerContext* context, const v1::RenewLeaseRequest* request,
                                       v1::LeaseReply* reply) override {
    return Run(context, request, reply, Action::kLease, &ControlService::RenewLease);
  }
  grpc::ServerUnaryReactor* EndLease(grpc::CallbackServerContext* context, const v1::EndLeaseRequest* request,
                                     v1::EndLeaseReply* reply) override {
    return Run(context, request, reply, Action::kLease, &ControlService::EndLease, CallThreads::Pace::kSlow);
  }
  grpc::ServerUnaryReactor* Reserve(grpc::CallbackServerContext* context, const v1::ReserveRequest* request,
                                    v1::LeaseReply* reply) override {
    return Run(context, request, reply, Action::kLease, &ControlService::Reserve);
  }
  grpc::ServerUnaryReactor* CreateRegion(grpc::CallbackServerContext* context, const v1::CreateRegionRequest* request,
                                         v1::CreateRegionReply* reply) override {
    return Run(context, request, reply, Action::kRegion, &ControlService::CreateRegion);
  }
  grpc::ServerUnaryReactor* AttachRegion(grpc::CallbackServerContext* context, const v1::AttachRegionRequest* request,
                                         v1::AttachRegionReply* reply) override {
    return Run(context, request, reply, Action::kRegion, &ControlService::AttachRegion);
  }
  grpc::ServerUnaryReactor* SetView(grpc::CallbackServerContext* context, const v1::SetViewRequest* request,
                                    v1::SetViewReply* reply) override {
    return Run(context, request, reply, Action::kRegion, &ControlService::SetView);
  }
  grpc::ServerUnaryReactor* DestroyRegion(grpc::CallbackServerContext* context, const v1::DestroyRegionRequest* request,
                                          v1::DestroyRegionReply* reply) override {
    const Action action = request->tenant().empty() ? Action::kRegion : Action::kAllRegions;
    return Run(context, request, reply, action, &ControlService::DestroyRegion, CallThreads::Pace::kSlow);
  }
  grpc::ServerUnaryReactor* ListRegions(grpc::CallbackServerContext* context, const v1::ListRegionsRequest* request,
                                        v1::ListRegionsReply* reply) override {
    const Action action = request->all_tenants() ? Action::kAllRegions : Action::kRegion;
    return Run(context, request, reply, action, &ControlService::ListRegions, CallThreads::Pace::kSlow);
  }
  grpc::ServerUnaryReactor* ListSpans(grpc::CallbackServerContext* context, const v1::ListSpansRequest* request,
                                      v1::ListSpansReply* reply) override {
    return Run(context, request, reply, Action::kRegion, &ControlService::ListSpans, CallThreads::Pace::kSlow);
  }
  grpc::ServerUnaryReactor* ListVersions(grpc::CallbackServerContext* context, const v1::ListVersionsRequest* request,
                                         v1::ListVersionsReply* reply) override {
    return Run(context, request, reply, Action::kRegion, &ControlService::ListVersions);
  }
  grpc::ServerUnaryReactor* HoldVersion(grpc::CallbackServerContext* context, const v1::HoldVersionRequest* request,
                                        v1::HoldVersionReply* reply) override {
    return Run(context, request, reply, Action::kRegion, &ControlService::HoldVersion);
  }
  grpc::ServerUnaryReactor* ListChanges(grpc::CallbackServerContext* context, const v1::ListChangesRequest* request,
                                        v1::ListChangesReply* reply) override {
    return Run(context, request, reply, Action::kRegion, &ControlService::ListChanges, CallThreads::Pace::kSlow);
  }
  grpc::ServerUnaryReactor* GetStatistics(grpc::CallbackServerContext* context, const v1::GetStatisticsRequest* request,
                                          v1::Statistics* reply) override {
    return Run(context, request, reply, Action::kStatistics, &ControlService::GetStatistics, CallThreads::Pace::kSlow);
  }
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context, const v1::DrainRequest* request,
                                  v1::DrainReply* reply) override {
    return Run(context, request, reply, Action::kDrain, &ControlService::Drain);
  }

  const LookAround look_around_;
  const Access* const access_;
  const Tenants* const tenants_;
  ControlService service_;
  ControlConnections connections_;
  const std::string address_;
  AnswerRoom answers_{kAnswerBytesMax};
  CallThreads threads_;  // after the members that calls use, and before the server whose calls it runs
  std::unique_ptr<grpc::Server> grpc_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ControlServer>> ControlServer::Start(const ControlServerOptions& options,
                                                                    ServerCore* core, LookAround look_around) {
  ControlConnectionsOptions connections;
  connections.address = options.address;
  connections.port = options.port;
  connections.socket_path = options.socket_path;
  connections.connections_max = options.connections_max;
  connections.has_tls = options.has_tls;
  connections.handshakes = options.handshakes;
  connections.access = options.access;
  auto control = std::make_unique<GrpcControlServer>(connections, options.access, core, std::move(look_around));
  NRAM_RETURN_IF_ERROR(control->Init());
  return control;
}

}  // namespace nram
