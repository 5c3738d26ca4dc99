// Many asynchronous writes past the page cache, beside readers and a writer through it: nothing hangs, and in the end
// everybody reads the last write. A mount whose daemon has few threads lets the kernel have few asynchronous requests
// at once: there these are most likely to wait for each other.

#include <errno.h>
#include <fcntl.h>
#include <linux/aio_abi.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/test_seed.h"
#include "base/units.h"
#include "tests/util/test_mount.h"

namespace nram {
namespace {

constexpr uint64_t kFileBytes = 8 * kMiB;
constexpr uint64_t kBlockBytes = 64 * kKiB;
constexpr int kDepth = 16;
constexpr int kWrites = 3'000;
constexpr int kPatienceS = 120;

// Aborts the connection of a mount that hangs, so that the test and its processes end.
void Abort(const std::string& path) {
  struct stat attr {};
  if (stat(path.c_str(), &attr) != 0) return;
  std::ofstream(absl::StrCat("/sys/fs/fuse/connections/", minor(attr.st_dev), "/abort")) << "1";
}

class DirectWriteTest : public ::testing::TestWithParam<int> {
 protected:
  DirectWriteTest() : mount_({"--pool=" + pool_.spec(), absl::StrCat("--threads=", GetParam())}) {}
  UniqueFd Open(int flags) { return UniqueFd(open(path_.c_str(), flags | O_CLOEXEC, 0644)); }

  PoolForTest pool_;
  NramMount mount_;
  const std::string path_ = mount_.path() + "/f";
};
INSTANTIATE_TEST_SUITE_P(Threads, DirectWriteTest, ::testing::Values(4, 16));

TEST_P(DirectWriteTest, NothingHangsAndTheLastOneIsRead) {
  std::string expected(kFileBytes, 'a');
  {
    const UniqueFd fd = Open(O_RDWR | O_CREAT);
    ASSERT_EQ(write(fd.get(), expected.data(), expected.size()), static_cast<ssize_t>(kFileBytes));
    ASSERT_EQ(fsync(fd.get()), 0);
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> others;
  for (int t = 0; t < 3; ++t) {
    others.emplace_back([&] {
      const UniqueFd fd = Open(O_RDONLY);
      std::vector<char> buffer(kMiB);
      while (!stop) {
        for (uint64_t at = 0; at < kFileBytes && !stop; at += buffer.size()) {
          if (pread(fd.get(), buffer.data(), buffer.size(), static_cast<off_t>(at)) < 0) return;  // aborted
        }
      }
    });
  }
  // Only this thread writes the first block.
  others.emplace_back([&] {
    const UniqueFd fd = Open(O_RDWR);
    const std::vector<char> block(kBlockBytes, 'b');
    while (!stop && pwrite(fd.get(), block.data(), block.size(), 0) > 0 && fsync(fd.get()) == 0) {
    }
  });
  const UniqueFd direct = Open(O_RDWR | O_DIRECT);
  ASSERT_TRUE(direct.valid()) << strerror(errno);
  aio_context_t context = 0;
  ASSERT_EQ(syscall(SYS_io_setup, kDepth, &context), 0);
  std::mt19937_64 random(TestSeed());
  const uint64_t blocks = kFileBytes / kBlockBytes;
  std::vector<char> memory((kDepth + 1) * kBlockBytes);
  char* const aligned = memory.data() + (kPageBytes - reinterpret_cast<uintptr_t>(memory.data()) % kPageBytes);
  // If two writes of one block run at the same time, either may be the last: so there is one at a time.
  std::map<uint64_t, int> under_way;
  std::vector<iocb> slots(kDepth);
  std::vector<int> free_slots;
  for (int i = 0; i < kDepth; ++i) free_slots.push_back(i);
  bool hangs = false;
  for (int started = 0; started < kWrites || !under_way.empty();) {
    while (started < kWrites && !free_slots.empty()) {
      const uint64_t block = 1 + random() % (blocks - 1);
      if (under_way.contains(block)) continue;
      const int slot = free_slots.back();
      free_slots.pop_back();
      const char mark = static_cast<char>('A' + ++started % 26);
      memset(aligned + slot * kBlockBytes, mark, kBlockBytes);
      memset(&expected[block * kBlockBytes], mark, kBlockBytes);
      iocb& write = slots[slot] = {};
      write.aio_data = block;
      write.aio_lio_opcode = IOCB_CMD_PWRITE;
      write.aio_fildes = static_cast<uint32_t>(direct.get());
      write.aio_buf = reinterpret_cast<uint64_t>(aligned + slot * kBlockBytes);
      write.aio_nbytes = kBlockBytes;
      write.aio_offset = static_cast<int64_t>(block * kBlockBytes);
      iocb* list[] = {&write};
      ASSERT_EQ(syscall(SYS_io_submit, context, 1, list), 1) << strerror(errno);
      under_way[block] = slot;
    }
    io_event event{};
    timespec patience{kPatienceS, 0};
    if (syscall(SYS_io_getevents, context, 1, 1, &event, &patience) != 1) {
      hangs = true;
      Abort(mount_.path());
      break;
    }
    EXPECT_EQ(event.res, static_cast<int64_t>(kBlockBytes));
    free_slots.push_back(under_way.at(event.data));
    under_way.erase(event.data);
  }
  stop = true;
  for (std::thread& other : others) other.join();
  syscall(SYS_io_destroy, context);
  ASSERT_FALSE(hangs) << "no write has ended for " << kPatienceS << " s";
  // Ranges that are dropped without a waiter are gone by now, or in a moment.
  const std::string first(kBlockBytes, 'b');
  expected.replace(0, kBlockBytes, first);
  std::string got(kFileBytes, '?');
  const int64_t deadline_ns = DeadlineAfterMs(20'000);
  do {
    const UniqueFd fd = Open(O_RDONLY);
    ASSERT_EQ(pread(fd.get(), got.data(), got.size(), 0), static_cast<ssize_t>(kFileBytes));
  } while (got != expected && MonotonicNs() < deadline_ns);
  EXPECT_TRUE(got == expected) << "stale";
}

}  // namespace
}  // namespace nram
