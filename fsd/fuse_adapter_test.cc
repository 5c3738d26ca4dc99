// Requests that the adapter reads without libfuse, and small asynchronous requests.

#include "fsd/fuse_adapter.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/sync.h"
#include "base/test_seed.h"
#include "fsd/fuse_mount.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

TEST(FuseAdapterTest, ArbitraryRequestsGetOneReplyOrNone) {
  std::mt19937_64 random(TestSeed());
  const auto store = NewMemoryStore(kMiB);
  FilesystemOptions options;
  options.names.inodes_max = 100;
  Filesystem filesystem(store.get(), options);
  FuseAdapter adapter(&filesystem, {});
  FuseWorker worker;
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd reader(ends[0]), writer(ends[1]);
  int made = 0;
  for (int i = 0; i < 20'000; ++i) {
    const size_t bytes = sizeof(fuse_in_header) + random() % 64;
    for (size_t at = 0; at < 256; ++at) worker.request()[at] = static_cast<std::byte>(random());
    fuse_in_header header{};
    memcpy(&header, worker.request(), sizeof header);
    if (random() % 4 != 0) header.opcode = random() % 2 == 0 ? 51 : header.opcode % 64;
    if (random() % 2 == 0) header.nodeid = random() % 3;
    memcpy(worker.request(), &header, sizeof header);
    const bool handled = adapter.HandleUnknown(writer.get(), worker, bytes);
    EXPECT_EQ(handled, header.opcode == 51 && bytes >= sizeof header + sizeof(fuse_create_in));
    char reply[1024];
    const ssize_t n = read(reader.get(), reply, sizeof reply);
    if (!handled) {
      EXPECT_EQ(n, -1);
      continue;
    }
    fuse_out_header out{};
    ASSERT_GE(n, static_cast<ssize_t>(sizeof out));
    memcpy(&out, reply, sizeof out);
    EXPECT_EQ(out.len, static_cast<uint32_t>(n));
    EXPECT_EQ(out.unique, header.unique);
    made += out.error == 0;
  }
  EXPECT_EQ(made, 99) << "as many as there may be inodes beside the root";
}

