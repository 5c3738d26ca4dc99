#include "memserver/options.h"

#include "absl/strings/str_cat.h"
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

TEST(MemServerOptionsTest, ListenMayNameThePort) {
  const auto listen = [](const std::vector<std::string>& flags) {
    MemServerOptions options;
    ArgParser parser("nram-memserver");
    MemServerOptions::Register(&options, &parser);
    std::vector<std::string> rest;
    const absl::Status status = parser.Parse(flags, &rest);
    return status.ok() ? absl::StrCat(options.listen, " ", options.port) : std::string(status.message());
  };
  EXPECT_EQ(listen({}), "127.0.0.1 7070");
  EXPECT_EQ(listen({"--listen=10.0.0.7"}), "10.0.0.7 7070");
  EXPECT_EQ(listen({"--listen=10.0.0.7:0"}), "10.0.0.7 0");
  EXPECT_EQ(listen({"--listen=10.0.0.7", "--port=9"}), "10.0.0.7 9");
  EXPECT_EQ(listen({"--listen=fd00::7"}), "fd00::7 7070");
  EXPECT_EQ(listen({"--listen=[fd00::7]"}), "fd00::7 7070");
  EXPECT_EQ(listen({"--listen=[fd00::7]:65535"}), "fd00::7 65535");
  EXPECT_EQ(listen({"--listen=none"}), "none 7070");
  EXPECT_THAT(listen({"--listen=10.0.0.7:9", "--port=9"}), HasSubstr("twice"));
  EXPECT_THAT(listen({"--port=9", "--listen=[::1]:9"}), HasSubstr("twice"));
  EXPECT_THAT(listen({"--listen=10.0.0.7:65536"}), HasSubstr("0 to 65535"));
  EXPECT_THAT(listen({"--listen=10.0.0.7:"}), HasSubstr("0 to 65535"));
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--listen=:7070"}).message()), HasSubstr("numeric"));
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--listen=localhost:7070"}).message()), HasSubstr("numeric"));
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--listen=[::1"}).message()), HasSubstr("numeric"));
}

TEST(MemServerOptionsTest, FiguresNeedANumericAddress) {
  EXPECT_TRUE(Parse({"--donate=1G", "--metrics=127.0.0.1:9435"}).ok());
  EXPECT_TRUE(Parse({"--donate=1G", "--metrics=0.0.0.0:0"}).ok());
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--metrics=9435"}).message()), HasSubstr("--metrics: \"9435\""));
}

TEST(MemServerOptionsTest, WrongFlagsAreNamedWithTheirRange) {
  EXPECT_THAT(std::string(Parse({}).message()), HasSubstr("--donate"));
  EXPECT_THAT(std::string(Parse({"--donate=1M"}).message()), HasSubstr("64.0 MiB"));
  EXPECT_THAT(std::string(Parse({"--donate=lots"}).message()), HasSubstr("lots"));
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--spill=disk"}).message()), HasSubstr("expected off or swap"));
  EXPECT_TRUE(Parse({"--donate=1G", "--spill=swap"}).ok());
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--port=70000"}).message()), HasSubstr("0 to 65535"));
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--spin=maybe"}).message()), HasSubstr("auto, off, on"));
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--lease-ttl-ms=1"}).message()), HasSubstr("100 to 3600000"));
}

TEST(MemServerOptionsTest, WhatIsGivenBack) {
  using Mode = GiveBackOptions::Mode;
  const auto parse = [](const std::vector<std::string>& args) {
    MemServerOptions options;
    ArgParser parser("nram-memserver");
    MemServerOptions::Register(&options, &parser);
    std::vector<std::string> rest;
    EXPECT_TRUE(parser.Parse(args, &rest).ok());
    EXPECT_TRUE(options.Validate().ok());
    return options;
  };
  EXPECT_EQ(parse({"--donate=1G"}).GiveBackMode(), Mode::kOff);
  EXPECT_EQ(parse({"--donate=auto"}).GiveBackMode(), Mode::kPressure);
  EXPECT_EQ(parse({"--donate=auto", "--give-back=off"}).GiveBackMode(), Mode::kOff);
  EXPECT_EQ(parse({"--donate=1G", "--give-back=pressure"}).GiveBackMode(), Mode::kPressure);
  const MemServerOptions bounded = parse({"--donate=auto:1G-8G", "--orphans=drop", "--leave-within-ms=60000"});
  EXPECT_EQ(bounded.auto_floor_bytes, kGiB);
  EXPECT_EQ(bounded.auto_ceiling_bytes, 8 * kGiB);
  EXPECT_TRUE(bounded.donate_auto && bounded.drops_orphans);
  EXPECT_EQ(bounded.leave_within_ms, 60'000);
  EXPECT_EQ(parse({"--donate=auto:-8G"}).auto_floor_bytes, 0u);
  EXPECT_EQ(parse({"--donate=auto:1G-"}).auto_ceiling_bytes, 0u);
  for (const std::string wrong : {"auto:", "auto:1G", "auto:2G-1G", "auto:-63M", "auto:x-1G"}) {
    const absl::Status status = Parse({"--donate=" + wrong});
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_THAT(std::string(status.message()), HasSubstr("--donate"));
  }
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--give-back=all"}).message()), HasSubstr("off, idle or pressure"));
  EXPECT_THAT(std::string(Parse({"--donate=1G", "--orphans=sell"}).message()), HasSubstr("keep or drop"));
}

TEST(MemServerOptionsTest, NamesOfDomainsAndHostsAreShortAndPrintable) {
  for (const std::string flag : {"--domain=", "--pretend-host="}) {
    EXPECT_TRUE(Parse({"--donate=1G", flag + "rack 7, feed B"}).ok());
    EXPECT_TRUE(Parse({"--donate=1G", flag + std::string(63, 'x')}).ok());
    for (const std::string& bad : {std::string(64, 'x'), std::string("a\nb"), std::string("\xFF")}) {
      const absl::Status status = Parse({"--donate=1G", flag + bad});
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
      EXPECT_THAT(std::string(status.message()), HasSubstr(flag.substr(0, flag.size() - 1)));
      EXPECT_THAT(std::string(status.message()), HasSubstr("at most 63 bytes of printable characters"));
    }
  }
}

}  // namespace
}  // namespace nram
