// The questions of repair to a region's map, and its notes there.

#include <glog/logging.h>

#include <bit>
#include <utility>

#include "client/pool/copy_map.h"
#include "proto/price.h"

namespace nram {

int CopyMap::PlaceOf(const SpanCopies& copies, uint16_t replica_host) {
  for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
    if (copies.state(copy) != CopyState::kAbsent && copies.replica_host(copy) == replica_host) return copy;
  }
  return -1;
}

void CopyMap::LookLocked(const SpanCopies& copies, Donors donors, Health* health, Plan* plan) const {
  using Standing = Donor::Standing;
  int there = 0;  // copies in sync on servers that are there
  bool joins = false;
  bool has_free_place = false;
  plan->heat = copies.heat();
  for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
    const CopyState state = copies.state(copy);
    has_free_place = has_free_place || state == CopyState::kAbsent || state == CopyState::kStale;
    if (state == CopyState::kAbsent) continue;
    const ReplicaHost& replica_host = replica_hosts_[copies.replica_host(copy)];
    const Life life{replica_host.server, replica_host.incarnation};
    if (state == CopyState::kStale) {
      plan->stale.push_back(life);
      continue;
    }
    joins = joins || state == CopyState::kCatchingUp;
    // A server that has joined since they were looked at is there.
    const Donor donor = life.server < donors.size() ? donors[life.server] : Donor{.is_there = true};
    const Standing standing = donor.standing;
    there += state == CopyState::kInSync && donor.is_there ? 1 : 0;
    if (standing == Standing::kStays || standing == Standing::kAsks) {
      plan->stay.push_back(life);
      if (state != CopyState::kInSync) continue;
      if (standing == Standing::kAsks) {
        plan->asked.push_back(life.server);
      } else {
        plan->has_sibling = plan->has_sibling || donor.is_there;
      }
    } else if (state == CopyState::kInSync) {
      plan->leave.push_back(copies.replica_host(copy));
      plan->moves = plan->moves || standing == Standing::kLeaves;
    }
  }
  *health = copies.lost()      ? Health::kLost
            : there >= copies_ ? Health::kInSync
            : joins            ? Health::kRepairing
                               : Health::kDegraded;
  // Without a copy that can be asked, no copy can catch up.
  if (copies.lost() || joins || there == 0) return;
  const bool has_enough = static_cast<int>(plan->stay.size()) >= copies_;
  if (has_enough) {
    // The stale ones will not be brought up to date.
    for (unsigned rest = copies.With(CopyState::kStale); rest != 0; rest &= rest - 1) {
      plan->leave.push_back(copies.replica_host(std::countr_zero(rest)));
    }
    // A reader asks all copies that it knows of: one of them must learn of each change.
    if (named_ && plan->leave.size() > 1) plan->leave.resize(1);
    plan->need = plan->leave.empty() ? Need::kNothing : Need::kLeave;
  } else if (has_free_place) {
    plan->need = Need::kJoin;
  } else if (!plan->leave.empty() && plan->stay.size() + plan->leave.size() > 1) {
    // All places are taken: one copy is dropped before another joins.
    plan->leave.resize(1);
    plan->need = Need::kLeave;
  }
}

uint64_t CopyMap::Walk(uint64_t span, size_t most, Donors donors, absl::FunctionRef<uint64_t(uint16_t)> incarnation_of,
                       absl::FunctionRef<void(uint64_t, Health, const Plan&)> visit, bool cools) {
  GateLock lock(&mu_);
  for (ReplicaHost& replica_host : replica_hosts_) {
    const uint64_t present = incarnation_of(replica_host.server);
    if (present != 0 && replica_host.incarnation != present) replica_host.dead = true;
  }
  const auto look = [&](uint64_t at, SpanCopies* copies) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    BuryDeadLocked(at, copies);
    if (!copies->placed() && !copies->lost()) return;
    Health health{};
    Plan plan;
    LookLocked(*copies, donors, &health, &plan);
    visit(at, health, plan);
    if (cools) copies->Cool();
  };
  if (blocks_ == nullptr) {
    if (only_span_ >= span) look(only_span_, &only_);
    return UINT64_MAX;
  }
  size_t seen = 0;
  for (auto it = blocks_->lower_bound(span / kSpansPerTableBlock); it != blocks_->end(); ++it) {
    if (seen >= most) return it->first * kSpansPerTableBlock;
    for (uint64_t i = 0; i < kSpansPerTableBlock; ++i) look(it->first * kSpansPerTableBlock + i, &it->second->spans[i]);
    seen += kSpansPerTableBlock;
  }
  return UINT64_MAX;
}

