// Random operations on a mount whose network drops, delays, repeats, corrupts, cuts and stops, against a model. A read
// gives the written data or EIO, never anything else. After an fsync that succeeded the written data is there.

#include <errno.h>
#include <fcntl.h>
#include <glog/logging.h>
#include <linux/falloc.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/poll_until.h"
#include "base/test_seed.h"
#include "base/units.h"
#include "fsd/filesystem.h"
#include "fsd/fuse_mount.h"
#include "fsd/pool_store.h"
#include "tests/util/faulty_relay.h"
#include "tests/util/test_mount.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

constexpr int64_t kRunMs = 8'000;
constexpr uint64_t kFileBytes = 3 * kSpanBytes;
constexpr uint64_t kChunks = kFileBytes / kChunkBytes;

// A file and the versions that each of its chunks may hold: written ones, and 0 for zeros. A chunk of version v has v
// in all of its words.
class FileUnderTest {
 public:
  FileUnderTest(const std::string& path, uint64_t seed) : path_(path), random_(seed), chunks_(kChunks) {
    cached_ = UniqueFd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
    direct_ = UniqueFd(open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
    PCHECK(cached_.valid() && direct_.valid() && ftruncate(cached_.get(), kFileBytes) == 0);
    PCHECK(posix_memalign(&buffer_, kPageBytes, kBufferBytes) == 0);
  }
  ~FileUnderTest() { free(buffer_); }

  void Step() {
    const uint64_t what = random_() % 20;
    if (what < 6) return Write(cached_.get(), false);
    if (what < 9) return Write(direct_.get(), true);
    if (what < 13) return Read(cached_.get(), false);
    if (what < 16) return Read(direct_.get(), true);
    if (what < 17) return Sync();
    if (what < 18) return Punch();
    if (what < 19) return Truncate();
    // Data that is not cached must be the same.
    (void)posix_fadvise(cached_.get(), 0, 0, POSIX_FADV_DONTNEED);
  }

  // Called when nothing fails any more: each chunk holds a version that it may hold, or has failed to be written back,
  // and new writes succeed.
  void CheckAtTheEnd() {
    Retry([&] { return fsync(cached_.get()) == 0; });
    for (const int fd : {direct_.get(), cached_.get()}) {
      for (uint64_t first = 0; first < kChunks; first += kChunksPerPage) ReadAt(fd, first, kChunksPerPage);
    }
    for (uint64_t first = 0; first < kChunks; first += kBufferBytes / kChunkBytes) {
      WriteAt(cached_.get(), first, kBufferBytes / kChunkBytes);
    }
    Sync();
    for (const Chunk& chunk : chunks_) EXPECT_EQ(chunk.may_be.size(), 1u);
    (void)posix_fadvise(cached_.get(), 0, 0, POSIX_FADV_DONTNEED);
    ReadAll();
  }

  int good_reads = 0;
  int errors = 0;

 private:
  static constexpr size_t kBufferBytes = 256 * kKiB;
  struct Chunk {
    std::set<uint64_t> may_be = {0};
    uint64_t last = 0;
    bool in_cache = false;  // `last` is in the page cache, and nothing has failed since
  };

  template <typename Done>
  void Retry(const Done& done) {
    EXPECT_TRUE(PollUntil(DeadlineAfterMs(60'000), 5, done)) << path_ << ": " << strerror(errno) << " for a minute";
  }
  // Picks whole pages if `pages`.
  void PickRange(bool pages, uint64_t* first, uint64_t* count) {
    const uint64_t unit = pages ? kChunksPerPage : 1;
    // Most ranges are in few places, so that operations meet.
    const uint64_t around = random_() % 4 * (kChunks / 4 - 7) / kChunksPerPage * kChunksPerPage;
    *first = std::min(around + random_() % 64 * unit, kChunks - unit);
    const uint64_t most = random_() % 6 == 0 ? kBufferBytes / kChunkBytes / unit : 24;
    *count = std::min((1 + random_() % most) * unit, kChunks - *first);
  }
  uint64_t* Words(uint64_t chunk) { return static_cast<uint64_t*>(buffer_) + chunk * (kChunkBytes / 8); }

  void Write(int fd, bool direct) {
    uint64_t first = 0, count = 0;
    PickRange(direct, &first, &count);
    WriteAt(fd, first, count);
  }
  void WriteAt(int fd, uint64_t first, uint64_t count) {
    const bool direct = fd == direct_.get();
    const uint64_t base = next_version_;
    next_version_ += count;
    for (uint64_t i = 0; i < count; ++i) std::fill_n(Words(i), kChunkBytes / 8, base + i);
    const ssize_t n = pwrite(fd, buffer_, count * kChunkBytes, static_cast<off_t>(first * kChunkBytes));
    if (n < 0) Failed("write");
    const uint64_t written = n < 0 ? 0 : static_cast<uint64_t>(n) / kChunkBytes;
    for (uint64_t i = 0; i < count; ++i) {
      Chunk& chunk = chunks_[first + i];
      const bool ok = i < written;
      if (ok && direct) chunk.may_be.clear();
      chunk.may_be.insert(base + i);
      chunk.last = base + i;
      chunk.in_cache = ok && !direct;
    }
  }
  void Read(int fd, bool direct) {
    uint64_t first = 0, count = 0;
    PickRange(direct, &first, &count);
    ReadAt(fd, first, count);
  }
  bool ReadAt(int fd, uint64_t first, uint64_t count) {
    const ssize_t n = pread(fd, buffer_, count * kChunkBytes, static_cast<off_t>(first * kChunkBytes));
    if (n < 0) {
      Failed("read");
      return false;
    }
    ++good_reads;
    // A read that meets an error after its beginning is short.
    EXPECT_GT(n, 0);
    for (uint64_t i = 0; i < static_cast<uint64_t>(n) / kChunkBytes; ++i) {
      const uint64_t* const words = Words(i);
      const Chunk& chunk = chunks_[first + i];
      EXPECT_EQ(std::count(words, words + kChunkBytes / 8, words[0]), static_cast<ptrdiff_t>(kChunkBytes / 8))
          << path_ << " chunk " << first + i << " is of two minds";
      EXPECT_EQ(chunk.may_be.count(words[0]), 1u)
          << path_ << " chunk " << first + i << " has " << words[0] << ", last written " << chunk.last;
    }
    return static_cast<uint64_t>(n) == count * kChunkBytes;
  }
  void ReadAll() {
    constexpr uint64_t kAtOnce = kBufferBytes / kChunkBytes;
    for (const int fd : {direct_.get(), cached_.get()}) {
      for (uint64_t first = 0; first < kChunks; first += kAtOnce) Retry([&] { return ReadAt(fd, first, kAtOnce); });
    }
  }
  void Sync() {
    const bool ok = fsync(cached_.get()) == 0;
    if (!ok) Failed("fsync");
    for (Chunk& chunk : chunks_) {
      if (ok && chunk.in_cache) chunk.may_be = {chunk.last};
      chunk.in_cache = false;
    }
  }
  void Zeroed(uint64_t first, uint64_t end, bool ok) {
    for (uint64_t i = first; i < end; ++i) {
      if (ok) chunks_[i].may_be.clear();
      chunks_[i].may_be.insert(0);
      chunks_[i].last = 0;
      chunks_[i].in_cache = false;
    }
  }
  void Punch() {
    uint64_t first = 0, count = 0;
    PickRange(false, &first, &count);
    const bool ok = fallocate(cached_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                              static_cast<off_t>(first * kChunkBytes), static_cast<off_t>(count * kChunkBytes)) == 0;
    if (!ok) Failed("punch");
    Zeroed(first, first + count, ok);
  }
  void Truncate() {
    const uint64_t first = kChunks / 2 + random_() % (kChunks / 2);
    const bool ok = ftruncate(cached_.get(), static_cast<off_t>(first * kChunkBytes)) == 0;
    if (!ok) Failed("truncate");
    Zeroed(first, kChunks, ok);
    Retry([&] { return ftruncate(cached_.get(), kFileBytes) == 0; });
  }
  void Failed(const char* what) {
    EXPECT_EQ(errno, EIO) << what << ": " << strerror(errno);
    ++errors;
  }

  const std::string path_;
  std::mt19937_64 random_;
  std::vector<Chunk> chunks_;
  UniqueFd cached_;
  UniqueFd direct_;
  void* buffer_ = nullptr;
  uint64_t next_version_ = 1;
};

void RunAgainstAModel(bool writeback, Seal seal = Seal::kNo) {
  TestPool servers(2, 256 * kMiB);
  std::vector<std::unique_ptr<FaultyRelay>> relays;
  for (int i = 0; i < 2; ++i) {
    relays.push_back(std::make_unique<FaultyRelay>(Endpoint{"127.0.0.1", servers.server(i).data_port(), ""},
                                                   TestSeed() + static_cast<uint64_t>(i)));
  }
  PoolOptions options = servers.Options();
  options.io_timeout_ms = 300;
  options.reroute_data_for_test = [&](size_t server, const Endpoint&) { return relays[server]->endpoint(); };
  const std::unique_ptr<Pool> pool = TestPool::Open(options);
  ASSERT_NE(pool, nullptr);
  const auto store = NewPoolStore(pool.get(), {.seal = seal});
  Filesystem filesystem(store.get(), {});
  const TempDir directory;
  FuseMountOptions mount_options;
  mount_options.directory = directory.path();
  mount_options.adapter.writeback = writeback;
  mount_options.poller = pool->poller();
  auto mount = FuseMount::Start(&filesystem, mount_options);
  ASSERT_TRUE(mount.ok()) << mount.status();
  {
    std::vector<std::unique_ptr<FileUnderTest>> files;
    for (uint64_t i = 0; i < 3; ++i) {
      files.push_back(std::make_unique<FileUnderTest>(absl::StrCat(directory.path(), "/", i), TestSeed() + 10 + i));
    }
    std::atomic<bool> stop{false};
    std::vector<std::thread> threads;
    for (const auto& file : files) {
      threads.emplace_back([&, under_test = file.get()] {
        while (!stop) under_test->Step();
      });
    }
    // Now and then a server cannot be reached at all; the messages' faults never stop.
    std::mt19937_64 random(TestSeed() + 99);
    for (const int64_t end_ns = DeadlineAfterMs(kRunMs); MonotonicNs() < end_ns;) {
      FaultyRelay& relay = *relays[random() % 2];
      relay.SetPlan({.drop = 0.002,
                     .repeat = 0.005,
                     .corrupt = 0.003,
                     .cut = 0.003,
                     .reorder = 0.005,
                     .delay = 0.02,
                     .delay_us_max = 2'000,
                     .lie = seal == Seal::kYes ? 0.02 : 0});
      poll(nullptr, 0, static_cast<int>(random() % 300));
      const bool down = random() % 2 == 0;
      down ? relay.SetDown(true) : relay.Hold(true);
      poll(nullptr, 0, static_cast<int>(random() % 600));
      down ? relay.SetDown(false) : relay.Hold(false);
    }
    stop = true;
    for (auto& thread : threads) thread.join();
    for (const auto& relay : relays) relay->SetPlan({});
    for (const auto& file : files) {
      file->CheckAtTheEnd();
      EXPECT_GT(file->good_reads, 10);
      std::cerr << file->good_reads << " reads, " << file->errors << " errors" << std::endl;
    }
  }
  EXPECT_GT(relays[0]->faults() + relays[1]->faults(), 20u);
  if (seal == Seal::kYes) {
    EXPECT_GT(relays[0]->lies() + relays[1]->lies(), 0u);
  }
  (*mount)->Unmount(10'000);
}

TEST(FaultyMountTest, GivesWhatWasWrittenOrAnError) { RunAgainstAModel(true); }
TEST(FaultyMountTest, WithoutWriteback) { RunAgainstAModel(false); }
TEST(FaultyMountTest, WithSealedPagesAndDonorsThatLie) { RunAgainstAModel(true, Seal::kYes); }

}  // namespace
}  // namespace nram
