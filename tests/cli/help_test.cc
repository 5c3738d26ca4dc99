// Help teaches every flag there is, and nothing else is accepted.

#include <set>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tools/nram/command.h"

namespace nram {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(HelpTest, EveryCommandTeachesEveryFlag) {
  for (const Command& command : Commands()) {
    EXPECT_THAT(command.help, StartsWith(absl::StrCat("usage: nram ", command.name)));
    EXPECT_THAT(command.help, HasSubstr("\nexample: "));
    EXPECT_THAT(command.help, HasSubstr("--help"));
    for (const FlagShape& flag : command.flags) {
      EXPECT_THAT(command.help, HasSubstr("--" + flag.name)) << command.name;
    }
  }
}

TEST(HelpTest, LinesAreAsWideAsOthers) {
  constexpr size_t kColumnsMax = 99;
  for (const Command& command : Commands()) {
    for (const absl::string_view line : absl::StrSplit(command.help, '\n')) {
      EXPECT_LE(line.size(), kColumnsMax) << command.name << ": " << line;
    }
  }
}

TEST(HelpTest, EveryCommandRefusesWhatItDoesNotKnow) {
  for (const Command& command : Commands()) EXPECT_EQ(command.run({"--no-such-flag"}), 2) << command.name;
}

TEST(HelpTest, HelpIsNoError) {
  for (const Command& command : Commands()) EXPECT_EQ(command.run({"--help"}), 0) << command.name;
}

}  // namespace
}  // namespace nram
