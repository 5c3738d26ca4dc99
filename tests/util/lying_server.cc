#include "tests/util/lying_server.h"

#include <arpa/inet.h>
#include <glog/logging.h>
#include <grpcpp/grpcpp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <iterator>
#include <utility>

#include "base/units.h"

namespace nram {

class LyingServer::Service final : public v1::Control::Service {
 public:
  explicit Service(LyingServer* server) : server_(server) {}

  grpc::Status Hello(grpc::ServerContext*, const v1::HelloRequest* request, v1::HelloReply* reply) override {
    ++server_->hellos_;
    reply->set_version(kWireVersion);
    reply->set_incarnation(kIncarnation);
    reply->set_data_port(server_->data_port_);
    reply->set_lease_ttl_ms(10'000);
    reply->mutable_capacity()->set_free_bytes(kGiB);
    return Lie(&Lies::hello, *request, reply);
  }
  grpc::Status GrantLease(grpc::ServerContext*, const v1::GrantLeaseRequest* request, v1::LeaseReply* reply) override {
    return FillLease(*request, reply);
  }
  grpc::Status RenewLease(grpc::ServerContext*, const v1::RenewLeaseRequest* request, v1::LeaseReply* reply) override {
    return FillLease(*request, reply);
  }
  grpc::Status Reserve(grpc::ServerContext*, const v1::ReserveRequest* request, v1::LeaseReply* reply) override {
    return FillLease(*request, reply);
  }
  grpc::Status EndLease(grpc::ServerContext*, const v1::EndLeaseRequest* request, v1::EndLeaseReply* reply) override {
    return Lie(&Lies::end_lease, *request, reply);
  }
  grpc::Status DestroyRegion(grpc::ServerContext*, const v1::DestroyRegionRequest* request,
                             v1::DestroyRegionReply* reply) override {
    reply->set_existed(true);
    return Lie(&Lies::destroy, *request, reply);
  }
  grpc::Status CreateRegion(grpc::ServerContext*, const v1::CreateRegionRequest* request,
                            v1::CreateRegionReply* reply) override {
    return Lie(&Lies::create, *request, reply);
  }
  grpc::Status AttachRegion(grpc::ServerContext*, const v1::AttachRegionRequest* request,
                            v1::AttachRegionReply* reply) override {
    reply->mutable_region()->set_region_id(0x99);
    reply->mutable_region()->set_name(request->name());
    reply->mutable_region()->set_epoch(request->read_only() ? 1 : request->epoch());
    reply->mutable_region()->set_orphan(true);
    reply->mutable_region()->add_incarnations(kIncarnation);
    return Lie(&Lies::attach, *request, reply);
  }
  grpc::Status SetView(grpc::ServerContext*, const v1::SetViewRequest*, v1::SetViewReply*) override {
    return grpc::Status::OK;
  }
  grpc::Status ListRegions(grpc::ServerContext*, const v1::ListRegionsRequest* request,
                           v1::ListRegionsReply* reply) override {
    return Lie(&Lies::list_regions, *request, reply);
  }
  grpc::Status ListSpans(grpc::ServerContext*, const v1::ListSpansRequest* request,
                         v1::ListSpansReply* reply) override {
    return Lie(&Lies::list_spans, *request, reply);
  }
  grpc::Status ListVersions(grpc::ServerContext*, const v1::ListVersionsRequest* request,
                            v1::ListVersionsReply* reply) override {
    reply->set_incarnation(kIncarnation);
    return Lie(&Lies::list_versions, *request, reply);
  }
  grpc::Status HoldVersion(grpc::ServerContext*, const v1::HoldVersionRequest* request,
                           v1::HoldVersionReply* reply) override {
    reply->set_incarnation(kIncarnation);
    return Lie(&Lies::hold_version, *request, reply);
  }
  grpc::Status ListChanges(grpc::ServerContext*, const v1::ListChangesRequest* request,
                           v1::ListChangesReply* reply) override {
    return Lie(&Lies::list_changes, *request, reply);
  }

 private:
  template <typename Request, typename Reply, typename Hook>
  grpc::Status Lie(Hook Lies::*which, const Request& request, Reply* reply) {
    MutexLock lock(&server_->mu_);
    const Hook& hook = server_->lies_.*which;
    return hook ? hook(request, reply) : grpc::Status::OK;
  }
  grpc::Status FillLease(const google::protobuf::Message& request, v1::LeaseReply* reply) {
    reply->set_ttl_ms(10'000);
    reply->set_incarnation(kIncarnation);
    reply->set_term(1);
    reply->mutable_capacity()->set_free_bytes(kGiB);
    return Lie(&Lies::lease, request, reply);
  }

  LyingServer* const server_;
};

LyingServer::LyingServer() : service_(std::make_unique<Service>(this)) {
  listener_.reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  PCHECK(bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  PCHECK(listen(listener_.get(), 64) == 0);
  socklen_t length = sizeof address;
  PCHECK(getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &length) == 0);
  data_port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { AcceptLoop(); });
  grpc::ServerBuilder builder;
  builder.SetMaxSendMessageSize(-1);
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
  builder.RegisterService(service_.get());
  grpc_ = builder.BuildAndStart();
  CHECK(grpc_ != nullptr);
}

LyingServer::~LyingServer() {
  stopping_ = true;
  acceptor_.join();
  for (Connection& connection : connections_) connection.thread.join();
  grpc_->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(1));
}

void LyingServer::Set(Lies lies) {
  MutexLock lock(&mu_);
  lies_ = std::move(lies);
}

std::string LyingServer::Encode(MessageHeader header) {
  // The stated length of a payload need not be true: the checksum is of the range's pages.
  std::string bytes(kMessageHeaderBytes + std::max<uint64_t>(header.payload_bytes, header.range().bytes()), '\0');
  const auto* payload = reinterpret_cast<const std::byte*>(bytes.data()) + kMessageHeaderBytes;
  EncodeHeader(header, PayloadCrcOf(header, payload), reinterpret_cast<std::byte*>(bytes.data()));
  bytes.resize(kMessageHeaderBytes + header.payload_bytes);
  return bytes;
}

namespace {

MessageHeader GoodReply(const MessageHeader& request) {
  const RegionId region = request.region();
  const ChunkRange range = request.range();
  switch (request.op) {
    case Op::kHello:
      return MessageHeader(
          HelloReply{.incarnation = LyingServer::kIncarnation, .credit_requests = 256, .credit_kib = 4096},
          request.flags & kFlagUrgent);
    case Op::kPing:
      return MessageHeader(PingReply{});
    case Op::kCreate:
      return MessageHeader(CreateReply{.region = region});
    case Op::kRead:
      return MessageHeader(ReadReply{.region = region, .range = range});
    case Op::kWrite:
      return MessageHeader(WriteReply{.region = region, .range = range});
    case Op::kTrim:
      return MessageHeader(TrimReply{.region = region, .range = range});
    case Op::kDestroy:
      return MessageHeader(DestroyReply{.region = region});
    case Op::kSeal: {
      const VersionNumber version = request.as<SealRequest>().version;
      return MessageHeader(SealReply{.region = region, .oldest = version, .newest = version});
    }
    case Op::kDropVersion:
      return MessageHeader(DropVersionReply{.region = region});
  }
  LOG(FATAL) << "no request";
}

}  // namespace

std::string LyingServer::Answer(const MessageHeader& request) {
  MessageHeader good = GoodReply(request);
  good.request_id = request.request_id;
  if (request.op == Op::kRead) good.payload_bytes = static_cast<uint32_t>(request.range().bytes());
  MutexLock lock(&mu_);
  return lies_.message ? lies_.message(request, good) : Encode(good);
}

void LyingServer::AcceptLoop() {
  while (!stopping_) {
    pollfd waiting{listener_.get(), POLLIN, 0};
    if (poll(&waiting, 1, 10) <= 0) continue;
    const int fd = accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
    if (fd < 0) continue;
    for (auto one = connections_.begin(); one != connections_.end();) {
      if (one->ended) one->thread.join();
      one = one->ended ? connections_.erase(one) : std::next(one);
    }
    Connection& connection = connections_.emplace_back();
    connection.thread = std::thread([this, fd, &connection] {
      Serve(fd);
      connection.ended = true;
    });
  }
}

void LyingServer::Serve(int descriptor) {
  const UniqueFd fd(descriptor);
  std::string bytes;
  while (!stopping_) {
    pollfd waiting{fd.get(), POLLIN, 0};
    if (poll(&waiting, 1, 10) <= 0) continue;
    char buffer[65536];
    const ssize_t n = recv(fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) return;
    if (n > 0) bytes.append(buffer, static_cast<size_t>(n));
    while (bytes.size() >= kMessageHeaderBytes) {
      MessageHeader request;
      CHECK(DecodeHeader(reinterpret_cast<const std::byte*>(bytes.data()), &request).ok());
      if (bytes.size() < kMessageHeaderBytes + request.payload_bytes) break;
      bytes.erase(0, kMessageHeaderBytes + request.payload_bytes);
      const std::string answer = Answer(request);
      for (size_t sent = 0; sent < answer.size() && !stopping_;) {
        const ssize_t m = send(fd.get(), answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (m < 0 && errno != EAGAIN) return;
        if (m > 0) sent += static_cast<size_t>(m);
        pollfd room{fd.get(), POLLOUT, 0};
        if (m < 0) poll(&room, 1, 10);
      }
    }
  }
}

}  // namespace nram
