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

  // An unnamed region takes no round trip: servers learn of it with its first pages. A named one is created on all
  // servers, or on none: what a failed create has left is undone before it returns, and where a server does not answer,
  // as soon as it does, while this pool lives. INVALID_ARGUMENT: the name is too long, or no printable UTF-8.
  // ALREADY_EXISTS: the name is taken. UNAVAILABLE: a server does not answer, or has still to undo a former create of
  // that name (the message says which). Blocks for io_timeout_ms and a few seconds at most.
  absl::StatusOr<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options);
  // Looks at all servers before it changes anything, so most errors leave everything as it was. NOT_FOUND: no such
  // name. DATA_LOSS: a server that held part of it has restarted since, or has freed its part. UNAVAILABLE: one does
  // not answer, or the region is just being created or undone. FAILED_PRECONDITION: somebody owns it (kOwner).
  // If a server stops answering after the look, it is asked again until the timeout, and the others are taken over all
  // the same: then the former owner is shut out of those, and only another AttachRegion makes the region whole.
  // Blocks for three times io_timeout_ms at most.
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
  static uint64_t RandomId();
  // Named regions: named_regions.cc.
  absl::StatusOr<std::unique_ptr<Region>> CreateNamed(const RegionOptions& options);
  struct Making;
  absl::Status MakeEverywhere(const Making& making, int64_t deadline_ns);
  std::string UndoEverywhere(const Making& making);
  absl::Status AwaitUndone(const std::string& name, int64_t deadline_ns);
  absl::StatusOr<std::vector<RegionInfo>> FindNamed(const std::string& name, int64_t deadline_ns);
  static absl::Status CheckWhole(const std::string& name, const std::vector<RegionInfo>& infos,
                                 const std::vector<uint64_t>& alive, const RegionInfo& newest,
                                 const std::string& silent);
  absl::Status RaiseEverywhere(const std::vector<RegionInfo>& infos, Epoch epoch, AttachMode mode);
  absl::Status RaiseAt(ServerLink* link, const AttachRegionArgs& args, int64_t deadline_ns);
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
