// The one handle of a read or write. It ends before its start returns or on another thread, with success or an error,
// and serves again.

#include "fsd/block_file.h"

#include <chrono>
#include <future>
#include <memory>
#include <thread>
#include <vector>

#include "base/units.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

// Ends operations when, where and as the test says.
class TestFile : public BlockFile {
 public:
  enum class Where { kHere, kThread, kLater, kRefused };
  ~TestFile() override { JoinAll(); }

  bool Start(BlockIo* io) override {
    if (where == Where::kRefused && !io->waited_for()) return false;
    ++started;
    if (where == Where::kThread) {
      threads_.emplace_back([this, io] { io->End(result); });
    } else if (where == Where::kLater) {
      later = io;
    } else {
      io->End(result);
    }
    return true;
  }
  absl::Status Trim(uint64_t, uint64_t) override { return absl::OkStatus(); }
  absl::Status Reserve(uint64_t, uint64_t) override { return absl::OkStatus(); }
  void JoinAll() {
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }

  Where where = Where::kHere;
  absl::Status result;
  BlockIo* later = nullptr;
  int started = 0;

 private:
  std::vector<std::thread> threads_;
};

// An asynchronous handle; the test waits on it by other means.
struct CalledIo : BlockIo {
  CalledIo() : BlockIo(nullptr, &OnDone) {}
  static void OnDone(BlockIo* io) {
    auto* const self = static_cast<CalledIo*>(io);
    ++self->calls;
    self->ended.set_value(io->status());
  }
  absl::Status Await() {
    std::future<absl::Status> future = ended.get_future();
    if (future.wait_for(std::chrono::minutes(1)) != std::future_status::ready) return absl::UnknownError("no end");
    const absl::Status status = future.get();
    ended = {};
    return status;
  }
  std::promise<absl::Status> ended;
  int calls = 0;
};

class BlockIoTest : public ::testing::Test {
 protected:
  TestFile file_;
  std::vector<std::byte> bytes_{kPageBytes};
};

TEST_F(BlockIoTest, EndsBeforeItsStartReturns) {
  BlockIo waited;
  EXPECT_TRUE(file_.StartRead(&waited, 512, absl::MakeSpan(bytes_)));
  EXPECT_EQ(waited.op(), BlockIo::Op::kRead);
  EXPECT_EQ(waited.offset(), 512u);
  EXPECT_EQ(waited.end(), 512u + kPageBytes);
  EXPECT_TRUE(waited.Wait().ok());
  CalledIo called;
  EXPECT_TRUE(file_.StartWrite(&called, 1024, bytes_));
  EXPECT_EQ(called.calls, 1);
  EXPECT_EQ(called.op(), BlockIo::Op::kWrite);
  EXPECT_EQ(called.from().data(), bytes_.data());
  EXPECT_TRUE(called.Await().ok());
}

TEST_F(BlockIoTest, EndsOnAnotherThread) {
  file_.where = TestFile::Where::kThread;
  CalledIo called;
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(file_.Read(0, absl::MakeSpan(bytes_)).ok());
    EXPECT_TRUE(file_.StartWrite(&called, 0, bytes_));
    EXPECT_TRUE(called.Await().ok());
    file_.JoinAll();
  }
  EXPECT_EQ(called.calls, 100);
}

TEST_F(BlockIoTest, AThreadThatSleepsInWaitIsWoken) {
  file_.where = TestFile::Where::kLater;
  BlockIo io;
  EXPECT_TRUE(file_.StartRead(&io, 0, absl::MakeSpan(bytes_)));
  std::promise<absl::Status> ended;
  std::future<absl::Status> future = ended.get_future();
  std::thread waiter([&] { ended.set_value(io.Wait()); });
  EXPECT_EQ(future.wait_for(std::chrono::milliseconds(20)), std::future_status::timeout) << "it has not ended";
  file_.later->End(absl::DataLossError("lost"));
  EXPECT_TRUE(absl::IsDataLoss(future.get()));
  waiter.join();
}

TEST_F(BlockIoTest, ServesAgainAfterAFailure) {
  BlockIo waited;
  CalledIo called;
  for (const auto where : {TestFile::Where::kHere, TestFile::Where::kThread}) {
    file_.where = where;
    file_.result = absl::UnavailableError("away");
    EXPECT_TRUE(file_.StartRead(&waited, 0, absl::MakeSpan(bytes_)));
    EXPECT_TRUE(absl::IsUnavailable(waited.Wait()));
    EXPECT_TRUE(file_.StartWrite(&called, 0, bytes_));
    EXPECT_TRUE(absl::IsUnavailable(called.Await()));
    EXPECT_TRUE(absl::IsUnavailable(file_.Write(0, bytes_)));
    file_.JoinAll();
    file_.result = absl::OkStatus();
    EXPECT_TRUE(file_.StartWrite(&waited, 0, bytes_));
    EXPECT_TRUE(waited.Wait().ok());
    EXPECT_TRUE(file_.StartRead(&called, 0, absl::MakeSpan(bytes_)));
    EXPECT_TRUE(called.Await().ok());
    file_.JoinAll();
  }
}

TEST_F(BlockIoTest, IsFreeAgainWhenItsStartIsRefused) {
  file_.where = TestFile::Where::kRefused;
  CalledIo called;
  EXPECT_FALSE(file_.StartRead(&called, 0, absl::MakeSpan(bytes_)));
  EXPECT_FALSE(file_.StartWrite(&called, 0, bytes_));
  EXPECT_EQ(called.calls, 0);
  EXPECT_TRUE(file_.Write(0, bytes_).ok()) << "who waits is not refused";
  file_.where = TestFile::Where::kHere;
  EXPECT_TRUE(file_.StartRead(&called, 0, absl::MakeSpan(bytes_)));
  EXPECT_EQ(called.calls, 1);
}

TEST_F(BlockIoTest, StartsItsNextOperationFromItsEnd) {
  struct ChainedIo : BlockIo {
    ChainedIo(TestFile* over, absl::Span<const std::byte> what) : BlockIo(nullptr, &OnDone), file(over), bytes(what) {}
    static void OnDone(BlockIo* io) {
      auto* const self = static_cast<ChainedIo*>(io);
      if (++self->ends == 10) return self->all.set_value();
      self->file->StartWrite(io, io->end(), self->bytes);
    }
    TestFile* const file;
    const absl::Span<const std::byte> bytes;
    int ends = 0;
    std::promise<void> all;
  };
  ChainedIo here(&file_, bytes_);
  EXPECT_TRUE(file_.StartWrite(&here, 0, bytes_));
  EXPECT_EQ(here.ends, 10);
  EXPECT_EQ(here.offset(), 9 * kPageBytes);
  EXPECT_EQ(file_.started, 10);
}

TEST(NullStoreTest, ReadsZeros) {
  const auto store = NewNullStore();
  const std::unique_ptr<BlockFile> file = store->Create().value();
  std::vector<std::byte> bytes(kPageBytes, std::byte{1});
  EXPECT_TRUE(file->Write(0, bytes).ok());
  EXPECT_TRUE(file->Read(0, absl::MakeSpan(bytes)).ok());
  EXPECT_EQ(bytes, std::vector<std::byte>(kPageBytes));
}

}  // namespace
}  // namespace nram
