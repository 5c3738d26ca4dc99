#include <glog/logging.h>
#include <google/protobuf/stubs/logging.h>

#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "memserver/control_service.h"
#include "memserver/mem_server.h"
#include "proto/control.pb.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace nram {
namespace {

constexpr int kCallsPerInput = 64;

// A server whose handlers are called without gRPC, once. Its clock stands still: leases end on the target's command.
struct Server {
  Server() {
    google::protobuf::SetLogHandler(nullptr);  // it logs each message that it cannot parse
    MemServerOptions options;
    options.donate_bytes = MemServerOptions::kDonateMinBytes;
    options.port = 0;
    options.baseline_bytes_for_test = 0;
    server = MemServer::Start(options, &clock).value();
    service = std::make_unique<ControlService>(&server->core(), [] { return Surroundings(); });
  }
  Caller caller() { return {server->core().tenants().Of(0), "anyone", "operator"}; }

  FakeClock clock;
  std::unique_ptr<MemServer> server;
  std::unique_ptr<ControlService> service;
};

// Makes an input's calls, and removes their effects again.
class Driver {
 public:
  explicit Driver(Server* server) : server_(server) {}

  // Either bytes that a peer may send, or a message of small numbers, so that calls meet the same objects.
  void Run(FuzzInput* input) {
    const uint8_t method = input->Byte();
    raw_ = (method & 128) != 0;
    bytes_ = raw_ ? std::string(input->Take(input->Byte())) : "";
    using Service = ControlService;
    switch ((method & 0x70) == 0x70 ? 16 + method % 4 : method % 16) {
      case 0:
        if (std::exchange(told_, true)) return;  // they read the host's files, which takes its time
        return Call<v1::HelloRequest, v1::HelloReply>(&Service::Hello, input);
      case 1:
      case 2:
        return Call<v1::GrantLeaseRequest, v1::LeaseReply>(&Service::GrantLease, input);
      case 3:
        return Call<v1::RenewLeaseRequest, v1::LeaseReply>(&Service::RenewLease, input);
      case 4:
        return Call<v1::EndLeaseRequest, v1::EndLeaseReply>(&Service::EndLease, input);
      case 5:
      case 6:
        return Call<v1::ReserveRequest, v1::LeaseReply>(&Service::Reserve, input);
      case 7:
      case 8:
        return Call<v1::CreateRegionRequest, v1::CreateRegionReply>(&Service::CreateRegion, input);
      case 9:
        return Call<v1::AttachRegionRequest, v1::AttachRegionReply>(&Service::AttachRegion, input);
      case 10:
        return Call<v1::DestroyRegionRequest, v1::DestroyRegionReply>(&Service::DestroyRegion, input);
      case 11:
        return Call<v1::ListRegionsRequest, v1::ListRegionsReply>(&Service::ListRegions, input);
      case 12:
        return Call<v1::ListSpansRequest, v1::ListSpansReply>(&Service::ListSpans, input);
      case 13:
        if (std::exchange(told_, true)) return;
        return Call<v1::GetStatisticsRequest, v1::Statistics>(&Service::GetStatistics, input);
      case 14:
        return Call<v1::DrainRequest, v1::DrainReply>(&Service::Drain, input);
      case 15:
        return Call<v1::SetViewRequest, v1::SetViewReply>(&Service::SetView, input);
      case 16:
        return Call<v1::ListVersionsRequest, v1::ListVersionsReply>(&Service::ListVersions, input);
      case 17:
        return Call<v1::HoldVersionRequest, v1::HoldVersionReply>(&Service::HoldVersion, input);
      case 18:
        return Call<v1::ListChangesRequest, v1::ListChangesReply>(&Service::ListChanges, input);
      default:
        return server_->server->CollectOnce();
    }
  }

