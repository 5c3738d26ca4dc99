// Copies of files, and files that share pages, against plain strings and against the account of a store.

#include "fsd/file_copy.h"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/test_seed.h"
#include "fsd/filesystem.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

// The memory store with another unit, as a pool of sealed pages has it.
class PageStore : public BlockStore {
 public:
  explicit PageStore(size_t unit) : unit_(unit) {}
  absl::StatusOr<std::unique_ptr<BlockFile>> Create() override {
    return std::make_unique<File>(this, memory_->Create().value());
  }
  void Destroy(std::vector<std::unique_ptr<BlockFile>> files) override { memory_->Destroy(std::move(files)); }
  StoreCapacity Capacity() const override { return memory_->Capacity(); }
  size_t unit_bytes() const override { return unit_; }
  uint64_t Used() const { return Capacity().total_bytes - Capacity().free_bytes; }
  int trims() const { return trims_; }

 private:
  class File : public BlockFile {
   public:
    File(PageStore* store, std::unique_ptr<BlockFile> file) : store_(store), file_(std::move(file)) {}
    bool Start(BlockIo* io) override { return file_->Start(io); }
    absl::Status Trim(uint64_t offset, uint64_t length) override {
      ++store_->trims_;
      return file_->Trim(offset, length);
    }
    absl::Status Reserve(uint64_t offset, uint64_t length) override { return file_->Reserve(offset, length); }

   private:
    PageStore* const store_;
    const std::unique_ptr<BlockFile> file_;
  };

  std::atomic<int> trims_{0};
  const size_t unit_;
  const std::unique_ptr<BlockStore> memory_ = NewMemoryStore(48 * kMiB);
};

// Files by number, each beside a string that it must be like.
class FileCopyTest : public ::testing::TestWithParam<size_t> {
 protected:
  static constexpr ReadNotes kReadNotes{};
  static constexpr WriteNotes kWriteNotes{};

  InodeNumber NewFile() {
    InodeAttr attr;
    EXPECT_TRUE(Ok(fs_->names()->Create(kRootInode, absl::StrCat("f", ++names_), S_IFREG | 0644, 0, {}, &attr)));
    return attr.st_ino;
  }
  void Remove(InodeNumber inode, int name) {
    EXPECT_TRUE(Ok(fs_->names()->Unlink(kRootInode, absl::StrCat("f", name))));
    fs_->names()->Forget(inode, 1);
    AwaitFreed();
  }
  // Waits until the deleted files are freed, and then the files that those have given up in turn.
  void AwaitFreed() {
    for (int i = 0; i < 3; ++i) fs_->store()->reclaimer()->AwaitFreed(0);
  }
  Errno Write(InodeNumber inode, uint64_t offset, const std::string& data) {
    std::string padded(data.size() + 2 * PaddedBytes::kPadBytes, '#');
    data.copy(&padded[PaddedBytes::kPadBytes], data.size());
    return fs_->Write(inode, offset, {reinterpret_cast<std::byte*>(&padded[PaddedBytes::kPadBytes]), data.size()},
                      kWriteNotes, SetIdBits::kKeep);
  }
  std::string Read(InodeNumber inode, uint64_t offset, size_t size) {
    std::vector<std::byte> buffer(size + 4 * PaddedBytes::kPadBytes);
    absl::Span<const std::byte> got;
    const Errno error = fs_->Read(inode, offset, size, kReadNotes,
                                  {buffer.data() + PaddedBytes::kPadBytes, RoundUp(size, kPageBytes)}, &got);
    if (!Ok(error)) return absl::StrCat("errno ", Raw(error));
    return {reinterpret_cast<const char*>(got.data()), got.size()};
  }
  uint64_t SizeOf(InodeNumber inode) {
    InodeAttr attr;
    EXPECT_TRUE(Ok(fs_->names()->GetAttr(inode, &attr)));
    return static_cast<uint64_t>(attr.st_size);
  }
  uint64_t BlocksOf(InodeNumber inode) {
    InodeAttr attr;
    EXPECT_TRUE(Ok(fs_->names()->GetAttr(inode, &attr)));
    return static_cast<uint64_t>(attr.st_blocks);
  }
  // One request. Returns the bytes, or -errno.
  int64_t CopyOnce(
      const Filesystem::CopyRange& range, absl::FunctionRef<bool()> stop = [] { return false; }) {
    std::vector<std::byte> buffer(kMiB + 2 * PaddedBytes::kPadBytes);
    uint64_t copied = 0;
    const Errno error =
        fs_->Copy(range, {buffer.data() + PaddedBytes::kPadBytes, kMiB}, SetIdBits::kKeep, stop, &copied);
    return Ok(error) ? static_cast<int64_t>(copied) : -Raw(error);
  }
  // As many requests as it takes.
  int64_t Copy(Filesystem::CopyRange range) {
    int64_t sum = 0;
    while (range.length > 0) {
      const int64_t n = CopyOnce(range);
      if (n < 0 && sum == 0) return n;
      if (n <= 0) break;
      sum += n;
      range.from_offset += static_cast<uint64_t>(n);
      range.to_offset += static_cast<uint64_t>(n);
      range.length -= static_cast<uint64_t>(n);
    }
    return sum;
  }

