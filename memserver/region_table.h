#ifndef NRAM_MEMSERVER_REGION_TABLE_H_
#define NRAM_MEMSERVER_REGION_TABLE_H_

// The regions that a server holds: their tenants and owners, their creation and destruction, and lists of them. A
// caller that names a region names its tenant too, by a key or by a lease. Knows nothing of their data (page_store.h),
// of sockets or of gRPC.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sync.h"
#include "base/units.h"
#include "memserver/doomed_regions.h"
#include "memserver/ended_leases.h"
#include "memserver/frame_arena.h"
#include "memserver/lease_table.h"
#include "memserver/payment.h"
#include "memserver/region_lists.h"
#include "memserver/region_names.h"
#include "memserver/store_counters.h"
#include "memserver/stored_region.h"
#include "memserver/versioned_regions.h"
#include "memserver/work_bound.h"
#include "proto/wire.h"

namespace nram {

struct RegionDescription {
  RegionId id{};
  LeaseId lease{};
  uint32_t epoch = 0;
  bool gc = false;
  bool orphan = false;
  bool sealed = false;  // its pages are
  std::string owner_name;
  uint64_t stored_bytes = 0;
  uint64_t spans = 0;
  VersionNumber newest_version{};  // 0: none
  uint64_t version_bytes = 0;      // of pages that versions alone have
  RegionManifest manifest;
};

// Thread-safe. Reasons are those of the wire. Functions for the control plane return Status.
class RegionTable {
 public:
  using Doomed = ::nram::Doomed;

  // Pointers are not owned and must outlive the table.
  RegionTable(FrameArena* arena, LeaseTable* leases) : arena_(arena), leases_(leases) {}
  RegionTable(const RegionTable&) = delete;
  ~RegionTable();

  // Creates an unnamed region. `sealed`: it takes sealed pages, and no others.
  Reason Create(Lease* lease, RegionId id, uint32_t epoch, bool gc, bool sealed = false);
  // Creates a named region. ALREADY_EXISTS (id or name), RESOURCE_EXHAUSTED, FAILED_PRECONDITION (lease ended).
  absl::Status CreateNamed(Lease* lease, RegionId id, uint32_t epoch, bool gc, RegionManifest manifest,
                           bool sealed = false);

  // Destroys the region and all its data. kUnknownRegion: there is none.
  Reason Destroy(Lease* lease, RegionId id, uint32_t epoch);
  // The first half of Destroy: the region is gone, but its memory is still taken. The caller calls FreeStep until it
  // returns true, or gives *doomed to FreeLater. See DoomedRegions.
  Reason Unlink(Lease* lease, RegionId id, uint32_t epoch, Doomed* doomed);
  bool FreeStep(Doomed* doomed) { return doomed_.FreeStep(doomed); }
  void FreeLater(Doomed doomed) { doomed_.FreeLater(std::move(doomed)); }
  bool FreeSome(int64_t until_ns) { return doomed_.FreeSome(until_ns); }
  // Destroy for the control plane. `force`: under any owner, and whether or not the lease lives. True: there was such a
  // region.
  struct ViewBound {
    uint32_t epoch = 0;
    uint64_t view = 0;
  };
  // `bound`: FAILED_PRECONDITION if the region has a higher epoch, or a newer view.
  absl::StatusOr<bool> DestroyByControl(LeaseId lease, const StoredKey& key, bool force,
                                        const std::optional<ViewBound>& bound = std::nullopt);

  // See control.proto. `lease`: of the key's tenant; null: read-only. `seal`: the new owner's; "": it stays. Where
  // there is no room for the lease, versions yield to it.
  absl::StatusOr<RegionDescription> Attach(Lease* lease, const StoredKey& key, uint32_t epoch, bool force,
                                           const std::string& seal = "");
  // See control.proto.
  absl::Status SetView(const Lease& lease, RegionId id, uint32_t epoch, uint64_t view,
                       const std::vector<uint64_t>& incarnations, uint32_t left_in_order);
  // Zero if no region has this name.
  RegionId FindByName(TenantNumber tenant, const std::string& name) const { return names_.Find(tenant, name); }
  // The tenant's first `limit` regions with an id of at least `from`, in order, without their incarnations and seals,
  // which are long. Fewer if some are destroyed meanwhile. *next: the id to go on from; 0: there are no more.
  std::vector<RegionDescription> List(TenantNumber tenant, uint64_t from, size_t limit, bool orphans_only,
                                      bool named_only, uint64_t* next = nullptr) const;
  struct ListedSpan {
    uint64_t span = 0;
    SpanGeneration generation{};
  };
  absl::StatusOr<std::vector<ListedSpan>> ListSpans(const StoredKey& key, uint64_t from_span, size_t limit) const;

