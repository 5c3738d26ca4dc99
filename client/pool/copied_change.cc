#include "client/pool/copied_change.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "base/plant.h"

namespace nram {

const CopiedChange::Leg* CopiedChange::Find(uint16_t replica_host) const {
  const auto end = legs_.begin() + leg_count_;
  const auto it = std::find_if(legs_.begin(), end, [&](const Leg& leg) { return leg.replica_host == replica_host; });
  return it == end ? nullptr : &*it;
}

CopySet CopiedChange::With(const SpanCopies& span, CopySet among, End end) const {
  CopySet copies = 0;
  for (unsigned rest = among; rest != 0; rest &= rest - 1) {
    const int copy = std::countr_zero(rest);
    const Leg* const leg = Find(span.replica_host(copy));
    if (leg != nullptr && leg->end == end) copies |= 1u << copy;
  }
  return copies;
}

void CopiedChange::Ended(uint16_t replica_host, End end, uint32_t stored_pages) {
  if (settling_) {
    if (end == End::kStored && answered_count_ < SpanCopies::kMost) answered_[answered_count_++] = replica_host;
    return;
  }
  Leg* const leg = const_cast<Leg*>(Find(replica_host));
  if (leg == nullptr) return;
  leg->stored_pages = stored_pages;
  leg->end = end;
  if (end == End::kOtherGeneration && ++leg->other_generations >= kAttemptsMax) leg->end = End::kMissed;
}

CopiedChange::Step CopiedChange::Send(const SpanCopies& span, CopySet to) {
  for (unsigned rest = to; rest != 0; rest &= rest - 1) {
    const int copy = std::countr_zero(rest);
    Leg* leg = const_cast<Leg*>(Find(span.replica_host(copy)));
    if (leg == nullptr && leg_count_ < kLegsMax) leg = &legs_[leg_count_++];
    if (leg == nullptr) continue;
    leg->replica_host = span.replica_host(copy);
    leg->generation = span.GenerationFor(copy);
  }
  return {.to = to};
}

CopiedChange::Step CopiedChange::Next(SpanCopies* span, bool in_time) {
  if (!has_begun_) placement_ = span->placement();
  has_begun_ = true;
  if (placement_ != span->placement()) return {.kind = Step::Kind::kUnanswered};
  if (settling_) return NextSettle(span, in_time);
  switch (kind_) {
    case Kind::kCopy:
      return NextCopy(span, in_time);
    case Kind::kOpen:
      return NextOpen(span, in_time);
    case Kind::kJoin:
      return NextJoin(span, in_time);
    default:
      return NextData(span, in_time);
  }
}

CopiedChange::Step CopiedChange::NextCopy(SpanCopies* span, bool in_time) {
  const CopySet joining = span->With(CopyState::kCatchingUp);
  CopySet again = With(*span, joining, End::kOtherGeneration);
  for (unsigned rest = joining; rest != 0; rest &= rest - 1) {
    const int copy = std::countr_zero(rest);
    if (Find(span->replica_host(copy)) == nullptr && leg_count_ < kLegsMax) again |= 1u << copy;
  }
  if (again != 0 && (in_time || !sent_)) {
    sent_ = true;
    return Send(*span, again);
  }
  const CopySet stored = With(*span, joining, End::kStored);
  span->EndCopy(stored);
  return {.kind = stored != 0 ? Step::Kind::kStored : Step::Kind::kUnanswered};
}

int CopiedChange::PlaceOfCopy(const SpanCopies& span, CopyState state) const {
  for (unsigned rest = has_copy_ ? span.With(state) : 0; rest != 0; rest &= rest - 1) {
    if (span.replica_host(std::countr_zero(rest)) == copy_) return std::countr_zero(rest);
  }
  return -1;
}

CopiedChange::Step CopiedChange::NextOpen(SpanCopies* span, bool in_time) {
  const int copy = PlaceOfCopy(*span, CopyState::kStale);
  if (copy < 0 || span->lost()) return {.kind = Step::Kind::kUnanswered};
  if (!sent_) {
    sent_ = true;
    span->BeginOpen(copy);
    Step step = Send(*span, static_cast<CopySet>(1u << copy));
    step.raises_only = step.opens = true;
    return step;
  }
  if (Find(copy_)->end != End::kStored) return {.kind = Step::Kind::kUnanswered};
  span->Open(copy);
  // Those in sync learn the new generation at once, or reads would be refused.
  settling_ = true;
  return NextSettle(span, in_time);
}

CopiedChange::Step CopiedChange::NextJoin(SpanCopies* span, bool in_time) {
  if (!has_copy_ || has_joined_) return NextLeave(span, in_time);
  // If it has missed a change, those that are to leave are still needed.
  const int copy = PlaceOfCopy(*span, CopyState::kCatchingUp);
  if (copy < 0 || span->lost()) return {.kind = Step::Kind::kUnanswered};
  if (!sent_) {
    sent_ = true;
    Step step = Send(*span, static_cast<CopySet>(1u << copy));
    step.raises_only = step.joins = true;
    return step;
  }
  const bool stored = Find(copy_)->end == End::kStored;
  span->EndJoin(copy, stored);
  if (!stored) return {.kind = Step::Kind::kUnanswered};
  has_joined_ = true;
  return NextLeave(span, in_time);
}

bool CopiedChange::IsLeaving(const SpanCopies& span, int copy) const {
  const auto end = leaves_.begin() + leaves_count_;
  return span.state(copy) != CopyState::kAbsent && std::find(leaves_.begin(), end, span.replica_host(copy)) != end;
}

CopiedChange::Step CopiedChange::NextLeave(SpanCopies* span, bool in_time) {
  CopySet leaving = 0;  // of those in sync
  for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
    if (IsLeaving(*span, copy) && span->state(copy) == CopyState::kInSync) leaving |= 1u << copy;
  }
  // A copy that was not asked for a while may be on a server that has died. One that has just joined is not.
  if (leaving != 0 && !has_copy_ && !std::exchange(has_proved_, true) && !NRAM_PLANTED(leaves_without_proof)) {
    span->BeginProof();
    settling_ = true;
    return NextSettle(span, in_time);
  }
  // Also if other copies remain: they may miss the new generation, and then no copy would refuse a reader that does not
  // know the new copy. Without one that has joined, the remaining copies have that generation already.
  if (leaving != 0 && shuts_ && has_copy_ && !std::exchange(shutting_, true)) {
    span->BeginProof();  // first: from now on a refused reader looks again
    Step step = Send(*span, leaving);
    step.raises_only = step.shuts = true;
    return step;
  }
  if (shutting_ && !has_left_ && With(*span, leaving, End::kStored) != leaving) {
    // It is unknown whether the copy refuses. It remains, and so does the one that has joined.
    gives_up_ = has_left_ = settling_ = true;
    return NextSettle(span, in_time);
  }
  for (int copy = 0; copy < SpanCopies::kMost; ++copy) {
    if (IsLeaving(*span, copy)) (void)span->Drop(copy);
  }
  has_left_ = settling_ = true;
  return NextSettle(span, in_time);
}

