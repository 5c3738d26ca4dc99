#ifndef NRAM_CLIENT_TRANSPORT_CONTROL_CLIENT_H_
#define NRAM_CLIENT_TRANSPORT_CONTROL_CLIENT_H_

// The control plane as its clients see it: plain structs, Status, deadlines. Nothing above this header sees gRPC.

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/endpoint.h"
#include "base/tls/context.h"
#include "base/units.h"
#include "proto/copies_report.h"
#include "proto/wire.h"

namespace nram {

struct ServerCapacity {
  uint64_t donated_bytes = 0;
  uint64_t used_bytes = 0;
  uint64_t reserved_bytes = 0;
  uint64_t free_bytes = 0;
  uint64_t overhead_bytes = 0;
  bool draining = false;
  bool leaving = false;           // its clients are to move their data to other servers
  uint64_t asked_back_bytes = 0;  // its clients are to give back so much
  bool pressed = false;           // it uses, or used lately, more than it may
  bool urgent = false;            // it leaves, and its process will end soon
  uint64_t quota_bytes = 0;       // of this client's tenant there; 0: it has none
  uint64_t quota_used_bytes = 0;
};

struct ServerHost {
  std::string boot_id;
  std::string hostname;
  uint64_t total_bytes = 0;
  uint64_t available_bytes = 0;
  uint64_t idle_bytes = 0;
  uint64_t lendable_bytes = 0;
  uint64_t reserve_bytes = 0;
  std::string pretended_host;  // empty: none
  std::string domain;          // empty: none

  // The identity of the host that copies of a span must not share.
  const std::string& counts_as() const { return pretended_host.empty() ? boot_id : pretended_host; }
};

struct ServerHello {
  uint64_t incarnation = 0;
  int data_port = 0;
  std::string data_socket;
  ServerCapacity capacity;
  ServerHost host;
  int64_t lease_ttl_ms = 0;
  uint32_t version = 0;  // of the wire: the highest that both ends speak
  // This client's identity there (docs/security.md). All servers of a pool should say the same.
  std::string tenant;
  std::string role;
};

struct LeaseInfo {
  int64_t ttl_ms = 0;
  uint64_t incarnation = 0;
  uint64_t reservation_bytes = 0;
  ServerCapacity capacity;
  uint64_t term = 0;              // changes when the lease is granted after its end
  uint32_t hear_again_ms = 100;   // while something is asked, until the next renewal; else until a ping
  uint32_t asked_back_share = 0;  // millionths of this client's memory there that it is to give back
};

struct ReserveOrder {
  uint64_t term = 0;    // of the lease, by its LeaseInfo
  uint64_t number = 0;  // rises with each request
  bool ahead = false;   // less, or nothing, is needed now: versions that are held do not yield to it
};

struct RegionInfo {
  RegionId id{};
  std::string name;
  Epoch epoch{};
  bool gc = false;
  std::string owner_name;
  bool orphan = false;
  uint64_t stored_bytes = 0;
  uint64_t spans = 0;
  std::vector<uint64_t> incarnations;
  uint64_t size_bytes = 0;
  LeaseId lease{};  // the owner's, if the caller of AttachRegion named it as its own; else zero
  // Of a region of copies, or with sealed pages.
  uint8_t copies = 1;
  // The owner that has told this list of incarnations, and the list's number. Higher owners' lists are newer.
  Epoch view_epoch{};
  uint64_t view = 0;
  // Its last owner has left it in good order: the fewest copies in sync that a span has then; 0: not so.
  uint32_t left_in_order = 0;
  std::string tenant;  // by ListRegions
  bool pages_sealed = false;
  std::string seal_manifest;       // by AttachRegion, of a named region with sealed pages
  bool versioned = false;          // it may have versions, although it has one plain copy
  VersionNumber newest_version{};  // on this server; 0: none
  uint64_t version_bytes = 0;      // kept on this server for its versions alone
  RegionId companion{};            // another region that belongs to it; 0: none

  // Its owner tells its members, and its spans have generations.
  bool has_views() const { return copies > 1 || pages_sealed || versioned; }
};

// A version of a region at one server.
struct VersionInfo {
  VersionNumber number{};
  VersionKeep keep{};
  uint32_t holds = 0;
  uint64_t own_bytes = 0;  // kept there since it was sealed, and before the next one was
  uint64_t own_pages = 0;
};

struct VersionList {
  std::vector<VersionInfo> versions;  // the oldest first
  uint64_t incarnation = 0;           // of the server
};

// The changed pages of a span: a bit for each page.
using ChangedPages = std::array<uint64_t, kPagesPerSpan / 64>;

// `counters` has the name and value of every counter in docs/stats.md, in its order.
struct ServerStatistics {
  uint64_t incarnation = 0;
  std::string address;
  ServerCapacity capacity;
  ServerHost host;
  std::vector<std::pair<std::string, uint64_t>> counters;
  std::vector<CopiesReport> copies;  // of the clients that have a lease there
};

struct CreateRegionArgs {
  LeaseId lease{};
  RegionId region{};
  Epoch epoch{};
  bool gc = false;
  std::string name;
  std::vector<uint64_t> incarnations;
  uint64_t size_bytes = 0;
  uint8_t copies = 1;
  uint64_t view = 0;
  bool pages_sealed = false;
  std::string seal_manifest;
  bool versioned = false;
  RegionId companion{};
};

struct SetViewArgs {
  LeaseId lease{};
  RegionId region{};
  Epoch epoch{};
  uint64_t view = 0;
  std::vector<uint64_t> incarnations;
  uint32_t left_in_order = 0;  // as RegionInfo has it
};

struct AttachRegionArgs {
  LeaseId lease{};
  RegionId region{};  // zero: by name
  std::string name;
  bool read_only = false;
  Epoch epoch{};
  bool force = false;
  std::string seal_manifest;  // of a new owner
};

// One server's control plane. Thread-safe. Every call blocks until `deadline_ns` (absolute, monotonic) at most. No
// answer takes more than 4 MiB.
//
// Codes are those of proto/control.proto, and:
//   UNAVAILABLE, DEADLINE_EXCEEDED  the server does not answer
//   FAILED_PRECONDITION             the answer is of another version, or cannot be true
// Messages name the server. Texts that servers say about themselves (messages, hosts, owners) are Printable. Names of
// regions are as their creators chose them.
class ControlClient {
 public:
  // Connects at the first call, and again after a connection was lost. With it its calls are lost; those that only read
  // (lists, GetStatistics) are made once more. `tls`: null: plain. A Unix socket is always plain.
  static std::unique_ptr<ControlClient> Create(const Endpoint& endpoint, std::shared_ptr<TlsContext> tls = nullptr);
  virtual ~ControlClient() = default;

