#include "memserver/control_service.h"

#include <openssl/sha.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/plant.h"
#include "base/status.h"
#include "base/utf8.h"
#include "proto/version.h"

namespace nram {
namespace {

constexpr int64_t kFreeMs = 1'000;
constexpr int64_t kYieldMs = 1'000;  // for a reservation

constexpr size_t kRegionsPerReply = 1000;
constexpr size_t kSpansPerReply = 32'768;
constexpr size_t kNameBytesMax = 255;
constexpr size_t kCopiesMax = 1000;
constexpr int kIncarnationsMax = 4'096;

// Names reach logs and terminals, so they must be printable.
absl::Status CheckName(const std::string& name) {
  if (name.size() > kNameBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("a name is at most ", kNameBytesMax, " bytes"));
  }
  if (!IsPrintable(name)) return absl::InvalidArgumentError("a name is UTF-8 without control characters");
  return absl::OkStatus();
}

absl::Status CheckSeal(const std::string& manifest) {
  if (manifest.size() <= RegionManifest::kSealBytesMax) return absl::OkStatus();
  return absl::InvalidArgumentError("a seal's manifest has at most 16 KiB");
}

// The number of a client in figures. It is the same on all servers, so that a client's reports count once. A client
// that sees it cannot make a report that has it: the number that the other one has chosen does not follow from it.
uint64_t PublicNumber(const Tenant& tenant, uint64_t client) {
  const std::string secret = absl::StrCat(tenant.name, "/", client);
  std::array<uint8_t, SHA256_DIGEST_LENGTH> digest;
  SHA256(reinterpret_cast<const uint8_t*>(secret.data()), secret.size(), digest.data());
  uint64_t number;
  memcpy(&number, digest.data(), sizeof number);
  return std::max<uint64_t>(number, 1);
}

void FillRegion(const RegionDescription& region, v1::RegionInfo* info) {
  info->set_region_id(Raw(region.id));
  info->set_name(region.manifest.name);
  info->set_epoch(region.epoch);
  info->set_gc(region.gc);
  info->set_owner_name(region.owner_name);
  info->set_orphan(region.orphan);
  info->set_stored_bytes(region.stored_bytes);
  info->set_spans(region.spans);
  info->set_size_bytes(region.manifest.size_bytes);
  info->set_lease_id(Raw(region.lease));
  info->set_copies(region.manifest.copies);
  info->set_view(region.manifest.view);
  info->set_view_epoch(region.manifest.view_epoch);
  info->set_sealed(region.manifest.left_in_order);
  info->set_pages_sealed(region.sealed);
  info->set_seal_manifest(region.manifest.seal);
  info->set_versioned(region.manifest.versioned);
  info->set_companion_id(region.manifest.companion);
  info->set_newest_version(Raw(region.newest_version));
  info->set_version_bytes(region.version_bytes);
  info->mutable_incarnations()->Assign(region.manifest.incarnations.begin(), region.manifest.incarnations.end());
}

}  // namespace

absl::Status ControlService::Hello(const Caller& caller, const v1::HelloRequest& request, v1::HelloReply* reply) {
  const WireVersions ours;
  const WireVersions theirs{request.version_min(), request.version_max()};
  const uint32_t version = ChooseVersion(ours, theirs);
  if (version == 0) return absl::FailedPreconditionError(NoCommonVersion("this server", ours, theirs));
  reply->set_version(version);
  reply->set_incarnation(core_->incarnation());
  const Surroundings around = look_around_();
  reply->set_data_port(around.data_port);
  reply->set_data_socket(around.data_socket);
  reply->set_lease_ttl_ms(core_->leases().ttl_ms());
  FillCapacity(caller.tenant, reply->mutable_capacity());
  FillHost(around, reply->mutable_host());
  if (caller.tenant != nullptr) reply->set_tenant(caller.tenant->name);
  reply->set_role(caller.role);
  return absl::OkStatus();
}

