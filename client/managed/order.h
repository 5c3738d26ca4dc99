#ifndef NRAM_CLIENT_MANAGED_ORDER_H_
#define NRAM_CLIENT_MANAGED_ORDER_H_

// The learnt order in which threads use blocks, and how many of the bytes fetched ahead decay; pure.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>

#include "client/managed/block.h"

namespace nram {

// How well a thread follows the order of the last round. One thread notes, any may ask.
class OrderScore {
 public:
  // Fetching ahead pays.
  bool predicts() const { return score_.load(std::memory_order_relaxed) > kLow; }
  // It goes round and round.
  bool cycles() const { return score_.load(std::memory_order_relaxed) >= kHigh; }
  void Note(bool as_expected) {
    const int score = score_.load(std::memory_order_relaxed);
    score_.store(as_expected ? std::min(score + 2, kMost) : std::max(score - 1, 0), std::memory_order_relaxed);
  }
  void Reset() { score_.store(kFirst, std::memory_order_relaxed); }

 private:
  static constexpr int kLow = 4, kFirst = 16, kHigh = 24, kMost = 32;

  std::atomic<int> score_{kFirst};
};

// A thread that was at `from` has come to `to`. The successor is that of the last round, but one exception in a trusted
// order does not change it.
inline void LearnOrder(Block* from, uint32_t to, OrderScore* score) {
  const uint32_t expected = from->next.load(std::memory_order_relaxed);
  const uint8_t trust = from->trust.load(std::memory_order_relaxed);
  if (expected == to) {
    score->Note(true);
    if (trust < 3) from->trust.store(trust + 1, std::memory_order_relaxed);
    return;
  }
  if (expected != 0) score->Note(false);
  if (trust > 1) {
    from->trust.store(trust - 1, std::memory_order_relaxed);
  } else {
    from->next.store(to, std::memory_order_relaxed);
    from->trust.store(1, std::memory_order_relaxed);
  }
}

// How many untouched bytes fetched ahead are to be dropped when a thread has to wait for a block. If `touched`, the
// touches of blocks fetched ahead since the last such wait, are no accident (less than 1 %), there is an order, and the
// untouched blocks do not belong to it. Then the result is twice the free bytes of the share, at least a byte.
inline uint64_t BytesToDecay(uint64_t ahead_limit, uint64_t local_limit, uint64_t remote_bytes, uint64_t touched,
                             uint64_t ahead_bytes) {
  const double chance = static_cast<double>(ahead_limit) / static_cast<double>(local_limit + remote_bytes);
  if (std::pow(std::min(chance, 1.0), static_cast<double>(touched)) >= 0.01) return 0;
  const uint64_t free = ahead_limit - std::min(ahead_limit, ahead_bytes);
  return std::max<uint64_t>(2 * free, 1);
}

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_ORDER_H_
