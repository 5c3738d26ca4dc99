// The options of the daemon and of mount(8)'s helper.

#include "fsd/options.h"

#include "absl/strings/match.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

TEST(OptionsTest, WhatTheKernelsAccessTimeOptionsBecome) {
  for (const char* const option : {"strictatime", "norelatime"}) {
    const auto parsed = FsdOptions::ParseMountHelper({"nram", "/mnt", "-o", std::string("noexec,") + option});
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    const absl::Status status = parsed->Validate();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << option;
    EXPECT_TRUE(absl::StrContains(status.message(), option)) << status;
  }
  const auto parsed = FsdOptions::ParseMountHelper({"nram", "/mnt", "-o", "relatime,noexec,nodiratime"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_TRUE(parsed->Validate().ok());
  EXPECT_EQ(parsed->mount_options, std::vector<std::string>{"noexec"});
  EXPECT_FALSE(parsed->directory_access_times);
}

}  // namespace
}  // namespace nram
