// Shares of the landing frames: a tenant, or a lease, that takes frames and keeps them stops no other one.

#include "memserver/landing_frames.h"

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "base/units.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

// The stocks of servers of 64 MiB, 128 MiB, 1 GiB and more.
class LandingFramesTest : public ::testing::TestWithParam<size_t> {
 protected:
  // A message under way.
  struct Held {
    std::array<FrameLoc, kPagesPerMessage> frames;
    size_t count;
    LandingTaker taker;
  };

  LandingFramesTest() : landing_(arena_.get(), GetParam()) { EXPECT_EQ(landing_.size(), GetParam()); }
  ~LandingFramesTest() override {
    while (!held_.empty()) EndOne();
  }

  LandingTaker LeaseOf(LandingShare* tenant, bool urgent = false) { return {tenant, &leases_.emplace_back(), urgent}; }
  bool Begin(size_t pages, const LandingTaker& taker) {
    Held held{{}, pages, taker};
    if (!landing_.Take(pages, held.frames.data(), taker)) return false;
    held_.push_back(held);
    return true;
  }
  void EndOne() {
    landing_.Give(held_.back().frames.data(), held_.back().count, held_.back().taker);
    held_.pop_back();
  }
  // A message that ends at once: its frames are free again.
  bool WriteOf(size_t pages, const LandingTaker& taker) {
    const bool taken = Begin(pages, taker);
    if (taken) EndOne();
    return taken;
  }
  // Messages begin and never end, each size until no more are let in. `leases` 0: each has a lease of its own.
  size_t Hoard(LandingShare* tenant, size_t leases, bool urgent, const std::vector<size_t>& sizes) {
    const size_t before = held_.size();
    std::vector<LandingTaker> takers;
    for (size_t i = 0; i < leases; ++i) takers.push_back(LeaseOf(tenant, urgent));
    for (const size_t pages : sizes) {
      for (size_t refused = 0, i = 0; refused <= leases; ++i) {
        const LandingTaker taker = leases == 0 ? LeaseOf(tenant, urgent) : takers[i % leases];
        refused = Begin(pages, taker) ? 0 : refused + 1;
      }
    }
    return held_.size() - before;
  }

  const std::vector<size_t> all_sizes_{64, 32, 16, 8, 4, 2, 1};
  std::unique_ptr<FrameArena> arena_ = FrameArena::Create(64 * kMiB, kMiB).value();
  LandingFrames landing_;
  std::deque<LandingShare> leases_;
  std::deque<Held> held_;
  LandingShare hoarder_, victim_;
};
INSTANTIATE_TEST_SUITE_P(Stocks, LandingFramesTest, ::testing::Values(256, 512, 2048));

TEST_P(LandingFramesTest, ATenantThatKeepsItsFramesLeavesOthersRoomForFullMessages) {
  for (const size_t leases : {0, 1, 3, 100}) {
    for (const bool urgent : {false, true}) {
      ASSERT_GT(Hoard(&hoarder_, leases, urgent, all_sizes_), 0u);
      for (const size_t pages : all_sizes_) {
        EXPECT_TRUE(WriteOf(pages, LeaseOf(&victim_))) << leases << " leases, " << pages << " pages";
        EXPECT_TRUE(WriteOf(pages, LeaseOf(&victim_, /*urgent=*/true))) << leases << " leases, " << pages << " pages";
      }
      while (!held_.empty()) EndOne();
    }
  }
}

TEST_P(LandingFramesTest, ALeaseThatKeepsItsFramesLeavesItsTenantRoom) {
  Hoard(&victim_, /*leases=*/1, /*urgent=*/true, all_sizes_);
  size_t taken = 0;
  for (const Held& held : held_) taken += held.count;
  EXPECT_LE(taken, std::max<size_t>(landing_.size() / 4, 64));
  EXPECT_TRUE(WriteOf(64, LeaseOf(&victim_)));
  EXPECT_TRUE(WriteOf(64, LeaseOf(&victim_, /*urgent=*/true)));
}

TEST_P(LandingFramesTest, LargeMessagesLeaveSmallOnesOfTheirTenantRoom) {
  for (const bool urgent : {false, true}) {
    Hoard(&victim_, /*leases=*/0, urgent, {64});
    for (const size_t pages : {1, 4, 16}) {
      EXPECT_TRUE(WriteOf(pages, LeaseOf(&victim_))) << pages;
      EXPECT_TRUE(WriteOf(pages, LeaseOf(&victim_, /*urgent=*/true))) << pages;
    }
    while (!held_.empty()) EndOne();
  }
}

TEST_P(LandingFramesTest, BulkMessagesLeaveUrgentOnesOfTheirTenantRoom) {
  Hoard(&victim_, /*leases=*/0, /*urgent=*/false, all_sizes_);
  EXPECT_FALSE(WriteOf(1, LeaseOf(&victim_)));
  EXPECT_TRUE(WriteOf(8, LeaseOf(&victim_, /*urgent=*/true)));
}

// Shares do not bind few leases, and leave a tenant that is alone most of the stock.
TEST_P(LandingFramesTest, LeasesThatAreAloneHaveTheirFullMessages) {
  const LandingTaker bulk = LeaseOf(&victim_);
  EXPECT_TRUE(Begin(64, bulk));
  if (GetParam() >= 512) {
    EXPECT_TRUE(Begin(64, {bulk.tenant, bulk.lease, /*urgent=*/true}));
    EXPECT_TRUE(Begin(64, LeaseOf(&hoarder_)));
    EXPECT_TRUE(Begin(64, LeaseOf(&hoarder_)));
  }
  while (!held_.empty()) EndOne();
  EXPECT_GE(64 * Hoard(&victim_, /*leases=*/0, /*urgent=*/false, {64}), GetParam() * 3 / 4 - 128);
}

}  // namespace
}  // namespace nram
