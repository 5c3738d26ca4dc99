#include "base/event_count.h"

#include <atomic>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

constexpr int64_t kLongMs = 60'000;

TEST(EventCountTest, TheDeadlineEndsAWait) {
  EventCount event;
  const int64_t deadline_ns = DeadlineAfterMs(20);
  while (MonotonicNs() < deadline_ns) event.WaitUntil(event.Prepare(), deadline_ns);
  event.Notify();
}

// Two threads hand a number to and fro; a lost wake would cost them the whole deadline.
TEST(EventCountTest, NoWakeIsLost) {
  constexpr uint32_t kTurns = 20'000;
  EventCount event;
  std::atomic<uint32_t> turn{0};
  std::atomic<bool> late{false};
  const auto play = [&](uint32_t parity) {
    const int64_t deadline_ns = DeadlineAfterMs(kLongMs);
    for (uint32_t mine = parity; mine < kTurns && !late; mine += 2) {
      while (turn.load() != mine && !late) {
        const uint32_t seen = event.Prepare();
        if (turn.load() == mine) {
          event.Cancel();
        } else {
          event.WaitUntil(seen, deadline_ns);
        }
        if (MonotonicNs() > deadline_ns) late = true;
      }
      turn.store(mine + 1);
      event.Notify();
    }
  };
  std::thread other([&] { play(1); });
  play(0);
  other.join();
  EXPECT_FALSE(late);
  EXPECT_EQ(turn.load(), kTurns);
}

}  // namespace
}  // namespace nram
