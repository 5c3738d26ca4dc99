#ifndef NRAM_BASE_HOST_MEMORY_BALANCE_H_
#define NRAM_BASE_HOST_MEMORY_BALANCE_H_

// Computes how much memory a caller should hold that takes only the memory that others leave: a program with
// `NRAM_BUDGET=auto`, a donor with `--donate=auto`. Pure: it has no clock and reads no files.

#include <cstdint>

#include "base/clock.h"
#include "base/units.h"

namespace nram {

// A caller's view of memory at one time.
struct MemorySample {
  int64_t now_ns = 0;
  uint64_t total_bytes = 0;      // of the machine, or of the cgroup
  uint64_t available_bytes = 0;  // further memory that programs could get (ReadHostMemory)
  uint64_t own_bytes = 0;        // the caller's; if that changes quickly, the higher of two readings
  double stalled = 0;            // StallMeter::Share since the last sample
  int sharers = 1;               // 1 or more callers of this kind that follow the same memory, this one included
};

struct MemoryBalanceOptions {
  // The answer is never beyond these.
  uint64_t floor_bytes = 0;
  uint64_t ceiling_bytes = UINT64_MAX;
  // Others keep this much available. 0: a sixteenth of all memory, 32 MiB to 1 GiB.
  uint64_t reserve_bytes = 0;

  // The answer grows only after this time without pressure; up to the second if it had to shrink soon after growing.
  int64_t calm_ns = 500 * kNsPerMs;
  int64_t calm_max_ns = 8 * kNsPerSecond;
  // If the answer shrinks so soon after it has grown, it grew too early.
  int64_t regret_ns = 2 * kNsPerSecond;
  // After this time without regret half of that calm is enough.
  int64_t forgive_ns = 10 * kNsPerSecond;
  // A fall of the available memory is expected to go on for this time.
  int64_t lookahead_ns = 300 * kNsPerMs;
  // A share of stalled time from which on a shortage is real, and how long one more cut waits for the last to help.
  double stalled = 0.1;
  int64_t cut_rest_ns = 300 * kNsPerMs;
  // Where nothing is available, the answer waits this time before it shrinks by twice as much. 0: until the next
  // sample. Memory that others have to give back first is not there at the next sample, and would be asked for again.
  int64_t empty_rest_ns = 0;
  // When the next sample is wanted: calm, and not.
  int64_t interval_ns = 100 * kNsPerMs;
  int64_t alert_interval_ns = 50 * kNsPerMs;
};

// The answer, the bytes that the caller may hold, follows the headroom: own + available - reserve. The caller's own
// growing and giving back move bytes between `own` and `available`, and leave the headroom as it is.
//
// - It shrinks at once to the headroom. If the headroom has fallen twice in a row, it shrinks by the expected further
//   fall as well. If nothing is available, it shrinks by the reserve more, and by twice as much in each sample that
//   follows (empty_rest_ns). If programs stall although the caller keeps to the answer, it shrinks by an eighth more.
// - It grows after calm only, by half of the free bytes at a time, to the lowest headroom of the last moments.
// - Between the two lies a band of a quarter of the reserve in which it stays as it is.
//
// Several callers that follow the same memory take equal parts of the free memory beyond the reserve, and give back
// equal parts of the lack.
//
// Not thread-safe.
class MemoryBalance {
 public:
  explicit MemoryBalance(const MemoryBalanceOptions& options) : options_(options), calm_ns_(options.calm_ns) {}

  // Samples come in order, about when NextLook() says, or sooner. Returns how much the caller should hold from now on.
  uint64_t Update(const MemorySample& sample);
  // The last answer; the floor before the first sample.
  uint64_t answer_bytes() const { return answer_; }
  int64_t NextLook() const { return next_look_ns_; }
  // From now on. A floor above the ceiling counts as the ceiling.
  void SetBounds(uint64_t floor_bytes, uint64_t ceiling_bytes);

  // The reserve that stays available of so much memory.
  static uint64_t ReserveOf(const MemoryBalanceOptions& options, uint64_t total_bytes);

 private:
  // Bytes that the headroom will lose soon.
  int64_t Trend(int64_t now_ns, int64_t headroom);
  void NoteLow(int64_t now_ns, int64_t headroom);
  uint64_t Clamp(int64_t bytes) const;

  MemoryBalanceOptions options_;
  uint64_t answer_ = 0;
  bool begun_ = false;
  int64_t next_look_ns_ = 0;

  MemorySample last_;
  int64_t trend_ns_ = 0;  // when the headroom was last compared; its value then is below
  int64_t trend_headroom_ = 0;
  double fall_ = 0;         // bytes a nanosecond, between the last two comparisons
  double steady_fall_ = 0;  // the lesser of the last two

  int empties_ = 0;  // how often it has shrunk because nothing was available, in a row
  int64_t emptied_ns_ = INT64_MIN / 2;

  int64_t low_ns_ = 0;       // when `low_[0]` began
  int64_t low_[2] = {0, 0};  // the lowest headroom lately: of this moment and the one before it

  int64_t calm_ns_;
  int64_t disturbed_ns_ = 0;
  int64_t shrunk_ns_ = INT64_MIN / 2;
  int64_t grew_ns_ = INT64_MIN / 2;
  int64_t regret_ns_ = INT64_MIN / 2;
  int64_t cut_ns_ = INT64_MIN / 2;
};

}  // namespace nram

#endif  // NRAM_BASE_HOST_MEMORY_BALANCE_H_