TEST(FuseAdapterTest, ASitesLimitForRequestsIsAsLongAsItMayBe) {
  EXPECT_EQ(ChooseRequestTimeout(0, 0, 0), 0) << "no limit";
  EXPECT_EQ(ChooseRequestTimeout(60, 0, 0), 60);
  EXPECT_EQ(ChooseRequestTimeout(0, 20, 0), 65'535) << "the default is for mounts that ask for nothing";
  EXPECT_EQ(ChooseRequestTimeout(60, 20, 0), 60);
  EXPECT_EQ(ChooseRequestTimeout(0, 20, 100), 100);
  EXPECT_EQ(ChooseRequestTimeout(60, 20, 100), 60);
  EXPECT_EQ(ChooseRequestTimeout(60, 0, 30), 30) << "the kernel gives no more";
}

TEST(FuseMountTest, ASubvolumeIsNoMount) {
  EXPECT_FALSE(IsMountedOn({.device = 5, .mount = 30}, {.device = 5, .mount = 30}));
  EXPECT_TRUE(IsMountedOn({.device = 6, .mount = 31}, {.device = 5, .mount = 30}));
  EXPECT_FALSE(IsMountedOn({.device = 6, .mount = 30}, {.device = 5, .mount = 30})) << "as of btrfs";
  EXPECT_TRUE(IsMountedOn({.device = 6}, {.device = 5})) << "the mounts are unknown";
  EXPECT_FALSE(IsMountedOn({.device = 5}, {.device = 5}));
}

TEST(FuseAdapterTest, TheKernelsThatSayWhenAPageIsWrittenBack) {
  for (const char* release : {"6.16.0", "6.16", "6.18.44-fc-v595", "6.16-rc1", "7.0.1", "10.2.0+"}) {
    EXPECT_TRUE(KernelFindsHoles(release)) << release;
  }
  for (const char* release : {"6.1.0-37-amd64", "6.12.43+deb13-amd64", "6.15.9", "5.20.1", "", "6", "x.16", "6.x"}) {
    EXPECT_FALSE(KernelFindsHoles(release)) << release;
  }
}

TEST(WriteThroughTest, FromTheMarginOnUntilThereIsRoomForSomeTime) {
  WriteThroughRule rule(100);
  EXPECT_FALSE(rule.Decide(1'000, false));
  EXPECT_FALSE(rule.Decide(100, false)) << "the margin itself is enough";
  EXPECT_TRUE(rule.Decide(99, false));
  EXPECT_TRUE(rule.Decide(199, false)) << "not yet twice";
  for (int round = 0; round < 2; ++round) {
    for (int look = 1; look < WriteThroughRule::kCalmLooks; ++look) EXPECT_TRUE(rule.Decide(200, false)) << look;
    EXPECT_EQ(rule.Decide(round == 0 ? 150 : 200, false), round == 0);
  }
  // The news of a pool's room may be old: a write that finds none knows better.
  EXPECT_TRUE(rule.Decide(1'000, true));
  for (int look = 1; look < WriteThroughRule::kCalmLooks; ++look) EXPECT_TRUE(rule.Decide(1'000, false)) << look;
}

TEST(WriteThroughTest, TheKernelIsAskedOncePerChangeAndNotAgainOnceItRefuses) {
  for (const bool refuses : {false, true}) {
    std::atomic<uint64_t> room{1'000 * kMiB};
    Mutex mu;
    CondVar changed;
    std::vector<bool> asked;
    WriteThrough through(
        100 * kMiB, [&] { return room.load(); },
        [&](bool on) {
          MutexLock lock(&mu);
          asked.push_back(on);
          changed.SignalAll();
          return !refuses;
        });
    const auto await = [&](size_t count) {
      const int64_t deadline_ns = DeadlineAfterMs(60'000);
      MutexLock lock(&mu);
      while (asked.size() < count && changed.WaitUntil(&mu, deadline_ns)) {
      }
      EXPECT_EQ(asked.size(), count);
    };
    through.NoteWritten(WriteThrough::kLookBytes);
    room = 99 * kMiB;
    through.NoteWritten(WriteThrough::kLookBytes - 1);
    await(0);
    through.NoteWritten(1);
    await(1);
    for (int i = 0; i < 10; ++i) through.NoteFull();
    room = 1'000 * kMiB;
    for (int i = 0; i < 2 * WriteThroughRule::kCalmLooks; ++i) through.NoteWritten(WriteThrough::kLookBytes);
    if (!refuses) await(2);
    through.Stop();
    through.NoteFull();
    EXPECT_EQ(asked, refuses ? std::vector<bool>{true} : (std::vector<bool>{true, false}));
  }
}

// A store that keeps the asynchronous operations until the test ends them.
class HoldingStore : public BlockStore {
 public:
  absl::StatusOr<std::unique_ptr<BlockFile>> Create() override { return std::make_unique<File>(this); }
  void Destroy(std::vector<std::unique_ptr<BlockFile>> files) override { files.clear(); }
  StoreCapacity Capacity() const override { return {kMiB, kMiB}; }
  std::vector<BlockIo*> TakeHeld() {
    MutexLock lock(&mu_);
    return std::exchange(held_, {});
  }

 private:
  class File : public BlockFile {
   public:
    explicit File(HoldingStore* store) : store_(store) {}
    bool Start(BlockIo* io) override {
      if (io->waited_for()) {
        io->End(absl::OkStatus());
      } else {
        MutexLock lock(&store_->mu_);
        store_->held_.push_back(io);
      }
      return true;
    }
    absl::Status Trim(uint64_t, uint64_t) override { return absl::OkStatus(); }
    absl::Status Reserve(uint64_t, uint64_t) override { return absl::OkStatus(); }

   private:
    HoldingStore* const store_;
  };

  Mutex mu_;
  std::vector<BlockIo*> held_ ABSL_GUARDED_BY(mu_);
};

std::atomic<int> replies{0};
std::atomic<int> errors{0};

ssize_t CountReply(int, iovec* pieces, int count, void*) {
  size_t bytes = 0;
  for (int i = 0; i < count; ++i) bytes += pieces[i].iov_len;
  fuse_out_header header;
  memcpy(&header, pieces[0].iov_base, sizeof header);
  if (header.error != 0) ++errors;
  ++replies;
  return static_cast<ssize_t>(bytes);
}

class SmallRequestsTest : public ::testing::Test {
 protected:
  SmallRequestsTest() : filesystem_(&store_, {}), adapter_(&filesystem_, {}) {
    replies = errors = 0;
    char name[] = "test";
    char* argv[] = {name, nullptr};
    fuse_args args = FUSE_ARGS_INIT(1, argv);
    session_ = fuse_session_new(&args, &FuseAdapter::Operations(), sizeof(fuse_lowlevel_ops), &adapter_);
    fuse_opt_free_args(&args);
    adapter_.set_session(session_);
    const fuse_custom_io io{.writev = &CountReply,
                            .read = [](int, void*, size_t, void*) -> ssize_t { return -1; },
                            .splice_receive = nullptr,
                            .splice_send = nullptr};
    EXPECT_EQ(fuse_session_custom_io(session_, &io, open("/dev/null", O_RDWR | O_CLOEXEC)), 0);
    worker_.MakeCurrent();
    fuse_init_in init{};
    init.major = FUSE_KERNEL_VERSION;
    init.minor = FUSE_KERNEL_MINOR_VERSION;
    Handle(FUSE_INIT, init);
    InodeAttr attr;
    EXPECT_EQ(filesystem_.names()->Create(kRootInode, "f", S_IFREG | 0644, 0, {}, &attr), Errno::kOk);
    file_ = attr.st_ino;
    std::vector<std::byte> bytes(3 * kPageBytes);
    EXPECT_EQ(filesystem_.Write(file_, 0, {bytes.data() + kPageBytes, kPageBytes}, {}, SetIdBits::kKeep), Errno::kOk);
    replies = errors = 0;
  }
  ~SmallRequestsTest() override {
    adapter_.StopAside();
    adapter_.AwaitSmall();
    fuse_session_destroy(session_);  // closes its descriptor
  }

  template <typename Body>
  void Handle(uint32_t opcode, const Body& body) {
    fuse_in_header header{};
    header.len = sizeof header + sizeof body;
    header.opcode = opcode;
    header.unique = ++unique_ * 2;
    header.nodeid = file_;
    memcpy(worker_.request(), &header, sizeof header);
    memcpy(worker_.request() + sizeof header, &body, sizeof body);
    fuse_buf buffer{};
    buffer.mem = worker_.request();
    buffer.size = header.len;
    fuse_session_process_buf(session_, &buffer);
  }
  void Read() {
    fuse_read_in in{};
    in.size = kPageBytes;
    in.flags = O_NOATIME;
    Handle(FUSE_READ, in);
  }

  HoldingStore store_;
  Filesystem filesystem_;
  FuseAdapter adapter_;
  FuseWorker worker_;
  fuse_session* session_ = nullptr;
  InodeNumber file_ = kRootInode;
  uint64_t unique_ = 0;
};

TEST_F(SmallRequestsTest, HandlesAreBoundedAndServeAgain) {
  constexpr int kHandles = 128;
  for (int round = 0; round < 3; ++round) {
    replies = errors = 0;
    for (int i = 0; i < kHandles; ++i) Read();
    EXPECT_EQ(replies, 0);
    Read();
    EXPECT_EQ(replies, 1) << "without a handle, the worker waits itself";
    const std::vector<BlockIo*> held = store_.TakeHeld();
    ASSERT_EQ(held.size(), static_cast<size_t>(kHandles));
    std::promise<void> all;
    std::future<void> awaited = all.get_future();
    std::thread waiter([&] {
      adapter_.AwaitSmall();
      all.set_value();
    });
    // Threads end all but one of them concurrently, and one in two fails.
    std::vector<std::thread> enders;
    for (size_t first = 0; first < 4; ++first) {
      enders.emplace_back([&, first] {
        for (size_t i = first; i + 1 < held.size(); i += 4) {
          held[i]->End(i % 2 == 0 ? absl::OkStatus() : absl::UnavailableError("told to"));
        }
      });
    }
    for (std::thread& ender : enders) ender.join();
    EXPECT_EQ(replies, kHandles);
    EXPECT_EQ(awaited.wait_for(std::chrono::milliseconds(10)), std::future_status::timeout) << "one is under way";
    held.back()->End(absl::OkStatus());
    EXPECT_EQ(awaited.wait_for(std::chrono::minutes(1)), std::future_status::ready);
    waiter.join();
    EXPECT_EQ(replies, kHandles + 1);
    EXPECT_EQ(errors, kHandles / 2 - 1);
  }
}

}  // namespace
}  // namespace nram
