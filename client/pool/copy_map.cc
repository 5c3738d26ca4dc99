#include "client/pool/copy_map.h"

#include <glog/logging.h>

#include <algorithm>
#include <bit>
#include <utility>

#include "base/plant.h"

namespace nram {

bool CopyMap::HasPlaceLocked(size_t lives) const { return replica_hosts_.size() + lives < kReplicaHostsMax; }

uint16_t CopyMap::ReplicaHostLocked(const Life& life) {
  const ReplicaHost* const present = FindReplicaHostLocked(life);
  if (present != nullptr) return static_cast<uint16_t>(present - replica_hosts_.data());
  CHECK_LT(replica_hosts_.size(), size_t{UINT16_MAX}) << "a region was in too many lives of its servers";
  replica_hosts_.push_back({life.incarnation, life.server});
  return static_cast<uint16_t>(replica_hosts_.size() - 1);
}

SpanCopies* CopyMap::FindLocked(uint64_t span) const {
  SpanCopies* copies = nullptr;
  if (blocks_ == nullptr) {
    if (span == only_span_) copies = &only_;
  } else if (const auto it = blocks_->find(span / kSpansPerTableBlock); it != blocks_->end()) {
    copies = &it->second->spans[span % kSpansPerTableBlock];
  }
  if (copies == nullptr) return nullptr;
  BuryDeadLocked(span, copies);
  return copies->placed() || copies->lost() ? copies : nullptr;
}

void CopyMap::BuryDeadLocked(uint64_t span, SpanCopies* copies) const {
  CopySet dead = 0;
  for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
    if (copies->state(copy) != CopyState::kAbsent && replica_hosts_[copies->replica_host(copy)].dead)
      dead |= 1u << copy;
  }
  if (dead == 0 || copies->Bury(dead)) return;
  RareLocked().lost_pages[span].set();
}

SpanCopies* CopyMap::SlotLocked(uint64_t span) {
  if (blocks_ == nullptr) {
    const bool is_used = Raw(only_.generation()) != 0;
    if (!is_used || only_span_ == span) {
      only_span_ = span;
      return &only_;
    }
    blocks_ = std::make_unique<Blocks>();
    const SpanCopies only = only_;
    *SlotLocked(only_span_) = only;
    if (only_reserved_ > 0) {
      std::unique_ptr<Block>& block = (*blocks_)[only_span_ / kSpansPerTableBlock];
      block->reserved = std::make_unique<std::array<uint8_t, kSpansPerTableBlock>>();
      (*block->reserved)[only_span_ % kSpansPerTableBlock] = only_reserved_;
    }
  }
  std::unique_ptr<Block>& block = (*blocks_)[span / kSpansPerTableBlock];
  if (block == nullptr) block = std::make_unique<Block>();
  return &block->spans[span % kSpansPerTableBlock];
}

bool CopyMap::HasLostLocked(const ChunkRange& range) const {
  if (!HasLostPagesLocked()) return false;
  const uint64_t span = range.first / kChunksPerSpan;
  const auto it = rare_->lost_pages.find(span);
  if (it == rare_->lost_pages.end()) return false;
  for (uint64_t i = 0; i < range.pages(); ++i) {
    if (it->second[(range.first_page() + i) % kPagesPerSpan]) return true;
  }
  return false;
}

CopyMap::SpanState CopyMap::Look(const ChunkRange& range, bool* lost) const {
  GateLock lock(&mu_);
  const SpanCopies* const copies = FindLocked(range.first / kChunksPerSpan);
  *lost = HasLostLocked(range);
  if (copies == nullptr) return SpanState::kHole;
  return copies->lost() ? SpanState::kLost : SpanState::kPlaced;
}

bool CopyMap::Place(uint64_t span, absl::Span<const Life> lives) {
  GateLock lock(&mu_);
  const SpanCopies* const present = FindLocked(span);
  if (present != nullptr && present->placed()) return false;
  if (!HasPlaceLocked(lives.size())) return false;
  for (const Life& life : lives) {
    if (!MayHaveLocked(life)) return false;
  }
  absl::InlinedVector<uint16_t, SpanCopies::kMost> replica_hosts;
  for (const Life& life : lives) replica_hosts.push_back(ReplicaHostLocked(life));
  SlotLocked(span)->Place(replica_hosts, /*one_copy=*/false);
  return true;
}

