#include "base/late_log.h"

#include <atomic>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

TEST(LateLogTest, AFloodIsAFewLinesAndANumber) {
  std::vector<std::string> lines;
  {
    LateLog log([&](const std::string& line) { lines.push_back(line); });
    for (int i = 0; i < 10'000; ++i) log.Post(absl::StrCat("line ", i));
  }
  ASSERT_GE(lines.size(), 2);
  EXPECT_EQ(lines[0], "line 0");
  // Five lines for each second of the loop, and a last line that counts the lines that were not written.
  int told = 0;
  for (const std::string& line : lines) told += absl::StartsWith(line, "line ") ? 1 : 0;
  EXPECT_LT(told, 1'000);
  EXPECT_TRUE(absl::StartsWith(lines.back(), "and ")) << lines.back();
  EXPECT_TRUE(absl::StrContains(lines.back(), " more such lines in the last ")) << lines.back();
}

TEST(LateLogTest, ALongPeriodsFloodIsTheSameFewLines) {
  std::vector<std::string> lines;
  {
    LateLog log([&](const std::string& line) { lines.push_back(line); }, LateLog::kRefusalPeriodMs);
    for (int i = 0; i < 100'000; ++i) log.Post("refused");
  }
  EXPECT_LE(lines.size(), LateLog::kLinesPerPeriod + 1);
  EXPECT_TRUE(absl::StrContains(lines.back(), " more such lines in the last ")) << lines.back();
}

TEST(LateLogTest, NobodyWaitsForWhoeverReadsTheLog) {
  std::atomic<bool> stuck{true};
  std::atomic<int> written{0};
  LateLog log([&](const std::string&) {
    while (stuck) stuck.wait(true);
    ++written;
  });
  for (int i = 0; i < 1'000; ++i) log.Post("a line");  // would take for ever if Post waited
  EXPECT_EQ(written, 0);
  stuck = false;
  stuck.notify_all();
}

}  // namespace
}  // namespace nram
