// File data over a store: any offset and length, sizes, holes, limits and failures, against a plain string.

#include "fsd/file_data.h"

#include <fcntl.h>

#include <chrono>
#include <functional>
#include <future>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/sync.h"
#include "base/test_seed.h"
#include "fsd/failed_pages.h"
#include "fsd/filesystem.h"
#include "fsd/page_set.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

// A store that fails on demand.
class FailingStore : public BlockStore {
 public:
  absl::StatusOr<std::unique_ptr<BlockFile>> Create() override {
    return std::make_unique<File>(this, memory_->Create().value());
  }
  void Destroy(std::vector<std::unique_ptr<BlockFile>> files) override {
    destroyed += static_cast<int>(files.size());
    if (on_destroy) on_destroy();
    if (room_after_destroy) fail_writes = 0;
    files.clear();
  }
  StoreCapacity Capacity() const override { return memory_->Capacity(); }

  std::atomic<int> fail_writes{0};  // this many writes each write half and fail
  absl::Status failure = absl::UnavailableError("told to");
  absl::Status later_failure = failure;
  bool relocates = false;  // a write that is tried again after UNAVAILABLE succeeds
  bool fail_reads = false;
  bool fail_trims = false;
  bool room_after_destroy = false;
  std::atomic<int> destroyed{0};
  std::function<void()> on_reserve;  // runs in the middle of it
  std::function<void()> on_destroy;  // likewise
  std::atomic<int64_t> reserved_bytes{0};
  std::atomic<bool> hold_next{false};  // the next operation does not end by itself; the test ends it
  std::promise<BlockIo*> held;         // that operation

 private:
  class File : public BlockFile {
   public:
    File(FailingStore* store, std::unique_ptr<BlockFile> file) : store_(store), file_(std::move(file)) {}
    bool Start(BlockIo* io) override {
      if (store_->hold_next.exchange(false)) {
        store_->held.set_value(io);
        return true;
      }
      io->End(Run(*io));
      return true;
    }
    absl::Status Run(const BlockIo& io) {
      if (io.op() == BlockIo::Op::kRead) {
        return store_->fail_reads ? absl::DataLossError("told to") : file_->Read(io.offset(), io.to());
      }
      const absl::Status& failed = io.earlier_failure();
      if (!failed.ok() && RewriteMayHelp(failed)) return file_->Write(io.offset(), io.from());
      return Store(io.offset(), io.from());
    }
    absl::Status Store(uint64_t offset, absl::Span<const std::byte> from) {
      if (store_->fail_writes > 0) {
        --store_->fail_writes;
        EXPECT_TRUE(file_->Write(offset, from.subspan(0, from.size() / 2 / kChunkBytes * kChunkBytes)).ok());
        return std::exchange(store_->failure, store_->later_failure);
      }
      return file_->Write(offset, from);
    }
    bool RewriteMayHelp(const absl::Status& failed) const override {
      return store_->relocates && absl::IsUnavailable(failed);
    }
    absl::Status Trim(uint64_t offset, uint64_t length) override {
      return store_->fail_trims ? absl::UnavailableError("told to") : file_->Trim(offset, length);
    }
    absl::Status Reserve(uint64_t offset, uint64_t length) override {
      if (store_->on_reserve) store_->on_reserve();
      store_->reserved_bytes += static_cast<int64_t>(length);
      return file_->Reserve(offset, length);
    }
    void Unreserve(uint64_t, uint64_t length) override { store_->reserved_bytes -= static_cast<int64_t>(length); }

   private:
    FailingStore* const store_;
    const std::unique_ptr<BlockFile> file_;
  };

  std::unique_ptr<BlockStore> memory_ = NewMemoryStore(256 * kMiB);
};

// A small operation that the test waits for.
class TestIo : public FileIo {
 public:
  struct Result {
    Errno error = Errno::kOk;
    std::string got;
  };
  using FileIo::FileIo;

  bool ended() {
    MutexLock lock(&mu_);
    return result_.has_value();
  }
  // Waits for the operation, a minute at most, and forgets it.
  Result Await() {
    const int64_t deadline_ns = DeadlineAfterMs(60'000);
    MutexLock lock(&mu_);
    while (!result_ && ended_.WaitUntil(&mu_, deadline_ns)) {
    }
    EXPECT_TRUE(result_.has_value()) << "it has not ended";
    return std::exchange(result_, std::nullopt).value_or(Result{Err(ETIMEDOUT), ""});
  }

 private:
  void OnEnd(Errno error, absl::Span<const std::byte> got) override {
    MutexLock lock(&mu_);
    EXPECT_FALSE(result_.has_value()) << "it has ended twice";
    result_ = Result{error, std::string(reinterpret_cast<const char*>(got.data()), got.size())};
    ended_.SignalAll();
  }

  Mutex mu_;
  CondVar ended_;
  std::optional<Result> result_ ABSL_GUARDED_BY(mu_);
};

class FileDataTest : public ::testing::Test {
 protected:
  explicit FileDataTest(uint64_t bytes_max = 64 * kMiB) : store_(&blocks_, bytes_max) {
    file_ = static_cast<FileData*>((body_ = store_.NewFile()).get());
  }