CopyMap::Leg CopyMap::LegOf(const SpanCopies& copies, int copy) const {
  const ReplicaHost& replica_host = replica_hosts_[copies.replica_host(copy)];
  Leg leg;
  leg.life = {replica_host.server, replica_host.incarnation};
  leg.replica_host = copies.replica_host(copy);
  leg.known = replica_host.known;
  leg.placement = copies.placement();
  leg.creates = !copies.known(copy);
  leg.generation = copies.GenerationFor(copy);
  return leg;
}

void CopyMap::LegsOf(const SpanCopies& copies, CopySet of, Legs* legs) const {
  legs->clear();
  for (unsigned rest = of; rest != 0; rest &= rest - 1) legs->push_back(LegOf(copies, std::countr_zero(rest)));
  std::sort(legs->begin(), legs->end(), [](const Leg& a, const Leg& b) { return a.life.server < b.life.server; });
}

CopiedChange::Step CopyMap::Next(uint64_t span, CopiedChange* change, bool in_time, const WholePages& whole,
                                 Legs* legs) {
  GateLock lock(&mu_);
  SpanCopies* const copies = FindLocked(span);
  if (copies == nullptr) return {.kind = CopiedChange::Step::Kind::kUnanswered};
  if (change->is_data()) copies->Touch();
  const CopiedChange::Step step = change->Next(copies, in_time);
  if (step.kind == CopiedChange::Step::Kind::kSend) LegsOf(*copies, step.to, legs);
  for (Leg& leg : *legs) {
    if (step.joins) leg.generation = copies->generation();
    if (step.opens || step.shuts) leg.generation = SpanGeneration{Raw(copies->generation()) - 1};
    if (step.opens) leg.creates = true;
  }
  if (step.kind == CopiedChange::Step::Kind::kStored) UnloseLocked(whole);
  return step;
}

void CopyMap::Refresh(uint64_t span, Leg* leg) const {
  GateLock lock(&mu_);
  leg->known = replica_hosts_[leg->replica_host].known;
  const SpanCopies* const copies = FindLocked(span);
  if (copies == nullptr || copies->placement() != leg->placement) return;
  for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
    // The word of a stale copy from before it joins again does not count.
    const bool is_it = (copies->changed() >> copy & 1) != 0 && copies->replica_host(copy) == leg->replica_host;
    if (is_it && copies->known(copy)) leg->creates = false;
  }
}

bool CopyMap::IsPresent(uint64_t span, const Leg& leg) const {
  GateLock lock(&mu_);
  const SpanCopies* const copies = FindLocked(span);
  for (unsigned rest = copies == nullptr ? 0 : copies->changed(); rest != 0; rest &= rest - 1) {
    const int copy = std::countr_zero(rest);
    if (copies->replica_host(copy) == leg.replica_host) return copies->GenerationFor(copy) == leg.generation;
  }
  return false;
}

bool CopyMap::GetsChanges(uint64_t span, uint16_t replica_host) const {
  GateLock lock(&mu_);
  const SpanCopies* const copies = FindLocked(span);
  for (unsigned rest = copies == nullptr ? 0 : copies->changed(); rest != 0; rest &= rest - 1) {
    if (copies->replica_host(std::countr_zero(rest)) == replica_host) return true;
  }
  return false;
}

bool CopyMap::Unplace(uint64_t span) {
  GateLock lock(&mu_);
  SpanCopies* const copies = FindLocked(span);
  if (copies == nullptr) return false;
  return ReservedLocked(span) > 0 ? copies->PlaceAgain() : copies->Unplace();
}

bool CopyMap::UnplacesReserved(uint64_t span) const {
  GateLock lock(&mu_);
  const SpanCopies* const copies = FindLocked(span);
  return copies != nullptr && copies->HoldsNothing() && ReservedLocked(span) > 0;
}

void CopyMap::NoteTrimmed(const WholePages& whole) {
  GateLock lock(&mu_);
  UnloseLocked(whole);
  if (whole.first >= whole.end) return;
  const uint64_t span = whole.first / kPagesPerSpan;
  SpanCopies* const copies = FindLocked(span);
  if (copies != nullptr && copies->lost() && !HasLostLocked({span * kChunksPerSpan, kChunksPerSpan})) copies->EndLoss();
}

