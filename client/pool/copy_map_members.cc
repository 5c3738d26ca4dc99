// A region with a name: the lives of servers that may have its spans, and the state that an owner finds when it
// attaches the region.

#include <algorithm>

#include "client/pool/copy_map.h"

namespace nram {

CopyMap::ReplicaHost* CopyMap::FindReplicaHostLocked(const Life& life) const {
  for (ReplicaHost& replica_host : replica_hosts_) {
    if (!replica_host.dead && replica_host.server == life.server && replica_host.incarnation == life.incarnation)
      return &replica_host;
  }
  return nullptr;
}

bool CopyMap::MayHaveLocked(const Life& life) const {
  if (!named_) return true;
  const ReplicaHost* const replica_host = FindReplicaHostLocked(life);
  return replica_host != nullptr && replica_host->is_member;
}

void CopyMap::VisitLocked(uint64_t span, absl::FunctionRef<bool(uint64_t, SpanCopies*)> visit) const {
  if (blocks_ == nullptr) {
    if (only_span_ >= span) (void)visit(only_span_, &only_);
    return;
  }
  for (auto it = blocks_->lower_bound(span / kSpansPerTableBlock); it != blocks_->end(); ++it) {
    const uint64_t first = it->first * kSpansPerTableBlock;
    for (uint64_t at = std::max(span, first); at < first + kSpansPerTableBlock; ++at) {
      if (!visit(at, &it->second->spans[at - first])) return;
    }
  }
}

bool CopyMap::IsUsedLocked(absl::FunctionRef<bool(const ReplicaHost&)> is_it) const {
  bool is_used = false;
  VisitLocked(0, [&](uint64_t, const SpanCopies* copies) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
      is_used |= copies->state(copy) != CopyState::kAbsent && is_it(replica_hosts_[copies->replica_host(copy)]);
    }
    return !is_used;
  });
  return is_used;
}

bool CopyMap::NotePerhaps(const Life& life) {
  GateLock lock(&mu_);
  if (FindReplicaHostLocked(life) == nullptr && !HasPlaceLocked(1)) return false;
  ReplicaHost& replica_host = replica_hosts_[ReplicaHostLocked(life)];
  if (replica_host.known == Known::kNothing) replica_host.known = Known::kPerhaps;
  return true;
}

void CopyMap::NoteMember(const Life& life) {
  GateLock lock(&mu_);
  ReplicaHost& replica_host = replica_hosts_[ReplicaHostLocked(life)];
  replica_host.known = Known::kCreated;
  replica_host.is_member = true;
}

bool CopyMap::EndMember(const Life& life) {
  GateLock lock(&mu_);
  ReplicaHost* const replica_host = FindReplicaHostLocked(life);
  if (replica_host == nullptr) return true;
  replica_host->is_member = false;
  return !IsUsedLocked([&](const ReplicaHost& other) { return &other == replica_host; });
}

void CopyMap::Bury(const Life& life) {
  GateLock lock(&mu_);
  if (ReplicaHost* const replica_host = FindReplicaHostLocked(life); replica_host != nullptr) replica_host->dead = true;
}

bool CopyMap::IsGone(const Life& life) const {
  GateLock lock(&mu_);
  return FindReplicaHostLocked(life) == nullptr;
}

bool CopyMap::IsMember(const Life& life) const {
  GateLock lock(&mu_);
  return MayHaveLocked(life);
}

bool CopyMap::HasLoss() const {
  GateLock lock(&mu_);
  bool has_loss = false;
  VisitLocked(0, [&](uint64_t span, SpanCopies* copies) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    BuryDeadLocked(span, copies);
    has_loss |= copies->lost();
    return !has_loss;
  });
  // Of spans that were placed anew.
  return has_loss || HasLostPagesLocked();
}

bool CopyMap::Load(uint64_t span, const Life& life, SpanGeneration generation, size_t bytes_max) {
  GateLock lock(&mu_);
  if (Raw(generation) % 2 != 0) {
    SpanGeneration& above = RareLocked().above[span];
    above = std::max(above, generation);
  } else {
    SlotLocked(span)->Load(ReplicaHostLocked(life), generation);
  }
  const size_t blocks = blocks_ == nullptr ? 0 : blocks_->size();
  const size_t odd = rare_ == nullptr ? 0 : rare_->above.size();
  return blocks * sizeof(Block) + 2 * odd * sizeof(std::pair<uint64_t, SpanGeneration>) <= bytes_max;
}

void CopyMap::EndLoad(bool doubtful, bool loses) {
  GateLock lock(&mu_);
  absl::flat_hash_map<uint64_t, SpanGeneration> above_of;
  if (rare_ != nullptr) above_of.swap(rare_->above);
  if (!HasLostPagesLocked()) rare_ = nullptr;
  VisitLocked(0, [&](uint64_t span, SpanCopies* copies) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const bool is_there = Raw(copies->generation()) != 0 && !above_of.contains(span);
    if (is_there) (void)copies->EndLoad(SpanGeneration{}, doubtful, loses);
    return true;
  });
  // Also spans that no server has: they may be placed again, above their former generations.
  for (const auto& [span, above] : above_of) {
    if (!SlotLocked(span)->EndLoad(above, doubtful, loses)) RareLocked().lost_pages[span].set();
  }
}

int CopyMap::LeastInSync(absl::Span<const Life> lives) const {
  GateLock lock(&mu_);
  int least = std::min(copies(), static_cast<int>(lives.size()));
  VisitLocked(0, [&](uint64_t span, SpanCopies* copies) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    BuryDeadLocked(span, copies);
    if (copies->lost() || copies->doubtful() || copies->unsettled()) least = 0;
    int in_sync = 0;
    for (int copy = 0; copies->placed() && copy < SpanCopies::kMost; ++copy) {
      if (copies->state(copy) != CopyState::kInSync) continue;
      const ReplicaHost& replica_host = replica_hosts_[copies->replica_host(copy)];
      in_sync +=
          std::find(lives.begin(), lives.end(), Life{replica_host.server, replica_host.incarnation}) != lives.end();
    }
    if (copies->placed()) least = std::min(least, in_sync);
    return least > 0;
  });
  if (HasLostPagesLocked()) least = 0;
  return least;
}

uint64_t CopyMap::NextToSettle(uint64_t span) const {
  GateLock lock(&mu_);
  uint64_t found = UINT64_MAX;
  VisitLocked(span, [&](uint64_t at, SpanCopies* copies) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    BuryDeadLocked(at, copies);
    if (copies->placed() && (copies->doubtful() || copies->unsettled())) found = at;
    return found == UINT64_MAX;
  });
  return found;
}

}  // namespace nram