absl::Status ControlService::GrantLease(const Caller& caller, const v1::GrantLeaseRequest& request,
                                        v1::LeaseReply* reply) {
  const std::string client_name = Printable(request.client_name(), LeaseTable::kClientNameBytesMax);
  const auto lease = core_->leases().Grant({.tenant = caller.tenant,
                                            .id = LeaseId{request.lease_id()},
                                            .client_name = client_name,
                                            .identity = caller.identity,
                                            .ttl_ms = static_cast<int64_t>(request.ttl_ms()),
                                            .expendable = request.expendable()});
  if (!lease.ok()) return lease.status();
  FillLease(**lease, reply);
  return absl::OkStatus();
}

absl::Status ControlService::RenewLease(const Caller& caller, const v1::RenewLeaseRequest& request,
                                        v1::LeaseReply* reply) {
  const auto lease = core_->leases().Renew(*caller.tenant, LeaseId{request.lease_id()});
  if (!lease.ok()) return lease.status();
  (*lease)->SetCopies(CopiesFromMessage(request.copies()));
  FillLease(**lease, reply);
  return absl::OkStatus();
}

absl::Status ControlService::EndLease(const Caller& caller, const v1::EndLeaseRequest& request, v1::EndLeaseReply*) {
  if (const auto lease = core_->leases().End(LeaseId{request.lease_id()}, caller.tenant)) {
    core_->store().CollectLease(*lease);
    // Usually this frees all of it, so that the memory is free before the answer. The collector frees the rest.
    core_->store().FreeSome(DeadlineAfterMs(kFreeMs));
  }
  return absl::OkStatus();
}

bool ControlService::ReservePages(uint64_t pages, bool ahead, Lease* lease) {
  FrameArena& arena = core_->arena();
  const auto reserve = [&] { return core_->leases().Charge(lease) && arena.Reserve(pages, &lease->reservation); };
  if (reserve()) return true;
  const int64_t until_ns = DeadlineAfterMs(kYieldMs);
  if (pages > arena.usage().ceiling_bytes / kPageBytes) return false;
  while (core_->store().YieldVersions(*lease->tenant, pages * kReservationBytesPerPage, /*held=*/!ahead)) {
    if (reserve()) return true;
    if (MonotonicNs() >= until_ns) break;
  }
  return false;
}

absl::Status ControlService::Reserve(const Caller& caller, const v1::ReserveRequest& request, v1::LeaseReply* reply) {
  const auto lease = core_->leases().Renew(*caller.tenant, LeaseId{request.lease_id()});
  if (!lease.ok()) return lease.status();
  // The other one may take a second, for which this one must not hold a thread.
  if (!(*lease)->reserve_mu.TryLock()) {
    return absl::AbortedError("another reservation of this lease is under way: try again");
  }
  const absl::Status status = ReserveLocked(caller, request, lease->get(), reply);
  (*lease)->reserve_mu.Unlock();
  return status;
}

absl::Status ControlService::ReserveLocked(const Caller& caller, const v1::ReserveRequest& request, Lease* lease,
                                           v1::LeaseReply* reply) {
  if (request.order() != 0 && !NRAM_PLANTED(late_reserve_executed)) {
    if (request.term() != lease->term() || request.order() <= lease->last_order) {
      return absl::AbortedError("a later request was executed first, or the lease has begun anew");
    }
    lease->last_order = request.order();
  }
  FrameArena& arena = core_->arena();
  if (request.pages() < 0) {
    arena.Unreserve(0 - static_cast<uint64_t>(request.pages()), &lease->reservation);
  } else if (core_->draining()) {
    return absl::FailedPreconditionError("the server is draining and accepts no new spans");
  } else if (!ReservePages(static_cast<uint64_t>(request.pages()), request.ahead(), lease)) {
    const uint64_t free_bytes = arena.usage().free_bytes;
    const uint64_t left_bytes = caller.tenant->account.left_bytes();
    return absl::ResourceExhaustedError(
        absl::StrCat("asked for ", FormatByteSize(request.pages() * kPageBytes), ", ",
                     FormatByteSize(std::min(free_bytes, left_bytes)), " are free",
                     left_bytes < free_bytes ? absl::StrCat(" in the quota of ", caller.tenant->name) : ""));
  }
  FillLease(*lease, reply);
  return absl::OkStatus();
}

