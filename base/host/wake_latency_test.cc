#include "base/host/wake_latency.h"

#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/poll_until.h"
#include "base/subprocess.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

constexpr int64_t kPatienceMs = 30'000;
constexpr int32_t kNothingAsked = -1;

TEST(FastWakeTest, IsOneOfThreeWords) {
  FastWake fast_wake = FastWake::kOff;
  EXPECT_TRUE(ParseFastWake("auto", &fast_wake).ok());
  EXPECT_EQ(fast_wake, FastWake::kAuto);
  EXPECT_TRUE(ParseFastWake("on", &fast_wake).ok());
  EXPECT_EQ(fast_wake, FastWake::kOn);
  for (const char* const other : {"", "On", "on ", "1", "yes", "off,on"}) {
    const absl::Status status = ParseFastWake(other, &fast_wake);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << other;
    EXPECT_EQ(status.message(), absl::StrCat("\"", other, "\" is not accepted: expected auto, on or off"));
  }
  EXPECT_EQ(fast_wake, FastWake::kOn) << "what is refused changes nothing";
  EXPECT_TRUE(ParseFastWake("off", &fast_wake).ok());
  EXPECT_EQ(fast_wake, FastWake::kOff);
}

// A file in the device's place: it holds the last request.
class WakeLatencyTest : public testing::Test {
 protected:
  WakeLatencyTest() : fd_(mkstemp(path_.data())) {
    EXPECT_TRUE(fd_.valid());
    Ask(kNothingAsked);
  }
  ~WakeLatencyTest() override { unlink(path_.c_str()); }

  void Ask(int32_t latency_us) { ASSERT_EQ(pwrite(fd_.get(), &latency_us, sizeof latency_us, 0), 4); }
  int32_t asked() const {
    int32_t latency_us = 0;
    EXPECT_EQ(pread(fd_.get(), &latency_us, sizeof latency_us, 0), 4);
    return latency_us;
  }
  // Descriptors of this process that are open on the file, but for the test's own.
  int HeldDescriptors() const {
    int count = -1;
    for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
      std::error_code error;
      if (std::filesystem::read_symlink(entry.path(), error) == path_) ++count;
    }
    return count;
  }
  // Works as fast as it can until it is held. False: it was not held within the patience.
  static bool WorkUntilHeld(WakeLatency* latency) {
    for (const int64_t deadline_ns = DeadlineAfterMs(kPatienceMs); !latency->held(); latency->Count()) {
      if (MonotonicNs() >= deadline_ns) return false;
    }
    return true;
  }
  static bool IdleUntilReleased(const WakeLatency& latency) {
    return PollUntil(DeadlineAfterMs(kPatienceMs), 1, [&] { return !latency.held(); });
  }

  std::string path_ = testing::TempDir() + "/latency.XXXXXX";
  const UniqueFd fd_;
};

TEST_F(WakeLatencyTest, IsHeldWhileThereIsMuchToDoAndGivenBackAfter) {
  WakeLatency latency(FastWake::kOn, path_);
  EXPECT_EQ(asked(), kNothingAsked);
  for (int turn = 0; turn < 3; ++turn) {
    // The worker goes on while the test looks.
    std::atomic<bool> enough{false};
    std::thread worker([&] {
      while (!enough) latency.Count();
    });
    ASSERT_TRUE(WorkUntilHeld(&latency));
    EXPECT_EQ(asked(), 0);
    EXPECT_EQ(HeldDescriptors(), 1);
    enough = true;
    worker.join();
    ASSERT_TRUE(IdleUntilReleased(latency));
    EXPECT_GT(asked(), 1'000'000'000);
    EXPECT_EQ(HeldDescriptors(), 0);
  }
}

TEST_F(WakeLatencyTest, AFewPiecesOfWorkHoldNothing) {
  WakeLatency latency(FastWake::kOn, path_);
  for (int i = 0; i < 63; ++i) latency.Count();
  EXPECT_FALSE(latency.held());
  EXPECT_EQ(asked(), kNothingAsked);
}

TEST_F(WakeLatencyTest, GoesWithItsObject) {
  {
    WakeLatency latency(FastWake::kOn, path_);
    ASSERT_TRUE(WorkUntilHeld(&latency));
  }
  EXPECT_GT(asked(), 1'000'000'000);
  EXPECT_EQ(HeldDescriptors(), 0);
}

// On machines of up to 16 processors auto is on, on others off.
TEST_F(WakeLatencyTest, AutoIsOnWhereThereAreFewProcessors) {
  WakeLatency latency(FastWake::kAuto, path_);
  if (std::thread::hardware_concurrency() <= 16) {
    EXPECT_TRUE(WorkUntilHeld(&latency));
    return;
  }
  for (int i = 0; i < 100'000; ++i) latency.Count();
  EXPECT_FALSE(latency.held());
  EXPECT_EQ(asked(), kNothingAsked);
}

TEST_F(WakeLatencyTest, AChildHoldsNothing) {
  WakeLatency latency(FastWake::kOn, path_);
  ASSERT_TRUE(WorkUntilHeld(&latency));
  // It may be given up between the look and the fork. The test is weaker then, not wrong.
  auto child = Subprocess::StartFunction([this] { return HeldDescriptors() == 0 ? 0 : 1; });
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_TRUE(child->WaitUntil(Subprocess::kNoDeadline)->ok());
}

TEST_F(WakeLatencyTest, OffOrWithoutTheDeviceNothingIsHeld) {
  WakeLatency off(FastWake::kOff, path_);
  WakeLatency without(FastWake::kOn, path_ + "/not-there");
  for (int i = 0; i < 100'000; ++i) {
    off.Count();
    without.Count();
  }
  EXPECT_FALSE(off.held());
  EXPECT_FALSE(without.held());
  EXPECT_EQ(asked(), kNothingAsked);
}

}  // namespace
}  // namespace nram