  // --- Versions (adr/0019).
  // Oldest first. NOT_FOUND: no such region.
  absl::StatusOr<std::vector<StoredVersion>> ListVersions(const StoredKey& key) const;
  // See control.proto. `lease`: of the key's tenant.
  absl::Status HoldVersion(Lease* lease, const StoredKey& key, VersionNumber version, bool release);
  // The next two look at a bounded number of spans. *next_span: to go on from; 0: there are no more. NOT_FOUND: there
  // is no such region, or version.
  absl::StatusOr<std::vector<ListedSpan>> ListSpansAt(const StoredKey& key, VersionNumber version, uint64_t from_span,
                                                      uint64_t* next_span) const;
  struct ChangedSpan {
    uint64_t span = 0;
    PageIndex::SpanPages pages{};
  };
  // INVALID_ARGUMENT: `from` is not older than `to`.
  absl::StatusOr<std::vector<ChangedSpan>> ListChanges(const StoredKey& key, VersionNumber from, VersionNumber to,
                                                       uint64_t from_span, uint64_t* next_span) const;
  // Goes on with the pending work of versions, and collects GC regions without an owner whose last version has gone.
  // Looks at regions with such work alone. Ends after `steps_max` steps that leave work, each up to a millisecond, or
  // with `bound`. True: nothing is left that can be done now. Call it often.
  bool StepVersions(uint64_t steps_max, const WorkBound& bound = WorkBound());
  // A request of `tenant` has found no room, and needs `bytes`: versions yield, the oldest first, its own before
  // others'. Those of others stay if they are held, and newer ones of their regions; not `held`: its own likewise.
  // False: they would not help. Else some memory is free, and the caller tries again; that may need several turns. No
  // shard's lock may be held.
  bool YieldVersions(const Tenant& tenant, uint64_t bytes, bool held = true);
  // The donor needs so much: the oldest versions go, of all tenants. Not `held`: those that are held stay, and
  // newer ones of their regions. Returns the bytes that are free now.
  uint64_t YieldForDonor(uint64_t bytes, bool held);

  // While draining, the server takes new pages only if a reservation pays for them. Others are refused: kDraining.
  void SetDraining(bool draining) { draining_ = draining; }
  // Its clients have to hear something soon: that they are asked to give memory back, or that the server is about to
  // end. Each reply says so.
  void SetAsksBack(bool asks_back) { asks_back_ = asks_back; }
  void SetLeavesSoon(bool leaves_soon) { leaves_soon_ = leaves_soon; }
  bool asks_back() const {
    return asks_back_.load(std::memory_order_relaxed) || leaves_soon_.load(std::memory_order_relaxed);
  }
  struct Dropped {
    uint64_t regions = 0;
    uint64_t bytes = 0;
  };
  // The bytes that the lease's regions hold.
  uint64_t StoredBytes(const Lease& lease) const;
  // Destroys regions without an owner, one after the other, until they have held so much.
  Dropped DropOrphans(uint64_t bytes);

  // Ends the holds of a lease that has ended, and unlinks its GC regions. FreeSome frees their memory. The cost is
  // that of the lease's own regions.
  void CollectLease(const Lease& lease);
  // The same in CollectSome. `all`: of all its regions.
  void CollectLater(std::shared_ptr<Lease> lease, bool all = false) { ended_.Add({std::move(lease), {.all = all}}); }
  // Goes on with the leases of CollectLater, in turns and steps of kLooksPerStep regions, for at most `steps_max`
  // steps. True: nothing is left.
  static constexpr size_t kLooksPerStep = 256;
  bool CollectSome(const WorkBound& bound, uint64_t steps_max = ~uint64_t{0});
  // Makes tables anew that have become far too large.
  void ShrinkTables();
  // Counts the regions whose lease has ended.
  size_t CountOrphans() const;

