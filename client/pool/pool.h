#ifndef NRAM_CLIENT_POOL_POOL_H_
#define NRAM_CLIENT_POOL_POOL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/poller.h"
#include "base/units.h"
#include "base/wake_latency.h"
#include "client/pool/options.h"
#include "client/pool/region.h"
#include "client/pool/server_link.h"

namespace nram {

enum class AttachMode {
  kReadOnly,
  kOwner,     // refused while another client's lease lives
  kTakeOver,  // shuts the present owner out
};

// A client's view of a set of memory servers. Thread-safe. Regions must be gone before their pool.
//
//   auto pool = Pool::Open(PoolOptions{.servers = *ParsePoolSpec("node1:7070,node2:7070")});
//   auto region = (*pool)->CreateRegion({.gc = true});
//   (*region)->Write(0, bytes);
class Pool {
 public:
  // Blocks until every server has answered, open_timeout_ms at most; those that have not are left out and taken in when
  // they do. If none has, but one may yet, it waits for the first of them up to io_timeout_ms. UNAVAILABLE if none
  // answers (the message names each and why). INVALID_ARGUMENT: bad options.
  static absl::StatusOr<std::unique_ptr<Pool>> Open(PoolOptions options);
  // Ends its leases: GC regions are collected, others are orphans.
  ~Pool();

  // An unnamed region takes no round trip: servers learn of it with its first pages. ALREADY_EXISTS: the name is taken.
  absl::StatusOr<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options);
  // NOT_FOUND: no such name. DATA_LOSS: a server that held part of it has restarted since. UNAVAILABLE: one does not
  // answer. FAILED_PRECONDITION: somebody owns it (kOwner).
  absl::StatusOr<std::unique_ptr<Region>> AttachRegion(const std::string& name, AttachMode mode);

  // Region::Destroy of many, whose requests are under way together: far faster than one after the other. Null pointers
  // are not allowed.
  absl::Status DestroyRegions(absl::Span<const std::unique_ptr<Region>> regions) { return Region::DestroyAll(regions); }

  size_t server_count() const { return links_.size(); }
  ServerLink* link(size_t index) const { return links_[index].get(); }
  const PoolOptions& options() const { return options_; }
  // Which a program's threads may drive beside their own work.
  Poller* poller() { return &poller_; }
  LeaseId lease() const { return lease_; }
  // For doors whose threads sleep for more than replies.
  WakeLatency* wake_latency() { return &wake_latency_; }

 private:
  friend class Region;

  explicit Pool(PoolOptions options);
  RegionId NewRegionId();
  absl::Status CreateNamed(RegionId id, const RegionOptions& options, Region* region);
  absl::StatusOr<std::vector<RegionInfo>> FindNamed(const std::string& name, int64_t deadline_ns);
  absl::Status LoadSpans(Region* region, int64_t deadline_ns);
  // Servers that new spans may go to, by free room.
  std::vector<PlacementCandidate> Candidates() const;

  const PoolOptions options_;
  const LeaseId lease_;
  WakeLatency wake_latency_;
  Poller poller_;
  std::vector<std::unique_ptr<ServerLink>> links_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_POOL_H_
