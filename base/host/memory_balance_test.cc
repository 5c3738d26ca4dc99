// MemoryBalance on simulated hosts: steps, ramps, sawteeth, noise, stalls. The reader of stalls runs on files of the
// test's own.

#include "base/host/memory_balance.h"

#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "base/file.h"
#include "base/host/memory_pressure.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

constexpr uint64_t kTotal = 4 * kGiB;
constexpr uint64_t kReserve = 256 * kMiB;
constexpr uint64_t kBand = kReserve / 4;

// A host whose other programs use `demand(seconds)` bytes. The caller beside them follows the answer as fast as it can.
class SimHost {
 public:
  using Demand = std::function<uint64_t(double seconds)>;

  explicit SimHost(Demand demand, MemoryBalanceOptions options = {}) : demand_(std::move(demand)), balance_(options) {}

  // Runs until then, sample by sample.
  void RunUntil(double seconds) {
    while (now_ns_ < static_cast<int64_t>(seconds * kNsPerSecond)) Step();
  }
  void Step() {
    const uint64_t before = balance_.answer_bytes();
    const uint64_t answer = balance_.Update(Sample());
    ++samples_;
    if (samples_ > 1 && answer > before) ++grew_;
    if (samples_ > 1 && answer < before) ++shrank_;
    const int64_t next_ns = std::max(balance_.NextLook(), now_ns_ + kNsPerMs);
    const double elapsed = static_cast<double>(next_ns - now_ns_) / kNsPerSecond;
    now_ns_ = next_ns;
    // The program fills the memory that it may have, or writes back the memory that it must give up.
    const auto moved = [&](double rate) { return static_cast<uint64_t>(rate * elapsed); };
    if (own_ < answer) own_ += std::min(answer - own_, moved(fill_rate));
    if (own_ > answer) own_ -= std::min(own_ - answer, moved(write_rate));
  }
  MemorySample Sample() {
    const uint64_t used = demand_(now_s()) + own_ + static_cast<uint64_t>(static_cast<double>(own_) * overhead);
    const uint64_t available = kTotal > used ? kTotal - used : 0;
    if (available == 0) ++short_;
    return {now_ns_, kTotal, available, own_, stalls ? stalls(available) : 0.0};
  }

  double now_s() const { return static_cast<double>(now_ns_) / kNsPerSecond; }
  uint64_t own() const { return own_; }
  uint64_t answer() const { return balance_.answer_bytes(); }
  int samples() const { return samples_; }
  int changes() const { return grew_ + shrank_; }
  int grew() const { return grew_; }
  int shrank() const { return shrank_; }
  int times_short() const { return short_; }

  double fill_rate = 1e9;   // bytes a second
  double write_rate = 1e9;  // bytes a second that are written back
  double overhead = 0.03;   // memory beside the caller's bytes that it does not count, as a share of them
  std::function<double(uint64_t available)> stalls;

 private:
  const Demand demand_;
  MemoryBalance balance_;
  int64_t now_ns_ = 0;
  uint64_t own_ = 0;
  int samples_ = 0, grew_ = 0, shrank_ = 0, short_ = 0;
};

TEST(MemoryBalanceTest, TheReserveFollowsTheMachineUnlessItIsGiven) {
  EXPECT_EQ(MemoryBalance::ReserveOf({}, 64 * kMiB), 32 * kMiB);
  EXPECT_EQ(MemoryBalance::ReserveOf({}, 4 * kGiB), 256 * kMiB);
  EXPECT_EQ(MemoryBalance::ReserveOf({}, 256 * kGiB), kGiB);
  EXPECT_EQ(MemoryBalance::ReserveOf({.reserve_bytes = 7}, kGiB), 7);
}

TEST(MemoryBalanceTest, ASteadyHostIsFilledOnceAndThenLeftAlone) {
  SimHost host([](double) { return kGiB; });
  host.RunUntil(10);
  const uint64_t settled = host.answer();
  EXPECT_GT(settled, kTotal - kGiB - 2 * kReserve);
  EXPECT_LE(settled, kTotal - kGiB - kReserve);
  const int changes = host.changes();
  host.RunUntil(600);
  EXPECT_EQ(host.changes(), changes) << "its own growth looked like something";
  EXPECT_EQ(host.answer(), settled);
}