  PageStore blocks_{GetParam()};
  std::unique_ptr<Filesystem> fs_ = std::make_unique<Filesystem>(&blocks_, FilesystemOptions{});
  int names_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Units, FileCopyTest, ::testing::Values(kChunkBytes, kPageBytes),
                         [](const auto& info) { return absl::StrCat(info.param); });

std::string Pattern(uint64_t bytes, uint64_t seed) {
  std::string data(bytes, '\0');
  for (uint64_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(1 + (i / 7 + i / kPageBytes + seed * 31) % 251);
  return data;
}

// Some files, each beside a string that it must be like.
class FileCopyModelTest : public FileCopyTest {
 protected:
  static constexpr uint64_t kSizeMax = 3 * kMiB + 5'000;
  struct File {
    InodeNumber inode;
    int name;
    std::string model;
  };

  // Below `below`, often at the edge of a page or chunk.
  uint64_t Edge(uint64_t below) {
    const uint64_t any = random_() % below;
    return random_() % 3 == 0 ? any : RoundDown(any, random_() % 2 == 0 ? kPageBytes : kChunkBytes);
  }
  static void Put(std::string* model, uint64_t offset, const std::string& data) {
    if (model->size() < offset + data.size()) model->resize(offset + data.size());
    model->replace(offset, data.size(), data);
  }

  void WriteTo(File* file, uint64_t offset, uint64_t length) {
    const std::string data = random_() % 8 == 0 ? std::string(length, '\0') : Pattern(length, random_());
    ASSERT_TRUE(Ok(Write(file->inode, offset, data)));
    Put(&file->model, offset, data);
  }
  void Punch(File* file, uint64_t offset, uint64_t length) {
    constexpr int kPunch = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
    ASSERT_TRUE(Ok(fs_->Allocate(file->inode, kPunch, offset, length, SetIdBits::kKeep)));
    for (uint64_t i = offset; i < std::min(offset + length, file->model.size()); ++i) file->model[i] = '\0';
  }
  void Truncate(File* file, uint64_t size) {
    InodeAttr attr;
    ASSERT_TRUE(Ok(fs_->SetAttr(file->inode, {}, size, &attr)));
    file->model.resize(size);
  }
  void Reserve(File* file, uint64_t offset, uint64_t length) {
    ASSERT_TRUE(Ok(fs_->Allocate(file->inode, 0, offset, length, SetIdBits::kKeep)));
    if (file->model.size() < offset + length) file->model.resize(offset + length);
  }
  void CopyTo(File* file, File* to, uint64_t offset, uint64_t length) {
    const bool shares = random_() % 2 == 0;
    const uint64_t from_at = shares ? (random_() % 3 == 0 ? RoundDown(offset, kPageBytes) : 0) : offset;
    const uint64_t to_at = shares ? from_at : Edge(kSizeMax);
    uint64_t bytes = shares ? 4 * kMiB : length;
    // Linux asks for no more than the file has, and it may have more after the first request.
    if (to == file && from_at < file->model.size()) bytes = std::min(bytes, file->model.size() - from_at);
    const int64_t n = Copy({file->inode, from_at, to->inode, to_at, bytes});
    const uint64_t apart = std::max(from_at, to_at) - std::min(from_at, to_at);
    if (to == file && apart < bytes) {
      ASSERT_EQ(n, -EINVAL);
      return;
    }
    const std::string data = from_at < file->model.size() ? file->model.substr(from_at, bytes) : "";
    ASSERT_EQ(n, static_cast<int64_t>(data.size()));
    if (!data.empty()) Put(&to->model, to_at, data);
  }
  void Step() {
    while (files_.size() < 4) {
      const InodeNumber inode = NewFile();
      files_.push_back({inode, names_, ""});
    }
    const size_t which = random_() % files_.size();
    File* const file = &files_[which];
    const uint64_t offset = Edge(kSizeMax);
    const uint64_t length = 1 + Edge(random_() % 4 == 0 ? kMiB : 20'000);
    const uint64_t choice = random_() % 40;
    if (choice < 12) return WriteTo(file, offset, length);
    if (choice < 16) return Punch(file, offset, length);
    if (choice < 20) return Truncate(file, random_() % 6 == 0 ? 0 : offset);
    if (choice < 22) return Reserve(file, offset, length);
    if (choice < 39) return CopyTo(file, &files_[random_() % files_.size()], offset, length);
    Remove(file->inode, file->name);
    files_.erase(files_.begin() + static_cast<ptrdiff_t>(which));
  }
  void Compare() {
    for (const File& file : files_) {
      ASSERT_EQ(SizeOf(file.inode), file.model.size());
      for (uint64_t at = 0; at < file.model.size(); at += kMiB) {
        ASSERT_TRUE(Read(file.inode, at, kMiB) == file.model.substr(at, kMiB)) << "near " << at;
      }
    }
  }

  std::mt19937_64 random_{TestSeed()};
  std::vector<File> files_;
};
INSTANTIATE_TEST_SUITE_P(Units, FileCopyModelTest, ::testing::Values(kChunkBytes, kPageBytes),
                         [](const auto& info) { return absl::StrCat(info.param); });

TEST_P(FileCopyModelTest, RandomOperationsAgainstStrings) {
  for (int step = 0; step < 300; ++step) {
    Step();
    if (step % 8 == 0) Compare();
    ASSERT_FALSE(HasFailure()) << "step " << step;
  }
  for (const File& file : files_) Remove(file.inode, file.name);
  EXPECT_EQ(blocks_.Used(), 0u) << "the clones left something";
  EXPECT_EQ(fs_->store()->quota()->left(), fs_->store()->quota()->max());
}

TEST_P(FileCopyTest, ACloneCostsWhatChanges) {
  const InodeNumber source = NewFile();
  const std::string data = Pattern(8 * kMiB + 100, 1);
  ASSERT_TRUE(Ok(Write(source, 0, data)));
  const uint64_t alone = blocks_.Used();
  const InodeNumber clone = NewFile();
  // All at once: a state of one moment.
  ASSERT_EQ(CopyOnce({source, 0, clone, 0, data.size()}), static_cast<int64_t>(data.size()));
  EXPECT_EQ(blocks_.Used(), alone);
  EXPECT_EQ(BlocksOf(clone), BlocksOf(source));
  ASSERT_TRUE(Ok(Write(clone, 4 * kMiB + 5, "clone")));
  ASSERT_TRUE(Ok(Write(source, 5 * kMiB, std::string(kPageBytes, 's'))));
  EXPECT_EQ(blocks_.Used(), alone + 2 * kPageBytes);
  EXPECT_EQ(Read(clone, 4 * kMiB, 12), data.substr(4 * kMiB, 5) + "clone" + data.substr(4 * kMiB + 10, 2));
  EXPECT_EQ(Read(source, 4 * kMiB, 12), data.substr(4 * kMiB, 12));
  EXPECT_EQ(Read(clone, 5 * kMiB, 12), data.substr(5 * kMiB, 12));
  EXPECT_EQ(Read(source, 5 * kMiB, 3), "sss");

  // The same again, to a file that shares the pages already: nothing is used.
  EXPECT_EQ(CopyOnce({source, 0, clone, 0, data.size()}), static_cast<int64_t>(data.size()));
  EXPECT_EQ(blocks_.Used(), alone + kPageBytes);
  EXPECT_EQ(Read(clone, 4 * kMiB, 12), data.substr(4 * kMiB, 12));

  // The last file writes in place, and owns the pages that it sees.
  Remove(source, 1);
  ASSERT_TRUE(Ok(Write(clone, 0, std::string(2 * kMiB, 'x'))));
  EXPECT_LE(blocks_.Used(), alone + kMiB);
  Remove(clone, 2);
  EXPECT_EQ(blocks_.Used(), 0u);
}

TEST_P(FileCopyTest, WhatNobodySeesIsFreed) {
  const InodeNumber source = NewFile();
  ASSERT_TRUE(Ok(Write(source, 0, Pattern(4 * kMiB, 1))));
  const InodeNumber clone = NewFile(), other = NewFile();
  ASSERT_EQ(CopyOnce({source, 0, clone, 0, 4 * kMiB}), static_cast<int64_t>(4 * kMiB));
  ASSERT_EQ(CopyOnce({clone, 0, other, 0, 4 * kMiB}), static_cast<int64_t>(4 * kMiB));
  EXPECT_EQ(blocks_.Used(), 4 * kMiB);
  ASSERT_TRUE(Ok(Write(source, 0, Pattern(2 * kMiB, 2))));
  ASSERT_TRUE(Ok(Write(clone, kMiB, Pattern(2 * kMiB, 3))));
  EXPECT_EQ(blocks_.Used(), 8 * kMiB);
  // The second MiB was seen by this one alone.
  Remove(other, 3);
  EXPECT_EQ(blocks_.Used(), 7 * kMiB);
  EXPECT_TRUE(Read(source, 2 * kMiB, kMiB) == Pattern(4 * kMiB, 1).substr(2 * kMiB, kMiB));
  EXPECT_TRUE(Read(clone, 0, kMiB) == Pattern(4 * kMiB, 1).substr(0, kMiB));
}

// As when the target has no room for it in the mount's limit.
TEST_P(FileCopyTest, ACopyThatEndsBeforeTheTargetHasItLeavesNothing) {
  const InodeNumber source = NewFile();
  ASSERT_TRUE(Ok(Write(source, 0, Pattern(4 * kMiB, 1))));
  FileBody* body = nullptr;
  ASSERT_TRUE(Ok(fs_->names()->Body(source, &body)));
  {
    FileData::SharedBytes shared;
    static_cast<FileData*>(body)->Share(0, 4 * kMiB, &shared);
    ASSERT_EQ(shared.end, 4 * kMiB);
    ASSERT_TRUE(Ok(Write(source, 0, Pattern(2 * kMiB, 2))));
    EXPECT_EQ(blocks_.Used(), 6 * kMiB);
  }
  EXPECT_EQ(blocks_.Used(), 4 * kMiB) << "pages that only the copy has seen are kept";
}

// Without freeing (--no-gc), the pages that two files share stay stored when the mount ends.
TEST_P(FileCopyTest, SharedPagesStayWhenNothingIsFreedAtTheEnd) {
  fs_ = std::make_unique<Filesystem>(&blocks_, FilesystemOptions{.free_at_end = false});
  const InodeNumber source = NewFile(), clone = NewFile();
  ASSERT_TRUE(Ok(Write(source, 0, Pattern(4 * kMiB, 1))));
  ASSERT_EQ(CopyOnce({source, 0, clone, 0, 4 * kMiB}), static_cast<int64_t>(4 * kMiB));
  ASSERT_TRUE(Ok(Write(clone, 0, Pattern(2 * kMiB, 2))));  // the source ends first, and alone has seen the old ones
  const int trims = blocks_.trims();
  fs_ = nullptr;
  EXPECT_EQ(blocks_.trims(), trims);
}

// The program, or the kernel, looks at the source's size first, and it has become longer since.
TEST_P(FileCopyTest, ACopyOfAFileThatGrows) {
  const InodeNumber source = NewFile(), clone = NewFile();
  const std::string data = Pattern(2 * kMiB + 5'000, 1);
  const uint64_t length = 2 * kMiB + 100;
  ASSERT_TRUE(Ok(Write(source, 0, data)));
  const uint64_t alone = blocks_.Used();
  ASSERT_EQ(CopyOnce({source, 0, clone, 0, length}), static_cast<int64_t>(length));
  EXPECT_EQ(blocks_.Used(), alone) << "not of one moment";
  InodeAttr attr;
  ASSERT_TRUE(Ok(fs_->SetAttr(clone, {}, data.size(), &attr)));
  EXPECT_TRUE(Read(clone, 0, kMiB) + Read(clone, kMiB, kMiB) == data.substr(0, 2 * kMiB));
  EXPECT_TRUE(Read(clone, 2 * kMiB, kMiB) == data.substr(2 * kMiB, 100) + std::string(4'900, '\0'));
  EXPECT_TRUE(Read(source, 2 * kMiB, kMiB) == data.substr(2 * kMiB));
  // Where the copy cannot share all pages, it does not report that all are copied.
  ASSERT_TRUE(Ok(Write(clone, data.size(), "longer")));
  EXPECT_LT(CopyOnce({source, 0, clone, 0, length}), static_cast<int64_t>(length));
}

// A snapshot each day, kept for two days.
TEST_P(FileCopyTest, CopiesThatComeAndGoDoNotUseBasesUp) {
  const InodeNumber source = NewFile();
  std::string data = Pattern(2 * kMiB, 1);
  ASSERT_TRUE(Ok(Write(source, 0, data)));
  std::vector<std::pair<InodeNumber, int>> copies;
  for (uint64_t day = 0; day < 2 * CloneFile::kSightsMax; ++day) {
    copies.push_back({NewFile(), names_});
    ASSERT_EQ(CopyOnce({source, 0, copies.back().first, 0, 2 * kMiB}), static_cast<int64_t>(2 * kMiB)) << day;
    const std::string page = Pattern(kPageBytes, day);
    const uint64_t at = day * 37 % 512 * kPageBytes;
    ASSERT_TRUE(Ok(Write(source, at, page)));
    data.replace(at, page.size(), page);
    ASSERT_TRUE(Read(source, 0, kMiB) + Read(source, kMiB, kMiB) == data) << day;
    if (copies.size() < 2) continue;
    Remove(copies.front().first, copies.front().second);
    copies.erase(copies.begin());
    EXPECT_LE(blocks_.Used(), 2 * kMiB + kMiB) << "day " << day << ": what nobody sees is kept";
  }
}

TEST_P(FileCopyTest, APageThatTheTargetHasAlreadyKeepsNoBase) {
  const InodeNumber source = NewFile(), first = NewFile(), longer = NewFile();
  const uint64_t length = 2 * kMiB + 100;
  ASSERT_TRUE(Ok(Write(source, 0, Pattern(length, 1))));
  ASSERT_EQ(CopyOnce({source, 0, first, 0, length}), static_cast<int64_t>(length));
  ASSERT_TRUE(Ok(Write(source, 2 * kMiB, Pattern(100, 2))));  // in a base of its own, with the next copy
  ASSERT_TRUE(Ok(Write(longer, 2 * kMiB, Pattern(kPageBytes, 3))));
  ASSERT_EQ(Copy({source, 0, longer, 0, length}), static_cast<int64_t>(length));
  Remove(source, 1);
  EXPECT_EQ(blocks_.Used(), 2 * kMiB + 2 * kPageBytes);
}

TEST_P(FileCopyTest, AFullStoreLeavesBothAsTheyWere) {
  const InodeNumber source = NewFile(), clone = NewFile(), filler = NewFile();
  const std::string data = Pattern(2 * kMiB, 1);
  ASSERT_TRUE(Ok(Write(source, 0, data)));
  ASSERT_EQ(CopyOnce({source, 0, clone, 0, data.size()}), static_cast<int64_t>(data.size()));
  for (uint64_t at = 0; blocks_.Capacity().free_bytes > 0; at += kPageBytes) {
    ASSERT_TRUE(Ok(Write(filler, at, std::string(kPageBytes, 'f'))));
  }
  EXPECT_EQ(Write(source, kMiB, std::string(kPageBytes, 's')), Err(ENOSPC));
  EXPECT_EQ(Write(clone, 10, "c"), Err(ENOSPC));
  EXPECT_TRUE(Read(source, 0, kMiB) + Read(source, kMiB, kMiB) == data);
  EXPECT_TRUE(Read(clone, 0, kMiB) + Read(clone, kMiB, kMiB) == data);
  // A copy of bytes stops when the store is full.
  EXPECT_EQ(CopyOnce({source, 0, filler, 100 * kMiB, kMiB}), -ENOSPC);
  Remove(clone, 2);
  EXPECT_TRUE(Ok(Write(source, kMiB, std::string(kPageBytes, 's')))) << "now it is alone";
}

TEST_P(FileCopyTest, HolesStayHoles) {
  const InodeNumber source = NewFile(), to = NewFile(), shifted = NewFile();
  InodeAttr attr;
  ASSERT_TRUE(Ok(Write(source, 3 * kMiB, Pattern(10'000, 1))));
  ASSERT_TRUE(Ok(fs_->SetAttr(source, {}, 9 * kMiB, &attr)));
  ASSERT_TRUE(Ok(Write(shifted, 0, Pattern(kMiB, 2))));
  EXPECT_EQ(Copy({source, 0, shifted, 4'096, UINT32_MAX}), static_cast<int64_t>(9 * kMiB));
  EXPECT_EQ(Copy({source, 0, to, 0, UINT32_MAX}), static_cast<int64_t>(9 * kMiB));
  EXPECT_EQ(BlocksOf(to), BlocksOf(source));
  EXPECT_EQ(BlocksOf(shifted), BlocksOf(source) + kChunksPerPage);
  EXPECT_EQ(SizeOf(shifted), 9 * kMiB + 4'096);
  EXPECT_TRUE(Read(shifted, 3 * kMiB + 4'096, 10'000) == Pattern(10'000, 1));
  EXPECT_EQ(Read(shifted, 4'096, 5), std::string(5, '\0'));
}

TEST_P(FileCopyTest, ASignalEndsACopyBetweenPieces) {
  const InodeNumber source = NewFile(), to = NewFile();
  ASSERT_TRUE(Ok(Write(source, 0, Pattern(9 * kMiB, 1))));
  EXPECT_EQ(CopyOnce({source, 4'096, to, 0, 9 * kMiB}, [] { return true; }), static_cast<int64_t>(kMiB));
  EXPECT_EQ(SizeOf(to), kMiB);
}

// Pages are written one after the other, in rounds. A copy must have the writes up to one of them, and none of the
// later ones.
TEST_P(FileCopyTest, ACopyOfAllIsAStateOfOneMoment) {
  for (const uint64_t pages : {40u, 600u}) {
    const InodeNumber source = NewFile();
    // It has grown since the copies looked at its size.
    ASSERT_TRUE(Ok(Write(source, 0, std::string((pages + 1) * kPageBytes, '\0'))));
    std::atomic<bool> stop{false};
    std::thread writer([&] {
      for (uint64_t i = 1; !stop; ++i) {
        std::string page(kPageBytes, '\0');
        memcpy(page.data(), &i, sizeof i);
        EXPECT_TRUE(Ok(Write(source, i % pages * kPageBytes, page)));
      }
    });
    for (int round = 0; round < 12; ++round) {
      const InodeNumber clone = NewFile();
      EXPECT_EQ(CopyOnce({source, 0, clone, 0, pages * kPageBytes}), static_cast<int64_t>(pages * kPageBytes));
      std::vector<uint64_t> seen(pages);
      for (uint64_t page = 0; page < pages; ++page) {
        memcpy(&seen[page], Read(clone, page * kPageBytes, sizeof seen[page]).data(), sizeof seen[page]);
      }
      const uint64_t last = *std::max_element(seen.begin(), seen.end());
      for (uint64_t page = 0; page < pages; ++page) {
        const uint64_t back = (last + pages - page) % pages;
        EXPECT_EQ(seen[page], back > last || last - back == 0 ? 0 : last - back) << "page " << page;
      }
      if (round % 2 == 0) Remove(clone, names_);
    }
    stop = true;
    writer.join();
  }
}

}  // namespace
}  // namespace nram
