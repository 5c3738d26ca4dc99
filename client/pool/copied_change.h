#ifndef NRAM_CLIENT_POOL_COPIED_CHANGE_H_
#define NRAM_CLIENT_POOL_COPIED_CHANGE_H_

// One change of a span with several copies (adr/0014): the message for each copy, and when the change is done. It
// decides and does nothing else. Pure.

#include <array>
#include <cstdint>

#include "client/pool/span_copies.h"

namespace nram {

// The machine of one change: a write or a trim in one span, which has its place in the gate; or the settling of a span,
// whose place in the gate is all of the span. Not thread-safe.
//
//   for (step = change.Next(&span, true); step.kind == kSend; step = change.Next(&span, in_time)) {
//     ... send to step.to, each with its generation; call Ended for each message when it has ended ...
//   }
//
// Next looks at the span's state and changes it, so it is called under the lock of the span's map.
class CopiedChange {
 public:
  enum class Kind : uint8_t {
    kData,    // writes or trims
    kSettle,  // makes one copy the truth of a doubtful span, and settles it
    kCopy,    // writes the data of a copy in sync, only to the copies that catch up
    // These two have all of the span as their place in the gate, so no other change is under way.
    kOpen,  // a copy that is stale so far is emptied, and catches up from now on
    kJoin,  // a copy that has everything is in sync from now on; others are dropped
  };
  explicit CopiedChange(Kind kind) : kind_(kind), settling_(kind == Kind::kSettle) {}
  bool is_data() const { return kind_ == Kind::kData; }
  // Before the first Next: the copy that kOpen and kJoin are about. Without one, kJoin only drops others.
  void SetCopy(uint16_t replica_host) {
    has_copy_ = true;
    copy_ = replica_host;
  }
  // kJoin, before the first Next: that copy is dropped once the other is in sync. At most kMost.
  void Leave(uint16_t replica_host) {
    if (leaves_count_ < SpanCopies::kMost) leaves_[leaves_count_++] = replica_host;
  }

  // kJoin, before the first Next: other clients read the span's copies by themselves. A copy to be dropped must refuse
  // them before another takes its place.
  void SetShuts() { shuts_ = true; }

  struct Step {
    enum class Kind : uint8_t {
      kSend,
      kStored,      // the end: every copy in sync has the change
      kRefused,     // the end: no copy has all of it, for the reason that the servers gave
      kUnanswered,  // the end: nothing is known, or the span has another place
    };
    Kind kind = Kind::kSend;
    CopySet to = 0;            // kSend: to these copies of the span
    bool raises_only = false;  // kSend: a write without chunks
    bool joins = false;        // kSend: with the span's generation, although the copy is catching up
    bool opens = false;        // kSend: with the odd generation; the server's data of the span is freed
    bool shuts = false;        // kSend: with the odd generation, so that the copy refuses
  };
  // The next step. All messages of the last one have ended. `in_time`: it may send more.
  Step Next(SpanCopies* span, bool in_time);

  enum class End : uint8_t {
    kStored,           // done, or raised
    kRefused,          // the server said no, and would again
    kDamaged,          // the server said no, and another copy need not
    kAbsent,           // a trim: the server has no room to create the span, so it has nothing of it
    kMissed,           // no answer, or the server cannot be asked
    kOtherGeneration,  // the span had another generation there: it may have risen here meanwhile
  };
  // Some server may have done it, although it has not said so: then no refusal of others undoes it.
  void NoteMayHold() { may_hold_ = true; }

  // A message of the last step, to that replica host, has ended. `stored_pages`: of a refused write, how many of its
  // pages were stored, in order.
  void Ended(uint16_t replica_host, End end, uint32_t stored_pages = 0);

 private:
  // A copy that has another generation than it should is given up after this many attempts.
  static constexpr int kAttemptsMax = 4;
  // Copies join and are dropped while a change is under way. Those beyond this number count as missed.
  static constexpr int kLegsMax = 2 * SpanCopies::kMost;

  // How the change has ended at one replica host.
  struct Leg {
    uint16_t replica_host = 0;
    SpanGeneration generation{};  // of the last message
    End end = End::kMissed;
    uint8_t other_generations = 0;
    uint32_t stored_pages = 0;
  };

  const Leg* Find(uint16_t replica_host) const;
  Step Send(const SpanCopies& span, CopySet to);
  // The copies of `among` at whose replica hosts the change has ended so.
  CopySet With(const SpanCopies& span, CopySet among, End end) const;
  Step NextData(SpanCopies* span, bool in_time);
  Step Refuse(SpanCopies* span, CopySet refused, bool in_time);
  Step NextSettle(SpanCopies* span, bool in_time);
  Step NextCopy(SpanCopies* span, bool in_time);
  Step NextOpen(SpanCopies* span, bool in_time);
  Step NextJoin(SpanCopies* span, bool in_time);
  Step NextLeave(SpanCopies* span, bool in_time);
  bool IsLeaving(const SpanCopies& span, int copy) const;
  // The place of copy_, if it is in that state; -1.
  int PlaceOfCopy(const SpanCopies& span, CopyState state) const;
  void EndRound(SpanCopies* span);

  Kind kind_;
  bool settling_;
  bool has_begun_ = false;
  bool may_hold_ = false;
  uint16_t placement_ = 0;  // the span's, when it began
  bool sent_ = false;
  bool refused_ = false;  // so it ends, once the span is settled
  std::array<Leg, kLegsMax> legs_{};
  int leg_count_ = 0;
  bool has_copy_ = false;
  uint16_t copy_ = 0;
  std::array<uint16_t, SpanCopies::kMost> leaves_{};  // replica hosts
  int leaves_count_ = 0;
  // Of kJoin.
  bool shuts_ = false;
  bool has_joined_ = false;
  bool has_proved_ = false;  // the remaining copies were asked
  bool shutting_ = false;    // the copies to be dropped were asked to refuse
  bool has_left_ = false;
  bool gives_up_ = false;

  // A round of settling: requests without data are under way.
  bool in_round_ = false;
  SpanGeneration round_generation_{};
  int truth_ = -1;                                      // the copy that is to be the truth; -1: all in sync are asked
  int last_truth_ = -1;                                 // the next one has its turn
  std::array<uint16_t, SpanCopies::kMost> answered_{};  // replica hosts
  int answered_count_ = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_COPIED_CHANGE_H_
