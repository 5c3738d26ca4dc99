#ifndef NRAM_TESTS_SIM_REGISTER_HISTORY_H_
#define NRAM_TESTS_SIM_REGISTER_HISTORY_H_

// The values that one chunk may be found to hold: a register with writes at the same time, writes without an answer,
// and writes that are sent again.

#include <cstdint>
#include <string>
#include <vector>

namespace nram::sim {

// A moment is the number of a begin or an end in the order of all of them: no two are the same.
using Moment = uint64_t;
inline constexpr Moment kNever = ~Moment{0};

// Writes have numbers above 0, each its own; what they wrote is told apart by these, but for zeros: any write of zeros,
// a trim, or nothing ever written may have left them. Number 0 is the register's beginning.
//
// With kOnce a write takes effect once, and the register is atomic: its operations can be ordered so that each read
// finds what the last write before it has left, and what ended before another began stands before that. (Gibbons and
// Korach, "Testing Shared Memories", 1997: write each value together with the reads of it; with f the first end among
// these and s the last begin, two values cannot both be ordered exactly if f of each is before s of the other.)
//
// With kAgain a write may take effect several times while it is under way, as one that is sent again after its
// connection broke: then f of a value is the end of its write, whatever reads have found before.
//
// In both, a value is dead when something else was found that it cannot have followed, and a failed write must not take
// effect after a later write, begun when the failure was known, is known to have taken effect.
class RegisterHistory {
 public:
  enum class Effect { kOnce, kAgain };

  explicit RegisterHistory(Effect effect) : effect_(effect) { values_.push_back({0, true, 0, 0, kNever, kNever, 0}); }

  void BeginWrite(uint64_t number, bool zeros, Moment now) {
    values_.push_back({number, zeros, now, kNever, kNever, kNever, now});
  }
  // `known`: it succeeded. Else whether it took effect, or will, is not known. `oldest`: no read that is under way, or
  // will be, began before that.
  void EndWrite(uint64_t number, bool known, Moment now, Moment oldest);

  // The finding of a read that began at `began` and ends now. Empty: that may be. Else what is wrong.
  std::string EndRead(uint64_t number, Moment began, Moment now, Moment oldest);
  std::string EndReadOfZeros(Moment began, Moment now, Moment oldest);

  // Whether what is stored cannot be zeros now.
  bool MustHoldData() const;
  std::string Describe() const;
  size_t size() const { return values_.size(); }

 private:
  struct Value {
    uint64_t number;
    bool zeros;
    Moment last_begin;  // among the write and the reads of it
    Moment first_end;   // likewise, or with kAgain the write's; kNever: the write has no end, or failed
    Moment failed;      // when its failure was known
    Moment dead;        // reads that begin after that must not find it
    Moment write_began;
    bool over = false;  // about to be forgotten
  };

  // The index of a value that stands in the way if `at` is found by such a read; -1: none does.
  int FindConflict(size_t at, Moment began, Moment now) const;
  void NoteRead(size_t at, Moment began, Moment now);
  // `at` is known to have taken effect.
  void NoteEffect(size_t at, Moment now);
  // Something else is known to have been there between `began` and now. Values that ended before are dead.
  void NoteOther(const Value& found, Moment began, Moment now);
  void Prune(Moment oldest);

  const Effect effect_;
  std::vector<Value> values_;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_REGISTER_HISTORY_H_
