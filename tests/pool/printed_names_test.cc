// The output of `nram regions` for names that other people chose.

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/lying_server.h"
#include "tools/nram/command.h"

namespace nram {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

TEST(PrintedNamesTest, NeitherANameNorAnOwnerReachesTheTerminalAsItIs) {
  LyingServer server;
  server.Set({.list_regions = [](const auto&, v1::ListRegionsReply* reply) {
    auto* const region = reply->add_regions();
    region->set_region_id(5);
    region->set_name("\x1B]0;name\x07");
    region->set_owner_name("\x1B[2Jowner\nforged");
    return grpc::Status::OK;
  }});
  ::testing::internal::CaptureStdout();
  EXPECT_EQ(RegionsCommand().run({absl::StrCat("--pool=", server.endpoint().ToString())}), 0);
  const std::string printed = ::testing::internal::GetCapturedStdout();
  EXPECT_THAT(printed, HasSubstr("named \\x1B]0;name\\x07"));
  EXPECT_THAT(printed, HasSubstr("\\x1B[2Jowner\\x0Aforged"));
  EXPECT_THAT(printed, Not(HasSubstr("\x1B")));
}

}  // namespace
}  // namespace nram
