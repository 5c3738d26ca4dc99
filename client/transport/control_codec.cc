#include "client/transport/control_codec.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/utf8.h"
#include "proto/version.h"

namespace nram {
namespace {

// Bounds of replies. A server that exceeds them is broken, or lies.
constexpr uint32_t kTenantsMax = 65'536;
constexpr size_t kListBytesMax = 256 << 20;  // of a whole list, on the wire
constexpr uint64_t kBytesMax = uint64_t{1} << 60;
constexpr int kIncarnationsMax = 65'535;
constexpr int kVersionsMax = 65'536;
constexpr uint32_t kCopiesMax = 255;
constexpr uint32_t kMillion = 1'000'000;
constexpr uint32_t kHearAgainMinMs = 50;
constexpr uint32_t kHearAgainMaxMs = 10'000;
constexpr size_t kManifestBytesMax = 16 << 10;
// Beyond it are those that this client still gives.
constexpr uint32_t kGenerationMax = uint32_t{1} << 31;
constexpr int64_t kLeaseTtlMinMs = 10;
constexpr int64_t kLeaseTtlMaxMs = 6 * 3'600'000;
constexpr size_t kTextBytesMax = 2000;
constexpr size_t kNameBytesMax = 255;

// Sums of a few of these do not overflow.
uint64_t Bounded(uint64_t bytes) { return std::min(bytes, kBytesMax); }

ServerCapacity FromProto(const v1::Capacity& capacity) {
  return {Bounded(capacity.donated_bytes()),
          Bounded(capacity.used_bytes()),
          Bounded(capacity.reserved_bytes()),
          Bounded(capacity.free_bytes()),
          Bounded(capacity.overhead_bytes()),
          capacity.draining(),
          capacity.leaving(),
          Bounded(capacity.asked_back_bytes()),
          capacity.pressed(),
          capacity.urgent(),
          Bounded(capacity.quota_bytes()),
          Bounded(capacity.quota_used_bytes())};
}

ServerHost FromProto(const v1::HostState& host) {
  return {Printable(host.boot_id(), kNameBytesMax),
          Printable(host.hostname(), kNameBytesMax),
          Bounded(host.total_bytes()),
          Bounded(host.available_bytes()),
          Bounded(host.idle_bytes()),
          Bounded(host.lendable_bytes()),
          Bounded(host.reserve_bytes()),
          Printable(host.pretended_host(), kNameBytesMax),
          Printable(host.domain(), kNameBytesMax)};
}

RegionInfo FromProto(const v1::RegionInfo& region) {
  return {RegionId{region.region_id()},
          region.name(),
          Epoch{region.epoch()},
          region.gc(),
          Printable(region.owner_name(), kTextBytesMax),
          region.orphan(),
          Bounded(region.stored_bytes()),
          region.spans(),
          {region.incarnations().begin(), region.incarnations().end()},
          region.size_bytes(),
          LeaseId{region.lease_id()},
          static_cast<uint8_t>(std::max(region.copies(), 1u)),
          Epoch{region.view_epoch()},
          region.view(),
          region.sealed(),
          Printable(region.tenant(), kNameBytesMax),
          region.pages_sealed(),
          /*seal_manifest=*/"",
          region.versioned(),
          VersionNumber{region.newest_version()},
          Bounded(region.version_bytes()),
          RegionId{region.companion_id()}};
}

}  // namespace

v1::HelloRequest ControlCodec::Hello() {
  v1::HelloRequest request;
  const WireVersions ours;
  request.set_version_min(ours.lowest);
  request.set_version_max(ours.highest);
  return request;
}

v1::GrantLeaseRequest ControlCodec::GrantLease(LeaseId lease, const std::string& client_name, int64_t ttl_ms,
                                               bool expendable) {
  v1::GrantLeaseRequest request;
  request.set_lease_id(Raw(lease));
  request.set_client_name(client_name);
  request.set_ttl_ms(ttl_ms);
  request.set_expendable(expendable);
  return request;
}

v1::RenewLeaseRequest ControlCodec::RenewLease(LeaseId lease, const CopiesReport& copies) {
  v1::RenewLeaseRequest request;
  request.set_lease_id(Raw(lease));
  if (copies == CopiesReport()) return request;
  ToMessage(copies, request.mutable_copies());
  return request;
}

v1::EndLeaseRequest ControlCodec::EndLease(LeaseId lease) {
  v1::EndLeaseRequest request;
  request.set_lease_id(Raw(lease));
  return request;
}

v1::ReserveRequest ControlCodec::Reserve(LeaseId lease, int64_t pages, ReserveOrder order) {
  v1::ReserveRequest request;
  request.set_lease_id(Raw(lease));
  request.set_pages(pages);
  request.set_term(order.term);
  request.set_order(order.number);
  request.set_ahead(order.ahead);
  return request;
}

v1::CreateRegionRequest ControlCodec::CreateRegion(const CreateRegionArgs& args) {
  v1::CreateRegionRequest request;
  request.set_lease_id(Raw(args.lease));
  request.set_region_id(Raw(args.region));
  request.set_epoch(Raw(args.epoch));
  request.set_gc(args.gc);
  request.set_name(args.name);
  request.mutable_incarnations()->Assign(args.incarnations.begin(), args.incarnations.end());
  request.set_size_bytes(args.size_bytes);
  request.set_copies(args.copies);
  request.set_view(args.view);
  request.set_pages_sealed(args.pages_sealed);
  request.set_seal_manifest(args.seal_manifest);
  request.set_versioned(args.versioned);
  request.set_companion_id(Raw(args.companion));
  return request;
}

v1::SetViewRequest ControlCodec::SetView(const SetViewArgs& args) {
  v1::SetViewRequest request;
  request.set_lease_id(Raw(args.lease));
  request.set_region_id(Raw(args.region));
  request.set_epoch(Raw(args.epoch));
  request.set_view(args.view);
  request.mutable_incarnations()->Assign(args.incarnations.begin(), args.incarnations.end());
  request.set_sealed(args.left_in_order);
  return request;
}

v1::AttachRegionRequest ControlCodec::AttachRegion(const AttachRegionArgs& args) {
  v1::AttachRegionRequest request;
  request.set_lease_id(Raw(args.lease));
  request.set_region_id(Raw(args.region));
  request.set_name(args.name);
  request.set_read_only(args.read_only);
  request.set_epoch(Raw(args.epoch));
  request.set_force(args.force);
  request.set_seal_manifest(args.seal_manifest);
  return request;
}

v1::DestroyRegionRequest ControlCodec::DestroyRegion(LeaseId lease, RegionId region, bool force) {
  v1::DestroyRegionRequest request;
  request.set_lease_id(Raw(lease));
  request.set_region_id(Raw(region));
  request.set_force(force);
  return request;
}

v1::ListRegionsRequest ControlCodec::ListRegions(bool orphans_only, bool all_tenants) {
  v1::ListRegionsRequest request;
  request.set_orphans_only(orphans_only);
  request.set_all_tenants(all_tenants);
  return request;
}

v1::ListSpansRequest ControlCodec::ListSpans(RegionId region, VersionNumber version) {
  v1::ListSpansRequest request;
  request.set_region_id(Raw(region));
  request.set_version(Raw(version));
  return request;
}

v1::ListVersionsRequest ControlCodec::ListVersions(RegionId region) {
  v1::ListVersionsRequest request;
  request.set_region_id(Raw(region));
  return request;
}

v1::HoldVersionRequest ControlCodec::HoldVersion(LeaseId lease, RegionId region, VersionNumber version, bool release) {
  v1::HoldVersionRequest request;
  request.set_lease_id(Raw(lease));
  request.set_region_id(Raw(region));
  request.set_version(Raw(version));
  request.set_release(release);
  return request;
}

v1::ListChangesRequest ControlCodec::ListChanges(RegionId region, VersionNumber from, VersionNumber to) {
  v1::ListChangesRequest request;
  request.set_region_id(Raw(region));
  request.set_from_version(Raw(from));
  request.set_to_version(Raw(to));
  return request;
}

v1::DrainRequest ControlCodec::Drain(bool draining, bool leaving) {
  v1::DrainRequest request;
  request.set_draining(draining);
  request.set_leaving(leaving);
  return request;
}

absl::StatusOr<ServerHello> ControlCodec::Parse(const v1::HelloReply& reply) const {
  const WireVersions ours;
  if (!ours.Has(reply.version())) {
    return absl::FailedPreconditionError(
        NoCommonVersion(absl::StrCat("memory server ", server_), {reply.version(), reply.version()}, ours));
  }
  if (reply.incarnation() == 0) return Nonsense("incarnation 0");
  if (reply.data_port() > 65'535) return Nonsense(absl::StrCat("data port ", reply.data_port()));
  return ServerHello{reply.incarnation(),
                     static_cast<int>(reply.data_port()),
                     reply.data_socket(),
                     FromProto(reply.capacity()),
                     FromProto(reply.host()),
                     static_cast<int64_t>(reply.lease_ttl_ms()),
                     reply.version(),
                     Printable(reply.tenant(), kNameBytesMax),
                     Printable(reply.role(), kNameBytesMax)};
}

absl::StatusOr<LeaseInfo> ControlCodec::Parse(const v1::LeaseReply& reply) const {
  const auto ttl_ms = static_cast<int64_t>(reply.ttl_ms());
  if (ttl_ms < kLeaseTtlMinMs || ttl_ms > kLeaseTtlMaxMs) {
    return Nonsense(absl::StrCat("a lease of ", reply.ttl_ms(), " ms"));
  }
  LeaseInfo info{ttl_ms, reply.incarnation(), Bounded(reply.reservation_bytes()), FromProto(reply.capacity()),
                 reply.term()};
  info.asked_back_share = std::min(reply.asked_back_share(), kMillion);
  if (reply.hear_again_ms() != 0) {
    info.hear_again_ms = std::clamp(reply.hear_again_ms(), kHearAgainMinMs, kHearAgainMaxMs);
  }
  return info;
}

absl::StatusOr<RegionInfo> ControlCodec::Parse(const v1::AttachRegionReply& reply, const AttachRegionArgs& args) const {
  const v1::RegionInfo& region = reply.region();
  const bool is_other = Raw(args.region) != 0 ? region.region_id() != Raw(args.region) : region.name() != args.name;
  if (region.region_id() == 0 || is_other) return Nonsense("a region that was not asked for");
  if (region.size_bytes() > kRegionBytesMax) return Nonsense(absl::StrCat("a size of ", region.size_bytes()));
  if (region.incarnations_size() > kIncarnationsMax) return Nonsense("a region on more than 65535 servers");
  if (region.copies() > kCopiesMax) return Nonsense(absl::StrCat(region.copies(), " copies of each page"));
  if (region.sealed() > kCopiesMax) return Nonsense(absl::StrCat("left in order with ", region.sealed(), " copies"));
  if (region.view() == UINT64_MAX) return Nonsense("the last view");
  if (region.newest_version() > Raw(kVersionNumberMax)) return Nonsense("an impossible version");
  if (region.seal_manifest().size() > kManifestBytesMax) return Nonsense("a seal's manifest of more than 16 KiB");
  RegionInfo info = FromProto(region);
  info.seal_manifest = region.seal_manifest();
  return info;
}

ServerStatistics ControlCodec::Parse(const v1::Statistics& reply) {
  ServerStatistics statistics{reply.incarnation(),
                              Printable(reply.address(), kNameBytesMax),
                              FromProto(reply.capacity()),
                              FromProto(reply.host()),
                              {}};
  // Takes every plain number of the message under its own name, so that none is forgotten.
  const auto* descriptor = reply.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    if (field->cpp_type() != google::protobuf::FieldDescriptor::CPPTYPE_UINT64 || field->name() == "incarnation")
      continue;
    statistics.counters.emplace_back(field->name(), reply.GetReflection()->GetUInt64(reply, field));
  }
  for (const v1::Copies& copies : reply.copies()) statistics.copies.push_back(CopiesFromMessage(copies));
  return statistics;
}

absl::StatusOr<VersionList> ControlCodec::Parse(const v1::ListVersionsReply& reply) const {
  if (reply.versions_size() > kVersionsMax) return Nonsense("more than 65536 versions of a region");
  VersionList list;
  list.incarnation = reply.incarnation();
  uint32_t last = 0;
  for (const v1::VersionInfo& version : reply.versions()) {
    if (version.number() <= last || version.number() > Raw(kVersionNumberMax)) return Nonsense("an unordered list");
    last = version.number();
    list.versions.push_back({VersionNumber{last}, static_cast<VersionKeep>(version.keep()), version.holds(),
                             Bounded(version.own_bytes()), Bounded(version.own_pages())});
  }
  return list;
}

absl::StatusOr<bool> ControlCodec::AddPage(const v1::ListRegionsReply& reply, v1::ListRegionsRequest* request,
                                           RegionList* list) const {
  list->bytes += reply.ByteSizeLong() + reply.regions_size() * sizeof(RegionInfo);
  if (list->bytes > kListBytesMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory server ", server_, " has more regions than fit into a list: list orphans only"));
  }
  uint64_t next = request->from_id();
  for (const v1::RegionInfo& region : reply.regions()) {
    if (region.region_id() < next || region.region_id() == UINT64_MAX) return Nonsense("an unordered list");
    next = region.region_id() + 1;
    list->regions.push_back(FromProto(region));
    list->regions.back().incarnations = {};
  }
  if (reply.next_tenant() > request->from_tenant() && request->all_tenants()) {
    if (reply.next_tenant() > kTenantsMax) return Nonsense("a list of too many tenants");
    request->set_from_tenant(reply.next_tenant());
    request->set_from_id(0);
    return true;
  }
  if (reply.next_id() == 0) return false;
  if (reply.next_id() < next || reply.regions().empty()) return Nonsense("an endless list");
  request->set_from_id(reply.next_id());
  return true;
}

absl::StatusOr<bool> ControlCodec::VisitPage(const v1::ListSpansReply& reply, v1::ListSpansRequest* request,
                                             absl::FunctionRef<absl::Status(uint64_t, SpanGeneration)> visit) const {
  uint64_t next = request->from_span();
  if (reply.generations_size() != 0 && reply.generations_size() != reply.spans_size()) {
    return Nonsense("spans without generations");
  }
  for (int i = 0; i < reply.spans_size(); ++i) {
    const uint64_t span = reply.spans(i);
    const uint32_t generation = reply.generations_size() == 0 ? 0 : reply.generations(i);
    if (span < next) return Nonsense("an unordered list");
    if (span >= kRegionBytesMax / kSpanBytes) return Nonsense("a span beyond 2^62 bytes");
    next = span + 1;
    if (generation >= kGenerationMax) return Nonsense("the last generation");
    NRAM_RETURN_IF_ERROR(visit(span, SpanGeneration{generation}));
  }
  if (reply.next_span() == 0) return false;
  // A server looks at a number of spans of a version in a call, whether they have something or not.
  const bool goes_on = request->version() != 0 ? reply.next_span() > request->from_span() : !reply.spans().empty();
  if (reply.next_span() < next || !goes_on) return Nonsense("an endless list");
  request->set_from_span(reply.next_span());
  return true;
}

absl::StatusOr<bool> ControlCodec::VisitPage(
    const v1::ListChangesReply& reply, v1::ListChangesRequest* request,
    absl::FunctionRef<absl::Status(uint64_t, const ChangedPages&)> visit) const {
  uint64_t next = request->from_span();
  if (reply.maps().size() != reply.spans_size() * sizeof(ChangedPages)) return Nonsense("spans without maps");
  for (int i = 0; i < reply.spans_size(); ++i) {
    const uint64_t span = reply.spans(i);
    if (span < next) return Nonsense("an unordered list");
    if (span >= kRegionBytesMax / kSpanBytes) return Nonsense("a span beyond 2^62 bytes");
    next = span + 1;
    ChangedPages pages;  // little-endian, as this machine is (proto/message_body.h)
    memcpy(pages.data(), reply.maps().data() + i * sizeof pages, sizeof pages);
    NRAM_RETURN_IF_ERROR(visit(span, pages));
  }
  if (reply.next_span() == 0) return false;
  if (reply.next_span() < next || reply.next_span() <= request->from_span()) return Nonsense("an endless list");
  request->set_from_span(reply.next_span());
  return true;
}

absl::Status ControlCodec::Refusal(absl::StatusCode code, absl::string_view message) const {
  return absl::Status(code, absl::StrCat("memory server ", server_, ": ", Printable(message, kTextBytesMax)));
}

absl::Status ControlCodec::Nonsense(absl::string_view what) const {
  return absl::FailedPreconditionError(
      absl::StrCat("memory server ", server_, " sends invalid answers (", what,
                   "): it is broken, or not a memory server; restart it, or remove it from the pool"));
}

}  // namespace nram
