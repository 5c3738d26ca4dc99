#include "base/clock.h"

namespace nram {

Clock* Clock::Real() {
  class RealClock : public Clock {
    int64_t NowNs() const override { return MonotonicNs(); }
  };
  static RealClock* const clock = new RealClock;
  return clock;
}

}  // namespace nram
