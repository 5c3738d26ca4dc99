#include "memserver/control_service.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/host_memory.h"
#include "base/status.h"
#include "base/utf8.h"
#include "memserver/mem_server.h"
#include "proto/version.h"

namespace nram {
namespace {

constexpr size_t kRegionsPerReply = 1000;
constexpr size_t kSpansPerReply = 32'768;
constexpr size_t kNameBytesMax = 255;
constexpr int kIncarnationsMax = 4'096;

grpc::Status ToGrpc(const absl::Status& status) {
  // Both number their codes alike, on purpose. But gRPC has a use of its own for RESOURCE_EXHAUSTED.
  const absl::StatusCode code = absl::IsResourceExhausted(status) ? absl::StatusCode::kOutOfRange : status.code();
  return {static_cast<grpc::StatusCode>(code), std::string(status.message())};
}

// Names reach logs and terminals.
grpc::Status CheckName(const std::string& name) {
  if (name.size() > kNameBytesMax) {
    return {grpc::StatusCode::INVALID_ARGUMENT, absl::StrCat("a name is at most ", kNameBytesMax, " bytes")};
  }
  if (!IsPrintable(name)) {
    return {grpc::StatusCode::INVALID_ARGUMENT, "a name is UTF-8 without control characters"};
  }
  return grpc::Status::OK;
}

void FillRegion(const RegionDescription& region, v1::RegionInfo* info) {
  info->set_region_id(Raw(region.id));
  info->set_name(region.manifest.name);
  info->set_epoch(region.epoch);
  info->set_gc(region.gc);
  info->set_owner(region.owner);
  info->set_orphan(region.orphan);
  info->set_stored_bytes(region.stored_bytes);
  info->set_spans(region.spans);
  info->set_size_bytes(region.manifest.size_bytes);
  info->set_lease_id(Raw(region.lease));
  info->mutable_incarnations()->Assign(region.manifest.incarnations.begin(), region.manifest.incarnations.end());
}

}  // namespace

ControlService::ControlService(MemServer* server) : server_(server), boot_id_(BootId()) {
  char name[256] = "unknown";
  gethostname(name, sizeof name - 1);
  hostname_ = name;
}

grpc::Status ControlService::Hello(const v1::HelloRequest& request, v1::HelloReply* reply) {
  const WireVersions ours;
  const WireVersions theirs{request.version_min(), request.version_max()};
  const uint32_t version = ChooseVersion(ours, theirs);
  if (version == 0) return {grpc::StatusCode::FAILED_PRECONDITION, NoCommonVersion("this server", ours, theirs)};
  reply->set_version(version);
  reply->set_incarnation(server_->incarnation());
  reply->set_data_port(server_->data_port());
  reply->set_data_socket(server_->data_socket());
  reply->set_lease_ttl_ms(server_->leases().ttl_ms());
  FillCapacity(reply->mutable_capacity());
  FillHost(reply->mutable_host());
  return grpc::Status::OK;
}

grpc::Status ControlService::GrantLease(const v1::GrantLeaseRequest& request, v1::LeaseReply* reply) {
  const std::string owner = Printable(request.owner(), LeaseTable::kOwnerBytesMax);
  const auto ttl_ms = static_cast<int64_t>(request.ttl_ms());
  const auto lease = server_->leases().Grant(LeaseId{request.lease_id()}, owner, ttl_ms);
  if (!lease.ok()) return ToGrpc(lease.status());
  FillLease(**lease, reply);
  return grpc::Status::OK;
}

grpc::Status ControlService::RenewLease(const v1::RenewLeaseRequest& request, v1::LeaseReply* reply) {
  const auto lease = server_->leases().Renew(LeaseId{request.lease_id()});
  if (!lease.ok()) return ToGrpc(lease.status());
  FillLease(**lease, reply);
  return grpc::Status::OK;
}

grpc::Status ControlService::EndLease(const v1::EndLeaseRequest& request, v1::EndLeaseReply*) {
  if (const auto lease = server_->leases().End(LeaseId{request.lease_id()})) server_->store().CollectLease(*lease);
  return grpc::Status::OK;
}

grpc::Status ControlService::Reserve(const v1::ReserveRequest& request, v1::LeaseReply* reply) {
  const auto lease = server_->leases().Renew(LeaseId{request.lease_id()});
  if (!lease.ok()) return ToGrpc(lease.status());
  MutexLock lock(&(*lease)->reserve_mu);
  if (request.order() != 0) {
    if (request.term() != (*lease)->term() || request.order() <= (*lease)->last_order) {
      return {grpc::StatusCode::ABORTED, "the request comes too late"};
    }
    (*lease)->last_order = request.order();
  }
  FrameArena& arena = server_->arena();
  if (request.pages() < 0) {
    arena.Unpromise(0 - static_cast<uint64_t>(request.pages()), &(*lease)->promise);
  } else if (server_->draining()) {
    return {grpc::StatusCode::FAILED_PRECONDITION, "the donor is draining and takes no new pages"};
  } else if (!server_->leases().Charge(lease->get()) ||
             !arena.Promise(static_cast<uint64_t>(request.pages()), &(*lease)->promise)) {
    return {grpc::StatusCode::OUT_OF_RANGE, absl::StrCat("asked for ", FormatByteSize(request.pages() * kPageBytes),
                                                         ", ", FormatByteSize(arena.usage().free_bytes), " are free")};
  }
  FillLease(**lease, reply);
  return grpc::Status::OK;
}

grpc::Status ControlService::CreateRegion(const v1::CreateRegionRequest& request, v1::CreateRegionReply*) {
  if (!IsRegionId(request.region_id())) {
    return {grpc::StatusCode::INVALID_ARGUMENT, absl::StrCat("no region may have the id ", request.region_id())};
  }
  if (const grpc::Status status = CheckName(request.name()); !status.ok()) return status;
  if (request.incarnations_size() > kIncarnationsMax) {
    return {grpc::StatusCode::INVALID_ARGUMENT, absl::StrCat("a region is on at most ", kIncarnationsMax, " servers")};
  }
  const auto lease = server_->leases().Renew(LeaseId{request.lease_id()});
  if (!lease.ok()) return ToGrpc(lease.status());
  RegionManifest manifest{
      request.name(), {request.incarnations().begin(), request.incarnations().end()}, request.size_bytes()};
  return ToGrpc(server_->store().CreateNamed(lease->get(), RegionId{request.region_id()}, request.epoch(), request.gc(),
                                             std::move(manifest)));
}

grpc::Status ControlService::AttachRegion(const v1::AttachRegionRequest& request, v1::AttachRegionReply* reply) {
  RegionId id{request.region_id()};
  if (Raw(id) == 0) id = server_->store().FindByName(request.name());
  if (Raw(id) == 0) {
    return {grpc::StatusCode::NOT_FOUND,
            absl::StrCat("no region named \"", Printable(request.name(), kNameBytesMax), "\"")};
  }
  std::shared_ptr<Lease> lease;
  if (!request.read_only()) {
    auto renewed = server_->leases().Renew(LeaseId{request.lease_id()});
    if (!renewed.ok()) return ToGrpc(renewed.status());
    lease = *std::move(renewed);
  }
  auto region = server_->store().Attach(lease.get(), id, request.epoch(), request.force());
  if (!region.ok()) return ToGrpc(region.status());
  // A lease's id is a secret between its client and this server: whoever knows it acts as that client.
  if (Raw(region->lease) != request.lease_id()) region->lease = LeaseId{0};
  FillRegion(*region, reply->mutable_region());
  return grpc::Status::OK;
}

grpc::Status ControlService::DestroyRegion(const v1::DestroyRegionRequest& request, v1::DestroyRegionReply* reply) {
  const auto existed =
      server_->store().DestroyByControl(LeaseId{request.lease_id()}, RegionId{request.region_id()}, request.force());
  if (!existed.ok()) return ToGrpc(existed.status());
  reply->set_existed(*existed);
  return grpc::Status::OK;
}

grpc::Status ControlService::ListRegions(const v1::ListRegionsRequest& request, v1::ListRegionsReply* reply) {
  uint64_t next = 0;
  auto regions =
      server_->store().List(request.from_id(), kRegionsPerReply, request.orphans_only(), request.named_only(), &next);
  reply->set_next_id(next);
  size_t bytes = 0;
  for (RegionDescription& region : regions) {
    if (bytes > kListBytes) {
      reply->set_next_id(Raw(region.id));
      break;
    }
    region.lease = LeaseId{0};
    FillRegion(region, reply->add_regions());
    bytes += reply->regions(reply->regions_size() - 1).ByteSizeLong();
  }
  return grpc::Status::OK;
}

grpc::Status ControlService::ListSpans(const v1::ListSpansRequest& request, v1::ListSpansReply* reply) {
  auto spans = server_->store().ListSpans(RegionId{request.region_id()}, request.from_span(), kSpansPerReply + 1);
  if (!spans.ok()) return ToGrpc(spans.status());
  if (spans->size() > kSpansPerReply) {
    reply->set_next_span(spans->back());
    spans->pop_back();
  }
  reply->mutable_spans()->Assign(spans->begin(), spans->end());
  return grpc::Status::OK;
}

grpc::Status ControlService::GetStatistics(const v1::GetStatisticsRequest&, v1::Statistics* reply) {
  const StoreCounters& counters = server_->store().counters();
  reply->set_incarnation(server_->incarnation());
  reply->set_address(absl::StrCat(server_->options().listen, ":", port_.load()));
  reply->set_pid(getpid());
  reply->set_uptime_ms(server_->uptime_ms());
  FillCapacity(reply->mutable_capacity());
  FillHost(reply->mutable_host());
  reply->set_resident_bytes(ReadProcessMemory().resident_bytes);
  reply->set_regions(counters.regions);
  reply->set_orphans(server_->store().CountOrphans());
  reply->set_leases(server_->leases().live_count());
  reply->set_connections(server_->connections().open);
  reply->set_pages(counters.pages);
  reply->set_stored_chunks(counters.chunks);
  reply->set_index_bytes(server_->arena().usage().index_bytes);
  reply->set_reads(counters.reads);
  reply->set_writes(counters.writes);
  reply->set_trims(counters.trims);
  reply->set_bytes_read(counters.bytes_read);
  reply->set_bytes_written(counters.bytes_written);
  reply->set_zero_chunks_elided(counters.zero_chunks_elided);
  reply->set_refused_full(counters.refused_full);
  reply->set_refused_stale(counters.refused_stale);
  reply->set_connections_closed_for_error(server_->connections().closed_for_error);
  reply->set_regions_collected(counters.regions_collected);
  return grpc::Status::OK;
}

grpc::Status ControlService::Drain(const v1::DrainRequest& request, v1::DrainReply*) {
  server_->SetDraining(request.draining());
  return grpc::Status::OK;
}

void ControlService::FillCapacity(v1::Capacity* capacity) const {
  const ArenaUsage usage = server_->arena().usage();
  // The landing frames are the server's own.
  const uint64_t landing = server_->session_context().landing->size() * kPageBytes;
  const uint64_t used = usage.frame_bytes + usage.index_bytes - std::min(usage.frame_bytes, landing);
  capacity->set_donated_bytes(usage.ceiling_bytes);
  capacity->set_used_bytes(used);
  capacity->set_promised_bytes(usage.promised_bytes);
  capacity->set_free_bytes(usage.free_bytes);
  const uint64_t told = used + usage.promised_bytes + usage.free_bytes;
  capacity->set_overhead_bytes(usage.ceiling_bytes > told ? usage.ceiling_bytes - told : 0);
  capacity->set_draining(server_->draining());
}

void ControlService::FillHost(v1::HostState* host) const {
  host->set_boot_id(boot_id_);
  host->set_hostname(hostname_);
  host->set_reserve_bytes(server_->reserve_bytes());
  const auto memory = ReadHostMemory();
  if (!memory.ok()) return;
  host->set_total_bytes(memory->total_bytes);
  host->set_available_bytes(memory->available_bytes);
  host->set_idle_bytes(memory->idle_bytes);
  // Donated memory that no page has touched yet is still counted as available by the kernel, but it is spoken for.
  const ArenaUsage usage = server_->arena().usage();
  const uint64_t backed = usage.extent_bytes + usage.index_bytes;
  const uint64_t unbacked = usage.ceiling_bytes > backed ? usage.ceiling_bytes - backed : 0;
  const uint64_t spoken_for = server_->reserve_bytes() + unbacked;
  host->set_lendable_bytes(memory->available_bytes > spoken_for ? memory->available_bytes - spoken_for : 0);
}

void ControlService::FillLease(const Lease& lease, v1::LeaseReply* reply) const {
  reply->set_ttl_ms(lease.ttl_ms());
  reply->set_incarnation(server_->incarnation());
  reply->set_promised_bytes(server_->arena().left_bytes(lease.promise));
  reply->set_term(lease.term());
  FillCapacity(reply->mutable_capacity());
}

}  // namespace nram
