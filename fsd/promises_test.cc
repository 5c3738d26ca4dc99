// fallocate's promise: a write of a page that was reserved does not fail for lack of room, whatever happened to the
// rest of the file, to its copies and to the store meanwhile; and no room stays reserved for nothing.

#include "fsd/promises.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/sync.h"
#include "base/test_seed.h"
#include "base/units.h"
#include "fsd/filesystem.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

// A store that counts room as a pool's server does. A file's quota is of no page: a new page uses it, whichever page it
// is, and free room only when the quota is used up.
class RoomStore : public BlockStore {
 public:
  explicit RoomStore(uint64_t pages, size_t unit = kPageBytes) : free_(pages), unit_(unit) {}

  absl::StatusOr<std::unique_ptr<BlockFile>> Create() override { return std::make_unique<File>(this); }
  void Destroy(std::vector<std::unique_ptr<BlockFile>> files) override { files.clear(); }
  StoreCapacity Capacity() const override {
    MutexLock lock(&mu_);
    return {1'000 * kGiB, free_ * kPageBytes};
  }
  size_t unit_bytes() const override { return unit_; }
  // In all files' quotas.
  uint64_t reserved() const {
    MutexLock lock(&mu_);
    return reserved_;
  }
  // Another client takes all free room, or gives it back.
  void Fill() {
    MutexLock lock(&mu_);
    others_ += std::exchange(free_, 0);
  }
  void Drain() {
    MutexLock lock(&mu_);
    free_ += std::exchange(others_, 0);
  }
  // As at a server, pages of zeros that were not there before take no room, and leave theirs in the quota.
  bool skips_zeros = false;
  // Runs once, when the next write has come and has taken no room yet.
  std::function<void()> on_write;

 private:
  class File : public BlockFile {
   public:
    explicit File(RoomStore* store) : store_(store) {}
    ~File() override {
      MutexLock lock(&store_->mu_);
      store_->free_ += pages_.size() + quota_;
      store_->reserved_ -= quota_;
    }
    bool Start(BlockIo* io) override {
      if (io->op() == BlockIo::Op::kWrite && store_->on_write) std::exchange(store_->on_write, nullptr)();
      MutexLock lock(&store_->mu_);
      io->End(io->op() == BlockIo::Op::kRead ? Load(*io) : Store(*io));
      return true;
    }
    absl::Status Trim(uint64_t offset, uint64_t length) override {
      MutexLock lock(&store_->mu_);
      for (auto it = pages_.lower_bound(offset / kPageBytes); it != pages_.end();) {
        const uint64_t at = it->first * kPageBytes;
        if (at >= offset + length) break;
        if (at >= offset && at + kPageBytes <= offset + length) {
          it = pages_.erase(it);
          ++store_->free_;
          continue;
        }
        const uint64_t from = std::max(at, offset);
        memset(&it->second[from - at], 0, std::min(at + kPageBytes, offset + length) - from);
        ++it;
      }
      return absl::OkStatus();
    }
    absl::Status Reserve(uint64_t offset, uint64_t length) override {
      MutexLock lock(&store_->mu_);
      const uint64_t pages = PagesOf(offset, length);
      if (pages > store_->free_) return absl::ResourceExhaustedError("full");
      store_->free_ -= pages;
      quota_ += pages;
      store_->reserved_ += pages;
      return absl::OkStatus();
    }
    void Unreserve(uint64_t offset, uint64_t length) override { Release(PagesOf(offset, length)); }
    void UnreserveAll() override { Release(UINT64_MAX); }

   private:
    static uint64_t PagesOf(uint64_t offset, uint64_t length) {
      return RoundUp(offset + length, kPageBytes) / kPageBytes - offset / kPageBytes;
    }
    void Release(uint64_t most) {
      MutexLock lock(&store_->mu_);
      const uint64_t pages = std::min(quota_, most);
      quota_ -= pages;
      store_->reserved_ -= pages;
      store_->free_ += pages;
    }
    // Calls `visit(page, where in it, where in the buffer, bytes)`.
    template <typename Visit>
    static void ForEachPage(uint64_t offset, size_t size, Visit visit) {
      for (size_t at = 0; at < size;) {
        const uint64_t within = (offset + at) % kPageBytes;
        const size_t bytes = std::min<size_t>(kPageBytes - within, size - at);
        visit((offset + at) / kPageBytes, within, at, bytes);
        at += bytes;
      }
    }
    absl::Status Load(const BlockIo& io) {
      ForEachPage(io.offset(), io.to().size(), [&](uint64_t page, uint64_t within, size_t at, size_t bytes) {
        const auto it = pages_.find(page);
        memset(&io.to()[at], 0, bytes);
        if (it != pages_.end()) memcpy(&io.to()[at], &it->second[within], bytes);
      });
      return absl::OkStatus();
    }
    bool Skips(absl::Span<const std::byte> bytes) const {
      return store_->skips_zeros &&
             std::all_of(bytes.begin(), bytes.end(), [](std::byte byte) { return byte == std::byte{0}; });
    }
    // All of it or nothing.
    absl::Status Store(const BlockIo& io) ABSL_EXCLUSIVE_LOCKS_REQUIRED(store_->mu_) {
      uint64_t missing = 0;
      ForEachPage(io.offset(), io.from().size(), [&](uint64_t page, uint64_t, size_t at, size_t bytes) {
        missing += pages_.count(page) == 0 && !Skips(io.from().subspan(at, bytes));
      });
      if (missing > quota_ + store_->free_) return absl::ResourceExhaustedError("full");
      const uint64_t own = std::min(missing, quota_);
      quota_ -= own;
      store_->reserved_ -= own;
      store_->free_ -= missing - own;
      ForEachPage(io.offset(), io.from().size(), [&](uint64_t page, uint64_t within, size_t at, size_t bytes) {
        if (pages_.count(page) == 0 && Skips(io.from().subspan(at, bytes))) return;
        pages_[page].resize(kPageBytes);
        memcpy(&pages_[page][within], &io.from()[at], bytes);
      });
      return absl::OkStatus();
    }

    RoomStore* const store_;
    // Under the store's lock.
    std::map<uint64_t, std::string> pages_;
    uint64_t quota_ = 0;
  };

  mutable Mutex mu_;
  uint64_t free_ ABSL_GUARDED_BY(mu_);
  uint64_t reserved_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t others_ ABSL_GUARDED_BY(mu_) = 0;
  const size_t unit_;
};

// Files, each beside a model of its pages.
class PromisesTest : public ::testing::TestWithParam<size_t> {
 protected:
  static constexpr uint64_t kPages = 600;  // of a file: copies share from 256 on
  struct File {
    InodeNumber inode = 0;
    std::string name;
    std::vector<char> bytes = std::vector<char>(kPages, '\0');  // that fill each page; 0: a hole, or reserved
    std::vector<bool> promised = std::vector<bool>(kPages, false);
    uint64_t size = 0;  // in pages, as all below
  };