absl::Status ControlService::CreateRegion(const Caller& caller, const v1::CreateRegionRequest& request,
                                          v1::CreateRegionReply*) {
  if (!IsRegionId(request.region_id())) {
    return absl::InvalidArgumentError(absl::StrCat("no region may have the id ", request.region_id()));
  }
  NRAM_RETURN_IF_ERROR(CheckName(request.name()));
  if (request.incarnations_size() > kIncarnationsMax) {
    return absl::InvalidArgumentError(absl::StrCat("a region is on at most ", kIncarnationsMax, " servers"));
  }
  NRAM_RETURN_IF_ERROR(CheckSeal(request.seal_manifest()));
  const auto lease = core_->leases().Renew(*caller.tenant, LeaseId{request.lease_id()});
  if (!lease.ok()) return lease.status();
  RegionManifest manifest{request.name(),       {request.incarnations().begin(), request.incarnations().end()},
                          request.size_bytes(), std::max(request.copies(), 1u),
                          request.epoch(),      request.view(),
                          /*left_in_order=*/0,  request.seal_manifest(),
                          request.versioned(),  request.companion_id()};
  return core_->store().CreateNamed(lease->get(), RegionId{request.region_id()}, request.epoch(), request.gc(),
                                    std::move(manifest), request.pages_sealed());
}

absl::Status ControlService::AttachRegion(const Caller& caller, const v1::AttachRegionRequest& request,
                                          v1::AttachRegionReply* reply) {
  RegionId id{request.region_id()};
  if (Raw(id) == 0) id = core_->store().FindByName(caller.tenant->number, request.name());
  if (Raw(id) == 0) {
    return absl::NotFoundError(absl::StrCat("no region named \"", Printable(request.name(), kNameBytesMax), "\""));
  }
  NRAM_RETURN_IF_ERROR(CheckSeal(request.seal_manifest()));
  std::shared_ptr<Lease> lease;
  if (!request.read_only()) {
    auto renewed = core_->leases().Renew(*caller.tenant, LeaseId{request.lease_id()});
    if (!renewed.ok()) return renewed.status();
    lease = *std::move(renewed);
  }
  auto region = core_->store().Attach(lease.get(), {id, caller.tenant->number}, request.epoch(), request.force(),
                                      request.seal_manifest());
  if (!region.ok()) return region.status();
  // A lease's id is a secret between its client and this server. Its bearer acts as that client.
  if (Raw(region->lease) != request.lease_id()) region->lease = LeaseId{0};
  FillRegion(*region, reply->mutable_region());
  return absl::OkStatus();
}

absl::Status ControlService::SetView(const Caller& caller, const v1::SetViewRequest& request, v1::SetViewReply*) {
  if (request.incarnations_size() > kIncarnationsMax) {
    return absl::InvalidArgumentError(absl::StrCat("a region is on at most ", kIncarnationsMax, " servers"));
  }
  const auto lease = core_->leases().Renew(*caller.tenant, LeaseId{request.lease_id()});
  if (!lease.ok()) return lease.status();
  return core_->store().SetView(**lease, RegionId{request.region_id()}, request.epoch(), request.view(),
                                {request.incarnations().begin(), request.incarnations().end()}, request.sealed());
}

absl::Status ControlService::DestroyRegion(const Caller& caller, const v1::DestroyRegionRequest& request,
                                           v1::DestroyRegionReply* reply) {
  std::optional<RegionTable::ViewBound> bound;
  if (request.epoch() != 0) bound = {request.epoch(), request.view()};
  const Tenant* const tenant = request.tenant().empty() ? caller.tenant : core_->tenants().Named(request.tenant());
  if (tenant == nullptr) return absl::NotFoundError("this server knows no such tenant");
  const StoredKey key{RegionId{request.region_id()}, tenant->number};
  const auto existed = core_->store().DestroyByControl(LeaseId{request.lease_id()}, key, request.force(), bound);
  if (!existed.ok()) return existed.status();
  reply->set_existed(*existed);
  return absl::OkStatus();
}

