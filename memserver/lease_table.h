#ifndef NRAM_MEMSERVER_LEASE_TABLE_H_
#define NRAM_MEMSERVER_LEASE_TABLE_H_

// The leases on a server: which clients may write here, and until when. A lease belongs to one client; regions belong
// to leases.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/sync.h"
#include "base/units.h"
#include "memserver/frame_arena.h"
#include "memserver/landing_frames.h"
#include "memserver/tenant.h"
#include "proto/copies_report.h"

namespace nram {

class Lease;

// A data connection, as its lease sees it.
class LeaseConnection {
 public:
  virtual ~LeaseConnection() = default;
  // After it returns, none of this connection's requests is executed any more. Waits for one step of one request at
  // most, some milliseconds. Called with the lease's lock held.
  virtual void Fence() = 0;
};

// Thread-safe. Only LeaseTable moves a lease between its states:
//   live       granted
//   ended      its time ran out, or its client ended it; it may be granted anew, and is live again
//   forgotten  ended, and no region names it any more
class Lease {
 public:
  static constexpr int kConnectionClasses = 2;  // bulk, urgent
  // Clients take a connection's generation from a clock of nanoseconds, which reaches this after 146 years.
  static constexpr uint64_t kGenerationMax = uint64_t{1} << 62;

  Lease(Tenant* whose, LeaseId its_id, std::string name, std::string who)
      : tenant(whose),
        id(its_id),
        client_name(std::move(name)),
        identity(std::move(who)),
        reservation(&whose->account) {}

  bool live() const { return live_.load(); }
  int64_t ttl_ms() const { return ttl_ms_; }
  // Changes each time that the lease begins or ends; no two terms of any leases are the same. A request of a former
  // term must not be executed any more, and a former term's reservation is gone.
  uint64_t term() const { return term_.load(std::memory_order_acquire); }

  // Makes `connection` the only one of its class, and fences the one before it. False: the generation is above
  // kGenerationMax, or a connection of the same or a higher one was here before (a connection that comes late must not
  // displace its successor).
  bool Bind(int connection_class, uint64_t generation, LeaseConnection* connection);
  // Must be called before a bound connection goes away.
  void Unbind(int connection_class, const LeaseConnection* connection);

  void SetCopies(const CopiesReport& copies) {
    MutexLock lock(&copies_mu_);
    copies_ = copies;
  }
  CopiesReport copies() const {
    MutexLock lock(&copies_mu_);
    return copies_;
  }

  Tenant* const tenant;
  const LeaseId id;
  const std::string client_name;
  const std::string identity;  // of the client to which it was granted first
  ArenaReservation reservation;
  // Held while a Reserve is executed, so that a late one cannot change the reservation after its successor.
  Mutex reserve_mu;
  uint64_t last_order ABSL_GUARDED_BY(reserve_mu) = 0;
  std::atomic<int64_t> regions{0};    // regions that name this lease; only LeaseTable::Unname lowers it
  LandingShare landing;
  std::atomic<bool> used{false};  // its client has asked for more than pings
  // All that it owns can be made again: the server may destroy it when nothing else gives its donor memory.
  std::atomic<bool> expendable{false};
  std::atomic<bool> may_hold{false};  // versions of regions may be held by it
  std::atomic<bool> refused{false};   // by the last Hold

 private:
  friend class LeaseTable;

  struct Bound {
    uint64_t generation = 0;
    LeaseConnection* connection = nullptr;
  };

  std::atomic<bool> live_{false};
  std::atomic<uint64_t> term_{1};
  std::atomic<int64_t> ttl_ms_{0};
  std::atomic<bool> charged_{false};  // to its tenant
  // The next three are guarded by the table's lock.
  int64_t expires_ns_ = 0;  // in the table's time
  int64_t listed_ns_ = 0;   // its place in the table's order of ends, not later than expires_ns_; 0: it has none
  bool ending_ = false;     // in the table's list of leases that it may forget
  // Taken under the table's lock. mu_ is not: Bind waits for a request that may wait for the table.
  mutable Mutex copies_mu_;
  CopiesReport copies_ ABSL_GUARDED_BY(copies_mu_);
  mutable Mutex mu_;
  std::array<Bound, kConnectionClasses> bound_ ABSL_GUARDED_BY(mu_);
};

// A lease's id is a secret between its client and this server. Its bearer still has to be of its tenant.
//
// Thread-safe. Its lock is held for a short time: a look costs as much as there are expired leases, not leases.
//
// All memory of leases is accounted for. A lease is charged to its tenant when it is granted. While its quota or the
// arena is full, kUnchargedMax leases may exist uncharged (the server's fixed part pays for them), so that clients of a
// full server can still connect. A tenant has three times as many of these as are left at most, and its first one while
// any is left: alone it cannot take all. These leases own nothing: a lease is charged before it gets a region or a
// reservation. Or it has ended, and a lease that took a region of its over continues with its charge.
class LeaseTable {
 public:
  static constexpr size_t kLeasesMax = 4096;
  static constexpr size_t kUnchargedMax = 256;
  static constexpr size_t kClientNameBytesMax = 255;
  static constexpr size_t kIdentityBytesMax = 255;
  // The cost of a lease without its client's name and identity: itself, its slot in the table (also while the table
  // grows), its place in the order of ends, the allocator's words.
  static constexpr uint64_t kLeaseBytes = 512;
  // The most that a lease costs, and that uncharged leases take.
  static constexpr uint64_t kBytesMax = kLeaseBytes + kClientNameBytesMax + kIdentityBytesMax;
  static constexpr uint64_t kFixedBytes = kUnchargedMax * kBytesMax;

