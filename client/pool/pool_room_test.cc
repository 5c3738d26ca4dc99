#include "client/pool/pool_room.h"

#include "gtest/gtest.h"

namespace nram {
namespace {

TEST(UsableRoomTest, EachCopyNeedsAnotherHost) {
  EXPECT_EQ(UsableBytes({10, 10}, 1), 20u);
  EXPECT_EQ(UsableBytes({10, 10}, 2), 10u);
  EXPECT_EQ(UsableBytes({10, 10, 10}, 2), 15u);
  EXPECT_EQ(UsableBytes({10, 10, 10}, 3), 10u);
  // The largest host takes one copy of each page; the others have room for the other one of few.
  EXPECT_EQ(UsableBytes({2, 100}, 2), 2u);
  EXPECT_EQ(UsableBytes({100, 3, 2}, 2), 5u);
  EXPECT_EQ(UsableBytes({100, 50, 2, 1}, 3), 3u);
  EXPECT_EQ(UsableBytes({10}, 2), 0u);
  EXPECT_EQ(UsableBytes({}, 1), 0u);
}

}  // namespace
}  // namespace nram
