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

// Writes have numbers above 0, each its own. The numbers tell their values apart, except zeros: any write of zeros, a
// trim, or an untouched register may have left them. Number 0 is the register's beginning.
//
// With kOnce a write takes effect once, and the register is atomic. Its operations can be ordered so that each read
// finds the value of the last write before it, and an operation that ended before another one began stands before that
// one. (Gibbons and Korach, "Testing Shared Memories", 1997: take each write together with the reads of its value. Let
// f be the first end among these and s the last begin. Two values cannot both be ordered exactly if f of each is before
// s of the other.)
//
// With kAgain a write may take effect several times while it is under way, as one that is sent again after its
// connection broke: then f of a value is the end of its write, whatever reads have found before.
//
// In both, a value is dead when another value was found that it cannot have followed. A failed write must not take
// effect after a later write, begun when the failure was known, is known to have taken effect.
class RegisterHistory {
 public:
  enum class Effect { kOnce, kAgain };

  explicit RegisterHistory(Effect effect) : effect_(effect) { values_.push_back({0, true, 0, 0, kNever, kNever, 0}); }

  void BeginWrite(uint64_t number, bool zeros, Moment now) {
    values_.push_back({number, zeros, now, kNever, kNever, kNever, now});
  }
  // `known`: it succeeded. Otherwise it is not known whether it took effect, or will. `oldest`: no read that is under
  // way, or will be, began before that.
  void EndWrite(uint64_t number, bool known, Moment now, Moment oldest);

  // The finding of a read that began at `began` and ends now. Returns "" if it is possible, otherwise the error.
  std::string EndRead(uint64_t number, Moment began, Moment now, Moment oldest);
  std::string EndReadOfZeros(Moment began, Moment now, Moment oldest);

  // Tells whether the stored value cannot be zeros now.
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

  // The index of a value that contradicts a read of `at` between `began` and `now`; -1: there is none.
  int FindConflict(size_t at, Moment began, Moment now) const;
  void NoteRead(size_t at, Moment began, Moment now);
  // `at` is known to have taken effect.
  void NoteEffect(size_t at, Moment now);
  // Another value is known to have been there between `began` and `now`. Values that ended before are dead.
  void NoteOther(const Value& found, Moment began, Moment now);
  void Prune(Moment oldest);

  const Effect effect_;
  std::vector<Value> values_;
};

}  // namespace nram::sim

#endif  // NRAM_TESTS_SIM_REGISTER_HISTORY_H_