  FrameArena* arena() const { return arena_; }
  const StoreCounters& counters() const { return counters_; }
  // How many regions the work of leases, lists and versions has looked at since the beginning.
  uint64_t looked_at() const { return looked_at_; }

 protected:
  using Regions = absl::flat_hash_map<StoredKey, std::unique_ptr<StoredRegion>>;
  struct alignas(64) Shard {
    mutable SharedMutex mu;
    Regions regions ABSL_GUARDED_BY(mu);
  };

  Shard& shard(RegionId id) const { return shards_[Raw(id) * 0x9E3779B97F4A7C15u >> 56]; }
  // `payment` may be null: no reservation pays.
  Reason CreateLocked(Shard* at, Lease* lease, Payment* payment, RegionId id, uint32_t epoch, bool gc, bool sealed,
                      bool named) ABSL_EXCLUSIVE_LOCKS_REQUIRED(at->mu);
  Reason CheckOwner(const StoredRegion& region, const Lease& lease, uint32_t epoch);
  // How often a request tries again after versions have yielded.
  static constexpr int kYieldTurns = 64;
  bool draining() const { return draining_; }
  StoreCounters* mutable_counters() { return &counters_; }
  VersionedRegions* versioned() { return &versioned_; }

 private:
  friend class RegionWalk;

  absl::Status CreateNamedOnce(Lease* lease, RegionId id, uint32_t epoch, bool gc, RegionManifest manifest,
                               bool sealed);
  absl::StatusOr<RegionDescription> AttachOnce(Lease* lease, const StoredKey& key, uint32_t epoch, bool force,
                                               const std::string& seal);
  // As often as it finds no room for `bytes` and versions can yield. No shard's lock may be held.
  absl::Status WithRoom(const Tenant& tenant, uint64_t bytes, absl::FunctionRef<absl::Status()> attempt);

  static constexpr size_t kShards = 256;

  // Takes the region out of all tables and lists. The shard's lock is held.
  Doomed TakeOut(Regions* regions, Regions::iterator it);
  // Calls `visit` with regions of the list, one after the other, under the exclusive locks of their shards, for
  // kLooksPerStep at most. *from: the id to begin with, and then to go on from. False: there are no more.
  bool VisitSome(const LeaseRegions& list, const Lease& lease, uint64_t* from,
                 absl::FunctionRef<void(Regions* regions, Regions::iterator it)> visit) const;
  // One step. True: it is complete.
  bool CollectStep(const Lease& lease, CollectProgress* progress);
  // The lowest ids of the tenant's regions without an owner.
  std::vector<RegionId> FirstOrphans(TenantNumber tenant, uint64_t from, size_t limit) const;
  // Looks at a region that is due. True: nothing is left to do, or it cannot be done now.
  bool StepVersionsOf(const StoredKey& key);
  // One step. True: it is complete.
  bool ReleaseHolds(const Lease& lease, uint64_t* from);
  struct Yields {
    const Tenant* first = nullptr;  // goes before others; null: none does
    bool first_alone = false;
    bool held = false;  // also those that are held
    uint64_t bytes = 0;
    int steps_max = 0;
  };
  // Returns the bytes that are free now.
  uint64_t YieldOldest(const Yields& yields);
  RegionDescription Describe(const StoredKey& key, const StoredRegion& region, bool with_lists) const;

  FrameArena* const arena_;
  LeaseTable* const leases_;
  StoreCounters counters_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> asks_back_{false};
  std::atomic<bool> leaves_soon_{false};
  mutable std::array<Shard, kShards> shards_;
  RegionNames names_;
  LeaseRegions owned_;  // by the leases that own them
  LeaseRegions held_;   // by leases that may hold versions of them; some may be gone
  TenantRegions listed_;
  EndedLeases ended_;
  mutable std::atomic<uint64_t> looked_at_{0};
  VersionedRegions versioned_{leases_};
  DoomedRegions doomed_{leases_, &counters_};
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_REGION_TABLE_H_