absl::Status ControlService::ListRegions(const Caller& caller, const v1::ListRegionsRequest& request,
                                         v1::ListRegionsReply* reply) {
  const Tenant* const tenant = request.all_tenants() ? core_->tenants().Of(request.from_tenant()) : caller.tenant;
  if (tenant == nullptr) return absl::OkStatus();
  uint64_t next = 0;
  auto regions = core_->store().List(tenant->number, request.from_id(), kRegionsPerReply, request.orphans_only(),
                                     request.named_only(), &next);
  size_t bytes = 0;
  for (RegionDescription& region : regions) {
    if (bytes > kListBytes) {
      next = Raw(region.id);
      break;
    }
    region.lease = LeaseId{0};
    v1::RegionInfo* const info = reply->add_regions();
    FillRegion(region, info);
    info->set_tenant(tenant->name);
    bytes += info->ByteSizeLong();
  }
  reply->set_next_id(next);
  if (!request.all_tenants()) return absl::OkStatus();
  const bool is_last = core_->tenants().Of(tenant->number + 1) == nullptr;
  if (next != 0) reply->set_next_tenant(tenant->number);
  if (next == 0 && !is_last) reply->set_next_tenant(tenant->number + 1);
  return absl::OkStatus();
}

absl::Status ControlService::ListSpans(const Caller& caller, const v1::ListSpansRequest& request,
                                       v1::ListSpansReply* reply) {
  const StoredKey key{RegionId{request.region_id()}, caller.tenant->number};
  uint64_t next_span = 0;
  auto spans = request.version() == 0
                   ? core_->store().ListSpans(key, request.from_span(), kSpansPerReply + 1)
                   : core_->store().ListSpansAt(key, VersionNumber{request.version()}, request.from_span(), &next_span);
  if (!spans.ok()) return spans.status();
  if (request.version() == 0 && spans->size() > kSpansPerReply) {
    next_span = spans->back().span;
    spans->pop_back();
  }
  reply->set_next_span(next_span);
  const bool has_generations =
      absl::c_any_of(*spans, [](const auto& listed) { return listed.generation != SpanGeneration{}; });
  for (const RegionTable::ListedSpan& listed : *spans) {
    reply->add_spans(listed.span);
    if (has_generations) reply->add_generations(Raw(listed.generation));
  }
  return absl::OkStatus();
}

absl::Status ControlService::ListVersions(const Caller& caller, const v1::ListVersionsRequest& request,
                                          v1::ListVersionsReply* reply) {
  const auto versions = core_->store().ListVersions({RegionId{request.region_id()}, caller.tenant->number});
  if (!versions.ok()) return versions.status();
  reply->set_incarnation(core_->incarnation());
  for (const StoredVersion& version : *versions) {
    v1::VersionInfo* const info = reply->add_versions();
    info->set_number(Raw(version.number));
    info->set_keep(static_cast<uint32_t>(version.keep));
    info->set_holds(static_cast<uint32_t>(version.holds));
    info->set_own_bytes(version.chunks * kChunkBytes);
    info->set_own_pages(version.pages);
  }
  return absl::OkStatus();
}

absl::Status ControlService::HoldVersion(const Caller& caller, const v1::HoldVersionRequest& request,
                                         v1::HoldVersionReply* reply) {
  const auto lease = core_->leases().Renew(*caller.tenant, LeaseId{request.lease_id()});
  if (!lease.ok()) return lease.status();
  reply->set_incarnation(core_->incarnation());
  return core_->store().HoldVersion(lease->get(), {RegionId{request.region_id()}, caller.tenant->number},
                                    VersionNumber{request.version()}, request.release());
}

