#include "memserver/asking.h"

#include <algorithm>
#include <utility>

#include "base/plant.h"

namespace nram {

uint64_t CeilingFor(uint64_t allowed_bytes, uint64_t taken_bytes, uint64_t present_bytes, uint64_t allowance_bytes,
                    bool is_pressed) {
  const bool lets_grow = taken_bytes > allowed_bytes || is_pressed;
  // Not beyond the present one: others take the memory above it, and the next floor would be higher.
  const uint64_t most = lets_grow ? std::min(present_bytes, taken_bytes + allowance_bytes) : 0;
  return std::max({allowed_bytes, taken_bytes, most});
}

uint64_t Asking::AskedBytes(uint64_t stored_bytes) const {
  const uint64_t goal = goal_bytes_;
  return stored_bytes > goal ? stored_bytes - goal : 0;
}

uint32_t Asking::Share(uint64_t stored_bytes) const {
  constexpr uint64_t kMillion = 1'000'000;
  const uint64_t goal = goal_bytes_;
  if (goal == ~uint64_t{0}) return 0;
  if (stored_bytes <= goal) return 1;
  const double share = urge_ * static_cast<double>(stored_bytes - goal) / static_cast<double>(stored_bytes);
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(static_cast<uint64_t>(std::min(share, 1.0) * kMillion), 1, kMillion));
}

bool Asking::Tick(uint64_t over_bytes, uint64_t stored_bytes, int64_t now_ns) {
  const uint64_t bytes = std::min(over_bytes, stored_bytes);
  // A demand that was made is asked to the end.
  if (bytes == 0 || (bytes < kBytesMin && !asks())) return false;
  if (!asks()) {
    since_ns_ = progress_ns_ = now_ns;
    progress_bytes_ = bytes;
    urged_ns_ = now_ns;
    urged_bytes_ = bytes;
  }
  // A need that grows while memory is given back is no progress either.
  if (bytes + std::min(progress_bytes_ / kProgressShare, kProgressBytes) <= progress_bytes_) {
    progress_bytes_ = bytes;
    progress_ns_ = now_ns;
  }
  progress_bytes_ = std::max(progress_bytes_, bytes);
  const bool gives = bytes + std::min(urged_bytes_ / 10, kProgressBytes) <= urged_bytes_;
  if (gives || now_ns - urged_ns_ >= kUrgeNs) {
    urge_ = gives ? std::max(urge_ / kUrge, 1.0) : std::min(urge_ * kUrge, kUrgeMax);
    urged_ns_ = now_ns;
    urged_bytes_ = bytes;
  }
  last_ns_ = now_ns;
  asked_ms_ = static_cast<uint64_t>((now_ns - since_ns_) / kNsPerMs) + 1;
  goal_bytes_ = stored_bytes - bytes;
  pressed_ = true;
  return true;
}

int64_t Asking::End(int64_t now_ns) {
  pressed_ = last_ns_ != 0 && now_ns - last_ns_ < kPressedNs && !NRAM_PLANTED(donors_pressed_forgotten);
  if (!asks()) return -1;
  goal_bytes_ = ~uint64_t{0};
  asked_ms_ = 0;
  urge_ = 1.0;
  return now_ns - std::exchange(since_ns_, 0);
}

}  // namespace nram