  File NewFile() {
    File file;
    file.name = absl::StrCat("f", ++names_);
    InodeAttr attr;
    EXPECT_TRUE(Ok(fs_.names()->Create(kRootInode, file.name, S_IFREG | 0644, 0, {}, &attr)));
    file.inode = attr.st_ino;
    return file;
  }
  void Remove(const File& file) {
    EXPECT_TRUE(Ok(fs_.names()->Unlink(kRootInode, file.name)));
    fs_.names()->Forget(file.inode, 1);
    AwaitFreed();
  }
  // Waits until the deleted files are freed, and then the files that those have given up in turn.
  void AwaitFreed() {
    for (int i = 0; i < 3; ++i) fs_.store()->reclaimer()->AwaitFreed(0);
  }
  Errno TryWrite(const File& file, uint64_t first, uint64_t end, char byte, WriteOrigin origin = WriteOrigin::kWriter) {
    const size_t size = (end - first) * kPageBytes;
    std::string padded(size + 2 * PaddedBytes::kPadBytes, byte);
    return fs_.Write(file.inode, first * kPageBytes,
                     {reinterpret_cast<std::byte*>(&padded[PaddedBytes::kPadBytes]), size},
                     WriteNotes{.origin = origin}, SetIdBits::kKeep);
  }
  static void NoteWritten(File* file, uint64_t first, uint64_t end, char byte) {
    std::fill(file->bytes.begin() + first, file->bytes.begin() + end, byte);
    std::fill(file->promised.begin() + first, file->promised.begin() + end, false);
    file->size = std::max(file->size, end);
  }
  void Write(File* file, uint64_t first, uint64_t end, char byte) {
    ASSERT_TRUE(Ok(TryWrite(*file, first, end, byte))) << file->name << ", pages " << first << " to " << end;
    NoteWritten(file, first, end, byte);
  }
  // Whether the page is no hole. Behind the end, only promised ones are none.
  bool Counts(const File& file, uint64_t page) {
    uint64_t found = 0;
    if (page >= file.size) return file.promised[page];
    return Ok(fs_.Seek(file.inode, page * kPageBytes, SEEK_DATA, &found)) && found == page * kPageBytes;
  }
  void Reserve(File* file, uint64_t first, uint64_t end, bool keep_size = true) {
    std::vector<bool> counted(kPages);
    for (uint64_t page = first; page < end; ++page) counted[page] = Counts(*file, page);
    ASSERT_TRUE(Ok(fs_.Allocate(file->inode, keep_size ? FALLOC_FL_KEEP_SIZE : 0, first * kPageBytes,
                                (end - first) * kPageBytes, SetIdBits::kKeep)));
    for (uint64_t page = first; page < end; ++page) {
      if (!counted[page]) file->promised[page] = true;
    }
    if (!keep_size) file->size = std::max(file->size, end);
  }
  // `ragged`: some bytes more at each side. Pages of which it has a part keep their promise and their bytes.
  void Punch(File* file, uint64_t first, uint64_t end, bool ragged) {
    const bool beside_zeros = first > 0 && end < kPages && file->bytes[first - 1] == '\0' && file->bytes[end] == '\0';
    const uint64_t more = ragged && beside_zeros ? 700 : 0;
    ASSERT_TRUE(Ok(fs_.Allocate(file->inode, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first * kPageBytes - more,
                                (end - first) * kPageBytes + 2 * more, SetIdBits::kKeep)));
    std::fill(file->bytes.begin() + first, file->bytes.begin() + end, '\0');
    std::fill(file->promised.begin() + first, file->promised.begin() + end, false);
  }
  void Truncate(File* file, uint64_t size) {
    InodeAttr attr;
    ASSERT_TRUE(Ok(fs_.SetAttr(file->inode, {}, size * kPageBytes, &attr)));
    std::fill(file->bytes.begin() + size, file->bytes.end(), '\0');
    std::fill(file->promised.begin() + size, file->promised.end(), false);
    file->size = size;
    if (size == 0) AwaitFreed();
  }
  void Copy(const File& from, File* to) {
    std::vector<std::byte> buffer(kMiB + 2 * PaddedBytes::kPadBytes);
    for (uint64_t at = 0; at < from.size * kPageBytes;) {
      uint64_t copied = 0;
      ASSERT_TRUE(Ok(fs_.Copy(
          {from.inode, at, to->inode, at, from.size * kPageBytes - at}, {buffer.data() + PaddedBytes::kPadBytes, kMiB},
          SetIdBits::kKeep, [] { return false; }, &copied)));
      ASSERT_GT(copied, 0u);
      at += copied;
    }
    for (uint64_t page = 0; page < from.size; ++page) {
      to->bytes[page] = from.bytes[page];
      to->promised[page] = false;
    }
    to->size = std::max(to->size, from.size);
  }
  void Compare(const File& file) {
    std::vector<std::byte> buffer(kMiB + 2 * PaddedBytes::kPadBytes);
    for (uint64_t at = 0; at < file.size * kPageBytes; at += kMiB) {
      absl::Span<const std::byte> got;
      ASSERT_TRUE(Ok(fs_.Read(file.inode, at, kMiB, {}, {buffer.data() + PaddedBytes::kPadBytes, kMiB}, &got)));
      ASSERT_EQ(got.size(), std::min<uint64_t>(kMiB, file.size * kPageBytes - at));
      for (size_t i = 0; i < got.size(); i += kPageBytes) {
        const std::string page(kPageBytes, file.bytes[(at + i) / kPageBytes]);
        ASSERT_EQ(memcmp(&got[i], page.data(), kPageBytes), 0) << file.name << " at " << at + i;
      }
    }
  }
  static uint64_t PromisedIn(const std::vector<File>& files) {
    uint64_t sum = 0;
    for (const File& file : files) sum += std::count(file.promised.begin(), file.promised.end(), true);
    return sum;
  }