absl::Status ControlService::ListChanges(const Caller& caller, const v1::ListChangesRequest& request,
                                         v1::ListChangesReply* reply) {
  uint64_t next_span = 0;
  const auto spans = core_->store().ListChanges({RegionId{request.region_id()}, caller.tenant->number},
                                                VersionNumber{request.from_version()},
                                                VersionNumber{request.to_version()}, request.from_span(), &next_span);
  if (!spans.ok()) return spans.status();
  for (const RegionTable::ChangedSpan& changed : *spans) {
    reply->add_spans(changed.span);
    // Little-endian, as proto/message_body.h has it.
    reply->mutable_maps()->append(reinterpret_cast<const char*>(changed.pages.data()), sizeof changed.pages);
  }
  reply->set_next_span(next_span);
  return absl::OkStatus();
}

void ControlService::FillCopies(const Caller& caller, v1::Statistics* reply) const {
  const Tenant* const of = caller.sees_others ? nullptr : caller.tenant;
  for (const std::shared_ptr<Lease>& lease : core_->leases().WithCopies(kCopiesMax, of)) {
    CopiesReport told = lease->copies();
    told.client = PublicNumber(*lease->tenant, told.client);
    told.reserved_bytes = core_->arena().left_bytes(lease->reservation);
    ToMessage(told, reply->add_copies());
  }
}

absl::Status ControlService::GetStatistics(const Caller& caller, const v1::GetStatisticsRequest&,
                                           v1::Statistics* reply) {
  const StoreCounters& counters = core_->store().counters();
  const Surroundings around = look_around_();
  reply->set_incarnation(core_->incarnation());
  reply->set_address(around.address);
  reply->set_pid(around.pid);
  reply->set_uptime_ms(around.uptime_ms);
  FillCapacity(/*tenant=*/nullptr, reply->mutable_capacity());
  if (caller.tenant != nullptr) FillQuota(*caller.tenant, reply->mutable_capacity());
  FillHost(around, reply->mutable_host());
  reply->set_resident_bytes(around.resident_bytes);
  reply->set_regions(counters.regions);
  reply->set_orphans(core_->store().CountOrphans());
  reply->set_leases(core_->leases().live_count());
  reply->set_connections(around.connections);
  reply->set_pages(counters.pages);
  reply->set_stored_chunks(counters.chunks);
  reply->set_index_bytes(core_->arena().usage().index_bytes);
  reply->set_reads(counters.reads);
  reply->set_writes(counters.writes);
  reply->set_trims(counters.trims);
  reply->set_bytes_read(counters.bytes_read);
  reply->set_bytes_written(counters.bytes_written);
  reply->set_zero_chunks_elided(counters.zero_chunks_elided);
  reply->set_refused_full(counters.refused_full);
  reply->set_refused_stale(counters.refused_stale);
  reply->set_connections_closed_for_error(around.connections_closed_for_error);
  reply->set_regions_collected(counters.regions_collected);
  reply->set_given_back_bytes(core_->give_back().given_back_bytes());
  reply->set_asked_back_ms(core_->give_back().asked_back_ms());
  reply->set_pages_compacted(core_->give_back().compactor().counters().pages_moved);
  reply->set_regions_given_up(core_->give_back().regions_given_up());
  reply->set_versions(static_cast<uint64_t>(std::max<int64_t>(counters.versions.versions, 0)));
  reply->set_version_bytes(counters.versions.yieldable_bytes());
  reply->set_versions_yielded(counters.versions.yielded);
  FillCopies(caller, reply);
  return absl::OkStatus();
}

absl::Status ControlService::Drain(const Caller&, const v1::DrainRequest& request, v1::DrainReply*) {
  if (core_->urgent()) {  // it goes on leaving in any case
    return request.draining() ? absl::OkStatus()
                              : absl::FailedPreconditionError("the server is about to end and accepts no new spans");
  }
  core_->SetDraining(request.draining(), request.leaving());
  return absl::OkStatus();
}

