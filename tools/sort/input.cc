#include "tools/sort/input.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "base/status.h"

namespace nram {

absl::StatusOr<Input> Input::Open(const std::vector<std::string>& paths) {
  Input input;
  for (const std::string& path : paths) {
    File file{path, UniqueFd(path == "-" ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3)
                                         : open(path.c_str(), O_RDONLY | O_CLOEXEC))};
    if (!file.fd.valid()) return ErrnoStatus(errno, "open " + path);
    struct stat attributes;
    if (fstat(file.fd.get(), &attributes) != 0) return ErrnoStatus(errno, "stat " + path);
    if (S_ISDIR(attributes.st_mode)) return ErrnoStatus(EISDIR, "read " + path);
    if (!S_ISREG(attributes.st_mode)) {
      input.total_bytes_ = kUnknown;
    } else if (input.total_bytes_ != kUnknown) {
      const off_t at = lseek(file.fd.get(), 0, SEEK_CUR);
      input.total_bytes_ += attributes.st_size > at ? static_cast<uint64_t>(attributes.st_size - at) : 0;
      (void)posix_fadvise(file.fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
    }
    input.files_.push_back(std::move(file));
  }
  return input;
}

absl::StatusOr<size_t> Input::Read(absl::Span<char> to) {
  const ssize_t n = read(files_[at_].fd.get(), to.data(), to.size());
  if (n < 0 && errno == EINTR) return absl::CancelledError("interrupted");
  if (n < 0) return ErrnoStatus(errno, "read " + path());
  return static_cast<size_t>(n);
}

bool Input::Next() {
  files_[at_].fd.reset();
  if (at_ + 1 == files_.size()) return false;
  ++at_;
  return true;
}

}  // namespace nram
