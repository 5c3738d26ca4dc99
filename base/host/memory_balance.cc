#include "base/host/memory_balance.h"

#include <algorithm>

#include "base/plant.h"

namespace nram {
namespace {

constexpr uint64_t kReserveShare = 16;
constexpr uint64_t kReserveBytesMin = 32 * kMiB;
constexpr uint64_t kReserveBytesMax = kGiB;
constexpr int64_t kBandShare = 4;  // of the reserve
constexpr int64_t kCutShare = 8;   // of the bytes held
constexpr int64_t kShortage = 2;   // stalls count while fewer reserves than this are available
constexpr int kDoublingsMax = 16;
constexpr int64_t kCompareNs = 20 * kNsPerMs;  // comparisons closer than this show noise alone

}  // namespace

uint64_t MemoryBalance::ReserveOf(const MemoryBalanceOptions& options, uint64_t total_bytes) {
  if (options.reserve_bytes != 0) return options.reserve_bytes;
  return std::clamp(total_bytes / kReserveShare, kReserveBytesMin, kReserveBytesMax);
}

void MemoryBalance::SetBounds(uint64_t floor_bytes, uint64_t ceiling_bytes) {
  options_.ceiling_bytes = ceiling_bytes;
  options_.floor_bytes = std::min(floor_bytes, ceiling_bytes);
  answer_ = std::clamp(answer_, options_.floor_bytes, options_.ceiling_bytes);
}

uint64_t MemoryBalance::Clamp(int64_t bytes) const {
  const uint64_t floor = std::min(options_.floor_bytes, options_.ceiling_bytes);
  return std::clamp(static_cast<uint64_t>(std::max<int64_t>(bytes, 0)), floor, options_.ceiling_bytes);
}

int64_t MemoryBalance::Trend(int64_t now_ns, int64_t headroom) {
  const int64_t elapsed_ns = now_ns - trend_ns_;
  if (elapsed_ns >= kCompareNs) {
    const double fall = static_cast<double>(trend_headroom_ - headroom) / static_cast<double>(elapsed_ns);
    // One fall alone may be a step, or noise: two show a direction.
    steady_fall_ = std::max(0.0, std::min(fall, fall_));
    fall_ = fall;
    trend_ns_ = now_ns;
    trend_headroom_ = headroom;
  }
  const double soon = steady_fall_ * static_cast<double>(options_.lookahead_ns);
  return static_cast<int64_t>(std::min(soon, static_cast<double>(answer_) / 2));
}

void MemoryBalance::NoteLow(int64_t now_ns, int64_t headroom) {
  if (now_ns - low_ns_ >= calm_ns_ / 2) {
    low_[1] = low_[0];
    low_[0] = headroom;
    low_ns_ = now_ns;
  }
  low_[0] = std::min(low_[0], headroom);
}

uint64_t MemoryBalance::Update(const MemorySample& sample) {
  const int64_t now_ns = sample.now_ns;
  const auto reserve = static_cast<int64_t>(ReserveOf(options_, sample.total_bytes));
  const int64_t band = std::max<int64_t>(reserve / kBandShare / sample.sharers, 1);
  const auto own = static_cast<int64_t>(sample.own_bytes);
  const auto available = static_cast<int64_t>(sample.available_bytes);
  // The headroom if this caller were alone. Its own growing and giving back leave this as it is, not its part of it.
  const int64_t whole = own + available - reserve;
  const auto part_of = [&](int64_t bytes) { return own + (bytes - own) / sample.sharers; };
  const int64_t headroom = part_of(whole);
  if (!begun_) {
    begun_ = true;
    answer_ = Clamp(headroom - band);
    trend_ns_ = low_ns_ = disturbed_ns_ = now_ns;
    trend_headroom_ = whole;
    low_[0] = low_[1] = headroom;
    last_ = sample;
    next_look_ns_ = now_ns + options_.interval_ns;
    return answer_;
  }
  const int64_t soon = Trend(now_ns, whole);
  NoteLow(now_ns, headroom);
  const auto answer = static_cast<int64_t>(std::min<uint64_t>(answer_, INT64_MAX));
  int64_t wanted = answer;
  if (part_of(whole - soon) < answer - band) wanted = part_of(whole - soon);
  // Nothing is left, and how much more others want does not show: twice as much as the last time.
  const bool empty = available < reserve / kBandShare;
  if (!empty) {
    empties_ = 0;
  } else if (now_ns - emptied_ns_ >= options_.empty_rest_ns) {
    wanted = std::min({wanted, own, answer}) - (reserve << empties_);
    empties_ = std::min(empties_ + 1, kDoublingsMax);
    emptied_ns_ = now_ns;
  }

  // Stalls do not count while the caller grows, because it may cause them itself, nor while it still gives back memory,
  // because that may end them. Where much memory is available, other programs stall for a limit of their own.
  const bool grows = own > static_cast<int64_t>(last_.own_bytes) + band / kBandShare;
  const bool stalled = sample.stalled >= options_.stalled && available < kShortage * reserve;
  if (stalled && !grows && own <= answer + band && now_ns - cut_ns_ >= options_.cut_rest_ns) {
    wanted = std::min(wanted, std::min(own, answer) - std::max(own / kCutShare, band));
    cut_ns_ = now_ns;
  }

  const uint64_t before = answer_;
  const bool falls = soon > band;
  if (Clamp(wanted) < answer_) {
    answer_ = Clamp(wanted);
    if (now_ns - grew_ns_ < options_.regret_ns) {
      calm_ns_ = std::min(2 * calm_ns_, options_.calm_max_ns);
      regret_ns_ = now_ns;
    }
    shrunk_ns_ = now_ns;
  }
  if (answer_ < before || wanted < answer || stalled || falls) disturbed_ns_ = now_ns;
  if (now_ns - regret_ns_ >= options_.forgive_ns) {
    calm_ns_ = std::max(calm_ns_ / 2, options_.calm_ns);
    regret_ns_ = now_ns;
  }

  const int64_t gap = std::min(low_[0], low_[1]) - band - answer;
  if ((now_ns - disturbed_ns_ >= calm_ns_ || NRAM_PLANTED(donors_no_calm)) && gap > band) {
    answer_ = std::max(answer_, Clamp(answer + std::max(gap / 2, band)));
    if (answer_ > before) grew_ns_ = now_ns;
  }
  const bool alert = now_ns - shrunk_ns_ < kNsPerSecond || stalled || (fall_ > 0 && headroom < answer + 2 * band);
  next_look_ns_ = now_ns + (alert ? options_.alert_interval_ns : options_.interval_ns);
  last_ = sample;
  return answer_;
}

}  // namespace nram
