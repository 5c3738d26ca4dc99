#include "proto/version.h"

#include "gtest/gtest.h"

namespace nram {
namespace {

TEST(VersionTest, TheHighestThatBothSpeakIsChosen) {
  EXPECT_EQ(ChooseVersion({}, {}), kWireVersion);
  EXPECT_EQ(ChooseVersion({7, 7}, {7, 7}), 7);
  EXPECT_EQ(ChooseVersion({7, 9}, {5, 8}), 8);
  EXPECT_EQ(ChooseVersion({5, 8}, {7, 9}), 8);
  EXPECT_EQ(ChooseVersion({7, 9}, {9, 12}), 9);
}

TEST(VersionTest, NoneIsChosenIfNoneIsCommon) {
  EXPECT_EQ(ChooseVersion({7, 7}, {6, 6}), 0);
  EXPECT_EQ(ChooseVersion({6, 6}, {7, 9}), 0);
  // This is no range at all.
  EXPECT_EQ(ChooseVersion({7, 7}, {0, 0}), 0);
  EXPECT_EQ(ChooseVersion({7, 7}, {8, 7}), 0);
  EXPECT_EQ(ChooseVersion({7, 7}, {~0u, 0}), 0);
}

TEST(VersionTest, ThePeopleAreToldWhoIsTooOld) {
  EXPECT_EQ(NoCommonVersion("memory server a:1", {7, 7}, {6, 6}),
            "memory server a:1 speaks version 7 of the wire and the client version 6: the client is too old; install "
            "the same release of nram on both machines");
  EXPECT_EQ(NoCommonVersion("this server", {5, 6}, {7, 9}),
            "this server speaks versions 5 to 6 of the wire and the client versions 7 to 9: the server is too old; "
            "install the same release of nram on both machines");
}

}  // namespace
}  // namespace nram