TEST(MemoryBalanceTest, BoundsHold) {
  SimHost free([](double) { return 0; }, {.floor_bytes = kMiB, .ceiling_bytes = 100 * kMiB});
  free.RunUntil(5);
  EXPECT_EQ(free.answer(), 100 * kMiB);
  SimHost full([](double) { return kTotal; }, {.floor_bytes = 64 * kMiB});
  full.RunUntil(5);
  EXPECT_EQ(full.answer(), 64 * kMiB);
  MemoryBalance balance({.ceiling_bytes = kGiB});
  EXPECT_EQ(balance.Update({0, kTotal, kTotal, 0}), kGiB);
  balance.SetBounds(kMiB, 10 * kMiB);
  EXPECT_EQ(balance.answer_bytes(), 10 * kMiB);
  balance.SetBounds(20 * kMiB, 10 * kMiB);
  EXPECT_EQ(balance.answer_bytes(), 10 * kMiB);
}

TEST(MemoryBalanceTest, AStepIsAnsweredAtOnceAndGrownIntoAfterCalm) {
  bool busy = false;
  SimHost host([&](double) { return busy ? 3 * kGiB : kGiB / 2; });
  host.write_rate = 1e10;
  host.RunUntil(10);
  ASSERT_GT(host.own(), 2 * kGiB);
  for (int round = 0; round < 5; ++round) {
    busy = true;
    // The others' demand beyond the available memory does not show at first.
    const int before = host.samples();
    while (host.Sample().available_bytes < kReserve / 2) {
      host.Step();
      ASSERT_LE(host.samples(), before + 6);
    }
    EXPECT_LE(host.answer(), kTotal - 3 * kGiB - kReserve / 2);
    const int changes = host.changes();
    host.RunUntil(host.now_s() + 20);
    EXPECT_LE(host.changes(), changes + 10) << "giving back looked like something";
    EXPECT_GE(host.answer(), kTotal - 3 * kGiB - 2 * kReserve) << "more was given than was asked for";
    busy = false;
    const int resumed = host.samples();
    while (host.answer() < 2 * kGiB) {
      host.Step();
      ASSERT_LE(host.samples(), resumed + 25);
    }
    EXPECT_GE(host.samples(), resumed + 5) << "there was no calm before it grew";
    host.RunUntil(host.now_s() + 20);
  }
}

TEST(MemoryBalanceTest, WhatHasNotBeenGivenYetStaysWhenTheNeedEnds) {
  MemoryBalanceOptions options;
  options.reserve_bytes = kReserve;
  MemoryBalance balance(options);
  const uint64_t own = kGiB;
  int64_t now_ns = kNsPerSecond;
  const auto update = [&](uint64_t available) {
    now_ns += 100 * kNsPerMs;
    return balance.Update({now_ns, kTotal, available, own, 0});
  };
  for (int i = 0; i < 50; ++i) update(kGiB);
  for (int i = 0; i < 50; ++i) update(0);
  ASSERT_EQ(balance.answer_bytes(), 0);
  // The caller has given nothing, and the other programs need nothing any more.
  for (int i = 0; i < 6; ++i) update(kGiB);
  EXPECT_GE(balance.answer_bytes(), own);
  // It has not grown too early: half a second of calm is enough.
  for (int i = 0; i < 12; ++i) update(kGiB);
  EXPECT_GT(balance.answer_bytes(), own);
}

