// The options of the daemon and of mount(8)'s helper.

#include "fsd/options.h"

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/units.h"
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

TEST(OptionsTest, MemoryIsEnoughForTheBuffersAndNotForSwap) {
  const auto validate = [](const std::string& options) {
    const auto parsed = FsdOptions::ParseMountHelper({"nram", "/mnt", "-o", options});
    return parsed.ok() ? parsed->Validate() : parsed.status();
  };
  EXPECT_TRUE(validate("memory=128M").ok());
  EXPECT_EQ(FsdOptions::ParseMountHelper({"nram", "/mnt", "-o", "memory=2G"})->memory_bytes, 2 * kGiB);
  EXPECT_TRUE(absl::StrContains(validate("memory=100M").message(), "expected 128M or more"));
  EXPECT_TRUE(absl::StrContains(validate("memory=1G,threads=256").message(), "expected 1088M or more"));
  EXPECT_TRUE(absl::StrContains(validate("memory=1G,swap").message(), "--memory and --swap"));
  EXPECT_FALSE(validate("memory=some").ok());
}

TEST(OptionsTest, WordsThatMountAddsAreNoNames) {
  const auto parsed =
      FsdOptions::ParseMountHelper({"nram", "/mnt", "-v", "-N", "/proc/7/ns/mnt", "-o", "noexec", "-t", "fuse.nram"});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->directory, "/mnt");
  EXPECT_EQ(parsed->mount_options, std::vector<std::string>{"noexec"});
}

TEST(OptionsTest, FiguresNeedANumericAddress) {
  const auto good = FsdOptions::ParseMountHelper({"nram", "/mnt", "-o", "metrics=127.0.0.1:9436"});
  ASSERT_TRUE(good.ok()) << good.status();
  EXPECT_EQ(good->metrics, "127.0.0.1:9436");
  EXPECT_TRUE(good->Validate().ok());
  const absl::Status bad = FsdOptions::ParseMountHelper({"nram", "/mnt", "-o", "metrics=here"})->Validate();
  EXPECT_EQ(bad.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(absl::StrContains(bad.message(), "--metrics: \"here\"")) << bad;
}

TEST(OptionsTest, CopiesAreOneToFourAndThePools) {
  const auto parse = [](const std::string& options) {
    return FsdOptions::ParseMountHelper({"nram", "/mnt", "-o", options});
  };
  EXPECT_EQ(parse("noexec")->copies, 1);
  for (const int64_t copies : {1, 2, 4}) {
    const auto parsed = parse(absl::StrCat("copies=", copies));
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->copies, copies);
    EXPECT_TRUE(parsed->Validate().ok());
  }
  for (const char* const wrong : {"copies=0", "copies=5", "copies=two"}) {
    const absl::Status status = parse(wrong).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_TRUE(absl::StrContains(status.message(), "--copies")) << status;
    EXPECT_TRUE(absl::StrContains(status.message(), "from 1 to 4")) << status;
  }
  const auto elsewhere = parse("copies=2,backend=memory");
  ASSERT_TRUE(elsewhere.ok()) << elsewhere.status();
  EXPECT_TRUE(absl::StrContains(elsewhere->Validate().message(), "--copies needs --backend=pool"));
}

TEST(OptionsTest, WhatIsExpendableIsThePoolsAndGoesWithItsOwner) {
  const auto validate = [](const std::string& options) {
    const auto parsed = FsdOptions::ParseMountHelper({"nram", "/mnt", "-o", options});
    return parsed.ok() ? parsed->Validate() : parsed.status();
  };
  EXPECT_FALSE(FsdOptions::ParseMountHelper({"nram", "/mnt"})->expendable);
  EXPECT_TRUE(FsdOptions::ParseMountHelper({"nram", "/mnt", "-o", "expendable"})->expendable);
  EXPECT_TRUE(validate("expendable,copies=2").ok());
  for (const char* const wrong : {"backend=memory", "swap", "no-gc"}) {
    const absl::Status status = validate(absl::StrCat("expendable,", wrong));
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << wrong;
    EXPECT_TRUE(absl::StrContains(status.message(), "--expendable")) << status;
  }
}

}  // namespace
}  // namespace nram
