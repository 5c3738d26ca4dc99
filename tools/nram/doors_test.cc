#include "tools/nram/doors.h"

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

constexpr int kPid = 4711;
constexpr char kSwaps[] = "Filename Type Size Used Priority\n/dev/sda2 partition 8388604 0 -2\n";

// A machine's /proc and /sys, as files.
class Machine {
 public:
  Machine() : root_(absl::StrCat(testing::TempDir(), "/machine-", ++count_)) {
    std::filesystem::remove_all(root_);
    Write("/proc/swaps", kSwaps);
    Write(absl::StrCat("/proc/", kPid, "/status"),
          "Name:\tnram-memserver\nVmLck:\t0 kB\nVmRSS:\t1000 kB\nVmSwap:\t0 kB\n");
    Write(absl::StrCat("/proc/", kPid, "/cmdline"), std::string("nram-memserver\0--donate=auto\0", 29));
    Write(absl::StrCat("/proc/", kPid, "/cgroup"), "0::/system.slice/nram-memserver.service\n");
    Write("/sys/fs/cgroup/system.slice/nram-memserver.service/memory.swap.max", "max\n");
  }
  ~Machine() { std::filesystem::remove_all(root_); }

  void Write(const std::string& path, const std::string& text) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path) << text;
  }
  Finding Look() const { return CheckServerProcess(kPid, root_); }
  const std::string& root() const { return root_; }

 private:
  static int count_;
  const std::string root_;
};
int Machine::count_ = 0;

TEST(DoorsTest, AServerThatMayBeSwappedOutIsBad) {
  Machine machine;
  const Finding found = machine.Look();
  EXPECT_EQ(found.verdict, Verdict::kBad);
  EXPECT_TRUE(absl::StrContains(found.what, "may be swapped out")) << found.what;
  EXPECT_TRUE(absl::StrContains(found.why, "MemorySwapMax=0")) << found.why;
}

TEST(DoorsTest, WithoutSwapItIsGood) {
  Machine machine;
  machine.Write("/proc/swaps", "Filename Type Size Used Priority\n");
  EXPECT_EQ(machine.Look().verdict, Verdict::kGood);
}

TEST(DoorsTest, ItsCgroupOrOneAboveForbidsIt) {
  for (const char* const group : {"/system.slice/nram-memserver.service", "/system.slice"}) {
    Machine machine;
    machine.Write(absl::StrCat("/sys/fs/cgroup", group, "/memory.swap.max"), "0\n");
    EXPECT_EQ(machine.Look().verdict, Verdict::kGood) << group;
  }
  Machine first;  // cgroup v1
  first.Write(absl::StrCat("/proc/", kPid, "/cgroup"), "9:memory:/nram\n");
  first.Write("/sys/fs/cgroup/memory/nram/memory.swappiness", "60\n");
  EXPECT_EQ(first.Look().verdict, Verdict::kBad);
  first.Write("/sys/fs/cgroup/memory/nram/memory.swappiness", "0\n");
  EXPECT_EQ(first.Look().verdict, Verdict::kGood);
}

TEST(DoorsTest, LockedMemoryIsNotSwappedOut) {
  Machine machine;
  machine.Write(absl::StrCat("/proc/", kPid, "/status"), "VmLck:\t1000 kB\nVmRSS:\t1000 kB\n");
  EXPECT_EQ(machine.Look().verdict, Verdict::kGood);
}

TEST(DoorsTest, SwappedBytesAreToldAlsoIfNoneMayFollow) {
  Machine machine;
  machine.Write("/sys/fs/cgroup/system.slice/memory.swap.max", "0\n");
  machine.Write(absl::StrCat("/proc/", kPid, "/status"), "VmLck:\t0 kB\nVmRSS:\t1000 kB\nVmSwap:\t2048 kB\n");
  EXPECT_EQ(machine.Look().verdict, Verdict::kBad);
  EXPECT_TRUE(absl::StrContains(machine.Look().what, "2.00 MiB")) << machine.Look().what;
}