TEST(MemoryBalanceTest, WhatOthersHaveToGiveBackFirstIsNotAskedForAtEachLook) {
  for (const int64_t rest_ms : {0, 300}) {
    MemoryBalance balance({.reserve_bytes = kReserve, .empty_rest_ns = rest_ms * kNsPerMs});
    int64_t now_ns = kNsPerSecond;
    const auto update = [&](uint64_t available) {
      now_ns += 100 * kNsPerMs;
      return balance.Update({now_ns, kTotal, available, 3 * kGiB, 0});
    };
    for (int i = 0; i < 50; ++i) update(kGiB);
    std::vector<uint64_t> asked;  // in reserves
    for (int i = 0; i < 7; ++i) asked.push_back((3 * kGiB - update(0)) / kReserve);
    if (rest_ms == 0) {
      EXPECT_EQ(asked, (std::vector<uint64_t>{2, 4, 8, 12, 12, 12, 12}));
    } else {
      EXPECT_EQ(asked, (std::vector<uint64_t>{2, 2, 2, 4, 4, 4, 8}));
    }
    // The next round begins anew.
    for (int i = 0; i < 50; ++i) update(kGiB);
    EXPECT_EQ((3 * kGiB - update(0)) / kReserve, 2u);
  }
}

TEST(MemoryBalanceTest, AStepThatFitsIsAnsweredByOneSample) {
  bool busy = false;
  SimHost host([&](double) { return busy ? kGiB + kReserve / 2 : kGiB; });
  host.RunUntil(10);
  busy = true;
  host.Step();
  const uint64_t left = kTotal - kGiB - kReserve - kReserve / 2;
  EXPECT_LE(host.answer(), left);
  EXPECT_GE(host.answer(), left - kReserve / 2);
}

TEST(MemoryBalanceTest, ASlowWritebackDoesNotLookLikePressure) {
  bool busy = false;
  SimHost host([&](double) { return busy ? 3 * kGiB : kGiB / 2; });
  host.write_rate = 50e6;  // about a minute for the bytes asked back
  host.RunUntil(10);
  const int grew = host.grew();
  busy = true;
  host.RunUntil(120);
  EXPECT_GE(host.own(), kTotal - 3 * kGiB - 2 * kReserve) << "it gave back all that it had";
  EXPECT_LE(host.own(), kTotal - 3 * kGiB - kReserve / 2);
  EXPECT_LE(host.grew() - grew, 10);
}

TEST(MemoryBalanceTest, ARampIsAnticipated) {
  for (const double rate : {50e6, 200e6, 500e6}) {
    const auto ramp = [&](double seconds) {
      return kGiB / 2 + static_cast<uint64_t>(std::clamp((seconds - 10) * rate, 0.0, 2.5 * kGiB));
    };
    SimHost host(ramp);
    host.RunUntil(60);
    EXPECT_EQ(host.times_short(), 0) << rate;
    // It does not follow the ramp down any further than the ramp goes.
    EXPECT_GE(host.answer(), kTotal - 3 * kGiB - 2 * kReserve) << rate;
    EXPECT_LE(host.grew(), 12) << rate << ": grew while the memory went away";
  }
}

TEST(MemoryBalanceTest, FastSawteethAreNotFollowed) {
  for (const double period : {0.3, 0.7, 1.0, 2.0}) {
    const auto teeth = [&](double seconds) { return std::fmod(seconds, period) < period / 2 ? kGiB / 2 : 2 * kGiB; };
    SimHost host(teeth);
    host.RunUntil(30);
    const int grew = host.grew();
    host.RunUntil(90);
    // It tries again now and then; each try is a few steps.
    EXPECT_LE(host.grew() - grew, 50) << period;
    EXPECT_LE(host.answer(), kTotal - kGiB / 2 - kReserve);
  }
}

TEST(MemoryBalanceTest, SlowStepsAreUsed) {
  for (const double half : {5.0, 10.0, 20.0}) {
    double held = 0, could = 0;
    const auto steps = [&](double seconds) { return std::fmod(seconds, 2 * half) < half ? kGiB / 4 : 3 * kGiB; };
    SimHost host(steps);
    while (host.now_s() < 120) {
      host.Step();
      if (host.now_s() < 2 * half || steps(host.now_s()) > kGiB) continue;
      held += static_cast<double>(host.answer());
      could += static_cast<double>(kTotal - kGiB / 4 - kReserve);
    }
    EXPECT_GT(held / could, 0.7) << half;
  }
}

