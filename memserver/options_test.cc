#include "memserver/options.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

absl::Status Parse(const std::vector<std::string>& args) {
  MemServerOptions options;
  ArgParser parser("nram-memserver");
  MemServerOptions::Register(&options, &parser);
  std::vector<std::string> rest;
  const absl::Status status = parser.Parse(args, &rest);
  return status.ok() ? options.Validate() : status;
}

TEST(MemServerOptionsTest, HelpNamesEveryFlag) {
  MemServerOptions options;
  ArgParser parser("nram-memserver");
  MemServerOptions::Register(&options, &parser);
  for (const std::string& name : parser.names()) EXPECT_THAT(MemServerOptions::Help(), HasSubstr("--" + name));
}

TEST(MemServerOptionsTest, AForeignInterfaceNeedsAWord) {
  EXPECT_TRUE(Parse({"--donate=1G"}).ok());
  EXPECT_TRUE(Parse({"--donate=1G", "--listen=127.0.0.2"}).ok());
  EXPECT_TRUE(Parse({"--donate=1G", "--listen=::1"}).ok());
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--listen=0.0.0.0"}).message()), HasSubstr("--allow-unauthenticated"));
  EXPECT_FALSE(Parse({"--donate=1G", "--listen=::"}).ok());
  EXPECT_TRUE(Parse({"--donate=1G", "--listen=0.0.0.0", "--allow-unauthenticated"}).ok());
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--listen=localhost"}).message()), HasSubstr("numeric"));
}

TEST(MemServerOptionsTest, WrongFlagsAreNamedWithTheirRange) {
  EXPECT_THAT(std::string(Parse({}).message()), HasSubstr("--donate"));
  EXPECT_THAT(std::string(Parse({"--donate=1M"}).message()), HasSubstr("64.0 MiB"));
  EXPECT_THAT(std::string(Parse({"--donate=lots"}).message()), HasSubstr("lots"));
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--port=70000"}).message()), HasSubstr("0 to 65535"));
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--spin=maybe"}).message()), HasSubstr("auto, off, on"));
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--lease-ttl-ms=1"}).message()), HasSubstr("100 to 3600000"));
}

}  // namespace
}  // namespace nram
