#include "sort/input.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/status.h"

namespace nram {

absl::StatusOr<Input> Input::Open(const std::vector<std::string>& paths) {
  Input input;
  input.paths_ = paths;
  for (const std::string& path : paths) {
    const bool standard = path == "-";
    struct stat attributes;
    if ((standard ? fstat(STDIN_FILENO, &attributes) : stat(path.c_str(), &attributes)) != 0 ||
        (!standard && faccessat(AT_FDCWD, path.c_str(), R_OK, AT_EACCESS) != 0)) {
      return ErrnoStatus(errno, "open " + path);
    }
    if (S_ISDIR(attributes.st_mode)) return ErrnoStatus(EISDIR, "read " + path);
    if (!S_ISREG(attributes.st_mode)) {
      input.total_bytes_ = kUnknown;
    } else if (input.total_bytes_ != kUnknown) {
      const off_t at = standard ? lseek(STDIN_FILENO, 0, SEEK_CUR) : 0;
      input.total_bytes_ += attributes.st_size > at ? static_cast<uint64_t>(attributes.st_size - at) : 0;
    }
  }
  NRAM_RETURN_IF_ERROR(input.OpenFile());
  return input;
}

absl::Status Input::OpenFile() {
  fd_.reset(path() == "-" ? fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3) : open(path().c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd_.valid() && errno == EINTR) return absl::CancelledError("interrupted");
  if (!fd_.valid()) return ErrnoStatus(errno, "open " + path());
  (void)posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  return absl::OkStatus();
}

absl::StatusOr<size_t> Input::Read(absl::Span<char> to) {
  const ssize_t n = read(fd_.get(), to.data(), to.size());
  if (n < 0 && errno == EINTR) return absl::CancelledError("interrupted");
  if (n < 0) return ErrnoStatus(errno, "read " + path());
  return static_cast<size_t>(n);
}

absl::StatusOr<bool> Input::Next() {
  fd_.reset();
  if (at_ + 1 == paths_.size()) return false;
  ++at_;
  NRAM_RETURN_IF_ERROR(OpenFile());
  return true;
}

}  // namespace nram
