#ifndef NRAM_MEMSERVER_ENDED_LEASES_H_
#define NRAM_MEMSERVER_ENDED_LEASES_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "absl/container/btree_map.h"
#include "base/sync.h"
#include "memserver/lease_table.h"

namespace nram {

// How far the end of a lease is.
struct CollectProgress {
  bool all = false;       // also regions that are not GC regions
  bool released = false;  // the holds
  uint64_t from = 0;      // the id to go on from, in the list of holds or of regions
};

// Leases that have ended, and whose regions and holds have not all been looked at. They take turns, so that one with
// many regions delays no other. Thread-safe.
class EndedLeases {
 public:
  struct Ended {
    std::shared_ptr<Lease> lease;
    CollectProgress progress;
  };

  // A lease that is there already begins anew.
  void Add(Ended ended) {
    MutexLock lock(&mu_);
    Ended& at = ended_[Raw(ended.lease->id)];
    ended.progress.all |= at.progress.all;
    at = std::move(ended);
  }
  // The lease whose turn it is. nullopt: there is none.
  std::optional<Ended> Take() {
    MutexLock lock(&mu_);
    auto it = ended_.upper_bound(last_);
    if (it == ended_.end()) it = ended_.begin();
    if (it == ended_.end()) return std::nullopt;
    last_ = it->first;
    Ended ended = std::move(it->second);
    ended_.erase(it);
    return ended;
  }
  // For its next turn, unless it has been added meanwhile.
  void PutBack(Ended ended) {
    MutexLock lock(&mu_);
    const uint64_t id = Raw(ended.lease->id);
    ended_.try_emplace(id, std::move(ended));
  }
  bool empty() const {
    MutexLock lock(&mu_);
    return ended_.empty();
  }

 private:
  mutable Mutex mu_;
  absl::btree_map<uint64_t, Ended> ended_ ABSL_GUARDED_BY(mu_);
  uint64_t last_ ABSL_GUARDED_BY(mu_) = 0;  // had the last turn
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_ENDED_LEASES_H_
