#ifndef NRAM_MEMSERVER_ASKING_H_
#define NRAM_MEMSERVER_ASKING_H_

// A server's demand on its clients when its donor is short of memory, and the share of each (adr/0017): arithmetic
// alone. Pure: it knows no arena, and its caller tells the time.

#include <atomic>
#include <cstdint>

#include "base/clock.h"
#include "base/units.h"

namespace nram {

// How much a server may take from now on, reserved room included: `allowed_bytes`, or the taken bytes if they are more.
// While they are more, or `is_pressed`, remaining spans may grow: by up to `allowance_bytes` beyond the taken bytes,
// but not beyond the present ceiling. New spans do not see the allowance, and it ends: their part of it would be asked
// back soon, and go round between the servers of a full pool for ever.
uint64_t CeilingFor(uint64_t allowed_bytes, uint64_t taken_bytes, uint64_t present_bytes, uint64_t allowance_bytes,
                    bool is_pressed);

// Tick, End and the members marked as theirs are for one thread. The rest is thread-safe. Nothing blocks.
class Asking {
 public:
  // Less is not worth a message, nor a client's data.
  static constexpr uint64_t kBytesMin = 2 * kMiB;
  // Remaining spans grow while others are moved away: so much is taken nevertheless.
  static constexpr uint64_t kAllowanceBytes = 16 * kMiB;

  // --- From tick to tick; every 100 ms or so. `now_ns`: of any clock, not 0.
  // Clients have `stored_bytes` here, and `over_bytes` of that are too many. True: the server asks.
  bool Tick(uint64_t over_bytes, uint64_t stored_bytes, int64_t now_ns);
  // It has more than it may, although it does not ask: the excess is small, or needs no client's help. After Tick,
  // before End.
  void NoteShort(int64_t now_ns) { last_ns_ = now_ns; }
  // Nothing is too many. Returns for how long it had been asking; below 0: it did not ask.
  int64_t End(int64_t now_ns);
  bool asks() const { return since_ns_ != 0; }
  // For how long the demand has not become less by a sixteenth, or 64 MiB. Only while it asks.
  int64_t StandsStillNs(int64_t now_ns) const { return now_ns - progress_ns_; }
  // From now on it has stood still for `for_ns`.
  void SetStandsStill(int64_t for_ns, int64_t now_ns) { progress_ns_ = now_ns - for_ns; }

  // --- Between two ticks, too.
  // The bytes that clients are to give back now, as they have `stored_bytes` here.
  uint64_t AskedBytes(uint64_t stored_bytes) const;
  // The part of its memory here that each client is to give back, in millionths; at least 1 while the server asks. Some
  // clients cannot give, or do not hear: then it rises, until the others give enough.
  uint32_t Share(uint64_t stored_bytes) const;
  // It has more than it may, or had within kPressedNs before the last tick.
  bool pressed() const { return pressed_; }
  // For how long it has been asking, at the last tick; 0: it does not ask.
  uint64_t asked_ms() const { return asked_ms_; }

 private:
  static constexpr int64_t kPressedNs = 30 * kNsPerSecond;
  // The demand must become less by this share of it within the patience, or there is no progress.
  static constexpr uint64_t kProgressShare = 16;
  static constexpr uint64_t kProgressBytes = 64 * kMiB;  // this much is progress in any case
  // If the demand has not become less by a tenth in that time, clients are asked for half as much more. All have heard
  // by then.
  static constexpr int64_t kUrgeNs = 1'500 * kNsPerMs;
  static constexpr double kUrge = 1.5;
  static constexpr double kUrgeMax = 1e6;

  // The most that clients may have here; ~0: nothing is asked. The demand follows from it at any time.
  std::atomic<uint64_t> goal_bytes_{~uint64_t{0}};
  std::atomic<double> urge_{1.0};
  std::atomic<bool> pressed_{false};
  std::atomic<uint64_t> asked_ms_{0};

  // --- The ticks'.
  int64_t since_ns_ = 0;  // 0: it does not ask
  int64_t last_ns_ = 0;   // when it last had more than it may
  int64_t progress_ns_ = 0;
  uint64_t progress_bytes_ = 0;  // the demand then
  int64_t urged_ns_ = 0;
  uint64_t urged_bytes_ = 0;  // the demand then
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_ASKING_H_
