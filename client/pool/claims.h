#ifndef NRAM_CLIENT_POOL_CLAIMS_H_
#define NRAM_CLIENT_POOL_CLAIMS_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "base/sync.h"
#include "client/pool/placement.h"

namespace nram {

// Which session has which life of a server: a server that is a member under two names has one session that counts.
// Thread-safe. A bound: one entry for each session.
class Claims {
 public:
  // The session of that index wants the life. kNoServer: it has it, and lets go of a former one. Else the index of the
  // session that has it.
  uint16_t Claim(uint64_t incarnation, uint16_t index) {
    MutexLock lock(&mu_);
    const auto [it, is_new] = holders_.emplace(incarnation, index);
    if (!is_new) return it->second == index ? kNoServer : it->second;
    const auto [held, is_first] = lives_.emplace(index, incarnation);
    if (!is_first) {
      holders_.erase(held->second);
      held->second = incarnation;
    }
    return kNoServer;
  }
  // The session has its life no more: another one may have it.
  void GiveUp(uint16_t index) {
    MutexLock lock(&mu_);
    const auto held = lives_.find(index);
    if (held == lives_.end()) return;
    holders_.erase(held->second);
    lives_.erase(held);
  }

 private:
  Mutex mu_;
  absl::flat_hash_map<uint64_t, uint16_t> holders_ ABSL_GUARDED_BY(mu_);  // by incarnation
  absl::flat_hash_map<uint16_t, uint64_t> lives_ ABSL_GUARDED_BY(mu_);    // by session
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_CLAIMS_H_
