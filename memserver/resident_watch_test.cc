#include "memserver/resident_watch.h"

#include <algorithm>
#include <string>
#include <vector>

#include "base/units.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

class ResidentWatchTest : public ::testing::Test {
 protected:
  uint64_t Look() { return watch_.Look({.ceiling_bytes = kCeiling, .fixed_bytes = kFixed, .held_bytes = held_}); }

  static constexpr uint64_t kCeiling = 100 * kMiB, kFixed = 10 * kMiB;
  uint64_t held_ = 90 * kMiB;
  uint64_t others_ = 8 * kMiB;
  uint64_t connections_ = 0, heap_ = 0;  // of each step, to free
  std::vector<std::string> steps_;
  ResidentWatch watch_{{.read_resident = [this] { return held_ + others_; },
                        .close_control =
                            [this](uint64_t bytes) {
                              steps_.push_back("close " + std::to_string(bytes / kMiB));
                              others_ -= connections_;
                              connections_ = 0;
                            },
                        .trim_heap =
                            [this] {
                              steps_.push_back("trim");
                              others_ -= heap_;
                              heap_ = 0;
                            }}};
};

TEST_F(ResidentWatchTest, AFullServerWithinItsCeilingIsLeftAlone) {
  for (int i = 0; i < 100; ++i) ASSERT_EQ(Look(), 0u);
  others_ = kFixed;
  EXPECT_EQ(Look(), 0u);
  EXPECT_TRUE(steps_.empty());
}

TEST_F(ResidentWatchTest, FreeRoomIsNotLentBeyondTheRestOfTheProcess) {
  held_ = 50 * kMiB;
  others_ = 40 * kMiB;
  EXPECT_EQ(Look(), 30 * kMiB) << "and nothing is ended";
  EXPECT_TRUE(steps_.empty());
  others_ = 9 * kMiB;
  EXPECT_EQ(Look(), 0u);
}

TEST_F(ResidentWatchTest, ConnectionsAndHeapGoBeforeData) {
  others_ = 30 * kMiB;
  connections_ = 5 * kMiB;
  heap_ = 15 * kMiB;
  EXPECT_EQ(Look(), 0u);
  EXPECT_EQ(steps_, (std::vector<std::string>{"close 20"}));
  EXPECT_EQ(Look(), 0u);
  EXPECT_EQ(steps_.back(), "trim");
  EXPECT_EQ(Look(), 0u);
  EXPECT_EQ(others_, kFixed);
  EXPECT_EQ(steps_.size(), 3u) << "all is well again";
}

TEST_F(ResidentWatchTest, DataIsTheLast) {
  held_ = 88 * kMiB;
  others_ = 30 * kMiB;
  for (int i = 0; i < ResidentWatch::kLooksBeforeData; ++i) ASSERT_EQ(Look(), 2 * kMiB) << "free room alone";
  EXPECT_EQ(Look(), 20 * kMiB);
  // The arena follows, and the server is within its ceiling.
  held_ = 70 * kMiB;
  EXPECT_EQ(Look(), 20 * kMiB);
  others_ = kFixed;
  EXPECT_EQ(Look(), 0u);
}

// Connections that go later leave their memory in the heap.
TEST_F(ResidentWatchTest, TheHeapIsTrimmedAsLongAsTheProcessIsAboveItsCeiling) {
  others_ = 30 * kMiB;
  for (int i = 0; i < 10 * ResidentWatch::kLooksBeforeData; ++i) (void)Look();
  steps_.clear();
  for (int i = 0; i < ResidentWatch::kLooksBeforeData; ++i) EXPECT_EQ(Look(), 20 * kMiB);
  EXPECT_GE(std::count(steps_.begin(), steps_.end(), "trim"), 1);
}

TEST_F(ResidentWatchTest, MemoryThatCannotBeReadEndsNothing) {
  ResidentWatch blind({.read_resident = [] { return uint64_t{0}; }, .trim_heap = [] { FAIL(); }});
  EXPECT_EQ(blind.Look({.ceiling_bytes = kCeiling, .fixed_bytes = kFixed, .held_bytes = held_}), 0u);
}

}  // namespace
}  // namespace nram
