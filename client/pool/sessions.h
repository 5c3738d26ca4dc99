#ifndef NRAM_CLIENT_POOL_SESSIONS_H_
#define NRAM_CLIENT_POOL_SESSIONS_H_

#include <glog/logging.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "client/pool/placement.h"
#include "client/pool/server_session.h"

namespace nram {

// The sessions of a pool. A server's number in the pool is its place here, and never another server's. Sessions are
// added while others read; none is removed. Thread-safe, except Add: one caller at a time.
class Sessions {
 public:
  // `gate` outlives it. `most`: sessions that there may ever be.
  Sessions(ChangeGate* gate, size_t most)
      : gate_(gate), most_(most), sessions_(std::make_unique<std::unique_ptr<ServerSession>[]>(most)) {}
  // The order of changes that overlap, in regions of copies.
  ChangeGate* gate() const { return gate_; }
  void Add(std::unique_ptr<ServerSession> session) {
    const size_t index = size_.load(std::memory_order_relaxed);
    CHECK_LT(index, most_) << "more servers than the pool has numbers";
    session->SetFleet(&awake_);
    sessions_[index] = std::move(session);
    size_.store(index + 1, std::memory_order_release);
  }
  // One more is driven.
  void NoteAwake() { awake_.fetch_add(1, std::memory_order_relaxed); }
  size_t size() const { return size_.load(std::memory_order_acquire); }
  size_t most() const { return most_; }
  ServerSession* at(size_t index) const { return sessions_[index].get(); }
  const std::unique_ptr<ServerSession>* begin() const { return sessions_.get(); }
  const std::unique_ptr<ServerSession>* end() const { return sessions_.get() + size(); }

  // Servers that new spans may go to, by free room.
  std::vector<PlacementCandidate> Candidates() const {
    std::vector<PlacementCandidate> candidates;
    candidates.reserve(size());
    FindCandidates(&candidates);
    return candidates;
  }
  // The same, replacing the vector's content. Does not allocate if its capacity is enough for all servers.
  void FindCandidates(std::vector<PlacementCandidate>* candidates) const;

 private:
  ChangeGate* const gate_;
  const size_t most_;
  const std::unique_ptr<std::unique_ptr<ServerSession>[]> sessions_;
  std::atomic<size_t> size_{0};
  std::atomic<int64_t> awake_{0};
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_SESSIONS_H_
