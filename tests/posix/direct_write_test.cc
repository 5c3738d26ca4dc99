// Many asynchronous writes past the page cache, beside readers and a writer through it: nothing hangs, and in the end
// all readers get the last write. A mount whose daemon has few threads lets the kernel have few asynchronous requests
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

// Writes random blocks of a file, except the first one, kDepth at once and past the page cache. One thread uses it.
class AsyncWriter {
 public:
  // Writes to `direct`, and keeps the expected contents of the file in `expected`. Both must outlive it.
  AsyncWriter(int direct, std::string* expected)
      : direct_(direct), expected_(expected), memory_((kDepth + 1) * kBlockBytes), slots_(kDepth) {
    aligned_ = memory_.data() + (kPageBytes - reinterpret_cast<uintptr_t>(memory_.data()) % kPageBytes);
    for (int i = 0; i < kDepth; ++i) free_slots_.push_back(i);
  }
  // Blocks until no write is under way.
  ~AsyncWriter() {
    if (context_ != 0) syscall(SYS_io_destroy, context_);
  }
  AsyncWriter(const AsyncWriter&) = delete;
  AsyncWriter& operator=(const AsyncWriter&) = delete;

  void SetUp() { ASSERT_EQ(syscall(SYS_io_setup, kDepth, &context_), 0); }

  // Blocks until `writes` writes have ended, or none has for kPatienceS: then it sets `hangs`.
  void Run(int writes, bool* hangs) {
    for (int started = 0; started < writes || !under_way_.empty();) {
      while (started < writes && !free_slots_.empty()) {
        const uint64_t block = 1 + random_() % (kFileBytes / kBlockBytes - 1);
        if (under_way_.contains(block)) continue;
        ++started;
        ASSERT_NO_FATAL_FAILURE(Start(block, static_cast<char>('A' + started % 26)));
      }
      *hangs = !AwaitOne();
      if (*hangs) return;
    }
  }

 private:
  void Start(uint64_t block, char mark) {
    const int slot = free_slots_.back();
    free_slots_.pop_back();
    memset(aligned_ + slot * kBlockBytes, mark, kBlockBytes);
    memset(&(*expected_)[block * kBlockBytes], mark, kBlockBytes);
    iocb& write = slots_[slot] = {};
    write.aio_data = block;
    write.aio_lio_opcode = IOCB_CMD_PWRITE;
    write.aio_fildes = static_cast<uint32_t>(direct_);
    write.aio_buf = reinterpret_cast<uint64_t>(aligned_ + slot * kBlockBytes);
    write.aio_nbytes = kBlockBytes;
    write.aio_offset = static_cast<int64_t>(block * kBlockBytes);
    iocb* list[] = {&write};
    ASSERT_EQ(syscall(SYS_io_submit, context_, 1, list), 1) << strerror(errno);
    under_way_[block] = slot;
  }

  // False if no write has ended for kPatienceS.
  bool AwaitOne() {
    io_event event{};
    timespec patience{kPatienceS, 0};
    if (syscall(SYS_io_getevents, context_, 1, 1, &event, &patience) != 1) return false;
    EXPECT_EQ(event.res, static_cast<int64_t>(kBlockBytes));
    free_slots_.push_back(under_way_.at(event.data));
    under_way_.erase(event.data);
    return true;
  }

  const int direct_;
  std::string* const expected_;
  aio_context_t context_ = 0;
  std::mt19937_64 random_{TestSeed()};
  std::vector<char> memory_;
  char* aligned_ = nullptr;  // in memory_
  // If two writes of one block run at the same time, either may be the last: so there is one at a time.
  std::map<uint64_t, int> under_way_;  // slots by blocks
  std::vector<iocb> slots_;
  std::vector<int> free_slots_;
};

class DirectWriteTest : public ::testing::TestWithParam<int> {
 protected:
  DirectWriteTest() : mount_({"--pool=" + pool_.spec(), absl::StrCat("--threads=", GetParam())}) {}
  ~DirectWriteTest() override { StopOthers(); }

  UniqueFd Open(int flags) { return UniqueFd(open(path_.c_str(), flags | O_CLOEXEC, 0644)); }

  void CreateFile() {
    const UniqueFd fd = Open(O_RDWR | O_CREAT);
    ASSERT_EQ(write(fd.get(), expected_.data(), expected_.size()), static_cast<ssize_t>(kFileBytes));
    ASSERT_EQ(fsync(fd.get()), 0);
  }

  // Through the page cache, until StopOthers().
  void StartReader() {
    others_.emplace_back([this] {
      const UniqueFd fd = Open(O_RDONLY);
      std::vector<char> buffer(kMiB);
      while (!stop_) {
        for (uint64_t at = 0; at < kFileBytes && !stop_; at += buffer.size()) {
          if (pread(fd.get(), buffer.data(), buffer.size(), static_cast<off_t>(at)) < 0) return;  // aborted
        }
      }
    });
  }
  // Through the page cache, until StopOthers(). Only this thread writes the first block.
  void StartWriterOfFirstBlock() {
    others_.emplace_back([this] {
      const UniqueFd fd = Open(O_RDWR);
      const std::vector<char> block(kBlockBytes, 'b');
      while (!stop_ && pwrite(fd.get(), block.data(), block.size(), 0) > 0 && fsync(fd.get()) == 0) {
      }
    });
    expected_.replace(0, kBlockBytes, kBlockBytes, 'b');
  }
  void StopOthers() {
    stop_ = true;
    for (std::thread& other : others_) other.join();
    others_.clear();
  }

  void ExpectTheLastWrites() {
    std::string got(kFileBytes, '?');
    const int64_t deadline_ns = DeadlineAfterMs(20'000);
    // Ranges that are dropped without a waiter are dropped by now, or soon will be.
    do {
      const UniqueFd fd = Open(O_RDONLY);
      ASSERT_EQ(pread(fd.get(), got.data(), got.size(), 0), static_cast<ssize_t>(kFileBytes));
    } while (got != expected_ && MonotonicNs() < deadline_ns);
    EXPECT_TRUE(got == expected_) << "stale";
  }

  PoolForTest pool_;
  NramMount mount_;
  const std::string path_ = mount_.path() + "/f";
  std::string expected_ = std::string(kFileBytes, 'a');  // the file's contents in the end
  std::atomic<bool> stop_{false};
  std::vector<std::thread> others_;
};
INSTANTIATE_TEST_SUITE_P(Threads, DirectWriteTest, ::testing::Values(4, 16));

TEST_P(DirectWriteTest, NothingHangsAndTheLastOneIsRead) {
  ASSERT_NO_FATAL_FAILURE(CreateFile());
  for (int t = 0; t < 3; ++t) StartReader();
  StartWriterOfFirstBlock();
  const UniqueFd direct = Open(O_RDWR | O_DIRECT);
  ASSERT_TRUE(direct.valid()) << strerror(errno);
  bool hangs = false;
  {
    AsyncWriter writer(direct.get(), &expected_);
    ASSERT_NO_FATAL_FAILURE(writer.SetUp());
    ASSERT_NO_FATAL_FAILURE(writer.Run(kWrites, &hangs));
    if (hangs) Abort(mount_.path());
    StopOthers();
  }
  ASSERT_FALSE(hangs) << "no write has ended for " << kPatienceS << " s";
  ExpectTheLastWrites();
}

}  // namespace
}  // namespace nram