void CopyMap::UnloseLocked(const WholePages& whole) {
  if (!HasLostPagesLocked() || whole.first >= whole.end) return;
  const auto it = rare_->lost_pages.find(whole.first / kPagesPerSpan);
  if (it == rare_->lost_pages.end()) return;
  for (uint64_t page = whole.first; page < whole.end; ++page) it->second.reset(page % kPagesPerSpan);
  if (it->second.none()) rare_->lost_pages.erase(it);
}

CopyMap::ReadState CopyMap::LookForRead(const ChunkRange& range, Legs* legs, bool* unsettled, bool uses) const {
  GateLock lock(&mu_);
  SpanCopies* const copies = FindLocked(range.first / kChunksPerSpan);
  if (HasLostLocked(range)) return ReadState::kLost;
  if (copies == nullptr) return ReadState::kHole;
  if (uses) copies->Touch();
  // Nothing was stored, or every page was trimmed since.
  if (copies->known_in_sync() == 0) return ReadState::kHole;
  if (copies->doubtful()) return ReadState::kDoubtful;
  *unsettled = copies->unsettled();
  LegsOf(*copies, NRAM_PLANTED(joining_copy_is_read) ? copies->changed() : copies->known_in_sync(), legs);
  return ReadState::kPlaced;
}

bool CopyMap::Confirms(uint64_t span, const Leg& leg) const {
  GateLock lock(&mu_);
  const SpanCopies* const copies = FindLocked(span);
  if (copies == nullptr || copies->doubtful() || copies->generation() != leg.generation) return false;
  for (unsigned rest = copies->in_sync(); rest != 0; rest &= rest - 1) {
    if (copies->replica_host(std::countr_zero(rest)) == leg.replica_host) return true;
  }
  return false;
}

void CopyMap::NoteReserved(uint64_t span, uint64_t pages) {
  GateLock lock(&mu_);
  uint8_t* reserved = &only_reserved_;
  if (blocks_ != nullptr) {
    std::unique_ptr<Block>& block = (*blocks_)[span / kSpansPerTableBlock];
    if (block == nullptr) return;  // never placed
    if (block->reserved == nullptr) block->reserved = std::make_unique<std::array<uint8_t, kSpansPerTableBlock>>();
    reserved = &(*block->reserved)[span % kSpansPerTableBlock];
  } else if (span != only_span_ || Raw(only_.generation()) == 0) {
    return;
  }
  *reserved = static_cast<uint8_t>(std::min<uint64_t>(*reserved + pages, UINT8_MAX));
}

void CopyMap::ClearReserved() {
  GateLock lock(&mu_);
  only_reserved_ = 0;
  if (blocks_ == nullptr) return;
  for (auto& [number, block] : *blocks_) block->reserved = nullptr;
}

uint64_t CopyMap::ReservedLocked(uint64_t span) const {
  uint8_t reserved = 0;
  if (blocks_ == nullptr) {
    if (span == only_span_) reserved = only_reserved_;
  } else if (const auto it = blocks_->find(span / kSpansPerTableBlock); it != blocks_->end()) {
    if (it->second->reserved != nullptr) reserved = (*it->second->reserved)[span % kSpansPerTableBlock];
  }
  return reserved == UINT8_MAX ? kPagesPerSpan : reserved;
}

uint64_t CopyMap::ReservedPages(uint64_t span) const {
  GateLock lock(&mu_);
  return ReservedLocked(span);
}

uint64_t CopyMap::AllReservedPages() const {
  GateLock lock(&mu_);
  const auto pages = [](uint8_t reserved) { return reserved == UINT8_MAX ? kPagesPerSpan : reserved; };
  if (blocks_ == nullptr) return pages(only_reserved_);
  uint64_t sum = 0;
  for (const auto& [number, block] : *blocks_) {
    for (size_t i = 0; block->reserved != nullptr && i < block->reserved->size(); ++i)
      sum += pages((*block->reserved)[i]);
  }
  return sum;
}

bool CopyMap::IsCreated(const Life& life) const {
  GateLock lock(&mu_);
  for (const ReplicaHost& replica_host : replica_hosts_) {
    if (Life{replica_host.server, replica_host.incarnation} == life && replica_host.known == Known::kCreated &&
        !replica_host.dead)
      return true;
  }
  return false;
}

