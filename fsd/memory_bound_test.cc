// The bound of the daemon's own memory, over a heap and a clock that the test moves; and the refusals of a mount at its
// bound.

#include "fsd/memory_bound.h"

#include <malloc.h>

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/units.h"
#include "fsd/filesystem.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

class MemoryBoundTest : public ::testing::Test {
 protected:
  uint64_t heap_ = 10 * kMiB;
  int64_t now_ns_ = 1;
  int looks_ = 0;
  MemoryBound bound_{64 * kMiB, [this] { return ++looks_, heap_; }, [this] { return now_ns_; }};
};

TEST_F(MemoryBoundTest, TheHeapCountsAndNotTheEstimates) {
  for (int i = 0; i < 1'000; ++i) EXPECT_TRUE(bound_.TryGrow(kMiB)) << "the heap has grown by nothing";
  EXPECT_GE(looks_, 500);
  looks_ = 0;
  for (int i = 0; i < 1'000; ++i) EXPECT_TRUE(bound_.TryGrow(100));
  EXPECT_LE(looks_, 1) << "looks are seldom";
  heap_ = 64 * kMiB;
  EXPECT_FALSE(bound_.TryGrow(2 * kMiB));
  EXPECT_FALSE(bound_.TryGrow(1));
}

TEST_F(MemoryBoundTest, WhatWasFreedCountsSoonAndLooksStaySeldom) {
  heap_ = 65 * kMiB;
  EXPECT_FALSE(bound_.TryGrow(kMiB));
  heap_ = 20 * kMiB;
  looks_ = 0;
  for (int i = 0; i < 1'000; ++i) EXPECT_FALSE(bound_.TryGrow(100));
  EXPECT_EQ(looks_, 0);
  now_ns_ += 100 * kNsPerMs;
  EXPECT_TRUE(bound_.TryGrow(100));
  EXPECT_EQ(looks_, 1);
}

TEST_F(MemoryBoundTest, WithoutABoundNothingIsRefused) {
  MemoryBound none(0, [this] { return ++looks_, heap_; });
  EXPECT_TRUE(none.TryGrow(UINT64_MAX));
  EXPECT_EQ(looks_, 0);
}

TEST(HeapBytesTest, TellsOfWhatIsAllocated) {
  const uint64_t before = HeapBytes();
  const std::unique_ptr<char[]> memory(new char[8 * kMiB]());
  EXPECT_GE(HeapBytes(), before + 8 * kMiB);
  EXPECT_EQ(memory[5], 0);
}

// All kinds of growth are refused, and nothing that needs no memory.
class BoundedMountTest : public ::testing::Test {
 protected:
  BoundedMountTest() {
    FilesystemOptions options;
    options.memory_bytes_max = 64 * kMiB;
    options.heap_bytes = [this] { return full_ ? 65 * kMiB : 10 * kMiB; };
    fs_ = std::make_unique<Filesystem>(blocks_.get(), std::move(options));
  }
  Errno Write(InodeNumber inode, uint64_t offset) {
    std::string padded(kPageBytes + 2 * PaddedBytes::kPadBytes, 'x');
    return fs_->Write(inode, offset, {reinterpret_cast<std::byte*>(&padded[PaddedBytes::kPadBytes]), kPageBytes},
                      WriteNotes{}, SetIdBits::kKeep);
  }

  bool full_ = false;
  const std::unique_ptr<BlockStore> blocks_ = NewMemoryStore(64 * kMiB);
  std::unique_ptr<Filesystem> fs_;
};

TEST_F(BoundedMountTest, RefusesAllThatGrowsAndNothingElse) {
  Namespace* const names = fs_->names();
  InodeAttr file, attr;
  ASSERT_EQ(names->Create(kRootInode, "file", S_IFREG | 0644, 0, {}, &file), Errno::kOk);
  ASSERT_EQ(Write(file.st_ino, 0), Errno::kOk);
  ASSERT_EQ(fs_->Allocate(file.st_ino, 0, kMiB, kPageBytes, SetIdBits::kKeep), Errno::kOk);
  full_ = true;
  // The mount looks at the heap when it has grown by a 64th of the bound, as it believes.
  Errno error = Errno::kOk;
  for (int i = 0; i < 10'000 && Ok(error); ++i) {
    error = names->Create(kRootInode, absl::StrCat("f", i), S_IFREG | 0644, 0, {}, &attr);
  }
  EXPECT_EQ(error, Err(ENOSPC));
  EXPECT_EQ(names->Create(kRootInode, "directory", S_IFDIR | 0755, 0, {}, &attr), Err(ENOSPC));
  EXPECT_EQ(names->CreateUnnamed(kRootInode, 0644, {}, &attr), Err(ENOSPC));
  EXPECT_EQ(names->Symlink(kRootInode, "link", "target", {}, &attr), Err(ENOSPC));
  EXPECT_EQ(names->Link(file.st_ino, kRootInode, "name", &attr), Err(ENOSPC));
  EXPECT_EQ(names->SetXattr(file.st_ino, "user.a", "value", 0, false), Err(ENOSPC));
  EXPECT_EQ(Write(file.st_ino, 16 * kMiB), Err(ENOSPC));
  EXPECT_EQ(fs_->Allocate(file.st_ino, 0, 8 * kMiB, kPageBytes, SetIdBits::kKeep), Err(ENOSPC));

  EXPECT_EQ(Write(file.st_ino, 0), Errno::kOk) << "overwriting";
  EXPECT_EQ(Write(file.st_ino, kMiB), Errno::kOk) << "it was reserved";
  EXPECT_EQ(names->Rename(kRootInode, "file", kRootInode, "elif", 0), Errno::kOk);
  EXPECT_EQ(fs_->SetAttr(file.st_ino, {.mode = 0600}, 100, &attr), Errno::kOk);
  EXPECT_EQ(names->Unlink(kRootInode, "f0"), Errno::kOk);
  full_ = false;
}

}  // namespace
}  // namespace nram
