// A mount's life: full pools, servers and daemons that die, signals, other users, and freed memory.

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <set>
#include <system_error>
#include <thread>

#include "base/fd.h"
#include "base/host/host_memory.h"
#include "base/poll_until.h"
#include "base/units.h"
#include "client/pool/pool_spec.h"
#include "client/transport/control_client.h"
#include "tests/util/freeze.h"
#include "tests/util/test_mount.h"

namespace nram {
namespace {

UniqueFd Open(const std::string& path, int flags = O_RDWR | O_CREAT | O_CLOEXEC, mode_t mode = 0644) {
  return UniqueFd(open(path.c_str(), flags, mode));
}

// Writes `bytes` of a pattern and closes the file. Returns 0, or the errno of the first failure of write, fsync and
// close.
int WriteFile(const std::string& path, uint64_t bytes, char pattern, bool sync = true) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return errno;
  const std::string block(1 << 20, pattern);
  int error = 0;
  for (uint64_t done = 0; done < bytes && error == 0; done += block.size()) {
    if (write(fd, block.data(), std::min<uint64_t>(block.size(), bytes - done)) < 0) error = errno;
  }
  if (sync && fsync(fd) != 0 && error == 0) error = errno;
  if (close(fd) != 0 && error == 0) error = errno;
  return error;
}

void DropCaches() {
  const UniqueFd fd(open("/proc/sys/vm/drop_caches", O_WRONLY | O_CLOEXEC));
  EXPECT_EQ(write(fd.get(), "3", 1), 1);
}

// Reads the whole file. Returns 0, an errno, or -1 if a byte is wrong.
int CheckFile(const std::string& path, uint64_t bytes, char pattern) {
  const UniqueFd fd = Open(path, O_RDONLY | O_CLOEXEC);
  if (!fd.valid()) return errno;
  std::string block(1 << 20, '\0');
  uint64_t done = 0;
  while (true) {
    const ssize_t n = read(fd.get(), block.data(), block.size());
    if (n < 0) return errno;
    if (n == 0) return done == bytes ? 0 : -1;
    for (ssize_t i = 0; i < n; ++i) {
      if (block[static_cast<size_t>(i)] != pattern) return -1;
    }
    done += static_cast<uint64_t>(n);
  }
}

uint64_t Counter(const ServerStatistics& statistics, const std::string& name) {
  for (const auto& [key, value] : statistics.counters) {
    if (key == name) return value;
  }
  ADD_FAILURE() << "no counter " << name;
  return 0;
}

// The pages and regions that the pool's servers hold.
struct Held {
  uint64_t pages = 0;
  uint64_t regions = 0;
};
Held AskHeld(const PoolForTest& pool) {
  Held held;
  const std::vector<Endpoint> endpoints = ParsePoolSpec("@" + pool.spec()).value();
  for (const Endpoint& endpoint : endpoints) {
    const auto statistics = ControlClient::Create(endpoint)->GetStatistics(DeadlineAfterMs(2'000));
    if (!statistics.ok()) continue;
    held.pages += Counter(*statistics, "pages");
    held.regions += Counter(*statistics, "regions");
  }
  return held;
}
// Waits until they hold at most this number of pages and regions.
bool AwaitHeld(const PoolForTest& pool, uint64_t pages, uint64_t regions) {
  return PollUntil(DeadlineAfterMs(20'000), 20, [&] {
    const Held held = AskHeld(pool);
    return held.pages <= pages && held.regions <= regions;
  });
}

TEST(MountTest, AFullPoolSaysSoAndGoesOnAfterwards) {
  PoolForTest pool(2, "96M");
  NramMount mount({"--pool=" + pool.spec()});
  ASSERT_EQ(WriteFile(mount.path() + "/first", 20 * kMiB, 'a'), 0);
  EXPECT_EQ(WriteFile(mount.path() + "/much", 400 * kMiB, 'b'), ENOSPC);
  DropCaches();
  EXPECT_EQ(CheckFile(mount.path() + "/first", 20 * kMiB, 'a'), 0);
  EXPECT_EQ(unlink((mount.path() + "/much").c_str()), 0);
  EXPECT_EQ(WriteFile(mount.path() + "/again", 30 * kMiB, 'c'), 0);
  DropCaches();
  EXPECT_EQ(CheckFile(mount.path() + "/again", 30 * kMiB, 'c'), 0);
}

TEST(MountTest, TheMountsOwnLimit) {
  PoolForTest pool;
  NramMount mount({"--pool=" + pool.spec(), "--size=8M"});
  struct statvfs stat {};
  ASSERT_EQ(statvfs(mount.path().c_str(), &stat), 0);
  EXPECT_EQ(stat.f_blocks * stat.f_frsize, 8 * kMiB);
  ASSERT_EQ(WriteFile(mount.path() + "/half", 4 * kMiB, 'a'), 0);
  ASSERT_EQ(statvfs(mount.path().c_str(), &stat), 0);
  EXPECT_EQ(stat.f_bavail * stat.f_frsize, 4 * kMiB);
  EXPECT_EQ(WriteFile(mount.path() + "/more", 5 * kMiB, 'b'), ENOSPC);
  const UniqueFd fd = Open(mount.path() + "/reserved");
  EXPECT_EQ(fallocate(fd.get(), 0, 0, 16 * kMiB), -1);
  EXPECT_EQ(errno, ENOSPC);
}

// Reads a byte of a page, after the kernel has dropped its clean pages. Returns 0 or an errno.
int ReadPage(const std::string& path, uint64_t page) {
  const UniqueFd fd = Open(path, O_RDONLY | O_CLOEXEC);
  char byte = 0;
  if (!fd.valid() || posix_fadvise(fd.get(), 0, 0, POSIX_FADV_DONTNEED) != 0) return errno;
  return pread(fd.get(), &byte, 1, static_cast<off_t>(page * kPageBytes)) < 0 ? errno : 0;
}

// A file found no room: no reader gets zeros from it, neither now nor after the kernel has forgotten it.
TEST(MountTest, WhatFoundNoRoomIsAnErrorToEachReader) {
  PoolForTest pool;
  NramMount mount({"--pool=" + pool.spec(), "--size=16M"});
  const std::string path = mount.path() + "/f";
  ASSERT_EQ(WriteFile(path, 64 * kMiB, 'a'), ENOSPC);
  struct stat attr {};
  ASSERT_EQ(stat(path.c_str(), &attr), 0);
  const auto size = static_cast<uint64_t>(attr.st_size);
  ASSERT_GT(size, 16 * kMiB);
  for (int round = 0; round < 2; ++round) {
    DropCaches();
    std::vector<uint64_t> failed;
    std::string block(kPageBytes, '\0');
    const UniqueFd fd = Open(path, O_RDWR | O_CLOEXEC);
    for (uint64_t page = 0; page < size / kPageBytes; ++page) {
      const ssize_t n = pread(fd.get(), block.data(), block.size(), static_cast<off_t>(page * kPageBytes));
      if (n < 0) {
        ASSERT_EQ(errno, EIO);
        failed.push_back(page);
      } else {
        ASSERT_EQ(block, std::string(kPageBytes, 'a')) << page;
      }
    }
    ASSERT_GE(failed.size(), (size - 16 * kMiB) / kPageBytes);
    const uint64_t page = failed.back();
    EXPECT_EQ(lseek(fd.get(), static_cast<off_t>(page * kPageBytes), SEEK_DATA), static_cast<off_t>(page * kPageBytes));
    const UniqueFd copy = Open(absl::StrCat(mount.path(), "/copy", round));
    off_t from = static_cast<off_t>(page * kPageBytes);
    EXPECT_EQ(copy_file_range(fd.get(), &from, copy.get(), nullptr, kPageBytes, 0), -1);
    EXPECT_EQ(errno, EIO);
  }
  // Cut off, there is room for the page that is written next, and it is good.
  ASSERT_EQ(truncate(path.c_str(), 8 * kMiB), 0);
  ASSERT_EQ(truncate(path.c_str(), 10 * kMiB), 0);
  EXPECT_EQ(ReadPage(path, 9 * kMiB / kPageBytes), 0) << "a hole";
  const UniqueFd fd = Open(path, O_RDWR | O_CLOEXEC);
  (void)fsync(fd.get());  // an error of before, if it was not told yet
  const std::string page(kPageBytes, 'b');
  ASSERT_EQ(pwrite(fd.get(), page.data(), page.size(), 9 * kMiB), static_cast<ssize_t>(page.size()));
  EXPECT_EQ(fsync(fd.get()), 0);
  EXPECT_EQ(ReadPage(path, 9 * kMiB / kPageBytes), 0);
}

// Near the limit, the write that finds no room says so, as on tmpfs; also of a file that is open for long.
TEST(MountTest, AWriteItselfSaysThatThereIsNoRoom) {
  PoolForTest pool;
  NramMount mount({"--pool=" + pool.spec(), "--size=64M"});
  const UniqueFd fd = Open(mount.path() + "/f");
  const std::string block(64 * kKiB, 'a');
  int error = 0;
  for (uint64_t done = 0; done < 16 * kGiB && error == 0; done += block.size()) {
    if (write(fd.get(), block.data(), block.size()) < 0) error = errno;
  }
  EXPECT_EQ(error, ENOSPC);
  EXPECT_EQ(ftruncate(fd.get(), 0), 0);
  (void)fsync(fd.get());  // an error of before, if it was not told yet
  EXPECT_EQ(pwrite(fd.get(), block.data(), block.size(), 0), static_cast<ssize_t>(block.size()));
}

// The thread that has writes wait for the pool waits for the mount itself. If the daemon is killed meanwhile, the
// kernel ends the mount with the last use of /dev/fuse: a thread that waits must have none.
TEST(MountTest, TheThreadThatWaitsForTheMountDoesNotHoldIt) {
  PoolForTest pool;
  NramMount mount({"--pool=" + pool.spec(), "--size=64M"});
  const UniqueFd fd = Open(mount.path() + "/f");
  const std::string block(64 * kKiB, 'a');
  int error = 0;
  for (uint64_t done = 0; done < 16 * kGiB && error == 0; done += block.size()) {
    if (write(fd.get(), block.data(), block.size()) < 0) error = errno;
  }
  ASSERT_EQ(error, ENOSPC);
  int threads = 0;
  for (const auto& task : std::filesystem::directory_iterator(absl::StrCat("/proc/", mount.daemon(), "/task"))) {
    if (ReadLine(task.path().string() + "/comm") != "nram-through") continue;
    ++threads;
    for (const auto& file : std::filesystem::directory_iterator(task.path() / "fd")) {
      std::error_code gone;
      EXPECT_NE(std::filesystem::read_symlink(file.path(), gone), "/dev/fuse") << file.path();
    }
  }
  EXPECT_EQ(threads, 1);
}

TEST(MountTest, MemoryIsGivenBack) {
  PoolForTest pool;
  NramMount mount({"--pool=" + pool.spec()});
  const std::string path = mount.path() + "/f";
  const uint64_t pages = 32 * kMiB / kPageBytes;
  ASSERT_EQ(WriteFile(path, 32 * kMiB, 'a'), 0);
  EXPECT_EQ(AskHeld(pool).pages, pages);
  UniqueFd fd = Open(path);
  ASSERT_EQ(fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 16 * kMiB), 0);
  EXPECT_EQ(AskHeld(pool).pages, pages / 2);
  struct stat attr {};
  ASSERT_EQ(fstat(fd.get(), &attr), 0);
  EXPECT_EQ(attr.st_blocks * 512, static_cast<blkcnt_t>(16 * kMiB));
  ASSERT_EQ(ftruncate(fd.get(), 24 * kMiB), 0);
  EXPECT_EQ(AskHeld(pool).pages, pages / 4);
  ASSERT_EQ(unlink(path.c_str()), 0);
  std::string byte(1, '\0');
  EXPECT_EQ(pread(fd.get(), byte.data(), 1, 20 * kMiB), 1) << "unlinked, but open";
  EXPECT_EQ(byte, "a");
  fd.reset();
  EXPECT_TRUE(AwaitHeld(pool, 0, 0)) << AskHeld(pool).pages << " pages";
}

TEST(MountTest, ASmallFileCostsItsChunks) {
  PoolForTest pool(1);
  NramMount mount({"--pool=" + pool.spec()});
  for (int i = 0; i < 1'000; ++i) ASSERT_EQ(WriteFile(absl::StrCat(mount.path(), "/", i), 100, 'a', false), 0);
  const auto statistics =
      ControlClient::Create(ParsePoolSpec("@" + pool.spec()).value()[0])->GetStatistics(DeadlineAfterMs(2'000));
  ASSERT_TRUE(statistics.ok());
  EXPECT_EQ(Counter(*statistics, "pages"), 1'000u);
  EXPECT_EQ(Counter(*statistics, "stored_chunks"), 1'000u);
  const UniqueFd sparse = Open(mount.path() + "/sparse");
  ASSERT_EQ(ftruncate(sparse.get(), int64_t{1} << 40), 0);
  EXPECT_EQ(AskHeld(pool).pages, 1'000u);
}

TEST(MountTest, ADeadServersFilesFailAndNothingElseDoes) {
  PoolForTest pool(3, "128M");
  NramMount mount({"--pool=" + pool.spec(), "--io-timeout-ms=2000"});
  ASSERT_EQ(WriteFile(mount.path() + "/large", 24 * kMiB, 'a'), 0) << "on all servers";
  for (int i = 0; i < 30; ++i) ASSERT_EQ(WriteFile(absl::StrCat(mount.path(), "/", i), 5'000, 'b'), 0);
  kill(pool.servers()[0].pid, SIGKILL);
  DropCaches();
  EXPECT_EQ(CheckFile(mount.path() + "/large", 24 * kMiB, 'a'), EIO);
  int good = 0;
  for (int i = 0; i < 30; ++i) {
    const int result = CheckFile(absl::StrCat(mount.path(), "/", i), 5'000, 'b');
    EXPECT_TRUE(result == 0 || result == EIO) << result;
    good += result == 0;
  }
  EXPECT_GT(good, 5);
  EXPECT_LT(good, 30);
  // Names, new files and deletions go on.
  EXPECT_EQ(WriteFile(mount.path() + "/new", 3 * kMiB, 'c'), 0);
  EXPECT_EQ(CheckFile(mount.path() + "/new", 3 * kMiB, 'c'), 0);
  EXPECT_EQ(unlink((mount.path() + "/large").c_str()), 0);
  struct stat attr {};
  EXPECT_EQ(stat((mount.path() + "/large").c_str(), &attr), -1);
  EXPECT_EQ(truncate((mount.path() + "/0").c_str(), 0), 0) << "a fresh start for a lost file";
  EXPECT_EQ(WriteFile(mount.path() + "/0", 5'000, 'd'), 0);
}

// As on other filesystems: a program that has the file open learns of the failure whichever other one asks first.
TEST(MountTest, FsyncTellsAFailureToEachOpenerOnce) {
  PoolForTest pool(1, "128M");
  NramMount mount({"--pool=" + pool.spec(), "--io-timeout-ms=1000"});
  const UniqueFd first = Open(mount.path() + "/f");
  const UniqueFd second = Open(mount.path() + "/f");
  ASSERT_EQ(kill(pool.servers()[0].pid, SIGKILL), 0);
  const std::string page(kPageBytes, 'a');
  ASSERT_EQ(pwrite(first.get(), page.data(), page.size(), 0), static_cast<ssize_t>(page.size()));
  for (const UniqueFd* fd : {&first, &second}) {
    EXPECT_EQ(fsync(fd->get()), -1) << (fd == &first ? "the writer" : "the other one");
    EXPECT_EQ(errno, EIO);
    EXPECT_EQ(fsync(fd->get()), 0) << "told already";
  }
  EXPECT_EQ(fsync(Open(mount.path() + "/f").get()), 0) << "of before it was opened";
}

TEST(MountTest, CtrlCEndsAReadThatIsStuck) {
  PoolForTest pool(1);
  NramMount mount({"--pool=" + pool.spec(), "--io-timeout-ms=600000"});
  ASSERT_EQ(WriteFile(mount.path() + "/f", kMiB, 'a'), 0);
  DropCaches();
  // Not with O_DIRECT: the kernel waits for those requests without listening to signals, until the timeout.
  FreezeProcess(pool.servers()[0].pid);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGINT, SIG_DFL);
    const int fd = open((mount.path() + "/f").c_str(), O_RDONLY);
    char buffer[4096];
    _exit(pread(fd, buffer, sizeof buffer, 8 * 4096) == sizeof buffer ? 0 : 1);
  }
  // Wait until the child sleeps in the kernel.
  for (int asleep = 0; asleep < 20; usleep(5'000)) {
    const auto stat = ReadFile(absl::StrCat("/proc/", child, "/stat"));
    const char state = stat.ok() ? stat->substr(stat->rfind(')') + 2)[0] : '?';
    ASSERT_NE(state, 'Z') << "the read ended";
    asleep = state == 'D' || state == 'S' ? asleep + 1 : 0;
  }
  kill(child, SIGINT);
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFSIGNALED(status)) << "status " << status;
  kill(pool.servers()[0].pid, SIGCONT);
  EXPECT_EQ(CheckFile(mount.path() + "/f", kMiB, 'a'), 0);
}

TEST(MountTest, ADaemonThatIsKilledLeavesNothingThatHangs) {
  for (const bool gc : {true, false}) {
    PoolForTest pool(1);
    {
      NramMount mount({"--pool=" + pool.spec(), gc ? "--gc" : "--no-gc"});
      ASSERT_EQ(WriteFile(mount.path() + "/f", kMiB, 'a'), 0);
      const UniqueFd open_file = Open(mount.path() + "/f");
      DropCaches();
      kill(mount.daemon(), SIGKILL);
      EXPECT_EQ(mount.AwaitEnd(), -1);
      struct stat attr {};
      EXPECT_EQ(stat((mount.path() + "/f").c_str(), &attr), -1);
      EXPECT_EQ(errno, ENOTCONN);
      char byte;
      EXPECT_EQ(pread(open_file.get(), &byte, 1, 900'000), -1);
    }
    if (gc) {
      EXPECT_TRUE(AwaitHeld(pool, 0, 0)) << "its lease has ended";
    } else {
      // The region remains, as an orphan that a client may look at and destroy.
      const auto control = ControlClient::Create(ParsePoolSpec("@" + pool.spec()).value()[0]);
      size_t orphans = 0;
      PollUntil(DeadlineAfterMs(20'000), 20, [&] {
        const auto regions = control->ListRegions(/*orphans_only=*/true, /*named_only=*/false, DeadlineAfterMs(2'000));
        EXPECT_TRUE(regions.ok()) << regions.status();
        orphans = regions.ok() ? regions->size() : 0;
        return orphans > 0 || !regions.ok();
      });
      EXPECT_EQ(orphans, 1u);
      EXPECT_EQ(AskHeld(pool).pages, 256u);
    }
    NramMount again({"--pool=" + pool.spec()});
    EXPECT_EQ(WriteFile(again.path() + "/f", kMiB, 'a'), 0);
  }
}

TEST(MountTest, SigtermUnderLoadUnmounts) {
  PoolForTest pool;
  NramMount mount({"--pool=" + pool.spec(), "--no-gc"});
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (int i = 0; i < 3; ++i) {
    writers.emplace_back([&, i] {
      // Write until the mount is gone.
      while (!stop && WriteFile(absl::StrCat(mount.path(), "/", i), 4 * kMiB, 'a') == 0) {
      }
    });
  }
  EXPECT_TRUE(PollUntil(DeadlineAfterMs(60'000), 5, [&] { return AskHeld(pool).pages >= 1'000; }));
  kill(mount.daemon(), SIGTERM);
  EXPECT_EQ(mount.AwaitEnd(), 0);
  stop = true;
  for (auto& writer : writers) writer.join();
  struct stat attr {
  }, above{};
  ASSERT_EQ(stat(mount.path().c_str(), &attr), 0);
  ASSERT_EQ(stat("/tmp", &above), 0);
  EXPECT_EQ(attr.st_dev, above.st_dev) << "something is still mounted";
  EXPECT_TRUE(AwaitHeld(pool, 0, 0)) << "also without --gc, an end that was asked for frees all";
}

TEST(MountTest, OtherUsersHaveTheirRights) {
  NramMount mount({"--backend=memory"});
  ASSERT_EQ(WriteFile(mount.path() + "/private", 10, 'a'), 0);
  ASSERT_EQ(chmod((mount.path() + "/private").c_str(), 0600), 0);
  ASSERT_EQ(mkdir((mount.path() + "/closed").c_str(), 0700), 0);
  ASSERT_EQ(WriteFile(mount.path() + "/shared", 10, 'a'), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setgid(1'000) != 0 || setuid(1'000) != 0) _exit(9);
    const auto at = [&](const char* name) { return mount.path() + "/" + name; };
    if (open(at("private").c_str(), O_RDONLY) >= 0 || errno != EACCES) _exit(1);
    if (open(at("closed/x").c_str(), O_CREAT | O_RDWR, 0644) >= 0 || errno != EACCES) _exit(2);
    const int own = open(at("own").c_str(), O_CREAT | O_RDWR, 0644);
    if (own < 0 || write(own, "x", 1) != 1) _exit(3);
    struct stat attr {};
    if (fstat(own, &attr) != 0 || attr.st_uid != 1'000 || attr.st_gid != 1'000) _exit(4);
    if (unlink(at("shared").c_str()) == 0 || errno != EPERM) _exit(5);  // the directory is sticky
    if (unlink(at("own").c_str()) != 0) _exit(6);
    if (setxattr(at("shared").c_str(), "trusted.x", "1", 1, 0) == 0) _exit(7);
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0) << WEXITSTATUS(status);
}

TEST(MountTest, AclsLetOthersIn) {
  NramMount mount({"--backend=memory"});
  const std::string path = mount.path() + "/f";
  ASSERT_EQ(WriteFile(path, 10, 'a'), 0);
  ASSERT_EQ(chmod(path.c_str(), 0600), 0);
  // user::rw- user:1000:r-- group::--- mask::r-- other::---
  const uint8_t acl[] = {2, 0,    0,   0,   1,   0,   6,  0, 255, 255, 255, 255, 2,   0,  4,
                         0, 0xe8, 3,   0,   0,   4,   0,  0, 0,   255, 255, 255, 255, 16, 0,
                         4, 0,    255, 255, 255, 255, 32, 0, 0,   0,   255, 255, 255, 255};
  ASSERT_EQ(setxattr(path.c_str(), "system.posix_acl_access", acl, sizeof acl, 0), 0) << strerror(errno);
  struct stat attr {};
  ASSERT_EQ(stat(path.c_str(), &attr), 0);
  EXPECT_EQ(attr.st_mode & 0777, 0640u);
  for (const uid_t uid : {1'000u, 1'001u}) {
    const pid_t child = fork();
    if (child == 0) {
      if (setgid(2'000) != 0 || setuid(uid) != 0) _exit(9);
      _exit(open(path.c_str(), O_RDONLY) >= 0 ? 0 : errno);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), uid == 1'000 ? 0 : EACCES) << uid;
  }
}

TEST(MountTest, Locks) {
  NramMount mount({"--backend=memory"});
  const UniqueFd first = Open(mount.path() + "/f");
  const UniqueFd second = Open(mount.path() + "/f");
  EXPECT_EQ(flock(first.get(), LOCK_EX), 0);
  EXPECT_EQ(flock(second.get(), LOCK_EX | LOCK_NB), -1);
  EXPECT_EQ(flock(first.get(), LOCK_UN), 0);
  EXPECT_EQ(flock(second.get(), LOCK_EX | LOCK_NB), 0);
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_len = 10;
  EXPECT_EQ(fcntl(first.get(), F_OFD_SETLK, &lock), 0);
  EXPECT_EQ(fcntl(second.get(), F_OFD_SETLK, &lock), -1);
  lock.l_start = 10;
  EXPECT_EQ(fcntl(second.get(), F_OFD_SETLK, &lock), 0);
}

TEST(MountTest, ALargeDirectoryWhileItChanges) {
  NramMount mount({"--backend=memory"});
  const std::string directory = mount.path() + "/d";
  ASSERT_EQ(mkdir(directory.c_str(), 0755), 0);
  constexpr int kFiles = 20'000;
  for (int i = 0; i < kFiles; ++i) {
    ASSERT_TRUE(Open(absl::StrCat(directory, "/", i % 2 == 0 ? "stays" : "goes", i), O_CREAT | O_WRONLY).valid());
  }
  DIR* const listing = opendir(directory.c_str());
  std::multiset<std::string> seen;
  int gone = 1;
  while (const dirent* entry = readdir(listing)) {
    const std::string name = entry->d_name;
    if (name.starts_with("stays")) seen.insert(name);
    if (gone >= kFiles) continue;
    unlink(absl::StrCat(directory, "/goes", gone).c_str());
    gone += 2;
    if (gone % 100 == 1) (void)Open(absl::StrCat(directory, "/came", gone), O_CREAT | O_WRONLY);
  }
  closedir(listing);
  EXPECT_EQ(seen.size(), static_cast<size_t>(kFiles / 2));
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), seen.size());
}

TEST(MountTest, SeekFindsWhatOnlyTheKernelHas) {
  NramMount mount({"--backend=memory"});
  const UniqueFd fd = Open(mount.path() + "/f");
  ASSERT_EQ(ftruncate(fd.get(), 10 * kMiB), 0);
  ASSERT_EQ(pwrite(fd.get(), "x", 1, 5 * kMiB), 1);  // not written back yet
  EXPECT_EQ(lseek(fd.get(), 0, SEEK_DATA), static_cast<off_t>(5 * kMiB));
  EXPECT_EQ(lseek(fd.get(), 5 * kMiB, SEEK_HOLE), static_cast<off_t>(5 * kMiB + 4'096));
  EXPECT_EQ(lseek(fd.get(), 0, SEEK_HOLE), 0);
}

// There the kernel may have a page on its way of which the daemon does not know: no data is taken for a hole.
TEST(MountTest, BeforeLinux616AllOfAFileIsData) {
  ASSERT_EQ(setenv("NRAM_KERNEL_RELEASE_FOR_TEST", "6.12.43+deb13-amd64", 1), 0);
  NramMount mount({"--backend=memory"});
  ASSERT_EQ(unsetenv("NRAM_KERNEL_RELEASE_FOR_TEST"), 0);
  constexpr off_t kSize = 10 * kMiB;
  const UniqueFd fd = Open(mount.path() + "/f");
  ASSERT_EQ(ftruncate(fd.get(), kSize), 0);
  ASSERT_EQ(pwrite(fd.get(), "x", 1, kSize / 2), 1);
  for (const bool stored : {false, true}) {
    if (stored) {
      ASSERT_EQ(fsync(fd.get()), 0);
      DropCaches();
    }
    for (const off_t at : {off_t{0}, off_t{kSize / 2}, kSize - 1}) {
      EXPECT_EQ(lseek(fd.get(), at, SEEK_DATA), at) << stored;
      EXPECT_EQ(lseek(fd.get(), at, SEEK_HOLE), kSize) << stored << " at " << at;
    }
    EXPECT_EQ(lseek(fd.get(), kSize, SEEK_DATA), -1);
    EXPECT_EQ(errno, ENXIO);
  }
}

TEST(MountTest, ManySeekAtOnce) {
  // More seeks than there are threads; each waits for pages of which only the kernel knows.
  PoolForTest pool;
  NramMount mount({"--pool=" + pool.spec(), "--threads=4"});
  std::vector<std::thread> seekers;
  for (int i = 0; i < 24; ++i) {
    seekers.emplace_back([&, i] {
      const UniqueFd fd = Open(absl::StrCat(mount.path(), "/", i));
      for (uint64_t at = 1; at < 20; ++at) {
        EXPECT_EQ(pwrite(fd.get(), "x", 1, static_cast<off_t>(2 * at * kPageBytes)), 1);
        EXPECT_EQ(lseek(fd.get(), static_cast<off_t>((2 * at - 1) * kPageBytes), SEEK_DATA),
                  static_cast<off_t>(2 * at * kPageBytes));
      }
    });
  }
  for (auto& seeker : seekers) seeker.join();
}

TEST(MountTest, WhatIsReservedIsGivenBack) {
  PoolForTest pool(1, "128M");
  NramMount mount({"--pool=" + pool.spec()});
  const UniqueFd fd = Open(mount.path() + "/f");
  struct statvfs room;
  ASSERT_EQ(statvfs(mount.path().c_str(), &room), 0);
  // Most of it: a sanitizer's server has less to give.
  const uint64_t most = room.f_bavail * room.f_frsize / kMiB * 9 / 10 * kMiB;
  ASSERT_GE(most, 32 * kMiB);
  for (int i = 0; i < 5; ++i) {
    ASSERT_EQ(fallocate(fd.get(), 0, 0, most), 0) << strerror(errno);
    ASSERT_EQ(fallocate(fd.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, most), 0);
  }
  // In steps, each of which includes all before it.
  for (uint64_t size = kMiB; size <= most; size += kMiB) {
    ASSERT_EQ(fallocate(fd.get(), 0, 0, static_cast<off_t>(size)), 0) << size;
  }
  const std::string block(kMiB, 'x');
  for (uint64_t at = 0; at < most; at += kMiB) ASSERT_EQ(pwrite(fd.get(), block.data(), kMiB, at), kMiB);
  EXPECT_EQ(fsync(fd.get()), 0) << "what was reserved is there";
}

}  // namespace
}  // namespace nram