  // The most that a client may ask for, in times of the usual time.
  static constexpr int64_t kTtlFactorMax = 6;

  // `ttl_ms`: the usual time of a lease. The pointers are not owned.
  LeaseTable(FrameArena* arena, const Clock* clock, int64_t ttl_ms) : arena_(arena), clock_(clock), ttl_ms_(ttl_ms) {}
  ~LeaseTable();

  // Creates the lease or takes it up again. `ttl_ms` 0 asks for the usual time. `client_name` is cut at
  // kClientNameBytesMax. RESOURCE_EXHAUSTED: kLeasesMax are live, or as many of the tenant as it may have, or there is
  // no room and its share of kUnchargedMax is uncharged. PERMISSION_DENIED: it is another tenant's.
  struct Wish {
    Tenant* tenant = nullptr;
    LeaseId id{};
    std::string client_name;
    std::string identity;  // the caller's, not longer than kIdentityBytesMax
    int64_t ttl_ms = 0;
    bool expendable = false;
  };
  absl::StatusOr<std::shared_ptr<Lease>> Grant(const Wish& wish);
  // NOT_FOUND: the tenant has no such live lease.
  absl::StatusOr<std::shared_ptr<Lease>> Renew(const Tenant& tenant, LeaseId id);
  // Of any tenant. Null if there is no such lease, live or ended.
  std::shared_ptr<Lease> Find(LeaseId id) const;
  // Ends the lease now: frees its reservation. Null if there was no such live lease of the tenant (null: of any).
  std::shared_ptr<Lease> End(LeaseId id, const Tenant* tenant = nullptr);
  // Live leases with regions, whose clients may not renew them any more, end in `ns` at the earliest: until then a
  // mistake in the rules can be mended. Such a lease ends with its last region, and its reservation with it. Leases
  // without regions end in their usual time. `is_refused` is called without the table's lock.
  void Hold(absl::FunctionRef<bool(const Lease& lease)> is_refused, int64_t ns);
  int64_t NowNs() const { return clock_->NowNs(); }
  // Ends the leases whose time is up, and returns them. Forgets ended leases that own nothing. `now_ns`: by the clock.
  std::vector<std::shared_ptr<Lease>> EndExpired(int64_t now_ns);
  std::vector<std::shared_ptr<Lease>> EndExpired() { return EndExpired(clock_->NowNs()); }

  // Must be called before the lease gets a region or a reservation. False: the arena has no room for the lease itself.
  // `former` (may be null): a lease that loses a region to this one. One that has ended pays for it, if nothing else
  // does: it may be there for that region alone, which could not be taken over on a full server otherwise.
  bool Charge(Lease* lease, Lease* former = nullptr);
  // A region does not name the lease any more. The caller holds the lease.
  void Unname(Lease* lease);

  // Live leases whose data may be destroyed.
  std::vector<std::shared_ptr<Lease>> Expendable() const;
  // Live leases whose clients have told of copies, `most` at most: tenants take turns. `of` (may be null): of this
  // tenant alone.
  std::vector<std::shared_ptr<Lease>> WithCopies(size_t most, const Tenant* of = nullptr) const;

  size_t live_count() const;
  // Live leases that have less than half of their time left: clients renew theirs earlier.
  size_t CountLate() const;
  // Live leases, and ended leases that regions name.
  size_t count() const;
  // How many leases EndExpired has looked at since the beginning.
  uint64_t looked_at() const;
  using IdSet = absl::flat_hash_set<uint64_t>;
  IdSet LiveIds() const;
  // All live leases end so much later, because the server was stopped and could not hear renewals.
  void Extend(int64_t ns);
  int64_t ttl_ms() const { return ttl_ms_; }

 private:
  using Table = absl::flat_hash_map<uint64_t, std::shared_ptr<Lease>>;

  // The clock's time, less the time that Extend has added.
  int64_t NowLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return clock_->NowNs() - extended_ns_; }
  static uint64_t CostBytes(const Lease& lease) {
    return kLeaseBytes + lease.client_name.size() + lease.identity.size();
  }
  bool ChargeLocked(Lease* lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The lease becomes, or ceases to be, one that is not charged.
  void CountUnchargedLocked(Lease* lease, int more) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The tenant has as many uncharged leases as it may have, or fewer.
  bool IsWithinShareLocked(const Tenant& tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The lease has a new time of its end.
  void ListLocked(Lease* lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndLocked(Lease* lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteEndingLocked(Lease* lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetEndedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ForgetLocked(Table::iterator it) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  FrameArena* const arena_;
  const Clock* const clock_;
  const int64_t ttl_ms_;
  mutable Mutex mu_;
  Table leases_ ABSL_GUARDED_BY(mu_);
  // Live leases by their ends, or by earlier times: a renewal does not move its lease, EndExpired does.
  absl::btree_set<std::pair<int64_t, uint64_t>> by_end_ ABSL_GUARDED_BY(mu_);
  // Ended leases that no region names. A connection may still hold them.
  std::vector<uint64_t> ending_ ABSL_GUARDED_BY(mu_);
  size_t uncharged_count_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t extended_ns_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t terms_ ABSL_GUARDED_BY(mu_) = 0;  // the last term of any lease
  uint64_t looked_at_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_LEASE_TABLE_H_