  RoomStore blocks_{64'000, GetParam()};
  Filesystem fs_{&blocks_, FilesystemOptions{}};
  int names_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Units, PromisesTest, ::testing::Values(kChunkBytes, kPageBytes),
                         [](const auto& info) { return absl::StrCat(info.param); });

TEST_P(PromisesTest, AHoleElsewhereTakesNothing) {
  File file = NewFile();
  Reserve(&file, 0, 200, /*keep_size=*/false);
  Write(&file, 0, 100, 'a');
  Punch(&file, 0, 100, false);
  EXPECT_EQ(blocks_.reserved(), 100u);
  blocks_.Fill();
  for (uint64_t page = 100; page < 200; ++page) Write(&file, page, page + 1, 'b');
  EXPECT_EQ(blocks_.reserved(), 0u);
}

TEST_P(PromisesTest, AWriteElsewhereTakesNothing) {
  File file = NewFile();
  Reserve(&file, 0, 100);
  Write(&file, 300, 400, 'a');
  blocks_.Fill();
  EXPECT_EQ(TryWrite(file, 500, 501, 'b'), Err(ENOSPC));
  Write(&file, 0, 100, 'c');
  EXPECT_EQ(blocks_.reserved(), 0u);
}

// A handle for an asynchronous write.
class Io : public FileIo {
 public:
  using FileIo::FileIo;