CopiedChange::Step CopiedChange::NextData(SpanCopies* span, bool in_time) {
  // Those that were not asked yet have joined since; those of another generation were asked with an old one.
  CopySet again = With(*span, span->changed(), End::kOtherGeneration);
  // Another change has created it meanwhile.
  again |= With(*span, span->known_in_sync(), End::kAbsent);
  const CopySet wanted = NRAM_PLANTED(joining_copy_misses_changes) ? span->in_sync() : span->changed();
  for (unsigned rest = wanted; rest != 0; rest &= rest - 1) {
    const int copy = std::countr_zero(rest);
    if (Find(span->replica_host(copy)) == nullptr && leg_count_ < kLegsMax) again |= 1u << copy;
  }
  if (again != 0 && (in_time || !sent_)) {
    sent_ = true;
    return Send(*span, again);
  }
  const CopySet stored = With(*span, span->changed(), End::kStored);
  CopySet with_generation = 0;
  for (unsigned rest = stored; rest != 0; rest &= rest - 1) {
    const int copy = std::countr_zero(rest);
    if (Find(span->replica_host(copy))->generation == span->generation()) with_generation |= 1u << copy;
  }
  switch (span->EndChange(stored, with_generation)) {
    case SpanCopies::Verdict::kDone:
      return {.kind = Step::Kind::kStored};
    case SpanCopies::Verdict::kSettle:
      settling_ = true;
      return NextSettle(span, in_time);
    case SpanCopies::Verdict::kAgain:
      break;
  }
  const CopySet damaged = With(*span, span->in_sync(), End::kDamaged);
  const CopySet absent = With(*span, span->in_sync(), End::kAbsent) & ~span->known_in_sync();
  // Nothing of a change in doubt is anywhere.
  if (absent == span->in_sync() && span->UnplaceAbsent()) return {.kind = Step::Kind::kStored};
  const CopySet refused = With(*span, span->in_sync(), End::kRefused) | absent;
  const CopySet missed = With(*span, span->in_sync(), End::kMissed);
  // One that cannot be asked is not waited for when another has said no.
  if (refused != 0 && (refused | damaged | missed) == span->in_sync()) return Refuse(span, refused, in_time);
  if (damaged != 0 && damaged == span->in_sync()) return Refuse(span, damaged, in_time);
  // None in sync: the span was lost meanwhile.
  if (in_time && span->in_sync() != 0) return Send(*span, span->in_sync() & ~(refused | damaged));
  span->NoteDoubt();
  return {.kind = Step::Kind::kUnanswered};
}

