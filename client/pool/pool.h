#ifndef NRAM_CLIENT_POOL_POOL_H_
#define NRAM_CLIENT_POOL_POOL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/host/wake_latency.h"
#include "base/poller.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/pool/claims.h"
#include "client/pool/kept_names.h"
#include "client/pool/live_members.h"
#include "client/pool/named_regions.h"
#include "client/pool/named_seals.h"
#include "client/pool/options.h"
#include "client/pool/pool_versions.h"
#include "client/pool/region.h"
#include "client/pool/repairer.h"
#include "client/pool/server_session.h"
#include "client/pool/sessions.h"
#include "client/seal/seal_secret.h"
#include "client/seal/sealers.h"

namespace nram {

// By the last report of the servers that answer.
struct PoolCapacity {
  uint64_t total_bytes = 0;  // without the servers' own memory
  uint64_t free_bytes = 0;   // that may still be stored, this client's room included
};

// A client's view of a set of memory servers. Thread-safe. Regions must be destroyed before their pool.
//
//   auto pool = Pool::Open(PoolOptions{.servers = *ParsePoolSpec("node1:7070,node2:7070")});
//   auto region = (*pool)->CreateRegion({.gc = true});
//   (*region)->Write(0, bytes);
class Pool : private LiveMembers::Host {
 public:
  // Blocks until every server has answered, open_timeout_ms at most; servers that have not are taken in when they do.
  // If none has, but one may yet, it waits for the first of them up to io_timeout_ms. UNAVAILABLE: none answers (the
  // message names each with the reason). INVALID_ARGUMENT: bad options. The key file's errors are SealSecret::Read's.
  static absl::StatusOr<std::unique_ptr<Pool>> Open(PoolOptions options);
  // Ends its leases: GC regions are collected, others are orphans.
  ~Pool() override;

  // An unnamed region takes no round trip: servers learn of it with its first pages. A named one is created on all
  // servers, or on none: a failed create is undone before it returns, and on a server that does not answer as soon as
  // it does, while this pool lives. INVALID_ARGUMENT: the name is too long, or no printable UTF-8. FAILED_PRECONDITION:
  // it is to be sealed, and the pool has no key file. ALREADY_EXISTS: the name is taken. UNAVAILABLE: a server does not
  // answer, or has still to undo a former create of that name (the message names it).
  // In a pool whose members are in etcd, etcd arbitrates the names of kept regions (adr/0023). UNAVAILABLE there, too:
  // the name was given before, and a server that may have that region does not answer. FAILED_PRECONDITION: the name's
  // key cannot be read. Blocks for io_timeout_ms and a few seconds at most; for a kept region with a name, for twice
  // that.
  absl::StatusOr<std::unique_ptr<Region>> CreateRegion(const RegionOptions& options);
  // Asks all servers before it changes anything, so most errors leave everything as it was. NOT_FOUND: no such name.
  // DATA_LOSS: a server that held part of it has restarted since, or has freed its part; `loss` may accept that, and
  // with several copies fewer servers than copies may be missing if the last owner left in order (adr/0014).
  // UNAVAILABLE: one does not answer, or the region is just being created or undone, or its servers change meanwhile.
  // FAILED_PRECONDITION: it has an owner (kOwner); or it is sealed, and the pool has no key file, or another one; or it
  // is plain, and the pool seals named regions. RESOURCE_EXHAUSTED: it is sealed, and has had too many owners; readers
  // may attach it. One attach at a time: others of this pool wait. A server that stops answering halfway is asked again
  // until the timeout. The others are taken over all the same: the former owner is shut out of those, and only another
  // AttachRegion makes the region whole. Blocks for three times io_timeout_ms at most; while an owner moves the region
  // from server to server, four times as long.
  absl::StatusOr<std::unique_ptr<Region>> AttachRegion(const std::string& name, AttachMode mode,
                                                       AttachLoss loss = AttachLoss::kRefuse) {
    AwaitAll();
    return named_regions_.Attach(name, mode, loss);
  }

  // A version of a region (adr/0019) as it was sealed, read-only, from any servers that have it. The handle holds it;
  // its destruction blocks for a second for each server that does not answer. The version may yield to newer data all
  // the same: reads of pages that no server has any more are DATA_LOSS, and never zeros. DATA_LOSS: it was dropped, or
  // has yielded, or too many of its servers have restarted. UNAVAILABLE: one of them does not answer.
  // RESOURCE_EXHAUSTED: it has too many holds. FAILED_PRECONDITION: it is sealed or plain against this pool's demand,
  // as AttachRegion. Blocks for io_timeout_ms at most.
  absl::StatusOr<std::unique_ptr<Region>> OpenVersion(const VersionPlace& place) {
    AwaitAll();
    return versions_.Open(place);
  }
  // Calls `visit` for each span in which a version may differ from an older one of the same region, in order, with the
  // pages that may differ; all pages of a span that no server had in sync in both. Both regions are handles of
  // OpenVersion. Blocks for io_timeout_ms at most.
  absl::Status VisitChanges(const Region& from, const Region& to,
                            absl::FunctionRef<void(uint64_t span, const ChangedPages& pages)> visit) const {
    return versions_.VisitChanges(from, to, visit);
  }