 private:
  void OnEnd(Errno, absl::Span<const std::byte>) override {}
};

TEST_P(PromisesTest, AWriteBesideThatOfTheLastPromisedPageTakesNothing) {
  File file = NewFile();
  Reserve(&file, 0, 1);
  Io io(fs_.store());
  std::fill_n(io.buffer().data, kPageBytes, std::byte{'b'});
  blocks_.on_write = [&] {
    blocks_.Fill();
    EXPECT_FALSE(fs_.StartWrite(file.inode, 300 * kPageBytes, kPageBytes, WriteNotes{}, &io)) << "it has to reserve";
  };
  Write(&file, 0, 1, 'a');
  EXPECT_EQ(blocks_.reserved(), 0u);
  EXPECT_EQ(TryWrite(file, 300, 301, 'b'), Err(ENOSPC));
}

TEST_P(PromisesTest, ZerosThatWereWrittenKeepNoRoomOnceTheyAreAHole) {
  blocks_.skips_zeros = true;
  for (const bool punches : {true, false}) {
    File file = NewFile();
    Reserve(&file, 0, 100, /*keep_size=*/false);
    Write(&file, 0, 100, '\0');
    punches ? Punch(&file, 0, 100, false) : Truncate(&file, 50);
    EXPECT_EQ(blocks_.reserved(), 0u) << punches;
  }
}

TEST_P(PromisesTest, WhatCouldNotBeWrittenBackIsReservedAnew) {
  File file = NewFile();
  Write(&file, 0, 20, 'a');
  blocks_.Fill();
  EXPECT_EQ(TryWrite(file, 10, 40, 'b', WriteOrigin::kPageCache), Err(ENOSPC));
  blocks_.Drain();
  ASSERT_EQ(fs_.Allocate(file.inode, FALLOC_FL_KEEP_SIZE, 0, 60 * kPageBytes, SetIdBits::kKeep), Errno::kOk);
  EXPECT_EQ(blocks_.reserved(), 50u) << "all but the pages that are good";
  std::vector<std::byte> buffer(kPageBytes + 2 * PaddedBytes::kPadBytes);
  absl::Span<const std::byte> got;
  EXPECT_EQ(fs_.Read(file.inode, 20 * kPageBytes, 1, {}, {buffer.data() + PaddedBytes::kPadBytes, kPageBytes}, &got),
            Err(EIO))
      << "its bytes are lost all the same";
  blocks_.Fill();
  Write(&file, 10, 60, 'c');
  Compare(file);
  EXPECT_EQ(blocks_.reserved(), 0u);
}

TEST_P(PromisesTest, ZeroingIsAllOrNothing) {
  File file = NewFile();
  Write(&file, 0, 10, 'a');
  Reserve(&file, 20, 30);
  const auto zero = [&](uint64_t end) {
    return fs_.Allocate(file.inode, FALLOC_FL_ZERO_RANGE, 0, end * kPageBytes, SetIdBits::kKeep);
  };
  blocks_.Fill();
  EXPECT_EQ(zero(30), Err(ENOSPC));
  Compare(file);
  EXPECT_EQ(blocks_.reserved(), 10u);
  blocks_.Drain();
  EXPECT_EQ(zero(30), Errno::kOk);
  EXPECT_EQ(blocks_.reserved(), 30u);
  std::fill_n(file.bytes.begin(), 30, '\0');
  file.size = 30;
  Compare(file);
  blocks_.Fill();
  Write(&file, 0, 30, 'b');
  EXPECT_EQ(blocks_.reserved(), 0u);
}

TEST_P(PromisesTest, ACloneTakesNothingAndKeepsNothing) {
  File file = NewFile(), clone = NewFile();
  Reserve(&file, 0, 600, /*keep_size=*/false);
  Write(&file, 0, 300, 'a');
  Copy(file, &clone);
  EXPECT_EQ(blocks_.reserved(), 300u) << "the file's";
  blocks_.Fill();
  EXPECT_EQ(TryWrite(clone, 400, 401, 'c'), Err(ENOSPC)) << "nothing was promised to it";
  Write(&file, 300, 450, 'b');
  Compare(clone);
  blocks_.Drain();
  Write(&clone, 0, 300, 'c');  // pages of its own now
  Punch(&clone, 0, 300, false);
  Punch(&file, 0, 300, false);
  EXPECT_EQ(blocks_.reserved(), 150u);
  blocks_.Fill();
  Write(&file, 450, 600, 'd');
  Compare(file);
  blocks_.Drain();
  Remove(file);
  Remove(clone);
  EXPECT_EQ(blocks_.reserved(), 0u);
}

TEST_P(PromisesTest, TruncationToAnySizeGivesBackWhatIsBehindTheEnd) {
  for (const uint64_t size : {20u, 10u, 30u}) {  // the present size, and others
    File file = NewFile();
    Reserve(&file, 0, 500);
    Write(&file, 0, 20, 'a');
    Truncate(&file, size);
    EXPECT_EQ(blocks_.reserved(), size > 20 ? size - 20 : 0u) << size;
    Compare(file);
    Truncate(&file, 0);
    EXPECT_EQ(blocks_.reserved(), 0u);
  }
}

TEST_P(PromisesTest, RandomOperationsAgainstAModel) {
  std::mt19937_64 random(TestSeed());
  std::vector<File> files;
  for (int step = 0; step < 400; ++step) {
    SCOPED_TRACE(absl::StrCat("step ", step));
    while (files.size() < 4) files.push_back(NewFile());
    const size_t which = random() % files.size();
    File* const file = &files[which];
    const uint64_t first = random() % (kPages - 1);
    const uint64_t end = std::min(kPages, first + 1 + random() % (random() % 3 == 0 ? 300 : 20));
    const uint64_t choice = random() % 20;
    if (choice < 5) {
      Reserve(file, first, end, random() % 2 == 0);
    } else if (choice < 10) {
      Write(file, first, end, static_cast<char>(1 + random() % 100));
    } else if (choice < 13) {
      Punch(file, first, end, random() % 2 == 0);
    } else if (choice < 15) {
      Truncate(file, random() % 5 == 0 ? file->size : first);
    } else if (choice < 19) {
      if (File* const to = &files[random() % files.size()]; to != file) Copy(*file, to);
    } else {
      Remove(*file);
      files.erase(files.begin() + static_cast<ptrdiff_t>(which));
    }
    ASSERT_FALSE(HasFailure());
    ASSERT_EQ(blocks_.reserved(), PromisedIn(files));
    if (step % 10 != 0) continue;
    // Another client has the rest of the store. Some of the promised pages are written now, the others later.
    blocks_.Fill();
    for (File& one : files) {
      for (uint64_t page = 0; page < kPages; ++page) {
        if (one.promised[page] && random() % 4 != 0) Write(&one, page, page + 1, static_cast<char>(1 + random() % 100));
        ASSERT_FALSE(HasFailure());
      }
      Compare(one);
    }
    blocks_.Drain();
  }
  for (const File& file : files) Remove(file);
  EXPECT_EQ(blocks_.reserved(), 0u);
  EXPECT_EQ(blocks_.Capacity().free_bytes, 64'000 * kPageBytes) << "the files have left something";
}

}  // namespace
}  // namespace nram