  Errno Write(uint64_t offset, const std::string& data, WriteOrigin origin = WriteOrigin::kWriter) {
    std::string padded(data.size() + 2 * PaddedBytes::kPadBytes, '#');
    data.copy(&padded[PaddedBytes::kPadBytes], data.size());
    return file_->Write(offset, {reinterpret_cast<std::byte*>(&padded[PaddedBytes::kPadBytes]), data.size()}, origin);
  }
  // The kernel writes whole pages back, up to the end of the file as it knows it.
  Errno WriteBack(uint64_t offset, const std::string& data) { return Write(offset, data, WriteOrigin::kPageCache); }
  Errno FailToWriteBack(uint64_t offset, const std::string& data, const absl::Status& failure) {
    blocks_.failure = failure;
    blocks_.fail_writes = 1;
    const Errno error = WriteBack(offset, data);
    blocks_.fail_writes = 0;
    return error;
  }
  std::string Read(uint64_t offset, size_t size) {
    std::vector<std::byte> buffer(size + 4 * PaddedBytes::kPadBytes);
    absl::Span<const std::byte> got;
    const Errno error =
        file_->Read(offset, size, {buffer.data() + PaddedBytes::kPadBytes, (size + 511) / 512 * 512}, &got);
    if (!Ok(error)) return absl::StrCat("errno ", Raw(error));
    return {reinterpret_cast<const char*>(got.data()), got.size()};
  }
  uint64_t FreeBytes() const { return store_.Capacity().free_bytes; }