void ControlService::FillQuota(const Tenant& tenant, v1::Capacity* capacity) {
  const uint64_t quota_bytes = tenant.account.limit_bytes();
  if (quota_bytes == ArenaAccount::kNoLimit) return;
  const uint64_t bytes = tenant.account.bytes();
  capacity->set_quota_bytes(quota_bytes);
  capacity->set_quota_used_bytes(bytes - std::min(bytes, tenant.versions.yieldable_bytes()));
}

void ControlService::FillCapacity(const Tenant* tenant, v1::Capacity* capacity) const {
  const ArenaUsage usage = core_->arena().usage();
  // Landing frames are the server's own and do not count as used.
  const uint64_t landing = core_->landing().size() * kPageBytes;
  // Memory that would yield is free.
  const uint64_t taken = usage.frame_bytes + usage.index_bytes - std::min(usage.frame_bytes, landing);
  const uint64_t yieldable = std::min(core_->store().counters().versions.yieldable_bytes(), taken);
  const uint64_t used = taken - yieldable;
  const uint64_t all_free = usage.free_bytes + yieldable;
  capacity->set_donated_bytes(usage.ceiling_bytes);
  capacity->set_used_bytes(used);
  capacity->set_reserved_bytes(usage.reserved_bytes);
  // Memory that others may still take is not free for this tenant, but donated all the same.
  uint64_t free_bytes = all_free;
  if (tenant != nullptr) {
    free_bytes -= std::min(free_bytes, core_->store().counters().versions.BarredFrom(tenant->versions));
    const uint64_t left_bytes = tenant->account.left_bytes();
    const uint64_t own = std::min(tenant->versions.yieldable_bytes(), ArenaAccount::kNoLimit - left_bytes);
    free_bytes = std::min(free_bytes, left_bytes + own);
    FillQuota(*tenant, capacity);
  }
  // Nothing new is wanted here while the donor needs the memory.
  capacity->set_free_bytes(core_->give_back().FreeForNew(free_bytes));
  const uint64_t told = used + usage.reserved_bytes + all_free;
  capacity->set_overhead_bytes(usage.ceiling_bytes > told ? usage.ceiling_bytes - told : 0);
  capacity->set_draining(core_->draining());
  capacity->set_leaving(core_->leaving());
  capacity->set_asked_back_bytes(core_->give_back().asked_back_bytes());
  capacity->set_pressed(core_->give_back().pressed());
  capacity->set_urgent(core_->urgent());
}

void ControlService::FillHost(const Surroundings& around, v1::HostState* host) const {
  host->set_boot_id(around.boot_id);
  host->set_hostname(around.hostname);
  host->set_pretended_host(around.pretended_host);
  host->set_domain(around.domain);
  host->set_reserve_bytes(around.reserve_bytes);
  host->set_total_bytes(around.memory.total_bytes);
  host->set_available_bytes(around.memory.available_bytes);
  host->set_idle_bytes(around.memory.idle_bytes);
  // The kernel counts donated memory that no page has touched yet as available. But it is not: clients may take it.
  const ArenaUsage usage = core_->arena().usage();
  const uint64_t backed = usage.extent_bytes + usage.index_bytes;
  const uint64_t unbacked = usage.ceiling_bytes > backed ? usage.ceiling_bytes - backed : 0;
  const uint64_t spoken_for = around.reserve_bytes + unbacked;
  const uint64_t available = around.memory.available_bytes;
  host->set_lendable_bytes(available > spoken_for ? available - spoken_for : 0);
}

void ControlService::FillLease(const Lease& lease, v1::LeaseReply* reply) const {
  reply->set_ttl_ms(lease.ttl_ms());
  reply->set_incarnation(core_->incarnation());
  reply->set_reservation_bytes(core_->arena().left_bytes(lease.reservation));
  reply->set_term(lease.term());
  reply->set_asked_back_share(core_->give_back().share());
  // However many clients there are, their renewals take little of a donor that is short of memory, and their pings of
  // an idle one.
  reply->set_hear_again_ms(std::clamp<size_t>(2 * core_->leases().live_count(), 100, 2'000));
  FillCapacity(lease.tenant, reply->mutable_capacity());
}

}  // namespace nram
