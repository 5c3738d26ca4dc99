#ifndef NRAM_CLIENT_POOL_SPAN_COPIES_H_
#define NRAM_CLIENT_POOL_SPAN_COPIES_H_

// Where a span's copies are, and which of them may be believed (adr/0014): the effect of each event on them, and
// nothing else. Pure.

#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "base/plant.h"
#include "base/units.h"
#include "client/pool/placement.h"
#include "proto/wire.h"

namespace nram {

enum class CopyState : uint8_t {
  kAbsent,
  kCatchingUp,  // gets changes, and is not read
  kInSync,
  kStale,  // has missed a change
};

// A set of a span's copies: a bit each, by their place in SpanCopies.
using CopySet = uint8_t;

// The copies of one span: 16 bytes. Not thread-safe.
//
// A copy names a *replica host*: its region in one life of one server, by a number that the region's map gives. Replica
// hosts die with their server's life; the caller says which copies are alive.
//
// A plain region of one copy has generation 0, always. Else generations are even, begin at 2, and none is used twice.
class SpanCopies {
 public:
  static constexpr int kMost = kReplicasMax;
  static constexpr CopySet kAll = (1u << kMost) - 1;

  // Counts the places that it has had; wraps. Messages of one place say nothing of another.
  uint16_t placement() const { return placement_; }
  // How lately the span was used: Touch sets it, Cool lowers it by one.
  static constexpr int kHeatMax = 3;
  int heat() const { return heat_; }
  void Touch() {
    if (heat_ != kHeatMax) heat_ = kHeatMax;
  }
  void Cool() { heat_ -= heat_ > 0 ? 1 : 0; }

  // A copy is in sync.
  bool placed() const { return in_sync() != 0; }
  // It was placed, and no copy in sync is left. Not a hole.
  bool lost() const { return (flags_ & kLost) != 0; }
  CopyState state(int copy) const { return static_cast<CopyState>(states_ >> (2 * copy) & 3); }
  // Not of an absent copy.
  uint16_t replica_host(int copy) const { return replica_hosts_[copy]; }
  CopySet With(CopyState state) const;
  CopySet in_sync() const { return With(CopyState::kInSync); }
  // Those that changes go to.
  CopySet changed() const { return in_sync() | With(CopyState::kCatchingUp); }
  SpanGeneration generation() const { return SpanGeneration{generation_}; }
  // The generation in a request to the copy: an odd one for a copy that is catching up.
  SpanGeneration GenerationFor(int copy) const;
  // A change has no answer from any copy: they may differ.
  bool doubtful() const { return (flags_ & kDoubtful) != 0; }
  // Not every copy in sync has answered a request of this generation.
  bool unsettled() const { return (flags_ & kUnsettled) != 0; }

  // The copy has answered a change since it was placed or has joined: its server has the span. A change that is sent to
  // one that has not may have to create it there, which empties leftovers of another time.
  bool known(int copy) const { return (flags_ >> (4 + copy) & 1) != 0; }
  void NoteKnown(int copy) {
    flags_ |= 16u << copy;
    if (state(copy) == CopyState::kInSync) flags_ |= kHeld;
  }
  // While it is empty, no change of the span has been acknowledged since it was placed, and no client has read it.
  CopySet known_in_sync() const { return in_sync() & (flags_ >> 4); }
  bool HoldsNothing() const { return known_in_sync() == 0 && in_sync() != 0; }
  // If so, and it is not doubtful, the span is a hole again; else false.
  bool Unplace();
  // The server of each copy in sync has nothing of the span: it is a hole again, whatever was in doubt. False: a copy
  // in sync is known, or there is none.
  bool UnplaceAbsent();

  // The same for a span that is to keep its place: as if it was placed anew. Else false.
  bool PlaceAgain();

  // Places the span, for the first time or after it was lost: all copies in sync, and unsettled. One replica host and
  // `one_copy`: without generations, and settled.
  void Place(absl::Span<const uint16_t> replica_hosts, bool one_copy);

  // All of a span that is lost was trimmed: it is a hole. Not if a copy that has missed something is left, since the
  // next owner might take it for the span.
  void EndLoss();