TEST(MemoryBalanceTest, NoiseWithinTheBandChangesNothing) {
  std::mt19937_64 random(1);
  SimHost host([&](double) { return kGiB + random() % (kBand / 2); });
  host.RunUntil(10);
  const int changes = host.changes();
  host.RunUntil(300);
  EXPECT_LE(host.changes(), changes + 2);
  EXPECT_GT(host.answer(), kTotal - kGiB - 2 * kReserve);
}

TEST(MemoryBalanceTest, NoiseBeyondTheBandIsGivenWayTo) {
  std::mt19937_64 random(2);
  const uint64_t most = 3 * kReserve;
  SimHost host([&](double) { return kGiB + random() % most; });
  host.RunUntil(20);
  const int grew = host.grew();
  host.RunUntil(320);
  EXPECT_LE(host.grew() - grew, 75) << "more often than every four seconds";
  EXPECT_EQ(host.times_short(), 0);
  EXPECT_GT(host.answer(), kGiB / 2) << "noise is no reason to leave";
}

TEST(MemoryBalanceTest, StallsCutFurtherUntilTheyEnd) {
  // This host has less available memory than it reports: programs stall below half a gigabyte of it.
  SimHost host([](double) { return kGiB; });
  bool real = false;
  host.stalls = [&](uint64_t available) { return real && available < kReserve * 3 / 2 ? 0.5 : 0.0; };
  host.RunUntil(10);
  const uint64_t before = host.answer();
  real = true;
  host.RunUntil(20);
  EXPECT_LT(host.answer(), before - kBand);
  EXPECT_GT(host.answer(), before / 2) << "cut further than what ends the stalls";
  const int shrank = host.shrank();
  host.RunUntil(21);
  EXPECT_LE(host.shrank(), shrank + 4) << "a cut was not given the time to help";
}

TEST(MemoryBalanceTest, StallsOfOthersAndOfItsOwnGrowthAreNoReason) {
  MemoryBalance balance({});
  int64_t now_ns = 0;
  // Much is available: another program stalls for a limit of its own.
  const uint64_t answer = balance.Update({now_ns, kTotal, 2 * kGiB, 0});
  for (int i = 0; i < 50; ++i) {
    now_ns += 100 * kNsPerMs;
    ASSERT_GE(balance.Update({now_ns, kTotal, 2 * kGiB, 0, 0.9}), answer);
  }
  // Little is available because the caller fills its share.
  uint64_t own = 0;
  while (own + 64 * kMiB < answer) {
    now_ns += 100 * kNsPerMs;
    own += 64 * kMiB;
    ASSERT_GE(balance.Update({now_ns, kTotal, 2 * kGiB - own, own, 0.9}), answer);
  }
}

