#include <fcntl.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/status.h"
#include "base/units.h"
#include "sort/scratch.h"

namespace nram {
namespace {

// Writes go to the page cache at once, and reads are announced ahead: the kernel does the work of the pool's transfers.
class FileScratch : public Scratch {
 public:
  FileScratch(UniqueFd fd, std::string directory) : fd_(std::move(fd)), directory_(std::move(directory)) {}

  absl::Status Reserve(uint64_t bytes) override {
    struct statvfs room;
    if (fstatvfs(fd_.get(), &room) != 0) return ErrnoStatus(errno, "statvfs " + directory_);
    const uint64_t free_bytes = uint64_t{room.f_bavail} * room.f_frsize;
    if (bytes <= free_bytes) return absl::OkStatus();
    return absl::ResourceExhaustedError(absl::StrCat(directory_, " is too small: the scratch takes ",
                                                     FormatByteSize(bytes), " and ", FormatByteSize(free_bytes),
                                                     " are free"));
  }

  std::unique_ptr<Transfer> NewTransfer() override { return std::make_unique<FileTransfer>(fd_.get(), directory_); }

  absl::Status Discard(uint64_t offset, uint64_t bytes, Room) override {
    // Not every filesystem can; then the file is freed at the end. None keeps room for one file.
    (void)fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(offset),
                    static_cast<off_t>(bytes));
    return absl::OkStatus();
  }

 private:
  class FileTransfer : public Transfer {
   public:
    FileTransfer(int fd, const std::string& directory) : fd_(fd), directory_(directory) {}
    void StartRead(uint64_t offset, absl::Span<char> to) override {
      (void)posix_fadvise(fd_, static_cast<off_t>(offset), static_cast<off_t>(to.size()), POSIX_FADV_WILLNEED);
      read_offset_ = offset;
      read_to_ = to;
    }
    void StartWrite(uint64_t offset, absl::Span<const char> from) override {
      while (!from.empty()) {
        const ssize_t n = pwrite(fd_, from.data(), from.size(), static_cast<off_t>(offset));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
          status_ = ErrnoStatus(errno, "write scratch in " + directory_);
          return;
        }
        from.remove_prefix(static_cast<size_t>(n));
        offset += static_cast<uint64_t>(n);
      }
    }
    absl::Status Wait() override {
      while (!read_to_.empty() && status_.ok()) {
        const ssize_t n = pread(fd_, read_to_.data(), read_to_.size(), static_cast<off_t>(read_offset_));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) status_ = ErrnoStatus(errno, "read scratch in " + directory_);
        if (n == 0) status_ = absl::DataLossError("scratch in " + directory_ + " is shorter than the written data");
        if (n <= 0) break;
        read_to_.remove_prefix(static_cast<size_t>(n));
        read_offset_ += static_cast<uint64_t>(n);
      }
      read_to_ = {};
      return std::exchange(status_, absl::OkStatus());
    }

   private:
    const int fd_;
    const std::string& directory_;
    uint64_t read_offset_ = 0;
    absl::Span<char> read_to_;
    absl::Status status_;
  };

  const UniqueFd fd_;
  const std::string directory_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Scratch>> OpenFileScratch(const std::string& directory) {
  UniqueFd fd(open(directory.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd.valid() && (errno == EOPNOTSUPP || errno == EISDIR)) {
    std::string name = directory + "/nram-sort-XXXXXX";
    fd.reset(mkostemp(name.data(), O_CLOEXEC));
    if (fd.valid()) unlink(name.c_str());
  }
  if (!fd.valid()) return ErrnoStatus(errno, "create scratch in " + directory);
  return std::make_unique<FileScratch>(std::move(fd), directory);
}

}  // namespace nram