  // The next move of a change that has ended.
  enum class Verdict : uint8_t {
    kDone,    // all copies in sync have stored it
    kSettle,  // it is stored, and the span is unsettled: the change is done when it is settled
    kAgain,   // no copy that is in sync now has stored it
  };
  // A change has ended on all copies that it was sent to; `stored` have stored it, of which `with_generation` were sent
  // the present generation. Another copy in sync becomes stale if one has stored it; one that is catching up, always.
  Verdict EndChange(CopySet stored, CopySet with_generation);
  // No copy has stored a change, and those in `as_one` hold the same in spite of it. Other copies in sync become stale.
  // `as_one` must have a copy in sync, or nothing happens.
  void EndRefused(CopySet as_one);
  // No copy has answered a change.
  void NoteDoubt() { flags_ |= generation_ != 0 && !NRAM_PLANTED(doubt_forgotten) ? kDoubtful : 0; }

  // A request without data is to go to `copy`, which may become the truth of a doubtful span. Returns its generation, a
  // new one.
  SpanGeneration BeginTruth(int copy);
  // It was answered. False: something happened meanwhile; look again.
  bool EndTruth(int copy, SpanGeneration generation);
  // Requests without data were sent to copies in sync, with `generation`; `answered` have answered, `missed` have not.
  // False: the span is unsettled still; look again.
  bool EndSettle(SpanGeneration generation, CopySet answered, CopySet missed);

  // A copy is to join: it takes its own place if it is a stale one, else that of a stale or an absent one, and is
  // stale. The place, or -1: there is none.
  int Join(uint16_t replica_host);
  // The copy, a stale one, is to be sent a request that creates, with the odd generation below the span's, by an
  // operation that holds the gate for the whole span. The span's generation rises first, so the odd one is higher than
  // any that the server had of the span, or is still to be trimmed with. Not without the gate: a change that creates a
  // span is under way with the generation that it began with, and a second one with a higher would empty it.
  void BeginOpen(int copy);
  // It has answered: it is empty, and catches up from now on.
  void Open(int copy);
  // A copy that has caught up was sent a request of the span's generation, by an operation that holds the gate for the
  // whole span. Answered: it is in sync. Else it is stale, and since it may have that generation, the span gets another
  // one. CHECKs that it is catching up.
  void EndJoin(int copy, bool answered);
  // Data that was read from a copy in sync was written to those that catch up; `stored` have it, the others become
  // stale.
  void EndCopy(CopySet stored);
  // A new generation, which every copy in sync is to answer: those that have shown that they are alive.
  void BeginProof() { Raise(); }
  // The copy is no longer one of the span. If it was in sync, the span gets another generation, so that it refuses once
  // the odd one below was sent there. The last one in sync is not dropped, and false is returned.
  bool Drop(int copy);
  // Loads a member's copy of a span of a region that is attached. The generation is even. The newest of all members are
  // in sync. Then EndLoad, once; `above`: the highest odd generation, of data that is no copy, and `doubtful`: it is
  // unknown whether the copies are alike. Without a copy, it is lost if `loses`, else a hole. False: it is lost.
  void Load(uint16_t replica_host, SpanGeneration generation);
  bool EndLoad(SpanGeneration above, bool doubtful, bool loses);
  // Copies whose replica hosts have died are absent from now on. False: that made the span lost. If no copy was ever
  // known, it held nothing, and is a hole again.
  bool Bury(CopySet dead);

  friend bool operator==(const SpanCopies&, const SpanCopies&) = default;

 private:
  static constexpr uint8_t kDoubtful = 1;
  static constexpr uint8_t kUnsettled = 2;
  static constexpr uint8_t kLost = 4;
  static constexpr uint8_t kHeld = 8;    // some copy in sync was known since it was placed
  static constexpr uint8_t kStatus = 7;  // the others are the known copies

  void SetState(int copy, CopyState state);
  void SetAll(CopySet copies, CopyState state);
  // Some copies in sync have become stale.
  void Raise();

  std::array<uint16_t, kMost> replica_hosts_{};
  uint32_t generation_ = 0;
  uint8_t states_ = 0;  // two bits a copy
  uint8_t flags_ = 0;
  uint16_t placement_ : 14 = 0;
  uint16_t heat_ : 2 = 0;
};
static_assert(sizeof(SpanCopies) == 16);

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_SPAN_COPIES_H_
