#include "base/host/donors_here.h"

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

class DonorsHereTest : public ::testing::Test {
 protected:
  DonorsHereTest() : root_(::testing::TempDir() + "/donors-here") {
    std::filesystem::remove_all(root_);
    Write("/proc/meminfo", "MemTotal: 4000000 kB\n");
    AddProcess(1, "init", {"init"}, "0::/");
    AddProcess(10, "nram-memserver", {"nram-memserver", "--donate=auto"}, "0::/system.slice/a.service");
  }
  ~DonorsHereTest() override { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path, std::ios::binary) << text;
  }
  void AddProcess(int pid, const std::string& name, const std::vector<std::string>& words, const std::string& group) {
    std::string command;
    for (const std::string& word : words) command += word + std::string(1, '\0');
    Write(absl::StrCat("/proc/", pid, "/comm"), name + "\n");
    Write(absl::StrCat("/proc/", pid, "/cmdline"), command);
    Write(absl::StrCat("/proc/", pid, "/cgroup"), group + "\n");
  }
  int Count() const { return CountDonorsHere(10, root_); }

  const std::string root_;
};

TEST_F(DonorsHereTest, OneAlone) { EXPECT_EQ(Count(), 1); }

TEST_F(DonorsHereTest, ServersThatFollowTheHostCount) {
  AddProcess(11, "nram-memserver", {"nram-memserver", "--donate=auto:-4G", "--port=7100"}, "0::/slurm/job1");
  EXPECT_EQ(Count(), 2);
  AddProcess(12, "nram-memserver", {"nram-memserver", "--donate=8G", "--give-back=pressure"}, "0::/");
  EXPECT_EQ(Count(), 3);
}

TEST_F(DonorsHereTest, OthersDoNot) {
  AddProcess(11, "nram-memserver", {"nram-memserver", "--donate=8G"}, "0::/");
  AddProcess(12, "grep", {"grep", "--donate=auto"}, "0::/");
  EXPECT_EQ(Count(), 1);
}

TEST_F(DonorsHereTest, ALimitedGroupIsAMemoryOfItsOwn) {
  AddProcess(11, "nram-memserver", {"nram-memserver", "--donate=auto"}, "0::/pod/server");
  Write("/sys/fs/cgroup/pod/memory.max", "1000000000\n");
  EXPECT_EQ(Count(), 1);
  Write("/sys/fs/cgroup/system.slice/memory.max", "9000000000000\n");  // more than the machine has
  EXPECT_EQ(Count(), 1);
  AddProcess(10, "nram-memserver", {"nram-memserver", "--donate=auto"}, "0::/pod/other");
  EXPECT_EQ(Count(), 2);  // both are in the pod
}

TEST_F(DonorsHereTest, VersionOneToo) {
  AddProcess(11, "nram-memserver", {"nram-memserver", "--donate=auto"}, "9:memory:/press\n3:cpu:/");
  EXPECT_EQ(Count(), 2);
  Write("/sys/fs/cgroup/memory/press/memory.limit_in_bytes", "1000000000\n");
  EXPECT_EQ(Count(), 1);
}

}  // namespace
}  // namespace nram