  FailingStore blocks_;
  FileStore store_;
  std::unique_ptr<FileBody> body_;
  FileData* file_;
};

TEST_F(FileDataTest, RandomOperationsAgainstAString) {
  std::mt19937_64 random(TestSeed());
  std::string model;
  constexpr uint64_t kMax = 700'000;
  const auto place = [&]() -> uint64_t {
    static constexpr uint64_t kEdges[] = {0, 1, 511, 512, 513, 4095, 4096, 4097, 262'143, 262'144, 300'000};
    return random() % 2 == 0 ? random() % kMax : kEdges[random() % 11] + random() % 3;
  };
  for (int step = 0; step < 6'000; ++step) {
    const uint64_t offset = place();
    const uint64_t length = random() % 6 == 0 ? random() % 200'000 : 1 + random() % 5'000;
    switch (random() % 8) {
      case 0:
      case 1:
      case 2: {
        std::string data(length, '\0');
        for (char& c : data) c = static_cast<char>(random());
        // Now and then a write fails half-way; bytes behind the end of the file must not show later.
        const bool fails = random() % 20 == 0;
        if (fails) blocks_.fail_writes = 1;
        const Errno error = Write(offset, data);
        blocks_.fail_writes = 0;
        ASSERT_EQ(error, fails ? Err(EIO) : Errno::kOk);
        if (fails) {
          // Old or new: the model takes the file's bytes, up to its end.
          const std::string now = Read(0, kMax * 2);
          ASSERT_EQ(now.size(), model.size());
          for (size_t i = 0; i < now.size(); ++i) {
            ASSERT_TRUE(now[i] == model[i] || (i >= offset && i < offset + length && now[i] == data[i - offset])) << i;
          }
          model = now;
          break;
        }
        if (model.size() < offset + length) model.resize(offset + length, '\0');
        model.replace(offset, length, data);
        break;
      }
      case 3:
        ASSERT_EQ(file_->Truncate(offset), Errno::kOk);
        model.resize(offset, '\0');
        break;
      case 4:
        ASSERT_EQ(file_->PunchHole(offset, length), Errno::kOk);
        for (uint64_t i = offset; i < std::min<uint64_t>(offset + length, model.size()); ++i) model[i] = '\0';
        break;
      case 5: {
        const bool keep_size = random() % 2 == 0;
        ASSERT_EQ(file_->Allocate(offset, length, keep_size), Errno::kOk);
        if (!keep_size && model.size() < offset + length) model.resize(offset + length, '\0');
        break;
      }
      default:
        ASSERT_EQ(Read(offset, length), offset < model.size() ? model.substr(offset, length) : "");
    }
    ASSERT_EQ(file_->size(), model.size());
    if (step % 100 == 0) {
      ASSERT_TRUE(Read(0, kMax * 2) == model) << step;
    }
  }
  ASSERT_EQ(file_->Truncate(0), Errno::kOk);
  EXPECT_EQ(FreeBytes(), 64 * kMiB) << "every page was given back";
}

TEST_F(FileDataTest, SparseUpTo2To62) {
  const uint64_t last = kRegionBytesMax - 3;
  EXPECT_EQ(Write(last, "end"), Errno::kOk);
  EXPECT_EQ(file_->size(), kRegionBytesMax);
  EXPECT_EQ(file_->blocks(), 8u);
  EXPECT_EQ(Read(last - 1, 10), std::string("\0end", 4));
  EXPECT_EQ(Write(last, "beyond"), Err(EFBIG));
  EXPECT_EQ(file_->Truncate(kRegionBytesMax + 1), Err(EFBIG));
  uint64_t found = 0;
  EXPECT_EQ(file_->SeekData(0, &found), Errno::kOk);
  EXPECT_EQ(found, kRegionBytesMax - kPageBytes);
  EXPECT_EQ(file_->SeekHole(found, &found), Errno::kOk);
  EXPECT_EQ(found, kRegionBytesMax);
  EXPECT_EQ(file_->SeekData(kRegionBytesMax, &found), Err(ENXIO));
}

TEST_F(FileDataTest, ALostFileFailsUntilItIsTruncated) {
  EXPECT_EQ(Write(0, std::string(10'000, 'x')), Errno::kOk);
  blocks_.fail_reads = true;
  EXPECT_EQ(Read(0, 10), absl::StrCat("errno ", EIO));
  EXPECT_EQ(file_->Truncate(0), Errno::kOk);
  EXPECT_EQ(Read(0, 10), "");
  EXPECT_EQ(file_->Truncate(5'000), Errno::kOk);
  EXPECT_EQ(Read(4'990, 20), std::string(10, '\0')) << "holes need no store";
}

// A failed append may leave bytes behind the end. They hinder only writes behind the end.
TEST_F(FileDataTest, WritesWithinTheFileDoNotWaitForItsTail) {
  EXPECT_EQ(Write(0, std::string(100'000, 'a')), Errno::kOk);
  blocks_.fail_writes = 1;
  EXPECT_NE(Write(100'352, std::string(512, 'b')), Errno::kOk);
  blocks_.fail_trims = true;
  EXPECT_EQ(Write(4'096, std::string(4'096, 'c')), Errno::kOk);
  EXPECT_EQ(Write(5, "d"), Errno::kOk);
  EXPECT_NE(Write(100'352, std::string(512, 'e')), Errno::kOk) << "what is there is not known";
  blocks_.fail_trims = false;
  EXPECT_EQ(Write(100'352, std::string(512, 'e')), Errno::kOk);
}

// The kernel has told the writer that the bytes are written, and keeps the page as if they were: no reader may get the
// bytes from before, nor zeros.
TEST_F(FileDataTest, APageThatIsNotWrittenBackIsAnErrorUntilItIsGoodAgain) {
  const std::string kError = absl::StrCat("errno ", EIO);
  const std::string page(kPageBytes, 'b');
  for (const absl::Status& failure : {absl::ResourceExhaustedError("full"), absl::UnavailableError("away")}) {
    ASSERT_EQ(file_->Truncate(0), Errno::kOk);
    ASSERT_EQ(Write(0, std::string(4 * kPageBytes, 'a')), Errno::kOk);
    // In the middle of the file, and behind its end.
    EXPECT_EQ(FailToWriteBack(kPageBytes, page, failure), ErrnoOf(failure));
    EXPECT_EQ(FailToWriteBack(6 * kPageBytes, page + "tail", failure), ErrnoOf(failure));
    EXPECT_EQ(file_->size(), 7 * kPageBytes + 4) << "the kernel's file is that long";
    EXPECT_EQ(Read(0, kPageBytes), std::string(kPageBytes, 'a'));
    EXPECT_EQ(Read(kPageBytes, 1), kError);
    EXPECT_EQ(Read(0, 3 * kPageBytes), kError);
    EXPECT_EQ(Read(2 * kPageBytes, kPageBytes), std::string(kPageBytes, 'a'));
    EXPECT_EQ(Read(4 * kPageBytes, 2 * kPageBytes), std::string(2 * kPageBytes, '\0')) << "a hole";
    EXPECT_EQ(Read(6 * kPageBytes, 10), kError);
    EXPECT_EQ(Read(7 * kPageBytes, 4), kError);
    TestIo io(&store_);
    EXPECT_FALSE(file_->StartRead(&io, kPageBytes, 512)) << "Read has the error";
    // Parts of the page do not make it whole.
    EXPECT_EQ(Write(kPageBytes + 100, "part"), Err(EIO)) << "the bytes around it are not known";
    EXPECT_EQ(Write(kPageBytes, std::string(512, 'c')), Errno::kOk);
    EXPECT_EQ(file_->PunchHole(kPageBytes + 1'024, 2'000), Errno::kOk);
    EXPECT_EQ(Read(kPageBytes, 512), kError);
    EXPECT_EQ(file_->Allocate(kPageBytes, kPageBytes, true), Errno::kOk);
    EXPECT_EQ(Read(kPageBytes, 512), kError);
    // It counts as data.
    uint64_t found = 0;
    EXPECT_EQ(file_->SeekData(4 * kPageBytes, &found), Errno::kOk);
    EXPECT_EQ(found, 6 * kPageBytes);
    EXPECT_EQ(file_->SeekHole(6 * kPageBytes, &found), Errno::kOk);
    EXPECT_EQ(found, 7 * kPageBytes + 4);
    // Written whole: by the next write-back, by a small write, or by a writer that wrote up to the end of the file.
    EXPECT_EQ(WriteBack(kPageBytes, page), Errno::kOk);
    EXPECT_EQ(Read(0, 3 * kPageBytes), std::string(kPageBytes, 'a') + page + std::string(kPageBytes, 'a'));
    EXPECT_EQ(FailToWriteBack(kPageBytes, page, failure), ErrnoOf(failure));
    memset(io.buffer().data, 'd', kPageBytes);
    ASSERT_TRUE(file_->StartWrite(&io, kPageBytes, kPageBytes));
    EXPECT_EQ(io.Await().error, Errno::kOk);
    EXPECT_EQ(Read(kPageBytes, kPageBytes), std::string(kPageBytes, 'd'));
    EXPECT_EQ(Write(7 * kPageBytes, "end!"), Errno::kOk);
    EXPECT_EQ(Read(7 * kPageBytes, 10), "end!");
    EXPECT_EQ(Read(6 * kPageBytes, 10), kError);
    // Punched; cut off.
    EXPECT_EQ(file_->PunchHole(6 * kPageBytes, kPageBytes), Errno::kOk);
    EXPECT_EQ(Read(6 * kPageBytes, 10), std::string(10, '\0'));
    EXPECT_EQ(FailToWriteBack(2 * kPageBytes, page + page, failure), ErrnoOf(failure));
    EXPECT_EQ(file_->Truncate(2 * kPageBytes + 7), Errno::kOk);
    EXPECT_EQ(file_->Truncate(4 * kPageBytes), Errno::kOk);
    EXPECT_EQ(Read(3 * kPageBytes, kPageBytes), std::string(kPageBytes, '\0'));
    EXPECT_EQ(Read(2 * kPageBytes, 1), kError) << "7 bytes of it are still lost";
    EXPECT_EQ(file_->Truncate(2 * kPageBytes), Errno::kOk);
    EXPECT_EQ(Read(0, 3 * kPageBytes), std::string(kPageBytes, 'a') + std::string(kPageBytes, 'd'));
    EXPECT_EQ(store_.failed_pages()->runs(), 0u);
  }
  EXPECT_EQ(FailToWriteBack(0, page, absl::UnavailableError("away")), Err(EIO));
  body_ = nullptr;
  EXPECT_EQ(store_.failed_pages()->runs(), 0u) << "a deleted file";
}

// A program that waits for its write knows of the failure, and has the file as it was.
TEST_F(FileDataTest, AWriteThatItsWriterWaitsForMakesNoPageAnError) {
  ASSERT_EQ(Write(0, std::string(kPageBytes, 'a')), Errno::kOk);
  blocks_.fail_writes = 1;
  EXPECT_EQ(Write(kPageBytes, std::string(kPageBytes, 'b')), Err(EIO));
  EXPECT_EQ(file_->size(), kPageBytes);
  EXPECT_EQ(Read(0, 3 * kPageBytes), std::string(kPageBytes, 'a'));
  // Behind that, a write-back fails: the bytes between may be anything.
  EXPECT_EQ(FailToWriteBack(3 * kPageBytes, std::string(kPageBytes, 'c'), absl::UnavailableError("away")), Err(EIO));
  EXPECT_EQ(Read(0, kPageBytes), std::string(kPageBytes, 'a'));
  for (uint64_t page = 3; page < 4; ++page) EXPECT_EQ(Read(page * kPageBytes, 1), absl::StrCat("errno ", EIO)) << page;
  const std::string between = Read(kPageBytes, kPageBytes);
  EXPECT_TRUE(between == absl::StrCat("errno ", EIO) || between == std::string(kPageBytes, '\0'));
}

TEST_F(FileDataTest, ASmallWriteBackThatFailsIsKept) {
  ASSERT_EQ(Write(0, std::string(2 * kPageBytes, 'a')), Errno::kOk);
  for (const bool full : {true, false}) {
    blocks_.failure = blocks_.later_failure =
        full ? absl::Status(absl::ResourceExhaustedError("full")) : absl::Status(absl::UnavailableError("away"));
    blocks_.fail_writes = full ? 2 : 1;  // a full store is asked twice
    TestIo io(&store_);
    memset(io.buffer().data, 'b', kPageBytes);
    ASSERT_TRUE(file_->StartWrite(&io, kPageBytes, kPageBytes, WriteOrigin::kPageCache));
    EXPECT_EQ(io.Await().error, full ? Err(ENOSPC) : Err(EIO));
    EXPECT_EQ(blocks_.fail_writes, 0);
    EXPECT_EQ(Read(kPageBytes, 1), absl::StrCat("errno ", EIO));
    memset(io.buffer().data, 'b', kPageBytes);
    ASSERT_TRUE(file_->StartWrite(&io, kPageBytes, kPageBytes, WriteOrigin::kPageCache));
    EXPECT_EQ(io.Await().error, Errno::kOk);
    EXPECT_EQ(Read(0, 2 * kPageBytes), std::string(kPageBytes, 'a') + std::string(kPageBytes, 'b'));
  }
}

// A file's bytes, and those of its pages that have failed.
struct FailingModel {
  static constexpr uint64_t kPages = 64;
  std::string bytes;
  std::vector<bool> failed = std::vector<bool>(kPages + 1, false);

  void GrowTo(uint64_t size) {
    if (bytes.size() < size) bytes.resize(size, '\0');
  }
  void Truncate(uint64_t size) {
    bytes.resize(size, '\0');
    for (uint64_t page = RoundUp(size, kPageBytes) / kPageBytes; page < kPages; ++page) failed[page] = false;
  }
  void Put(uint64_t offset, const std::string& data) {
    bytes.replace(offset, data.size(), data);
    Renew(offset, offset + data.size());
  }
  void Renew(uint64_t offset, uint64_t end) {
    for (uint64_t page = 0; page < kPages; ++page) {
      const uint64_t page_end = std::min<uint64_t>((page + 1) * kPageBytes, bytes.size());
      if (page * kPageBytes >= offset && page * kPageBytes < end && page_end <= end) failed[page] = false;
    }
  }
  bool AnyFailed(uint64_t offset, uint64_t end) const {
    for (uint64_t page = offset / kPageBytes; page * kPageBytes < end && page < kPages; ++page) {
      if (failed[page]) return true;
    }
    return false;
  }
};

// Write-back beside direct writes, truncation and holes: each read gives the model's bytes, or an error where a page
// of the range has failed.
TEST_F(FileDataTest, RandomFailuresOfWriteBackAgainstAModel) {
  std::mt19937_64 random(TestSeed());
  constexpr uint64_t kMax = FailingModel::kPages * kPageBytes;
  FailingModel model;
  for (int step = 0; step < 8'000; ++step) {
    uint64_t offset = random() % kMax;
    uint64_t length = std::min(1 + random() % (random() % 4 == 0 ? 20 * kPageBytes : 2 * kPageBytes), kMax - offset);
    switch (random() % 8) {
      case 0:
      case 1:
      case 2: {
        // The kernel writes pages back, the last one up to the end of the file.
        offset = RoundDown(offset, kPageBytes);
        if (random() % 3 != 0 || offset + length < model.bytes.size()) length = RoundUp(length, kPageBytes);
        const std::string data(length, static_cast<char>('a' + step % 26));
        model.GrowTo(offset + length);
        if (random() % 3 == 0) {
          const bool full = random() % 2 == 0;
          const absl::Status failure = full ? absl::ResourceExhaustedError("full") : absl::UnavailableError("away");
          ASSERT_EQ(FailToWriteBack(offset, data, failure), ErrnoOf(failure));
          for (uint64_t at = offset; at < offset + length; at += kPageBytes) model.failed[at / kPageBytes] = true;
        } else {
          ASSERT_EQ(WriteBack(offset, data), Errno::kOk);
          model.Put(offset, data);
        }
        break;
      }
      case 3: {
        if (random() % 2 == 0) offset = RoundDown(offset, kChunkBytes), length = RoundUp(length, kChunkBytes);
        const std::string data(length, static_cast<char>('A' + step % 26));
        const Errno error = Write(offset, data);
        if (!Ok(error)) {
          ASSERT_EQ(error, Err(EIO));
          ASSERT_TRUE(model.AnyFailed(offset, offset + 1) || model.AnyFailed(offset + length - 1, offset + length));
          break;
        }
        model.GrowTo(offset + length);
        model.Put(offset, data);
        break;
      }
      case 4:
        offset = std::max<uint64_t>(offset, 1);  // a file that is freed would have full writes tried again
        ASSERT_EQ(file_->Truncate(offset), Errno::kOk);
        model.Truncate(offset);
        break;
      case 5:
        ASSERT_EQ(file_->PunchHole(offset, length), Errno::kOk);
        for (uint64_t i = offset; i < std::min<uint64_t>(offset + length, model.bytes.size()); ++i) {
          model.bytes[i] = '\0';
        }
        model.Renew(offset, offset + length);
        break;
      default: {
        const std::string bytes = offset < model.bytes.size() ? model.bytes.substr(offset, length) : "";
        ASSERT_EQ(Read(offset, length), model.AnyFailed(offset, offset + length) ? absl::StrCat("errno ", EIO) : bytes);
      }
    }
    ASSERT_EQ(file_->size(), model.bytes.size()) << step;
    for (uint64_t page = 0; page * kPageBytes < model.bytes.size(); ++page) {
      uint64_t found = 0;
      if (!model.failed[page]) continue;
      ASSERT_EQ(file_->SeekData(page * kPageBytes, &found), Errno::kOk);
      ASSERT_EQ(found, page * kPageBytes) << "a page that has failed is data";
    }
  }
  ASSERT_EQ(file_->Truncate(0), Errno::kOk);
  EXPECT_EQ(store_.failed_pages()->runs(), 0u);
}

TEST(MemoryStoreTest, AReservationIsWholeOrNothing) {
  auto store = NewMemoryStore(kMiB);
  auto file = store->Create().value();
  ASSERT_TRUE(file->Write(0, std::vector<std::byte>(kMiB / 2)).ok());
  EXPECT_EQ(file->Reserve(0, uint64_t{1} << 60).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(file->Reserve(kMiB / 2, kMiB / 2 + 1).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(store->Capacity().free_bytes, kMiB / 2);
  EXPECT_TRUE(file->Reserve(0, kMiB).ok());
  EXPECT_EQ(store->Capacity().free_bytes, 0u);
}

class SmallMountTest : public FileDataTest {
 protected:
  SmallMountTest() : FileDataTest(kMiB) {}
};

TEST_F(SmallMountTest, TheLimitHolds) {
  EXPECT_EQ(Write(0, std::string(kMiB, 'x')), Errno::kOk);
  EXPECT_EQ(Write(kMiB, "y"), Err(ENOSPC));
  EXPECT_EQ(file_->size(), kMiB);
  EXPECT_EQ(Write(5, std::string(1'000, 'z')), Errno::kOk) << "overwriting needs no room";
  EXPECT_EQ(file_->Allocate(kMiB, 1, false), Err(ENOSPC));
  EXPECT_EQ(FreeBytes(), 0u);
  EXPECT_EQ(file_->PunchHole(0, kMiB / 2), Errno::kOk);
  EXPECT_EQ(FreeBytes(), kMiB / 2);
  EXPECT_EQ(Write(kMiB, std::string(kMiB / 2, 'y')), Errno::kOk);
  EXPECT_EQ(file_->Allocate(0, uint64_t{1} << 61, true), Err(ENOSPC));
}

TEST_F(SmallMountTest, WhatFindsNoRoomIsAnErrorAndNotAHole) {
  const std::string error = absl::StrCat("errno ", EIO);
  EXPECT_EQ(WriteBack(0, std::string(kMiB, 'x')), Errno::kOk);
  EXPECT_EQ(WriteBack(kMiB, std::string(kMiB, 'y')), Err(ENOSPC));
  EXPECT_EQ(file_->size(), 2 * kMiB);
  EXPECT_EQ(Read(kMiB, 10), error);
  EXPECT_EQ(Read(2 * kMiB - 10, 10), error);
  EXPECT_EQ(Read(0, kMiB), std::string(kMiB, 'x'));
  EXPECT_EQ(file_->Truncate(kMiB), Errno::kOk);
  EXPECT_EQ(file_->Truncate(2 * kMiB), Errno::kOk);
  EXPECT_EQ(Read(kMiB, 10), std::string(10, '\0')) << "that is a hole";
  EXPECT_EQ(FreeBytes(), 0u);
}

TEST_F(SmallMountTest, AnAllocationThatComesTooLateKeepsNothingReserved) {
  const std::unique_ptr<FileBody> other = store_.NewFile();
  blocks_.on_reserve = [&] {
    blocks_.on_reserve = nullptr;
    EXPECT_EQ(static_cast<FileData*>(other.get())->Allocate(0, kMiB / 2, false), Errno::kOk);
  };
  EXPECT_EQ(file_->Allocate(0, kMiB, false), Err(ENOSPC));
  EXPECT_EQ(blocks_.reserved_bytes, kMiB / 2) << "the other's";
  EXPECT_EQ(FreeBytes(), kMiB / 2);
}

TEST_F(FileDataTest, WhatWasDeletedIsRoomForTheWriteThatFindsNone) {
  auto other = store_.NewFile();
  std::swap(body_, other);
  file_ = static_cast<FileData*>(body_.get());
  EXPECT_EQ(Write(0, std::string(5'000, 'x')), Errno::kOk);
  std::swap(body_, other);
  file_ = static_cast<FileData*>(body_.get());
  blocks_.failure = blocks_.later_failure = absl::ResourceExhaustedError("full");
  blocks_.fail_writes = 1'000;
  blocks_.room_after_destroy = true;
  store_.Bury(std::move(other));
  EXPECT_EQ(Write(0, std::string(5'000, 'y')), Errno::kOk);
  EXPECT_EQ(blocks_.destroyed, 1);
}

TEST_F(FileDataTest, SmallReadsAndWritesThatNobodyWaitsFor) {
  TestIo io(&store_);
  ASSERT_TRUE(file_->StartRead(&io, 0, 100));
  ASSERT_TRUE(io.ended());
  TestIo::Result result = io.Await();
  EXPECT_TRUE(Ok(result.error) && result.got.empty()) << "behind the end";
  memset(io.buffer().data, 'a', 4'096);
  ASSERT_TRUE(file_->StartWrite(&io, 4'096, 4'096));
  ASSERT_TRUE(io.ended());
  EXPECT_TRUE(Ok(io.Await().error));
  EXPECT_EQ(file_->size(), 8'192u);
  EXPECT_FALSE(file_->StartWrite(&io, 100, 512)) << "not whole chunks";
  EXPECT_FALSE(io.ended());
  ASSERT_TRUE(file_->StartRead(&io, 4'090, 50));
  EXPECT_EQ(io.Await().got, std::string(6, '\0') + std::string(44, 'a'));
  memset(io.buffer().data, 'x', 4'096);
  ASSERT_TRUE(file_->StartRead(&io, 10, 3'000));
  EXPECT_EQ(io.Await().got, std::string(3'000, '\0')) << "a hole";
  // A failure behind the end of the file is cleaned up before the file grows over it.
  blocks_.fail_writes = 1;
  memset(io.buffer().data, 'b', 8'192);
  ASSERT_TRUE(file_->StartWrite(&io, 8'192, 8'192));
  EXPECT_EQ(io.Await().error, Err(EIO));
  EXPECT_FALSE(file_->StartWrite(&io, 8'192, 512)) << "first the end must be cleaned up";
  EXPECT_EQ(file_->Truncate(20'000), Errno::kOk);
  EXPECT_EQ(Read(8'192, 20'000), std::string(20'000 - 8'192, '\0'));
  // The store is full once. The write is tried again, and only then answered.
  blocks_.failure = absl::ResourceExhaustedError("full");
  blocks_.fail_writes = 1;
  ASSERT_TRUE(file_->StartWrite(&io, 0, 512));
  EXPECT_EQ(io.Await().error, Errno::kOk);
}

// A small operation under way keeps out a change of the whole file. The thread that ends the operation lets it in.
TEST_F(FileDataTest, ASmallOperationEndsOnAnotherThread) {
  ASSERT_EQ(Write(0, std::string(8'192, 'a')), Errno::kOk);
  TestIo io(&store_);
  for (const bool fails : {false, true}) {
    for (const bool reads : {false, true}) {
      blocks_.held = {};
      blocks_.hold_next = true;
      if (!reads) memset(io.buffer().data, 'b', 4'096);
      ASSERT_TRUE(reads ? file_->StartRead(&io, 0, 4'096) : file_->StartWrite(&io, 4'096, 4'096));
      EXPECT_FALSE(io.ended());
      BlockIo* const block = blocks_.held.get_future().get();
      EXPECT_EQ(block, &io) << "one handle, from the caller down to the store";
      std::promise<Errno> truncated;
      std::future<Errno> after = truncated.get_future();
      std::thread truncates([&] { truncated.set_value(file_->Truncate(8'192)); });
      EXPECT_EQ(after.wait_for(std::chrono::milliseconds(10)), std::future_status::timeout);
      std::thread ends([&] {
        if (reads) std::fill(block->to().begin(), block->to().end(), std::byte{'c'});
        block->End(fails ? absl::UnavailableError("told to") : absl::OkStatus());
      });
      const TestIo::Result result = io.Await();
      EXPECT_EQ(result.error, fails ? Err(EIO) : Errno::kOk);
      EXPECT_EQ(result.got, reads && !fails ? std::string(4'096, 'c') : "");
      ends.join();
      EXPECT_EQ(after.get(), Errno::kOk);
      truncates.join();
    }
  }
  EXPECT_EQ(file_->size(), 8'192u);
  // The handle serves again after a failure, and after a start that is refused.
  EXPECT_FALSE(file_->StartRead(&io, 0, FileIo::kBytesMax));
  ASSERT_TRUE(file_->StartRead(&io, 0, 4'096));
  EXPECT_EQ(io.Await().got, std::string(4'096, 'a'));
}

TEST_F(FileDataTest, WhatThePageCacheIsToDrop) {
  using Stale = FileData::Stale;
  uint32_t token = 0;
  EXPECT_EQ(file_->NoteDirectWrite(&token), Stale::kNothing) << "nobody has read it";
  const auto write_many = [&] {
    int ranges = 0;
    while (file_->NoteDirectWrite(&token) == Stale::kItsRange && ranges < 100'000) ++ranges;
    return ranges;
  };
  for (int round = 0; round < 2; ++round) {
    file_->NoteCached();
    EXPECT_EQ(write_many(), 999);
    EXPECT_EQ(file_->NoteDirectWrite(&token), Stale::kWholeFile) << "until it is said that it was";
    file_->NoteCached();
    file_->NoteDropped(token);
    EXPECT_EQ(write_many(), 999) << "somebody has read it meanwhile";
    file_->NoteDropped(token);
    EXPECT_EQ(file_->NoteDirectWrite(&token), Stale::kNothing);
  }
}

TEST_F(FileDataTest, AWriteThatFindsNoRoomAndThenNoServerGoesElsewhere) {
  blocks_.relocates = true;
  blocks_.failure = absl::ResourceExhaustedError("full");
  blocks_.fail_writes = 2;
  TestIo io(&store_);
  memset(io.buffer().data, 'y', 4'096);
  ASSERT_TRUE(file_->StartWrite(&io, 0, 4'096));
  EXPECT_EQ(io.Await().error, Errno::kOk);
  EXPECT_EQ(blocks_.fail_writes, 0);
  EXPECT_EQ(Read(0, 4'096), std::string(4'096, 'y'));
}

// A server that is frozen keeps a destroy for as long as an operation's deadline; a write that finds the pool full is
// tried again after two seconds all the same.
TEST_F(FileDataTest, AWriteIsTriedAgainWhileADestroyWaits) {
  std::promise<void> destroys, released;
  blocks_.on_destroy = [&] {
    destroys.set_value();
    released.get_future().wait_for(std::chrono::minutes(2));
  };
  ASSERT_EQ(Write(0, std::string(5'000, 'x')), Errno::kOk);
  std::unique_ptr<FileBody> other = store_.NewFile();
  std::swap(body_, other);
  file_ = static_cast<FileData*>(body_.get());
  store_.Bury(std::move(other));
  destroys.get_future().wait();

  TestIo io(&store_);
  blocks_.failure = blocks_.later_failure = absl::ResourceExhaustedError("full");
  blocks_.fail_writes = 2;
  memset(io.buffer().data, 'y', 4'096);
  ASSERT_TRUE(file_->StartWrite(&io, 0, 4'096));
  EXPECT_EQ(io.Await().error, Err(ENOSPC)) << "it waits for the destroy";
  EXPECT_EQ(blocks_.fail_writes, 0) << "it was tried twice";
  released.set_value();
}

TEST(FilesystemTest, AllocateKnowsItsModes) {
  auto store = NewMemoryStore(16 * kMiB);
  Filesystem filesystem(store.get(), {});
  InodeAttr attr;
  ASSERT_EQ(filesystem.names()->Create(kRootInode, "f", S_IFREG | 0644, 0, {}, &attr), Errno::kOk);
  const InodeNumber file = attr.st_ino;
  EXPECT_EQ(filesystem.Allocate(file, 0, 0, 10'000, SetIdBits::kKeep), Errno::kOk);
  EXPECT_EQ(filesystem.Allocate(file, FALLOC_FL_ZERO_RANGE, 5'000, 10'000, SetIdBits::kKeep), Errno::kOk);
  EXPECT_EQ(filesystem.Allocate(file, FALLOC_FL_COLLAPSE_RANGE, 0, 4'096, SetIdBits::kKeep), Err(EOPNOTSUPP));
  EXPECT_EQ(filesystem.Allocate(file, FALLOC_FL_PUNCH_HOLE, 0, 4'096, SetIdBits::kKeep), Err(EOPNOTSUPP))
      << "without KEEP_SIZE";
  EXPECT_EQ(filesystem.Allocate(kRootInode, 0, 0, 1, SetIdBits::kKeep), Err(EISDIR));
  ASSERT_EQ(filesystem.names()->GetAttr(file, &attr), Errno::kOk);
  EXPECT_EQ(attr.st_size, 15'000);
  struct statvfs stat {};
  filesystem.StatFs(&stat);
  EXPECT_EQ((stat.f_blocks - stat.f_bfree) * stat.f_frsize, 4 * kPageBytes);
}

}  // namespace
}  // namespace nram
