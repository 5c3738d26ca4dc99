#include "tools/sort/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace nram {

namespace {

// Of the one output that a process writes at a time.
char temporary_for_signal[PATH_MAX];
std::atomic<bool> temporary_is_there{false};
std::atomic<bool> wrote_in_place{false};

bool SameFile(const std::string& path, const struct stat& other) {
  struct stat attributes;
  const int found = path == "-" ? fstat(STDIN_FILENO, &attributes) : stat(path.c_str(), &attributes);
  return found == 0 && attributes.st_dev == other.st_dev && attributes.st_ino == other.st_ino;
}

}  // namespace

void Output::RemoveTemporaryInSignal() {
  if (temporary_is_there) unlink(temporary_for_signal);
}

bool Output::WroteInPlace() { return wrote_in_place; }

absl::StatusOr<Output> Output::Open(const std::string& path, absl::Span<const std::string> inputs) {
  Output output;
  if (path.empty()) {
    output.name_ = "the standard output";
    output.fd_.reset(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
    if (!output.fd_.valid()) return ErrnoStatus(errno, "the standard output");
    return output;
  }
  output.name_ = path;
  struct stat attributes;
  const bool exists = stat(path.c_str(), &attributes) == 0;
  if (!exists && errno != ENOENT) return ErrnoStatus(errno, "stat " + path);
  if (!exists || S_ISREG(attributes.st_mode)) {
    char resolved[PATH_MAX];
    output.target_ = exists && realpath(path.c_str(), resolved) != nullptr ? resolved : path;
    std::string temporary = output.target_ + ".XXXXXX";
    output.fd_.reset(mkostemp(temporary.data(), O_CLOEXEC));
    if (output.fd_.valid()) {
      output.temporary_ = temporary;
      if (temporary.size() < sizeof temporary_for_signal) {
        strcpy(temporary_for_signal, temporary.c_str());
        temporary_is_there = true;
      }
      mode_t mode = attributes.st_mode & 07777;
      if (!exists) {
        const mode_t mask = umask(0);
        umask(mask);
        mode = 0666 & ~mask;
      } else if (fchown(output.fd_.get(), attributes.st_uid, attributes.st_gid) != 0 && errno != EPERM) {
        return ErrnoStatus(errno, "chown " + temporary);
      }
      if (fchmod(output.fd_.get(), mode) != 0) return ErrnoStatus(errno, "chmod " + temporary);
      return output;
    }
    const int error = errno;
    if (!exists || (error != EACCES && error != EPERM && error != EROFS)) {
      return ErrnoStatus(error, "create " + temporary);
    }
    for (const std::string& input : inputs) {
      if (!SameFile(input, attributes)) continue;
      return absl::FailedPreconditionError(absl::StrCat(
          path, " is an input too, and its directory cannot be written to (", strerror(error),
          "): sorting in place could destroy it. Write the output elsewhere, or let the directory be written to"));
    }
  }
  output.fd_.reset(open(path.c_str(), O_WRONLY | O_CLOEXEC));
  if (!output.fd_.valid()) return ErrnoStatus(errno, "open " + path);
  output.truncates_ = true;
  return output;
}

Output::~Output() {
  if (fd_.valid() && !temporary_.empty()) Unlink();
}

void Output::Unlink() {
  temporary_is_there = false;
  unlink(temporary_.c_str());
}

absl::Status Output::Begin() {
  wrote_in_place = temporary_.empty();
  // Pipes and devices have no length to be cut.
  if (truncates_ && ftruncate(fd_.get(), 0) != 0 && errno != EINVAL) return ErrnoStatus(errno, "truncate " + name_);
  return absl::OkStatus();
}

absl::Status Output::Commit() {
  // What a filesystem could not write it may say only now.
  if (close(fd_.get()) != 0) {
    const int error = errno;
    if (!temporary_.empty()) Unlink();
    fd_.release();
    return ErrnoStatus(error, "write " + name_);
  }
  fd_.release();
  if (temporary_.empty()) return absl::OkStatus();
  if (rename(temporary_.c_str(), target_.c_str()) != 0) {
    const int error = errno;
    Unlink();
    return ErrnoStatus(error, "rename " + temporary_ + " to " + target_);
  }
  temporary_is_there = false;
  return absl::OkStatus();
}

}  // namespace nram