CopyMap::Plan CopyMap::PlanFor(uint64_t span, Donors donors) const {
  GateLock lock(&mu_);
  Plan plan;
  Health health{};
  const SpanCopies* const copies = FindLocked(span);
  if (copies != nullptr) LookLocked(*copies, donors, &health, &plan);
  return plan;
}

std::optional<uint16_t> CopyMap::Join(uint64_t span, const Life& life, std::optional<Leftover>* leftover) {
  GateLock lock(&mu_);
  SpanCopies* const copies = FindLocked(span);
  if (copies == nullptr || !copies->placed()) return std::nullopt;
  if (!MayHaveLocked(life) || !HasPlaceLocked(1)) return std::nullopt;
  const uint16_t replica_host = ReplicaHostLocked(life);
  const int place = PlaceOf(*copies, replica_host);
  if (place >= 0 && copies->state(place) != CopyState::kStale) return std::nullopt;
  const SpanCopies before = *copies;
  const int joined = copies->Join(replica_host);
  if (joined < 0) return std::nullopt;
  if (before.state(joined) == CopyState::kStale && before.replica_host(joined) != replica_host) {
    const ReplicaHost& former = replica_hosts_[before.replica_host(joined)];
    *leftover = Leftover{{former.server, former.incarnation}, SpanGeneration{Raw(copies->generation()) - 1}};
  }
  return replica_host;
}

bool CopyMap::IsJoining(uint64_t span, uint16_t replica_host) const {
  GateLock lock(&mu_);
  const SpanCopies* const copies = FindLocked(span);
  const int place = copies == nullptr ? -1 : PlaceOf(*copies, replica_host);
  return place >= 0 && copies->state(place) == CopyState::kCatchingUp;
}

void CopyMap::EndJoining(uint64_t span, uint16_t replica_host) {
  GateLock lock(&mu_);
  SpanCopies* const copies = FindLocked(span);
  const int place = copies == nullptr ? -1 : PlaceOf(*copies, replica_host);
  if (place >= 0 && copies->state(place) == CopyState::kCatchingUp) copies->EndCopy(0);
}

bool CopyMap::IsInSync(uint64_t span, uint16_t replica_host) const {
  GateLock lock(&mu_);
  const SpanCopies* const copies = FindLocked(span);
  const int place = copies == nullptr ? -1 : PlaceOf(*copies, replica_host);
  return place >= 0 && copies->state(place) == CopyState::kInSync;
}

std::optional<CopyMap::Leftover> CopyMap::LeftoverOf(uint64_t span, uint16_t replica_host) const {
  GateLock lock(&mu_);
  const SpanCopies* const copies = FindLocked(span);
  if (copies == nullptr || replica_hosts_[replica_host].dead || PlaceOf(*copies, replica_host) >= 0)
    return std::nullopt;
  return Leftover{{replica_hosts_[replica_host].server, replica_hosts_[replica_host].incarnation},
                  SpanGeneration{Raw(copies->generation()) - 1}};
}

CopyMap::Life CopyMap::LifeOf(uint16_t replica_host) const {
  GateLock lock(&mu_);
  return {replica_hosts_[replica_host].server, replica_hosts_[replica_host].incarnation};
}

uint64_t CopyMap::ReservedBytesAt(uint16_t server) const {
  GateLock lock(&mu_);
  uint64_t bytes = 0;
  VisitLocked(0, [&](uint64_t span, const SpanCopies* copies) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
      if (copies->state(copy) == CopyState::kAbsent || replica_hosts_[copies->replica_host(copy)].server != server)
        continue;
      const uint64_t pages = ReservedLocked(span);
      bytes += pages > 0 ? PriceOfWrite(pages, /*creates_region=*/true) : 0;
      break;
    }
    return true;
  });
  return bytes;
}

bool CopyMap::IsUsed(uint16_t server) const {
  GateLock lock(&mu_);
  return IsUsedLocked([&](const ReplicaHost& replica_host) { return replica_host.server == server; });
}

void CopyMap::NoteLostPage(uint64_t page) {
  GateLock lock(&mu_);
  RareLocked().lost_pages[page / kPagesPerSpan].set(page % kPagesPerSpan);
}

void CopyMap::NoteDamaged(uint64_t block) {
  GateLock lock(&mu_);
  absl::flat_hash_set<uint64_t>& damaged = RareLocked().damaged;
  if (damaged.size() < kDamagedMax) damaged.insert(block);
}

bool CopyMap::TakeDamaged(uint64_t* block) {
  GateLock lock(&mu_);
  if (rare_ == nullptr || rare_->damaged.empty()) return false;
  *block = *rare_->damaged.begin();
  rare_->damaged.erase(rare_->damaged.begin());
  return true;
}

}  // namespace nram
