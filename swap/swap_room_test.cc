#include "swap/swap_room.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

// A machine's /proc and /sys in a directory of the test's: 8 GiB are available, and there is no swap but the area.
class SwapRoomTest : public ::testing::Test {
 protected:
  SwapRoomTest() {
    std::filesystem::remove_all(root_);
    SetMemory(8 * kGiB, 0);
  }
  ~SwapRoomTest() override { std::filesystem::remove_all(root_); }

  void SetMemory(uint64_t available_bytes, uint64_t swap_free_bytes) {
    Put("/proc/meminfo", absl::StrCat("MemTotal: 16777216 kB\nMemAvailable: ", available_bytes / kKiB,
                                      " kB\nSwapFree: ", swap_free_bytes / kKiB, " kB\n"));
  }
  void Put(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  // A group of cgroup v2.
  void PutV2(const std::string& group, const std::string& max, uint64_t current, uint64_t file, uint64_t swap) {
    Put("/sys/fs/cgroup/cgroup.controllers", "cpu memory\n");
    Put(group + "/memory.max", max + "\n");
    Put(group + "/memory.current", absl::StrCat(current, "\n"));
    Put(group + "/memory.stat", absl::StrCat("anon ", current - file, "\ninactive_file ", file, "\nactive_file 0\n"));
    Put(group + "/memory.swap.current", absl::StrCat(swap, "\n"));
  }
  absl::Status Check(uint64_t size_bytes, uint64_t used_bytes) {
    return CheckRoomForSwap(size_bytes, used_bytes, root_);
  }

  const std::string root_ = ::testing::TempDir() + "/swap-room";
};

TEST_F(SwapRoomTest, RamAndOtherSwap) {
  EXPECT_TRUE(Check(16 * kGiB, 7 * kGiB).ok());
  const absl::Status status = Check(16 * kGiB, 9 * kGiB);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("8.00 GiB"));
  // Free memory in the area itself does not count.
  SetMemory(8 * kGiB, 7 * kGiB);
  EXPECT_FALSE(Check(16 * kGiB, 9 * kGiB).ok());
  SetMemory(8 * kGiB, 9 * kGiB);
  EXPECT_TRUE(Check(16 * kGiB, 9 * kGiB).ok());
}

TEST_F(SwapRoomTest, GroupsOfVersion2) {
  PutV2("/sys/fs/cgroup/user.slice", "max", 3 * kGiB, 0, 2 * kGiB);
  PutV2("/sys/fs/cgroup/user.slice/job", absl::StrCat(kGiB), kGiB - kMiB, 0, kGiB);
  const absl::Status status = Check(4 * kGiB, 2 * kGiB);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cgroup /user.slice/job"));
  // A higher limit; page cache that is dropped under pressure; an area of which little is used; other swap.
  PutV2("/sys/fs/cgroup/user.slice/job", absl::StrCat(2 * kGiB), kGiB - kMiB, 0, kGiB);
  EXPECT_TRUE(Check(4 * kGiB, 2 * kGiB).ok());
  PutV2("/sys/fs/cgroup/user.slice/job", absl::StrCat(kGiB), kGiB - kMiB, kGiB - kMiB, kGiB);
  EXPECT_TRUE(Check(4 * kGiB, 2 * kGiB).ok());
  PutV2("/sys/fs/cgroup/user.slice/job", absl::StrCat(kGiB), kGiB - kMiB, 0, kGiB);
  EXPECT_TRUE(Check(4 * kGiB, kMiB).ok());
  SetMemory(8 * kGiB, 4 * kGiB);
  EXPECT_TRUE(Check(4 * kGiB, 2 * kGiB).ok());
}

TEST_F(SwapRoomTest, WhatIsBackAlreadyCountsOnce) {
  const std::string group = "/sys/fs/cgroup/job";
  PutV2(group, absl::StrCat(kGiB), kGiB - kMiB, 0, kGiB);
  EXPECT_FALSE(Check(4 * kGiB, kGiB).ok());
  Put(group + "/memory.stat", absl::StrCat("anon ", kGiB - kMiB, "\nswapcached ", kGiB, "\n"));
  EXPECT_TRUE(Check(4 * kGiB, kGiB).ok());
}

TEST_F(SwapRoomTest, AContainersOwnGroupIsTheTopmost) {
  PutV2("/sys/fs/cgroup", absl::StrCat(kGiB), kGiB - kMiB, 0, kGiB);
  EXPECT_THAT(std::string(Check(4 * kGiB, kGiB).message()), HasSubstr("cgroup /,"));
}

TEST_F(SwapRoomTest, GroupsOfVersion1) {
  const std::string group = "/sys/fs/cgroup/memory/job";
  Put(group + "/memory.limit_in_bytes", absl::StrCat(kGiB, "\n"));
  Put(group + "/memory.usage_in_bytes", absl::StrCat(kGiB, "\n"));
  Put(group + "/memory.stat", absl::StrCat("swap 1\ntotal_swap ", kGiB, "\ntotal_inactive_file 0\n"));
  EXPECT_THAT(std::string(Check(4 * kGiB, 2 * kGiB).message()), HasSubstr("cgroup /job"));
  Put(group + "/memory.stat", absl::StrCat("swap 0\ntotal_swap 0\ntotal_inactive_file 0\n"));
  EXPECT_TRUE(Check(4 * kGiB, 2 * kGiB).ok());
}

TEST(AreaRoomTest, TheMessageTellsRawAndUsableRoomApart) {
  EXPECT_TRUE(CheckRoomForArea({4 * kGiB, 4 * kGiB}, 2, 4 * kGiB).ok());
  const absl::Status status = CheckRoomForArea({6 * kGiB, 4 * kGiB}, 2, 8 * kGiB);
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("the pool does not have 8.00 GiB free: 2 copies"));
  EXPECT_THAT(message, HasSubstr("take 16.0 GiB"));
  EXPECT_THAT(message, HasSubstr("10.0 GiB are free on 2 hosts, room for 4.00 GiB of swap"));
  EXPECT_THAT(message, HasSubstr("With --copies=1 the area takes 8.00 GiB"));
}

}  // namespace
}  // namespace nram
