// The traffic between daemon and kernel beside the data: replies, the kernel's cached attributes, and mounts of other
// users.

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/units.h"
#include "tests/util/test_mount.h"

namespace nram {
namespace {

// File data in a worker's buffer once passed for the header of a first message, whose reply the daemon amends.
TEST(KernelTest, SmallReadsBesideUnalignedWritesAreRight) {
  PoolForTest pool;
  NramMount mount({"--pool=" + pool.spec(), "--no-writeback"});
  const std::string path = mount.path() + "/file";
  std::string page(kPageBytes, '\1');
  constexpr size_t kAt = 612;  // its request's header would begin 76 bytes before, in the chunk that is rounded out to
  const auto put = [&](size_t at, uint32_t word) { memcpy(&page[at], &word, sizeof word); };
  put(kAt - 76, 26);        // FUSE_INIT
  put(kAt - 28, 1u << 28);  // an offer
  const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_TRUE(fd.valid());
  ASSERT_EQ(pwrite(fd.get(), page.data(), page.size(), 0), static_cast<ssize_t>(page.size()));
  std::atomic<bool> stop{false};
  std::atomic<int> wrong{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 3; ++t) {
    threads.emplace_back([&, t] {
      const UniqueFd own(open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
      alignas(kPageBytes) char got[kPageBytes];
      while (!stop) {
        if (t == 0) {
          if (pwrite(own.get(), &page[kAt], 100, kAt) != 100) ++wrong;
        } else if (pread(own.get(), got, sizeof got, 0) != sizeof got || memcmp(got, page.data(), sizeof got) != 0) {
          ++wrong;
        }
      }
    });
  }
  poll(nullptr, 0, 2'000);
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

// Runs `what` as another user with programs under /tmp; returns its exit status.
template <typename What>
int AsSomebodyElse(const What& what) {
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(1000) != 0 || setuid(1000) != 0) _exit(100);
    what();
    _exit(101);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

class SetIdTest : public ::testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(All, SetIdTest, ::testing::Values("--writeback", "--no-writeback"),
                         [](const auto& info) { return info.index == 0 ? "Writeback" : "NoWriteback"; });

TEST_P(SetIdTest, AProgramThatSomebodyElseHasWrittenToRunsAsWhoRunsIt) {
  PoolForTest pool;
  std::vector<std::string> flags = {"--pool=" + pool.spec()};
  if (std::string(GetParam()) == "--no-writeback") flags.push_back(GetParam());
  NramMount mount(flags);
  ASSERT_EQ(chmod(mount.path().c_str(), 0755), 0);
  const std::string program = mount.path() + "/test";
  ASSERT_EQ(system(absl::StrCat("cp /usr/bin/test ", program).c_str()), 0);
  ASSERT_EQ(chmod(program.c_str(), 04777), 0);
  // The program asks: may I write to root's file, which other users may not write to?
  const std::string secret = mount.path() + "/roots";
  ASSERT_TRUE(UniqueFd(open(secret.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)).valid());
  const auto run = [&] { execl(program.c_str(), program.c_str(), "-w", secret.c_str(), nullptr); };
  EXPECT_EQ(AsSomebodyElse(run), 0) << "set-user-id works here";
  EXPECT_EQ(AsSomebodyElse([&] {
              const int fd = open(program.c_str(), O_WRONLY | O_APPEND);
              _exit(fd >= 0 && write(fd, "\n", 1) == 1 && close(fd) == 0 ? 0 : 1);
            }),
            0);
  EXPECT_EQ(AsSomebodyElse(run), 1);
  EXPECT_EQ(chmod(program.c_str(), 04777), 0);
  EXPECT_EQ(AsSomebodyElse([&] {
              const int fd = open(program.c_str(), O_WRONLY);
              _exit(fd >= 0 && fallocate(fd, 0, 0, 1 << 20) == 0 && close(fd) == 0 ? 0 : 1);
            }),
            0);
  EXPECT_EQ(AsSomebodyElse(run), 1);
}

TEST(KernelTest, WhatAFileTakesIsToldWhileItIsOpen) {
  PoolForTest pool;
  NramMount mount({"--pool=" + pool.spec()});
  const UniqueFd fd(open((mount.path() + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  const std::string data(kMiB, 'x');
  struct stat attr {};
  for (int64_t mib = 1; mib <= 2; ++mib) {
    ASSERT_EQ(write(fd.get(), data.data(), data.size()), static_cast<ssize_t>(data.size()));
    ASSERT_EQ(fstat(fd.get(), &attr), 0);
    ASSERT_EQ(fsync(fd.get()), 0);
    const int64_t deadline_ns = DeadlineAfterMs(20'000);
    do {
      poll(nullptr, 0, 20);
      ASSERT_EQ(fstat(fd.get(), &attr), 0);
    } while (attr.st_blocks * 512 != mib << 20 && MonotonicNs() < deadline_ns);
    EXPECT_EQ(attr.st_blocks * 512, mib << 20);
  }
}

TEST(KernelTest, ADaemonThatEndsLeavesAloneWhatIsMountedThereNow) {
  PoolForTest pool;
  NramMount mount({"--pool=" + pool.spec()});
  UniqueFd open_file(open((mount.path() + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  ASSERT_EQ(umount2(mount.path().c_str(), MNT_DETACH), 0);
  ASSERT_EQ(::mount("nram-test", mount.path().c_str(), "tmpfs", 0, "size=1m"), 0);
  const std::string theirs = mount.path() + "/theirs";
  ASSERT_TRUE(UniqueFd(open(theirs.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)).valid());
  ASSERT_EQ(kill(mount.daemon(), SIGTERM), 0);
  const int64_t deadline_ns = DeadlineAfterMs(20'000);
  while (mount.Log().find("is detached") == std::string::npos) {
    ASSERT_LT(MonotonicNs(), deadline_ns) << mount.Log();
    poll(nullptr, 0, 10);
  }
  open_file.reset();
  EXPECT_EQ(mount.AwaitEnd(), 0);
  EXPECT_EQ(access(theirs.c_str(), F_OK), 0);
  EXPECT_EQ(umount2(mount.path().c_str(), 0), 0);
}

}  // namespace
}  // namespace nram
