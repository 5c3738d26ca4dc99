#ifndef NRAM_CLIENT_POOL_REPAIR_PACE_H_
#define NRAM_CLIENT_POOL_REPAIR_PACE_H_

// How far repair is, and how long it still takes. Pure.

#include <algorithm>
#include <cstdint>
#include <utility>

#include "base/clock.h"

namespace nram {

// Not thread-safe.
class RepairPace {
 public:
  // `left` spans still lack a copy, or have one to be moved; `made` copies were made so far.
  void Note(uint64_t made, uint64_t left, int64_t now_ns) {
    const uint64_t lately = made - std::exchange(made_, made);
    const int64_t before_ns = std::exchange(noted_ns_, now_ns);
    left_ms_ = 0;
    if (left == 0) {
      done_ = 0;
      Forget();
      return;
    }
    done_ += lately;
    if (lately > 0) last_made_ns_ = now_ns;
    // Until the first one, repair only waits: for the server's return, or for room.
    if (before_ns == 0 || (lately == 0 && copies_ == 0)) return;
    if (now_ns - last_made_ns_ > kPatienceNs) return Forget();
    const auto took_ns = static_cast<double>(now_ns - before_ns);
    const double keep = kMemoryNs / (kMemoryNs + took_ns);
    copies_ = copies_ * keep + static_cast<double>(lately);
    time_ns_ = time_ns_ * keep + took_ns;
    left_ms_ = std::max<uint64_t>(static_cast<uint64_t>(static_cast<double>(left) * time_ns_ / copies_ / kNsPerMs), 1);
  }

  // Copies that were made since nothing was left.
  uint64_t done() const { return done_; }
  // An estimate by the pace of the last seconds; 0: nothing is left, or it is unknown.
  uint64_t left_ms() const { return left_ms_; }

 private:
  static constexpr double kMemoryNs = 5.0 * kNsPerSecond;
  static constexpr int64_t kPatienceNs = 30 * kNsPerSecond;  // without a copy made, there is no pace

  void Forget() { copies_ = time_ns_ = 0; }

  uint64_t made_ = 0;
  uint64_t done_ = 0;
  uint64_t left_ms_ = 0;
  int64_t noted_ns_ = 0;
  int64_t last_made_ns_ = 0;
  // Over the last seconds: older copies count less.
  double copies_ = 0;
  double time_ns_ = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_REPAIR_PACE_H_
