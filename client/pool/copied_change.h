#ifndef NRAM_CLIENT_POOL_COPIED_CHANGE_H_
#define NRAM_CLIENT_POOL_COPIED_CHANGE_H_

// One change of a span with several copies (adr/0014): what to send to which copy, and when the change is done. It
// decides and does nothing else; whoever carries it out says how each message ended. Pure.

#include <array>
#include <cstdint>

#include "client/pool/span_copies.h"

namespace nram {

// The machine of one change: a piece of a write, or a trim, that lies in one span and has its place in the gate; or the
// settling of a span, whose place is all of the span. Not thread-safe.
//
//   for (Step step = change.Next(&span, true); step.kind == kSend; step = change.Next(&span, in_time)) {
//     ... send to step.to; call change.Ended for each when it has ended ...
//   }
//
// Next looks at the span and changes it, so it is called under the lock of the span's map.
class CopiedChange {
 public:
  enum class Kind : uint8_t {
    kData,    // brings data, or makes holes
    kSettle,  // only makes the span settled
  };
  explicit CopiedChange(Kind kind) : settling_(kind == Kind::kSettle), brings_data_(kind == Kind::kData) {}

  struct Step {
    enum class Kind : uint8_t { kSend, kStored, kRefused, kUnanswered };
    Kind kind = Kind::kSend;
    // kSend: to these copies, each with its generation.
    CopySet to = 0;
    bool raises_only = false;  // a write without chunks
    std::array<SpanGeneration, SpanCopies::kMost> generations{};
  };
  // What to do now, when all messages of the last step have ended. `in_time`: it may send more. Anything but kSend ends
  // the change: kStored: every copy in sync has it. kRefused: none has (all of) it, for the reason that the servers
  // gave. kUnanswered: nothing is known.
  Step Next(SpanCopies* span, bool in_time);

  enum class End : uint8_t {
    kStored,           // done, or raised
    kRefused,          // the server said no, and will again
    kMissed,           // no answer in time, or the server cannot be asked
    kOtherGeneration,  // the server refused the generation: the span may have another one by now
  };
  // A message of the last step has ended at the presence that it went to. `stored_pages`: of a refused write, how many
  // pages were stored, in order.
  void Ended(uint16_t presence, End end, uint32_t stored_pages = 0);

 private:
  // A copy that refuses the generation that it should have, again and again, is none.
  static constexpr int kAttemptsMax = 4;

  // What is known of the change at one presence.
  struct Leg {
    uint16_t presence = 0;
    End end = End::kMissed;
    uint8_t attempts = 0;
    uint32_t stored_pages = 0;
  };

  Leg* Find(uint16_t presence);
  // The copies of the span, of those in `among`, whose legs have ended so.
  CopySet With(const SpanCopies& span, CopySet among, End end);
  Step Send(const SpanCopies& span, CopySet to);
  Step NextData(SpanCopies* span, bool in_time);
  Step EndRefused(SpanCopies* span, bool in_time);
  Step NextSettle(SpanCopies* span, bool in_time);

  bool settling_;
  const bool brings_data_;
  bool sent_ = false;
  bool refused_ = false;           // that is how it will end
  int truth_ = -1;                 // the copy of a doubtful span that was asked
  SpanGeneration settled_with_{};  // the generation of the messages that settle
  std::array<Leg, 2 * SpanCopies::kMost> legs_{};
  uint8_t leg_count_ = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_COPIED_CHANGE_H_