  // The versions of a region on each server that answers, in records or not. NOT_FOUND: none has the region.
  // UNAVAILABLE: a server that may have it does not answer. Blocks until the deadline at most.
  absl::StatusOr<std::vector<ServerVersions>> ListVersions(RegionId region, int64_t deadline_ns) const {
    return versions_.List(region, deadline_ns);
  }

  // Without waiting for any server, on `edge`: servers are taken in when they answer. For simulations.
  static absl::StatusOr<std::unique_ptr<Pool>> Make(PoolOptions options, std::unique_ptr<PoolEdge> edge);

  PoolCapacity Capacity() const;
  // The hosts of its servers. A server that does not answer counts as a host of its own if `with_away`, else not at
  // all.
  int CountHosts(bool with_away) const;
  size_t server_count() const { return sessions_.size(); }
  ServerSession* session(size_t index) const { return sessions_.at(index); }
  const PoolOptions& options() const { return options_; }
  // True if unnamed regions are sealed by default; WouldSeal: of a pool to be opened with these options.
  bool seals() const { return seals_; }
  static bool WouldSeal(const PoolOptions& options);
  // True if all servers are on this machine.
  static bool IsLocal(const PoolOptions& options);
  // Allocates client memory for this number of messages of sealed regions under way at a time, so that no message
  // allocates. To be called before there are regions. RESOURCE_EXHAUSTED: no memory may be locked for the key.
  absl::Status PrepareSealers(size_t messages);
  // A program's threads may drive it beside their own work.
  Poller* poller() { return edge_->poller(); }
  // Repair's knowledge of the copies of all regions.
  CopiesReport copies() const { return repairer_.report(); }
  // For doors whose threads also sleep for other events than replies.
  WakeLatency* wake_latency() { return edge_->wake_latency(); }

 private:
  Pool(PoolOptions options, std::unique_ptr<SealSecret> secret, std::unique_ptr<PoolEdge> edge);
  // LiveMembers::Host
  bool Accepts(const Endpoint& server, std::string* why) const override;
  ServerSession* AddSession(const Endpoint& server) override;
  bool Drive(ServerSession* session) override;
  void SetWaker(ServerSession* session);
  // Waits for servers that have not answered yet, and returns the awake ones that do not answer.
  std::vector<std::string> AwaitOthers(int64_t deadline_ns);
  // Wakes all sessions for good, as any server may have a part of a named region. Blocks for two seconds at most, for
  // servers that have neither answered nor refused.
  void AwaitAll();
  // Waits until one server is up, or all refuse; until `usual_ns` if no server may still answer then, else until
  // `latest_ns`.
  void AwaitOne(int64_t usual_ns, int64_t latest_ns);
  // A region's seal, with a unique number.
  absl::StatusOr<std::unique_ptr<RegionSeal>> MakeSeal();
  absl::Status MakeKeyLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(seal_mu_);

  const PoolOptions options_;
  const bool seals_;
  const std::unique_ptr<const SealSecret> secret_;  // of the key file, if there is one
  mutable Mutex seal_mu_;
  // Null until a region is sealed, unless there is a key file.
  std::unique_ptr<Sealers> sealers_ ABSL_GUARDED_BY(seal_mu_);
  // For regions without a name. The last key is in use; the others have given all their numbers.
  std::vector<std::unique_ptr<SealKey>> keys_ ABSL_GUARDED_BY(seal_mu_);
  uint32_t last_number_ ABSL_GUARDED_BY(seal_mu_) = 0;  // that the last key has given
  const std::unique_ptr<PoolEdge> edge_;
  Claims claims_;
  Sessions sessions_;
  std::vector<std::unique_ptr<SessionDriver>> drivers_;  // of awake sessions; live_members_ orders callers
  CopiedRegions copied_regions_;
  const RegionHome home_;
  Repairer repairer_;
  KeptNames kept_names_;
  Membership membership_;
  const NamedSeals named_seals_;
  NamedRegions named_regions_;
  PoolVersions versions_;
  std::unique_ptr<LiveMembers> live_members_;  // null if all sessions are awake, and remain so
};

// Checks whether the pool can have `copies` copies of a page, each on a host of its own. A server that does not answer
// counts as another host. RESOURCE_EXHAUSTED: the pool has fewer hosts; the message says how many, and begins with the
// `setting` that asks for the copies, as its user knows it.
absl::Status CheckHosts(const Pool& pool, int copies, absl::string_view setting);

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_POOL_H_
