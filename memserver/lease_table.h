#ifndef NRAM_MEMSERVER_LEASE_TABLE_H_
#define NRAM_MEMSERVER_LEASE_TABLE_H_

// Who may write here, and until when. A lease belongs to one client; regions belong to leases.

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/sync.h"
#include "base/units.h"
#include "memserver/frame_arena.h"

namespace nram {

class Lease;

// A data connection, as its lease sees it.
class LeaseConnection {
 public:
  virtual ~LeaseConnection() = default;
  // Returns when no frame of this connection will be executed any more. Called with the lease's lock held.
  virtual void Fence() = 0;
};

// Thread-safe. States: live -> ended (its time ran out or its client ended it) -> live again (granted anew) or
// forgotten (ended, and no region names it any more). Only LeaseTable moves a lease between them.
class Lease {
 public:
  static constexpr int kConnectionClasses = 2;  // bulk, urgent

  Lease(LeaseId id, std::string owner) : id(id), owner(std::move(owner)) {}

  bool live() const { return live_.load(); }
  int64_t ttl_ms() const { return ttl_ms_; }
  // Another one each time that the lease begins or ends, never the same again for any lease: what was sent before that
  // must not be executed after it, and what was promised then is not any more.
  uint64_t term() const { return term_.load(std::memory_order_acquire); }

  // Makes `connection` the only one of its class: fences the one before it. False if one with a higher or the same
  // generation has been here already; a connection that comes late must not displace its successor.
  bool Bind(int connection_class, uint64_t generation, LeaseConnection* connection);
  // Must be called before a bound connection goes away.
  void Unbind(int connection_class, const LeaseConnection* connection);

  const LeaseId id;
  const std::string owner;
  ArenaPromise promise;
  // Held while a reservation is executed, so that one that comes late cannot change the promise after a later one.
  Mutex reserve_mu;
  uint64_t last_order ABSL_GUARDED_BY(reserve_mu) = 0;
  std::atomic<int64_t> regions{0};  // that name this lease

 private:
  friend class LeaseTable;

  struct Bound {
    uint64_t generation = 0;
    LeaseConnection* connection = nullptr;
  };

  std::atomic<bool> live_{false};
  std::atomic<uint64_t> term_{1};
  std::atomic<int64_t> ttl_ms_{0};
  std::atomic<int64_t> expires_ns_{0};
  Mutex mu_;
  std::array<Bound, kConnectionClasses> bound_ ABSL_GUARDED_BY(mu_);
};

// Thread-safe.
class LeaseTable {
 public:
  static constexpr size_t kLeasesMax = 4096;

  // Who needs it may ask for so many times the usual.
  static constexpr int64_t kTtlFactorMax = 6;

  // `ttl_ms`: the usual time of a lease. Neither pointer is owned.
  LeaseTable(FrameArena* arena, const Clock* clock, int64_t ttl_ms) : arena_(arena), clock_(clock), ttl_ms_(ttl_ms) {}

  // Creates the lease or takes it up again. `ttl_ms` 0 asks for the usual. RESOURCE_EXHAUSTED: kLeasesMax are live.
  absl::StatusOr<std::shared_ptr<Lease>> Grant(LeaseId id, const std::string& owner, int64_t ttl_ms);
  // NOT_FOUND: there is no such live lease.
  absl::StatusOr<std::shared_ptr<Lease>> Renew(LeaseId id);
  // Null if there is no such lease, live or ended.
  std::shared_ptr<Lease> Find(LeaseId id) const;
  // Ends the lease now: takes its promise back. Null if there was no such live lease.
  std::shared_ptr<Lease> End(LeaseId id);
  // Ends all whose time is up and returns them. Forgets ended ones that own nothing.
  std::vector<std::shared_ptr<Lease>> EndExpired();

  size_t live_count() const;
  using IdSet = absl::flat_hash_set<uint64_t>;
  IdSet LiveIds() const;
  // All live leases end so much later: the server itself has not been there to hear of them.
  void Extend(int64_t ns);
  int64_t ttl_ms() const { return ttl_ms_; }

 private:
  void EndLocked(Lease* lease) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  FrameArena* const arena_;
  const Clock* const clock_;
  const int64_t ttl_ms_;
  mutable Mutex mu_;
  // Ended ones are there as long as a region names them, which has been paid for.
  absl::flat_hash_map<uint64_t, std::shared_ptr<Lease>> leases_ ABSL_GUARDED_BY(mu_);
  size_t live_count_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t terms_ ABSL_GUARDED_BY(mu_) = 0;  // that there have been
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_LEASE_TABLE_H_
