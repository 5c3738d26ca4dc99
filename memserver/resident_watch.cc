#include "memserver/resident_watch.h"

#include <algorithm>

namespace nram {

uint64_t ResidentWatch::Look(const Sample& sample) {
  const uint64_t resident = options_.read_resident();
  // Memory that the arena holds and that was never touched makes this too small, never too large.
  const uint64_t others = resident - std::min(resident, sample.held_bytes);
  const uint64_t excess = others - std::min(others, sample.fixed_bytes);
  const uint64_t taken = sample.fixed_bytes + sample.held_bytes;
  const uint64_t room = sample.ceiling_bytes - std::min(sample.ceiling_bytes, taken);
  if (excess <= room) {
    looks_above_ = 0;
    return excess;
  }
  if (options_.close_control) options_.close_control(excess - room);
  if (looks_above_ % kTrimLooks == 1) options_.trim_heap();  // connections that were closed have gone by now
  if (++looks_above_ > kLooksBeforeData + kTrimLooks) looks_above_ -= kTrimLooks;
  return looks_above_ > kLooksBeforeData ? excess : room;
}

}  // namespace nram
