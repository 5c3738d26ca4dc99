#ifndef NRAM_CLIENT_POOL_SESSIONS_H_
#define NRAM_CLIENT_POOL_SESSIONS_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "client/pool/placement.h"
#include "client/pool/server_session.h"

namespace nram {

// The sessions of a pool. A server's number in the pool is its place here, and never another server's. Thread-safe
// after it has been filled.
class Sessions {
 public:
  // `gate` outlives it.
  explicit Sessions(ChangeGate* gate) : gate_(gate) {}
  // The order of changes that overlap, in regions of copies.
  ChangeGate* gate() const { return gate_; }
  void Add(std::unique_ptr<ServerSession> session) { sessions_.push_back(std::move(session)); }
  size_t size() const { return sessions_.size(); }
  ServerSession* at(size_t index) const { return sessions_[index].get(); }
  auto begin() const { return sessions_.begin(); }
  auto end() const { return sessions_.end(); }

  // Servers that new spans may go to, by free room.
  std::vector<PlacementCandidate> Candidates() const {
    std::vector<PlacementCandidate> candidates;
    candidates.reserve(size());
    FindCandidates(&candidates);
    return candidates;
  }
  // The same in the place of what is there. Does not allocate if that has room for all servers.
  void FindCandidates(std::vector<PlacementCandidate>* candidates) const;

 private:
  ChangeGate* const gate_;
  std::vector<std::unique_ptr<ServerSession>> sessions_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_SESSIONS_H_
