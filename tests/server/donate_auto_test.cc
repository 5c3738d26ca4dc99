// --donate=auto, end to end: when its host (a memory cgroup) fills, a server takes nothing more and keeps its data.
// When the host has room, it takes again.

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/host/host_memory.h"
#include "client/pool/pool.h"
#include "client/pool/pool_spec.h"
#include "gtest/gtest.h"
#include "tools/nram/local_pool.h"

namespace nram {
namespace {

bool WriteTo(const std::string& path, const std::string& text) {
  FILE* const file = fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  const bool written = fputs(text.c_str(), file) >= 0;
  return fclose(file) == 0 && written;
}

// This process and its children, in a memory cgroup of their own.
class MemoryGroup {
 public:
  explicit MemoryGroup(uint64_t limit_bytes) {
    const std::string groups = ReadFile("/proc/self/cgroup").value_or("");
    for (const absl::string_view line : absl::StrSplit(groups, '\n')) {
      const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
      if (parts.size() == 3 && parts[1] == "memory") former_ = absl::StrCat(kRoot, parts[2], "/cgroup.procs");
    }
    path_ = absl::StrCat(kRoot, "/nram-donate-test-", getpid());
    entered_ = !former_.empty() && mkdir(path_.c_str(), 0755) == 0 &&
               WriteTo(path_ + "/memory.limit_in_bytes", absl::StrCat(limit_bytes)) &&
               WriteTo(path_ + "/cgroup.procs", absl::StrCat(getpid()));
  }
  ~MemoryGroup() {
    if (entered_) {
      EXPECT_TRUE(WriteTo(former_, absl::StrCat(getpid())));
    }
    // A process that has just ended may still count as a member.
    for (const int64_t deadline_ns = DeadlineAfterMs(10'000); rmdir(path_.c_str()) != 0 && errno == EBUSY;) {
      if (MonotonicNs() > deadline_ns) break;
      poll(nullptr, 0, 10);
    }
  }
  bool entered() const { return entered_; }

 private:
  static constexpr const char* kRoot = "/sys/fs/cgroup/memory";
  std::string path_;
  std::string former_;
  bool entered_ = false;
};

// A process that holds `bytes` of memory until it is destroyed.
class Hog {
 public:
  explicit Hog(uint64_t bytes) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      void* const memory =
          mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
      (void)!write(ends[1], memory == MAP_FAILED ? "n" : "y", 1);
      while (true) pause();
    }
    close(ends[1]);
    char has = 'n';
    EXPECT_EQ(read(ends[0], &has, 1), 1);
    EXPECT_EQ(has, 'y');
    close(ends[0]);
  }
  ~Hog() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

 private:
  pid_t pid_ = -1;
};

class DonateAutoTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kHostBytes = kGiB;

  ~DonateAutoTest() override {
    pool_.reset();
    if (!local_.directory.empty()) (void)StopLocalPool(local_.directory, 5'000);
  }
  uint64_t FreeBytes() {
    const auto statistics = pool_->session(0)->control()->GetStatistics(DeadlineAfterMs(20'000));
    EXPECT_TRUE(statistics.ok()) << statistics.status();
    return statistics.ok() ? statistics->capacity.free_bytes : 0;
  }
  template <typename Wanted>
  bool AwaitFree(const Wanted& wanted) {
    for (const int64_t deadline_ns = DeadlineAfterMs(60'000); MonotonicNs() < deadline_ns;) {
      if (wanted(FreeBytes())) return true;
      poll(nullptr, 0, 50);
    }
    return false;
  }

  MemoryGroup host_{kHostBytes};
  LocalPoolOptions local_;
  std::unique_ptr<Pool> pool_;
};

TEST_F(DonateAutoTest, TakesWhatTheHostCanSpareAndStopsWhenItCannot) {
  if (!host_.entered()) GTEST_SKIP() << "needs root and memory cgroups of version 1";
  local_.directory = ::testing::TempDir() + "/auto";
  local_.servers = 1;
  local_.server_flags = {"--donate=auto", "--reserve=256M"};
  local_.die_with_parent = true;
  local_.tcp = true;
  const auto servers = StartLocalPool(local_);
  ASSERT_TRUE(servers.ok()) << servers.status();
  PoolOptions options;
  options.servers = ParsePoolSpec("@" + local_.directory + "/pool").value();
  pool_ = Pool::Open(options).value();

  const uint64_t at_first = FreeBytes();
  ASSERT_GT(at_first, 500 * kMiB) << "the host's, less the reserve and the server itself";
  ASSERT_LT(at_first, kHostBytes - 256 * kMiB);
  auto region = pool_->CreateRegion({.gc = true}).value();
  const std::vector<std::byte> data(kMiB, std::byte{7});
  for (uint64_t at = 0; at < 64 * kMiB; at += kMiB) ASSERT_TRUE(region->Write(at, data).ok());
  {
    Hog hog(720 * kMiB);
    // Only free frames of its existing extents are left.
    EXPECT_TRUE(AwaitFree([](uint64_t free_bytes) { return free_bytes < 16 * kMiB; }));
    // The server takes nothing beyond its reservations, and keeps all that it took.
    const IoOptions soon{.timeout_ms = 5'000};
    uint64_t at = 64 * kMiB;
    while (at < 256 * kMiB && region->Write(at, data, soon).ok()) at += kMiB;
    EXPECT_LT(at, 128 * kMiB);
    std::vector<std::byte> back(kMiB);
    for (uint64_t i = 0; i < 64 * kMiB; i += kMiB) {
      ASSERT_TRUE(region->Read(i, absl::MakeSpan(back)).ok());
      ASSERT_EQ(back, data);
      ASSERT_TRUE(region->Write(i, data).ok()) << "there is always room to write over";
    }
  }
  EXPECT_TRUE(AwaitFree([](uint64_t free_bytes) { return free_bytes > 300 * kMiB; }));
  // The client hears of the room with its next renewal.
  const int64_t deadline_ns = DeadlineAfterMs(60'000);
  for (uint64_t at = 128 * kMiB; at < 256 * kMiB; at += kMiB) {
    absl::Status written = region->Write(at, data);
    while (absl::IsResourceExhausted(written) && MonotonicNs() < deadline_ns) {
      poll(nullptr, 0, 50);
      written = region->Write(at, data);
    }
    ASSERT_TRUE(written.ok()) << at << ": " << written;
  }
}

}  // namespace
}  // namespace nram