CopiedChange::Step CopiedChange::Refuse(SpanCopies* span, CopySet refused, bool in_time) {
  // A span that was placed for this change alone must not stand in the way of reads.
  if (kind_ == Kind::kData && span->HoldsNothing()) {
    // Otherwise a server may have kept data that no later trim would free there.
    if (may_hold_) span->NoteDoubt();
    (void)span->Unplace();
    return {.kind = Step::Kind::kRefused};
  }
  // Those that have stored most: they know the span, so that it need not be created there again.
  uint32_t stored_pages = 0;
  for (unsigned rest = refused; rest != 0; rest &= rest - 1) {
    stored_pages = std::max(stored_pages, Find(span->replica_host(std::countr_zero(rest)))->stored_pages);
  }
  CopySet as_one = 0;
  for (unsigned rest = refused; rest != 0; rest &= rest - 1) {
    const int copy = std::countr_zero(rest);
    if (Find(span->replica_host(copy))->stored_pages == stored_pages) as_one |= 1u << copy;
  }
  span->EndRefused(as_one);
  settling_ = refused_ = true;
  return NextSettle(span, in_time);
}

void CopiedChange::EndRound(SpanCopies* span) {
  in_round_ = false;
  CopySet answered = 0;
  for (unsigned rest = span->in_sync(); rest != 0; rest &= rest - 1) {
    const int copy = std::countr_zero(rest);
    const auto end = answered_.begin() + answered_count_;
    if (std::find(answered_.begin(), end, span->replica_host(copy)) != end) answered |= 1u << copy;
  }
  if (truth_ < 0) {
    (void)span->EndSettle(round_generation_, answered, span->in_sync() & ~answered);
  } else if ((answered >> truth_ & 1) != 0) {
    (void)span->EndTruth(truth_, round_generation_);
  }
}

CopiedChange::Step CopiedChange::NextSettle(SpanCopies* span, bool in_time) {
  if (in_round_) EndRound(span);
  if (span->in_sync() == 0) return {.kind = Step::Kind::kUnanswered};  // all copies died meanwhile
  const bool seeks_truth = kind_ == Kind::kSettle && span->doubtful();
  if (!seeks_truth && !span->unsettled()) {
    if (kind_ == Kind::kJoin && !has_left_) {
      settling_ = false;
      return NextLeave(span, in_time);
    }
    if (gives_up_) return {.kind = Step::Kind::kUnanswered};
    return {.kind = refused_ ? Step::Kind::kRefused : Step::Kind::kStored};
  }
  if (!in_time) return {.kind = Step::Kind::kUnanswered};
  in_round_ = true;
  answered_count_ = 0;
  truth_ = -1;
  if (!seeks_truth) {
    round_generation_ = span->generation();
    return {.to = span->in_sync(), .raises_only = true};
  }
  // In turn, since one of them may never answer.
  const CopySet later = last_truth_ < 0 ? 0 : span->in_sync() & ~((2u << last_truth_) - 1);
  truth_ = last_truth_ = std::countr_zero(later != 0 ? later : span->in_sync());
  round_generation_ = span->BeginTruth(truth_);
  return {.to = static_cast<CopySet>(1u << truth_), .raises_only = true};
}

}  // namespace nram
