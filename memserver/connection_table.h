#ifndef NRAM_MEMSERVER_CONNECTION_TABLE_H_
#define NRAM_MEMSERVER_CONNECTION_TABLE_H_

// The data connections of a server. When there can be no more (for their number, or because the arena has no room), one
// gives way to a newcomer, so that no client keeps the others out. The two connections that a client works with stay.
// The first rule that finds one decides, and takes the oldest:
//   1. a connection whose place a newer one of the same lease has taken,
//   2. a connection that has not said hello,
//   3. a connection whose client has asked for nothing but pings (the client connects again when it needs it),
//   4. if the newcomer's address has few connections and another address has more than a quarter of all: the newest of
//      that address.

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/string_view.h"
#include "base/sync.h"
#include "memserver/session.h"

namespace nram {

class ConnectionTable;

// A connection's place in the table. The destructor gives it back.
class ConnectionPlace {
 public:
  ConnectionPlace(ConnectionTable* table, const Session* session, int fd, std::string source, int64_t accepted_ns);
  ~ConnectionPlace();
  ConnectionPlace(const ConnectionPlace&) = delete;
  ConnectionPlace& operator=(const ConnectionPlace&) = delete;

  // Called by the worker: the connection has said hello for this lease, which must outlive the place.
  void NoteBound(const Lease* lease) { lease_.store(lease, std::memory_order_release); }

 private:
  friend class ConnectionTable;

  ConnectionTable* const table_;
  const Session* const session_;
  const int fd_;
  const std::string source_;
  const int64_t accepted_ns_;
  std::atomic<const Lease*> lease_{nullptr};
  bool displaced_ = false;  // guarded by the table's lock: it has been shut down to give way
};

// Thread-safe.
class ConnectionTable {
 public:
  ConnectionTable() = default;
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;

  // Shuts down a connection that gives way to one from `source`, and waits until it is gone, until `deadline_ns` at
  // most. False: no connection gives way, or it was not gone in time.
  bool MakeRoomFor(absl::string_view source, int64_t deadline_ns);
  // The same within a tenant that has all the connections it may have: only its own ones give way, by rules 1 to 3.
  bool MakeRoomFor(const Tenant* tenant, int64_t deadline_ns);

  size_t size() const {
    MutexLock lock(&mu_);
    return places_.size();
  }

 private:
  friend class ConnectionPlace;

  // The oldest of those that the first of rules 1 to 3 finds; null if there is none. `tenant` null: of any.
  ConnectionPlace* ChooseIdleLocked(const Tenant* tenant) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ConnectionPlace* ChooseLocked(absl::string_view source) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool DisplaceLocked(ConnectionPlace* chosen, int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  CondVar gone_;
  absl::flat_hash_set<ConnectionPlace*> places_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_CONNECTION_TABLE_H_
