#ifndef NRAM_CLIENT_POOL_WAKING_H_
#define NRAM_CLIENT_POOL_WAKING_H_

// How many of a large pool's servers a client greets: those that it uses, and a few more. Pure.

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace nram {

// A pool of this many servers or fewer has all of its sessions awake.
inline constexpr size_t kAllAwakeMax = 64;

struct Waking {
  static constexpr size_t kEnough = 32;                 // servers with room
  static constexpr uint64_t kEnoughBytes = 8ull << 30;  // that they have, all together
  static constexpr size_t kAtOnce = 32;
  static constexpr int64_t kComingNs = 1'000'000'000;  // for the first answer; then others are tried beside it

  size_t asleep = 0;        // members
  size_t with_room = 0;     // that are up, and take new pages
  size_t coming = 0;        // that were woken less than kComingNs ago, and have neither answered nor refused
  uint64_t free_bytes = 0;  // of those with room

  // How many more are to be woken now.
  size_t ToWake() const {
    if (asleep == 0) return 0;
    const size_t lacking = kEnough - std::min(kEnough, with_room + coming);
    const bool is_short = free_bytes < kEnoughBytes && with_room >= kEnough && coming == 0;
    return std::min(asleep, is_short ? kAtOnce : lacking);
  }
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_WAKING_H_
