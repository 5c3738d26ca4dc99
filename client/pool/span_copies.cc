#include "client/pool/span_copies.h"

#include <glog/logging.h>

#include <bit>

#include "base/plant.h"

namespace nram {

CopySet SpanCopies::With(CopyState state) const {
  CopySet copies = 0;
  for (int copy = 0; copy < kMost; ++copy) {
    if (this->state(copy) == state) copies |= 1u << copy;
  }
  return copies;
}

SpanGeneration SpanCopies::GenerationFor(int copy) const {
  return SpanGeneration{state(copy) == CopyState::kCatchingUp ? generation_ - 1 : generation_};
}

void SpanCopies::SetState(int copy, CopyState state) {
  states_ = static_cast<uint8_t>((states_ & ~(3u << (2 * copy))) | static_cast<unsigned>(state) << (2 * copy));
}

void SpanCopies::SetAll(CopySet copies, CopyState state) {
  for (unsigned rest = copies; rest != 0; rest &= rest - 1) SetState(std::countr_zero(rest), state);
}

void SpanCopies::Raise() {
  generation_ += 2;
  CHECK_NE(generation_, 0u) << "a span's generations are used up";
  flags_ |= kUnsettled;
}

void SpanCopies::Place(absl::Span<const uint16_t> replica_hosts, bool one_copy) {
  CHECK_EQ(in_sync(), 0) << "the span is there already";
  CHECK(!replica_hosts.empty() && replica_hosts.size() <= kMost && (!one_copy || replica_hosts.size() == 1));
  // Nothing of a former place may be taken for a copy.
  if (!one_copy) generation_ += 2;
  ++placement_;
  states_ = 0;
  flags_ = one_copy ? 0 : kUnsettled;
  for (size_t copy = 0; copy < replica_hosts.size(); ++copy) {
    replica_hosts_[copy] = replica_hosts[copy];
    SetState(static_cast<int>(copy), CopyState::kInSync);
  }
}

bool SpanCopies::Unplace() { return !doubtful() && UnplaceAbsent(); }

bool SpanCopies::UnplaceAbsent() {
  if (!HoldsNothing()) return false;
  states_ = flags_ = 0;
  return true;
}

bool SpanCopies::PlaceAgain() {
  if (!HoldsNothing() || doubtful()) return false;
  // The data that a failed change has left must not come to light.
  Raise();
  ++placement_;
  flags_ = kUnsettled;
  return true;
}

void SpanCopies::EndLoss() {
  if (lost() && states_ == 0) flags_ = 0;
}

SpanCopies::Verdict SpanCopies::EndChange(CopySet stored, CopySet with_generation) {
  for (unsigned rest = stored & changed(); rest != 0; rest &= rest - 1) NoteKnown(std::countr_zero(rest));
  if (!NRAM_PLANTED(joining_copy_misses_changes)) SetAll(With(CopyState::kCatchingUp) & ~stored, CopyState::kStale);
  const CopySet missed = in_sync() & ~stored;
  if (missed == 0 && in_sync() != 0) {
    if ((in_sync() & ~with_generation) == 0) flags_ &= ~kUnsettled;
    return unsettled() ? Verdict::kSettle : Verdict::kDone;
  }
  // The last copy in sync never becomes stale.
  if ((in_sync() & stored) == 0) return Verdict::kAgain;
  if (NRAM_PLANTED(copy_that_missed_stays)) return Verdict::kDone;
  SetAll(missed, CopyState::kStale);
  Raise();
  return Verdict::kSettle;
}

void SpanCopies::EndRefused(CopySet as_one) {
  SetAll(With(CopyState::kCatchingUp), CopyState::kStale);
  const CopySet others = in_sync() & ~as_one;
  if (others == 0 || (in_sync() & as_one) == 0 || NRAM_PLANTED(refused_copies_stay)) return;
  SetAll(others, CopyState::kStale);
  Raise();
}

SpanGeneration SpanCopies::BeginTruth(int copy) {
  CHECK(state(copy) == CopyState::kInSync);
  Raise();
  return generation();
}

bool SpanCopies::EndTruth(int copy, SpanGeneration generation) {
  if (!doubtful() || generation != this->generation() || state(copy) != CopyState::kInSync) return false;
  SetAll(changed() & ~(1u << copy), CopyState::kStale);
  flags_ &= ~kStatus;
  return true;
}

bool SpanCopies::EndSettle(SpanGeneration generation, CopySet answered, CopySet missed) {
  if (generation != this->generation()) return false;
  if ((in_sync() & ~answered) == 0) {
    flags_ &= ~kUnsettled;
    return true;
  }
  const CopySet gone = in_sync() & missed;
  if (gone != 0 && (in_sync() & answered) != 0) {
    SetAll(gone, CopyState::kStale);
    Raise();
  }
  return false;
}

int SpanCopies::Join(uint16_t replica_host) {
  int chosen = -1;
  for (int copy = 0; copy < kMost; ++copy) {
    const bool is_stale = state(copy) == CopyState::kStale;
    // A replica host has one copy of a span at most.
    if (state(copy) != CopyState::kAbsent && replica_hosts_[copy] == replica_host) {
      CHECK(is_stale) << "a copy joins that is one already";
      chosen = copy;
      break;
    }
    const bool is_free = is_stale || state(copy) == CopyState::kAbsent;
    if (is_free && (chosen < 0 || (is_stale && state(chosen) == CopyState::kAbsent))) chosen = copy;
  }
  if (chosen < 0) return -1;
  replica_hosts_[chosen] = replica_host;
  flags_ &= ~(16u << chosen);
  SetState(chosen, CopyState::kStale);
  return chosen;
}

void SpanCopies::BeginOpen(int copy) {
  CHECK(state(copy) == CopyState::kStale && placed());
  if (!NRAM_PLANTED(join_raises_nothing)) Raise();
}

void SpanCopies::Open(int copy) {
  CHECK(state(copy) == CopyState::kStale && placed());
  SetState(copy, CopyState::kCatchingUp);
  NoteKnown(copy);
}

void SpanCopies::EndJoin(int copy, bool answered) {
  CHECK(state(copy) == CopyState::kCatchingUp && placed());
  SetState(copy, answered ? CopyState::kInSync : CopyState::kStale);
  if (known(copy)) NoteKnown(copy);  // now it counts
  if (!answered) Raise();
}

void SpanCopies::EndCopy(CopySet stored) {
  const CopySet joining = With(CopyState::kCatchingUp);
  for (unsigned rest = stored & joining; rest != 0; rest &= rest - 1) NoteKnown(std::countr_zero(rest));
  SetAll(joining & ~stored, CopyState::kStale);
}

bool SpanCopies::Drop(int copy) {
  if (in_sync() == (1u << copy)) return false;
  const bool was_in_sync = state(copy) == CopyState::kInSync;
  SetState(copy, CopyState::kAbsent);
  if (was_in_sync) Raise();
  return true;
}

void SpanCopies::Load(uint16_t replica_host, SpanGeneration generation) {
  CHECK_EQ(Raw(generation) % 2, 0u);
  const bool is_newest = Raw(generation) >= generation_;
  if (is_newest && Raw(generation) > generation_) {
    SetAll(in_sync(), CopyState::kStale);
    generation_ = Raw(generation);
  }
  int chosen = -1;
  for (int copy = 0; copy < kMost; ++copy) {
    const bool is_free = state(copy) == CopyState::kAbsent || (is_newest && state(copy) == CopyState::kStale);
    if (is_free && (chosen < 0 || state(copy) == CopyState::kAbsent)) chosen = copy;
  }
  if (chosen < 0) return;  // there are enough
  replica_hosts_[chosen] = replica_host;
  SetState(chosen, is_newest ? CopyState::kInSync : CopyState::kStale);
  flags_ |= (16u << chosen) | (is_newest ? kHeld : 0);
}

bool SpanCopies::EndLoad(SpanGeneration above, bool doubtful, bool loses) {
  if (Raw(above) > generation_) {
    generation_ = Raw(above) + Raw(above) % 2;
    flags_ |= kUnsettled;
  }
  if (!placed()) {
    flags_ = loses ? kLost : 0;
    return !loses;
  }
  if (doubtful && std::popcount(in_sync()) > 1) flags_ |= kDoubtful | kUnsettled;
  return true;
}

bool SpanCopies::Bury(CopySet dead) {
  const bool was_placed = placed();
  SetAll(dead & kAll, CopyState::kAbsent);
  if (placed() || !was_placed) return true;
  // No copy is left to catch up with.
  SetAll(With(CopyState::kCatchingUp), CopyState::kStale);
  if ((flags_ & kHeld) == 0 || NRAM_PLANTED(lost_span_is_hole)) {
    states_ = 0;
    flags_ = 0;
    return true;
  }
  flags_ = kLost;
  return false;
}

}  // namespace nram