void CopyMap::NoteAnswered(uint64_t span, const Leg& leg) {
  GateLock lock(&mu_);
  replica_hosts_[leg.replica_host].known = Known::kCreated;
  SpanCopies* const copies = FindLocked(span);
  // If the span has another place, the server's data of this place would show beside the new data.
  const bool is_there = copies != nullptr && copies->placement() == leg.placement;
  if (!is_there && !NRAM_PLANTED(other_place_known)) return;
  for (int copy = 0; copies != nullptr && copy < SpanCopies::kMost; ++copy) {
    if (copies->state(copy) != CopyState::kAbsent && copies->replica_host(copy) == leg.replica_host)
      copies->NoteKnown(copy);
  }
}

void CopyMap::NotePerhaps(uint16_t replica_host) {
  GateLock lock(&mu_);
  if (replica_hosts_[replica_host].known == Known::kNothing) replica_hosts_[replica_host].known = Known::kPerhaps;
}

void CopyMap::Bury(uint16_t replica_host) {
  GateLock lock(&mu_);
  replica_hosts_[replica_host].dead = true;
}

std::vector<CopyMap::Whereabout> CopyMap::Whereabouts() const {
  GateLock lock(&mu_);
  std::vector<Whereabout> whereabouts;
  for (const ReplicaHost& replica_host : replica_hosts_) {
    if (replica_host.known == Known::kNothing) continue;
    const Life life{replica_host.server, replica_host.incarnation};
    const auto it =
        std::find_if(whereabouts.begin(), whereabouts.end(), [&](const auto& at) { return at.life == life; });
    if (it == whereabouts.end()) whereabouts.push_back({life, replica_host.known});
  }
  return whereabouts;
}

CopyMap::Servers CopyMap::ServersLocked(const SpanCopies* copies, CopySet of) const {
  Servers servers;
  for (unsigned rest = copies == nullptr ? 0 : of; rest != 0; rest &= rest - 1) {
    servers.push_back(replica_hosts_[copies->replica_host(std::countr_zero(rest))].server);
  }
  return servers;
}

CopyMap::Servers CopyMap::ServersOf(uint64_t span) const {
  GateLock lock(&mu_);
  const SpanCopies* const copies = FindLocked(span);
  return ServersLocked(copies, copies == nullptr ? 0 : copies->in_sync());
}

CopyMap::Servers CopyMap::ChangedServersOf(uint64_t span) const {
  GateLock lock(&mu_);
  const SpanCopies* const copies = FindLocked(span);
  return ServersLocked(copies, copies == nullptr ? 0 : copies->changed());
}

uint64_t CopyMap::NextSpan(uint64_t span) const {
  const auto is_there = [](const SpanCopies& copies) { return copies.placed() || copies.lost(); };
  GateLock lock(&mu_);
  if (blocks_ == nullptr) return is_there(only_) && only_span_ >= span ? only_span_ : UINT64_MAX;
  for (auto it = blocks_->lower_bound(span / kSpansPerTableBlock); it != blocks_->end(); ++it) {
    const uint64_t first = it->first * kSpansPerTableBlock;
    for (uint64_t at = std::max(span, first); at < first + kSpansPerTableBlock; ++at) {
      if (is_there(it->second->spans[at - first])) return at;
    }
  }
  return UINT64_MAX;
}

size_t CopyMap::memory_bytes() const {
  GateLock lock(&mu_);
  size_t bytes = sizeof *this;
  if (replica_hosts_.capacity() > 2) bytes += replica_hosts_.capacity() * sizeof(ReplicaHost);
  // A node of the tree has up to 256 bytes, and is half full at least.
  if (blocks_ != nullptr) bytes += sizeof *blocks_ + blocks_->size() * (sizeof(Block) + 2 * sizeof(Blocks::value_type));
  if (blocks_ != nullptr) {
    for (const auto& [number, block] : *blocks_) bytes += block->reserved != nullptr ? sizeof *block->reserved : 0;
  }
  if (rare_ != nullptr) {
    bytes += sizeof *rare_ + rare_->damaged.capacity() * 9 + rare_->lost_pages.capacity() * (sizeof(LostPages) + 9);
  }
  return bytes;
}

}  // namespace nram