TEST(MemoryBalanceTest, ManySamplesAtOneTimeAreNoTrend) {
  MemoryBalance balance({});
  uint64_t answer = balance.Update({0, kTotal, 3 * kGiB, 0});
  // A trigger may wake the caller at any moment.
  for (int i = 1; i < 100; ++i) {
    const uint64_t less = 3 * kGiB - static_cast<uint64_t>(i) * 4096;
    EXPECT_EQ(balance.Update({i * 1'000, kTotal, less, 0}), answer);
  }
}

TEST(MemoryStallsTest, ReadsTheMachineAndTheCgroup) {
  const std::string root = ::testing::TempDir() + "/pressure";
  std::filesystem::remove_all(root);
  for (const char* dir : {"", "/proc", "/proc/self", "/proc/pressure", "/sys", "/sys/fs", "/sys/fs/cgroup",
                          "/sys/fs/cgroup/unified", "/sys/fs/cgroup/unified/job"}) {
    mkdir((root + dir).c_str(), 0755);
  }
  EXPECT_FALSE(ReadMemoryStalls(root).machine.has_value());
  EXPECT_FALSE(PressureTrigger::Open(root).active());
  const auto write = [&](const std::string& path, uint64_t some_us) {
    const std::string averages = " avg10=1.00 avg60=2.00 avg300=3.00 total=";
    ASSERT_TRUE(WriteFileAtomically(root + path, "some" + averages + std::to_string(some_us) + "\nfull" + averages +
                                                     std::to_string(some_us / 2) + "\n")
                    .ok());
  };
  write("/proc/pressure/memory", 1'000'000);
  MemoryStalls stalls = ReadMemoryStalls(root);
  ASSERT_TRUE(stalls.machine.has_value());
  EXPECT_EQ(stalls.machine->some_us, 1'000'000);
  EXPECT_EQ(stalls.machine->full_us, 500'000);
  EXPECT_FALSE(stalls.cgroup.has_value());
  ASSERT_TRUE(WriteFileAtomically(root + "/proc/self/cgroup", "4:memory:/x\n0::/job\n").ok());
  write("/sys/fs/cgroup/unified/job/memory.pressure", 40);
  stalls = ReadMemoryStalls(root);
  ASSERT_TRUE(stalls.cgroup.has_value());
  EXPECT_EQ(stalls.cgroup->some_us, 40);

  StallMeter meter;
  EXPECT_EQ(meter.Share(stalls, kNsPerSecond), 0) << "there was nothing to compare with";
  write("/proc/pressure/memory", 1'010'000);
  write("/sys/fs/cgroup/unified/job/memory.pressure", 50'040);
  EXPECT_DOUBLE_EQ(meter.Share(ReadMemoryStalls(root), kNsPerSecond + 100 * kNsPerMs), 0.5);
  EXPECT_EQ(meter.Share(ReadMemoryStalls(root), kNsPerSecond + 200 * kNsPerMs), 0);
}

TEST(PressureTriggerTest, ADeadlineEndsTheWait) {
  PressureTrigger trigger = PressureTrigger::Open();
  // The test does not depend on whether the trigger fires.
  (void)trigger.WaitUntil(-1, DeadlineAfterMs(1));
  PressureTrigger none;
  EXPECT_FALSE(none.active());
  EXPECT_FALSE(none.WaitUntil(-1, DeadlineAfterMs(1)));
}

// Several servers of one host, which follow their answers at once.
TEST(MemoryBalanceTest, SharersTogetherHoldWhatOneWouldHold) {
  for (const int sharers : {1, 2, 5}) {
    SCOPED_TRACE(sharers);
    std::vector<MemoryBalance> balances(sharers, MemoryBalance({.reserve_bytes = kReserve}));
    std::vector<uint64_t> own(sharers, 0);
    int64_t now_ns = 0;
    uint64_t demand = kGiB;
    const auto held = [&] {
      uint64_t sum = 0;
      for (const uint64_t bytes : own) sum += bytes;
      return sum;
    };
    const auto run = [&](int rounds) {
      for (int round = 0; round < rounds; ++round) {
        // All look before one of them moves.
        const uint64_t used = demand + held();
        const uint64_t available = kTotal > used ? kTotal - used : 0;
        for (int i = 0; i < sharers; ++i) {
          own[i] = balances[i].Update({now_ns, kTotal, available, own[i], 0.0, sharers});
        }
        now_ns += 100 * kNsPerMs;
      }
    };
    run(1);
    EXPECT_LE(held(), kTotal - demand - kReserve);  // not each of them all
    run(300);
    const uint64_t before = held();
    EXPECT_LE(before, kTotal - demand - kReserve + kBand);
    EXPECT_GE(before, kTotal - demand - kReserve - 3 * kBand);
    // The host's own work needs half a reserve and a band: they give back that, and not each of them all of it.
    demand += kReserve / 2 + kBand;
    run(1);
    EXPECT_GE(held() + kReserve / 2 + kBand, before);
    run(50);
    EXPECT_LE(held(), kTotal - demand - kReserve + kBand);
  }
}

}  // namespace
}  // namespace nram
