#ifndef NRAM_MEMSERVER_CONNECTION_TABLE_H_
#define NRAM_MEMSERVER_CONNECTION_TABLE_H_

// Who holds the data connections of a server, and who gives way when there can be no more (for their number, or because
// the arena has no room for one), so that no client keeps the others out. A client has two connections that do
// something; these stay. In this order, the oldest first:
//   1. one whose place a newer connection of the same lease has taken,
//   2. one that has not said hello,
//   3. one whose client has asked for nothing but pings (it connects again when it needs the connection),
//   4. if the newcomer's address has few and another one more than a quarter of all: the newest of that one's.

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

// A connection's place in the table; gives it back when it is destroyed.
class ConnectionPlace {
 public:
  ConnectionPlace(ConnectionTable* table, const Session* session, int fd, std::string source, int64_t accepted_ns);
  ~ConnectionPlace();
  ConnectionPlace(const ConnectionPlace&) = delete;
  ConnectionPlace& operator=(const ConnectionPlace&) = delete;

  // The worker's: it said hello for this lease, which must outlive the place.
  void NoteBound(const Lease* lease) { lease_.store(lease, std::memory_order_release); }

 private:
  friend class ConnectionTable;

  ConnectionTable* const table_;
  const Session* const session_;
  const int fd_;
  const std::string source_;
  const int64_t accepted_ns_;
  std::atomic<const Lease*> lease_{nullptr};
  bool displaced_ = false;  // the table's: it has been told to go
};

// Thread-safe.
class ConnectionTable {
 public:
  ConnectionTable() = default;
  ConnectionTable(const ConnectionTable&) = delete;
  ConnectionTable& operator=(const ConnectionTable&) = delete;

  // Shuts down a connection that is to give way to one from `source`, and waits until it is gone, `deadline_ns` at
  // most. False: there is none, or it did not go in time.
  bool MakeRoomFor(absl::string_view source, int64_t deadline_ns);

  size_t size() const {
    MutexLock lock(&mu_);
    return places_.size();
  }

 private:
  friend class ConnectionPlace;

  ConnectionPlace* ChooseLocked(absl::string_view source) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  CondVar gone_;
  absl::flat_hash_set<ConnectionPlace*> places_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_CONNECTION_TABLE_H_
