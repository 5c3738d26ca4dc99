// Changes of a file that fail after a part of them: no reader gets older bytes from the page cache.

#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/poll_until.h"
#include "base/units.h"
#include "fsd/filesystem.h"
#include "fsd/fuse_mount.h"
#include "tests/util/test_mount.h"

namespace nram {
namespace {

// A store in memory. While `fails`, a hole has its first page alone.
class FailingStore : public BlockStore {
 public:
  absl::StatusOr<std::unique_ptr<BlockFile>> Create() override {
    return std::make_unique<File>(this, inner_->Create().value());
  }
  void Destroy(std::vector<std::unique_ptr<BlockFile>> files) override { files.clear(); }
  StoreCapacity Capacity() const override { return inner_->Capacity(); }

  std::atomic<bool> fails{false};

 private:
  class File : public BlockFile {
   public:
    File(FailingStore* store, std::unique_ptr<BlockFile> inner) : store_(store), inner_(std::move(inner)) {}
    bool Start(BlockIo* io) override { return inner_->Start(io); }
    absl::Status Reserve(uint64_t offset, uint64_t length) override { return inner_->Reserve(offset, length); }
    absl::Status Trim(uint64_t offset, uint64_t length) override {
      if (!store_->fails) return inner_->Trim(offset, length);
      (void)inner_->Trim(offset, kPageBytes);
      return absl::UnavailableError("told to");
    }

   private:
    FailingStore* const store_;
    const std::unique_ptr<BlockFile> inner_;
  };

  const std::unique_ptr<BlockStore> inner_ = NewMemoryStore(16 * kMiB);
};

TEST(FailedChangeTest, TheCacheKeepsNothingOlder) {
  constexpr size_t kBytes = 16 * kPageBytes;
  FailingStore store;
  Filesystem filesystem(&store, {});
  const TempDir directory;
  FuseMountOptions options;
  options.directory = directory.path();
  auto mount = FuseMount::Start(&filesystem, options);
  ASSERT_TRUE(mount.ok()) << mount.status();
  const UniqueFd hole(open((directory.path() + "/hole").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_EQ(ftruncate(hole.get(), kBytes), 0);
  const std::pair<const char*, std::function<int(int)>> changes[] = {
      {"punch", [](int fd) { return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, kBytes); }},
      {"zero", [](int fd) { return fallocate(fd, FALLOC_FL_ZERO_RANGE, 0, kBytes); }},
      {"truncate", [](int fd) { return ftruncate(fd, kBytes / 2); }},
      {"copy", [&](int fd) { return copy_file_range(hole.get(), nullptr, fd, nullptr, kBytes, 0) < 0 ? -1 : 0; }},
  };
  for (const auto& [name, change] : changes) {
    const std::string path = directory.path() + "/" + name;
    const UniqueFd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    const UniqueFd direct(open(path.c_str(), O_RDONLY | O_DIRECT | O_CLOEXEC));
    const std::string before(kBytes, 'a');
    ASSERT_EQ(pwrite(fd.get(), before.data(), kBytes, 0), static_cast<ssize_t>(kBytes));
    ASSERT_EQ(fsync(fd.get()), 0);
    store.fails = true;
    EXPECT_EQ(change(fd.get()), -1) << name;
    EXPECT_EQ(errno, EIO) << name;
    store.fails = false;
    alignas(kPageBytes) static char stored[kBytes];
    ASSERT_EQ(pread(direct.get(), stored, kBytes, 0), static_cast<ssize_t>(kBytes));
    const std::string after(stored, kBytes);
    ASSERT_NE(after, before) << name << ": a part was done";
    EXPECT_TRUE(PollUntil(DeadlineAfterMs(10'000), 5, [&] {
      std::string cached(kBytes, '\0');
      return pread(fd.get(), cached.data(), kBytes, 0) == static_cast<ssize_t>(kBytes) && cached == after;
    })) << name;
  }
}

}  // namespace
}  // namespace nram