TEST(DoorsTest, SpillAsksForIt) {
  Machine machine;
  machine.Write(absl::StrCat("/proc/", kPid, "/cmdline"), std::string("nram-memserver\0--spill=swap\0", 28));
  EXPECT_EQ(machine.Look().verdict, Verdict::kAdvice);
}

// `nram up` on an ordinary machine with swap: no fault of its setup.
TEST(DoorsTest, AServerOfALocalPoolGetsAdvice) {
  Machine machine;
  const std::string cmdline = absl::StrCat("/proc/", kPid, "/cmdline");
  machine.Write(cmdline, std::string("nram-memserver\0--port=0\0--listen=none\0--donate=1GiB\0", 52));
  EXPECT_EQ(machine.Look().verdict, Verdict::kAdvice);
  EXPECT_TRUE(absl::StrContains(machine.Look().what, "may be swapped out")) << machine.Look().what;
  machine.Write(absl::StrCat("/proc/", kPid, "/status"), "VmLck:\t0 kB\nVmRSS:\t1000 kB\nVmSwap:\t2048 kB\n");
  EXPECT_EQ(machine.Look().verdict, Verdict::kAdvice) << "it is swapped out in part";
  // An address that other machines may reach, and a name that only looks alike.
  machine.Write(cmdline, std::string("nram-memserver\0--listen=10.0.0.7\0--domain=--listen=none\0", 56));
  EXPECT_EQ(machine.Look().verdict, Verdict::kBad);
}

TEST(DoorsTest, TheLowestLimitOfAllGroupsCounts) {
  Machine machine;
  const std::string process = absl::StrCat("/proc/", kPid);
  EXPECT_EQ(LowestInCgroups(process, {"/memory.max"}, machine.root()), std::nullopt);
  machine.Write("/sys/fs/cgroup/system.slice/memory.max", "500\n");
  machine.Write("/sys/fs/cgroup/system.slice/nram-memserver.service/memory.max", "900\n");
  EXPECT_EQ(LowestInCgroups(process, {"/memory.max", "/memory.high"}, machine.root()), 500);
  machine.Write("/sys/fs/cgroup/system.slice/nram-memserver.service/memory.high", "400\n");
  EXPECT_EQ(LowestInCgroups(process, {"/memory.max", "/memory.high"}, machine.root()), 400);
}

TEST(DoorsTest, EachDoorHasAFindingAndARemedy) {
  const std::vector<Finding> findings = CheckDoors();
  ASSERT_EQ(findings.size(), 4);
  const char* const doors[] = {"nram mount: ", "memory API: ", "nram run: ", "sealed pages: "};
  for (size_t i = 0; i < findings.size(); ++i) {
    EXPECT_TRUE(absl::StartsWith(findings[i].what, doors[i])) << findings[i].what;
    EXPECT_EQ(findings[i].why.empty(), findings[i].verdict == Verdict::kGood) << findings[i].what;
  }
}

TEST(DoorsTest, MountsAreLookedAt) {
  const std::vector<Finding> findings = CheckMounts({testing::TempDir(), "/nonexistent/mount"}, 60'000);
  ASSERT_EQ(findings.size(), 2);
  EXPECT_EQ(findings[0].verdict, Verdict::kGood) << findings[0].what;
  EXPECT_EQ(findings[1].verdict, Verdict::kBad) << findings[1].what;
}

TEST(DoorsTest, TimesAreInAUnitThatShowsThem) {
  EXPECT_EQ(FormatTimeLeft(30 * 86'400), "30 days");
  EXPECT_EQ(FormatTimeLeft(2 * 86'400 - 1), "47 h");
  EXPECT_EQ(FormatTimeLeft(23 * 3'600 + 5), "23 h");
  EXPECT_EQ(FormatTimeLeft(2 * 3'600 - 1), "119 min");
  EXPECT_EQ(FormatTimeLeft(59), "0 min");
  EXPECT_EQ(FormatTimeLeft(-5), "0 min");
}

}  // namespace
}  // namespace nram