  virtual absl::StatusOr<ServerHello> Hello(int64_t deadline_ns) = 0;
  virtual absl::StatusOr<LeaseInfo> GrantLease(LeaseId lease, const std::string& client_name, int64_t ttl_ms,
                                               int64_t deadline_ns, bool expendable = false) = 0;
  virtual absl::StatusOr<LeaseInfo> RenewLease(LeaseId lease, const CopiesReport& copies, int64_t deadline_ns) = 0;
  virtual absl::Status EndLease(LeaseId lease, int64_t deadline_ns) = 0;
  // Requests have an order. When a later one was answered, or the lease has another term, the server does not execute
  // an earlier one any more. ABORTED: the request came too late. If `order` is zero, the request has no order.
  virtual absl::StatusOr<LeaseInfo> Reserve(LeaseId lease, int64_t pages, ReserveOrder order, int64_t deadline_ns) = 0;
  virtual absl::Status CreateRegion(const CreateRegionArgs& args, int64_t deadline_ns) = 0;
  virtual absl::StatusOr<RegionInfo> AttachRegion(const AttachRegionArgs& args, int64_t deadline_ns) = 0;
  virtual absl::Status SetView(const SetViewArgs& args, int64_t deadline_ns) = 0;
  // True if it was there.
  virtual absl::StatusOr<bool> DestroyRegion(LeaseId lease, RegionId region, bool force, int64_t deadline_ns) = 0;
  // The same for an operator: a region of any tenant.
  virtual absl::StatusOr<bool> DestroyOf(const std::string& tenant, RegionId region, bool force,
                                         int64_t deadline_ns) = 0;
  // Only if its epoch is not higher, nor its view newer than that owner's of that number: else FAILED_PRECONDITION.
  virtual absl::StatusOr<bool> DestroyView(LeaseId lease, RegionId region, Epoch epoch, uint64_t view,
                                           int64_t deadline_ns) = 0;
  // All regions, without their incarnations, asked for page by page. RESOURCE_EXHAUSTED: the list exceeds 256 MiB.
  // `all_tenants`: for operators.
  virtual absl::StatusOr<std::vector<RegionInfo>> ListRegions(bool orphans_only, bool all_tenants,
                                                              int64_t deadline_ns) = 0;
  // Calls `visit` for each span that holds data or has a generation, in order. The generation is 0 in regions of one
  // copy. Ends with the first error of `visit`. `version`: as it was then; NOT_FOUND also if the server does not have
  // it.
  virtual absl::Status ListSpans(RegionId region, int64_t deadline_ns,
                                 absl::FunctionRef<absl::Status(uint64_t, SpanGeneration)> visit,
                                 VersionNumber version = {}) = 0;
  // NOT_FOUND: no such region.
  virtual absl::StatusOr<VersionList> ListVersions(RegionId region, int64_t deadline_ns) = 0;
  // Holds the version there for as long as the lease lives, or until `release`. A lease has its hold once, however
  // often it asks. Returns the server's incarnation. NOT_FOUND: no such lease, region or version. RESOURCE_EXHAUSTED:
  // no room, or too many holds.
  virtual absl::StatusOr<uint64_t> HoldVersion(LeaseId lease, RegionId region, VersionNumber version, bool release,
                                               int64_t deadline_ns) = 0;
  // Calls `visit` for each span in which `to` may differ from the older version `from`, in order, with the pages that
  // may. Ends with the first error of `visit`. NOT_FOUND: the server lacks one of the two.
  virtual absl::Status ListChanges(RegionId region, VersionNumber from, VersionNumber to, int64_t deadline_ns,
                                   absl::FunctionRef<absl::Status(uint64_t, const ChangedPages&)> visit) = 0;
  virtual absl::StatusOr<ServerStatistics> GetStatistics(int64_t deadline_ns) = 0;
  // `leaving`: its data is to be moved, too.
  virtual absl::Status Drain(bool draining, bool leaving, int64_t deadline_ns) = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_TRANSPORT_CONTROL_CLIENT_H_
