// copy_file_range, done to a tmpfs and to a mount, and `nram snapshot`.

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/units.h"
#include "tests/util/test_mount.h"

namespace nram {
namespace {

UniqueFd Open(const std::string& path, int flags = O_RDWR | O_CREAT) {
  return UniqueFd(open(path.c_str(), flags | O_CLOEXEC, 0644));
}

std::string Pattern(uint64_t bytes, uint64_t seed) {
  std::string data(bytes, '\0');
  for (uint64_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(1 + (i / 7 + i / kPageBytes + seed * 31) % 251);
  return data;
}

void Write(const UniqueFd& fd, uint64_t offset, const std::string& data) {
  EXPECT_EQ(pwrite(fd.get(), data.data(), data.size(), static_cast<off_t>(offset)), static_cast<ssize_t>(data.size()));
}

std::string ReadAll(const UniqueFd& fd) {
  struct stat attr {};
  EXPECT_EQ(fstat(fd.get(), &attr), 0);
  std::string data(static_cast<size_t>(attr.st_size), 'x');
  EXPECT_EQ(pread(fd.get(), data.data(), data.size(), 0), attr.st_size);
  return data;
}

// "Tmpfs", "Nram", "NramWithoutWriteback" or "NramSealed".
class CopyTest : public ::testing::TestWithParam<const char*> {
 protected:
  CopyTest() {
    const std::string name = GetParam();
    if (name == "Tmpfs") {
      tmpfs_ = std::make_unique<TmpfsMount>();
      return;
    }
    pool_ = std::make_unique<PoolForTest>(2, "128M");
    std::vector<std::string> flags = {"--pool=" + pool_->spec()};
    if (name == "NramWithoutWriteback") flags.push_back("--no-writeback");
    if (name == "NramSealed") flags.push_back("--seal");
    mount_ = std::make_unique<NramMount>(flags);
  }
  std::string At(const std::string& name) const {
    return (tmpfs_ != nullptr ? tmpfs_->path() : mount_->path()) + "/" + name;
  }
  // The tests of a full pool: not on a tmpfs, and not a second time where only the kernel's cache differs.
  bool FillsPools() const { return tmpfs_ == nullptr && std::string(GetParam()) != "NramWithoutWriteback"; }
  // As many calls as are needed; the bytes, or -errno.
  static int64_t Copy(const UniqueFd& from, off_t from_at, const UniqueFd& to, off_t to_at, size_t length) {
    int64_t sum = 0;
    while (static_cast<size_t>(sum) < length) {
      const ssize_t n = copy_file_range(from.get(), &from_at, to.get(), &to_at, length - static_cast<size_t>(sum), 0);
      if (n < 0 && sum == 0) return -errno;
      if (n <= 0) break;
      sum += n;
    }
    return sum;
  }

  std::unique_ptr<PoolForTest> pool_;
  std::unique_ptr<NramMount> mount_;
  std::unique_ptr<TmpfsMount> tmpfs_;
};
INSTANTIATE_TEST_SUITE_P(All, CopyTest, ::testing::Values("Tmpfs", "Nram", "NramWithoutWriteback", "NramSealed"),
                         [](const auto& info) { return info.param; });

TEST_P(CopyTest, WhatTheCallPromises) {
  const UniqueFd from = Open(At("from")), to = Open(At("to"));
  const std::string data = Pattern(3 * kMiB + 777, 1);
  Write(from, 0, data);
  // Whole, past the end, at the end, and behind it.
  EXPECT_EQ(Copy(from, 0, to, 0, data.size() + 9'999), static_cast<int64_t>(data.size()));
  EXPECT_TRUE(ReadAll(to) == data);
  EXPECT_EQ(Copy(from, 3 * kMiB, to, 100, kMiB), 777);
  std::string model = data;
  model.replace(100, 777, data.substr(3 * kMiB));
  EXPECT_TRUE(ReadAll(to) == model);
  EXPECT_EQ(Copy(from, static_cast<off_t>(data.size()), to, 0, 100), 0);
  EXPECT_EQ(Copy(from, 1 << 30, to, 0, 100), 0);
  EXPECT_TRUE(ReadAll(to) == model);
  // Parts of pages, to behind the end of the target.
  EXPECT_EQ(Copy(from, 511, to, 5 * kMiB + 3, kMiB + 4'095), static_cast<int64_t>(kMiB) + 4'095);
  model.resize(5 * kMiB + 3);
  model += data.substr(511, kMiB + 4'095);
  EXPECT_TRUE(ReadAll(to) == model);
  // Within one file: beside itself, not over itself.
  EXPECT_EQ(Copy(from, 0, from, 2 * kMiB, 2 * kMiB + 1), -EINVAL);
  EXPECT_EQ(Copy(from, 0, from, 2 * kMiB, kMiB), static_cast<int64_t>(kMiB));
  EXPECT_TRUE(ReadAll(from) == data.substr(0, 2 * kMiB) + data.substr(0, kMiB) + data.substr(3 * kMiB));
  // Descriptors that do not allow it.
  EXPECT_EQ(Copy(from, 0, Open(At("to"), O_RDONLY), 0, 10), -EBADF);
  EXPECT_EQ(Copy(Open(At("from"), O_WRONLY), 0, to, 0, 10), -EBADF);
  EXPECT_EQ(Copy(from, 0, Open(At("to"), O_WRONLY | O_APPEND), 0, 10), -EBADF);
  EXPECT_EQ(Copy(Open(At("."), O_RDONLY), 0, to, 0, 10), -EISDIR);
}

TEST_P(CopyTest, WhatIsInThePageCacheIsCopied) {
  const UniqueFd from = Open(At("from")), to = Open(At("to"));
  const std::string data = Pattern(2 * kMiB, 1);
  Write(from, 0, Pattern(2 * kMiB, 2));
  EXPECT_EQ(fsync(from.get()), 0);
  Write(from, 0, data);  // dirty here
  Write(to, 0, Pattern(3 * kMiB, 3));
  EXPECT_EQ(ReadAll(to).size(), 3 * kMiB);  // cached here
  EXPECT_EQ(Copy(from, 0, to, 0, 2 * kMiB), static_cast<int64_t>(2 * kMiB));
  EXPECT_TRUE(ReadAll(to) == data + Pattern(3 * kMiB, 3).substr(2 * kMiB));
}

TEST_P(CopyTest, NeitherFileSeesWhatTheOtherWrites) {
  const UniqueFd from = Open(At("from")), to = Open(At("to")), third = Open(At("third"));
  std::string model[3];
  model[0] = Pattern(4 * kMiB + 5, 1);
  Write(from, 0, model[0]);
  EXPECT_EQ(Copy(from, 0, to, 0, model[0].size()), static_cast<int64_t>(model[0].size()));
  Write(to, 2 * kMiB - 10, "to to to to to to to");
  model[1] = model[0];
  model[1].replace(2 * kMiB - 10, 20, "to to to to to to to");
  EXPECT_EQ(Copy(to, 0, third, 0, model[0].size()), static_cast<int64_t>(model[0].size()));
  model[2] = model[1];
  Write(from, kMiB, Pattern(kMiB, 5));
  model[0].replace(kMiB, kMiB, Pattern(kMiB, 5));
  EXPECT_EQ(ftruncate(third.get(), 3 * kMiB), 0);
  EXPECT_EQ(ftruncate(third.get(), 5 * kMiB), 0);
  model[2].resize(3 * kMiB);
  model[2].resize(5 * kMiB);
  EXPECT_TRUE(ReadAll(from) == model[0]);
  EXPECT_TRUE(ReadAll(to) == model[1]);
  EXPECT_TRUE(ReadAll(third) == model[2]);
  EXPECT_EQ(unlink(At("to").c_str()), 0);
  EXPECT_EQ(fallocate(from.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 100, 3 * kMiB), 0);
  for (uint64_t i = 100; i < 3 * kMiB + 100; ++i) model[0][i] = '\0';
  EXPECT_TRUE(ReadAll(from) == model[0]);
  EXPECT_TRUE(ReadAll(third) == model[2]);
}

TEST_P(CopyTest, ALimitOfTheFileSizeHolds) {
  const UniqueFd from = Open(At("from"));
  Write(from, 0, Pattern(2 * kMiB, 1));
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{kMiB, kMiB};
    const UniqueFd to = Open(At("to"));
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) _exit(9);
    if (Copy(from, 0, to, 0, 2 * kMiB) != static_cast<int64_t>(kMiB)) _exit(1);
    _exit(Copy(from, kMiB, to, kMiB, kMiB) == -EFBIG ? 0 : 2);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST_P(CopyTest, CpAsItIs) {
  const UniqueFd from = Open(At("from"));
  Write(from, 0, Pattern(3 * kMiB + 5, 1));
  Write(from, 9 * kMiB, Pattern(2 * kMiB + 100, 2));
  for (const std::string how : {"auto", "never"}) {
    EXPECT_EQ(system(("cp --reflink=" + how + " " + At("from") + " " + At(how)).c_str()), 0);
    EXPECT_TRUE(ReadAll(Open(At(how), O_RDONLY)) == ReadAll(from)) << how;
  }
  // Neither filesystem supports this, and both report that.
  EXPECT_NE(system(("cp --reflink=always " + At("from") + " " + At("always") + " 2>/dev/null").c_str()), 0);
  const UniqueFd to = Open(At("ficlone"));
  EXPECT_EQ(ioctl(to.get(), FICLONE, from.get()), -1);
  EXPECT_EQ(errno, EOPNOTSUPP);
}

TEST_P(CopyTest, AFullPoolEndsACopyHalfWay) {
  if (!FillsPools()) GTEST_SKIP();
  const UniqueFd from = Open(At("from")), to = Open(At("to"));
  Write(from, 0, Pattern(48 * kMiB, 1));
  EXPECT_EQ(fsync(from.get()), 0);
  int64_t sum = 0, n = 0;
  // Not to the same place, so that the bytes are copied.
  while (sum < 1'000'000'000 && (n = Copy(from, 0, to, 4'096 + sum, 48 * kMiB)) > 0) sum += n;
  EXPECT_EQ(n, -ENOSPC);
  EXPECT_GE(sum, static_cast<int64_t>(48 * kMiB));
  struct stat attr {};
  EXPECT_EQ(fstat(to.get(), &attr), 0);
  EXPECT_EQ(attr.st_size, 4'096 + sum) << "the file ends with what was copied";
  EXPECT_EQ(ftruncate(to.get(), 4'096 + 48 * kMiB), 0);
  EXPECT_TRUE(ReadAll(to).substr(4'096) == Pattern(48 * kMiB, 1));
  EXPECT_TRUE(ReadAll(from) == Pattern(48 * kMiB, 1));
}

TEST_P(CopyTest, ACopyOfMoreThanThePoolHas) {
  if (!FillsPools()) GTEST_SKIP();
  const UniqueFd from = Open(At("from"));
  Write(from, 0, Pattern(32 * kMiB, 1));
  std::vector<UniqueFd> copies;
  for (int i = 0; i < 12; ++i) {
    copies.push_back(Open(At("copy" + std::to_string(i))));
    ASSERT_EQ(Copy(from, 0, copies.back(), 0, 32 * kMiB), static_cast<int64_t>(32 * kMiB));
    Write(copies.back(), static_cast<uint64_t>(i) * kMiB, Pattern(kMiB, 100 + static_cast<uint64_t>(i)));
    EXPECT_EQ(fsync(copies.back().get()), 0);
  }
  for (size_t i = 0; i < copies.size(); ++i) {
    std::string model = Pattern(32 * kMiB, 1);
    model.replace(i * kMiB, kMiB, Pattern(kMiB, 100 + i));
    EXPECT_TRUE(ReadAll(copies[i]) == model) << i;
  }
}

}  // namespace
}  // namespace nram