  void CleanUp() {
    MemServer& server = *server_->server;
    server.SetDraining(false);
    for (const uint64_t id : leases_) {
      if (const auto lease = server.leases().End(LeaseId{id})) server.store().CollectLease(*lease);
    }
    for (const RegionDescription& region : server.store().List(0, 0, 10'000, false, false)) {
      CHECK(server.store().DestroyByControl(LeaseId{0}, {region.id, 0}, /*force=*/true).ok());
    }
    server.CollectOnce();  // frees the regions of the leases
    server.CollectOnce();  // forgets the leases
  }

 private:
  template <typename Request, typename Reply>
  void Call(absl::Status (ControlService::*handler)(const Caller&, const Request&, Reply*), FuzzInput* input) {
    Request request;
    if (raw_) {
      if (!request.ParseFromString(bytes_)) return;
    } else {
      Fill(input, &request);
    }
    Note(request);
    Reply reply;
    (void)(server_->service.get()->*handler)(server_->caller(), request, &reply);
    // gRPC refuses a reply that cannot be encoded, and clients take no more than this.
    std::string encoded;
    CHECK(reply.SerializeToString(&encoded));
    CHECK_LT(encoded.size(), size_t{4} << 20);
    const ArenaUsage usage = server_->server->arena().usage();
    CHECK_LE(usage.frame_bytes + usage.index_bytes + usage.reserved_bytes + usage.free_bytes, usage.ceiling_bytes);
  }

  template <typename Request>
  void Note(const Request& request) {
    if constexpr (requires { request.lease_id(); }) leases_.insert(request.lease_id());
  }

  template <typename Request>
  static void Fill(FuzzInput* input, Request* request) {
    if constexpr (requires { request->set_lease_id(0); }) request->set_lease_id(input->Byte() % 4);
    if constexpr (requires { request->set_region_id(0); }) request->set_region_id(input->Byte() % 5);
    if constexpr (requires { request->set_name(""); }) request->set_name(NameOf(input->Byte()));
    if constexpr (requires { request->set_client_name(""); })
      request->set_client_name(std::string(input->Take(input->Byte() % 8)));
    if constexpr (requires { request->set_ttl_ms(0); }) request->set_ttl_ms(input->SmallOrAny(4));
    if constexpr (requires { request->set_epoch(0); }) request->set_epoch(input->Byte() % 4);
    if constexpr (requires { request->set_gc(true); }) request->set_gc(input->Byte() % 2 == 1);
    if constexpr (requires { request->set_force(true); }) request->set_force(input->Byte() % 2 == 1);
    if constexpr (requires { request->set_read_only(true); }) request->set_read_only(input->Byte() % 2 == 1);
    if constexpr (requires { request->set_pages(0); }) {
      const auto pages = static_cast<int64_t>(input->SmallOrAny(1 << 12));
      request->set_pages(input->Byte() % 2 == 0 ? pages : static_cast<int64_t>(0 - static_cast<uint64_t>(pages)));
    }
    if constexpr (requires { request->set_order(0); }) {
      request->set_order(input->Byte() % 8);
      request->set_term(input->SmallOrAny(8));
    }
    if constexpr (requires { request->set_size_bytes(0); }) request->set_size_bytes(input->AnyNumber());
    if constexpr (requires { request->add_incarnations(0); }) {
      for (int i = input->Byte() % 4; i > 0; --i) request->add_incarnations(input->Byte());
    }
    if constexpr (requires { request->set_version_min(0); }) {
      request->set_version_min(input->Byte() % 10);
      request->set_version_max(input->Byte() % 10);
    }
    if constexpr (requires { request->set_from_id(0); }) {
      request->set_from_id(input->SmallOrAny(4));
      request->set_orphans_only(input->Byte() % 2 == 1);
      request->set_named_only(input->Byte() % 2 == 1);
    }
    if constexpr (requires { request->set_from_span(0); }) request->set_from_span(input->SmallOrAny(4));
    if constexpr (requires { request->set_version(0); }) request->set_version(input->Byte() % 5);
    if constexpr (requires { request->set_release(true); }) request->set_release(input->Byte() % 2 == 1);
    if constexpr (requires { request->set_from_version(0); }) {
      request->set_from_version(input->Byte() % 5);
      request->set_to_version(input->Byte() % 5);
    }
    if constexpr (requires { request->set_versioned(true); }) {
      request->set_versioned(input->Byte() % 2 == 1);
      request->set_companion_id(input->Byte());
    }
    if constexpr (requires { request->set_draining(true); }) request->set_draining(input->Byte() % 4 == 1);
  }

  static std::string NameOf(uint8_t byte) {
    if (byte % 4 == 0) return "";
    return byte % 16 == 15 ? std::string(256 - byte / 16, 'x') : std::string(1, static_cast<char>('a' + byte % 4));
  }

  Server* const server_;
  bool raw_ = false;
  bool told_ = false;
  std::string bytes_;
  std::set<uint64_t> leases_;
};

}  // namespace

void FuzzControl(const uint8_t* data, size_t size) {
  static Server* const server = new Server;
  const ArenaUsage empty = server->server->arena().usage();
  Driver driver(server);
  FuzzInput input(data, size);
  for (int i = 0; i < kCallsPerInput && !input.empty(); ++i) driver.Run(&input);
  driver.CleanUp();
  const ArenaUsage now = server->server->arena().usage();
  CHECK_EQ(server->server->store().counters().regions, 0);
  CHECK_EQ(now.reserved_bytes, 0u);
  CHECK_EQ(now.index_bytes, empty.index_bytes);
  CHECK_EQ(now.frame_bytes, empty.frame_bytes);
}

}  // namespace nram
