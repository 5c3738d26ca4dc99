#include "sort/output.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "sort/file_rights.h"

namespace nram {

namespace {

// The one output that a process writes at a time.
char temporary_for_signal[PATH_MAX];
std::atomic<bool> temporary_is_there{false};
std::atomic<bool> wrote_in_place{false};

bool SameFile(const std::string& path, const struct stat& other) {
  struct stat attributes;
  const int found = path == "-" ? fstat(STDIN_FILENO, &attributes) : stat(path.c_str(), &attributes);
  return found == 0 && attributes.st_dev == other.st_dev && attributes.st_ino == other.st_ino;
}

// Whether `old` may be replaced by a new file of its name: in a directory like /tmp only by its owner.
bool MayReplace(const std::string& path, const struct stat& old) {
  struct stat directory;
  const size_t slash = path.rfind('/');
  const std::string name = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  if (stat(name.c_str(), &directory) != 0 || (directory.st_mode & S_ISVTX) == 0) return true;
  const uid_t self = geteuid();
  return self == 0 || self == old.st_uid || self == directory.st_uid;
}

// The file that a path means, which need not exist: links are followed to their end.
std::string FollowLinks(const std::string& path) {
  char resolved[PATH_MAX];
  if (realpath(path.c_str(), resolved) != nullptr) return resolved;
  std::string at = path;
  for (int links = 0; links < 40; ++links) {
    char next[PATH_MAX];
    const ssize_t bytes = readlink(at.c_str(), next, sizeof next);
    if (bytes <= 0 || static_cast<size_t>(bytes) == sizeof next) break;
    const std::string to(next, static_cast<size_t>(bytes));
    const size_t slash = at.rfind('/');
    at = to[0] == '/' || slash == std::string::npos ? to : at.substr(0, slash + 1) + to;
  }
  return at;
}

// A file of a name of its own beside `target`, which is set to *name; an errno in *error if there can be none.
UniqueFd CreateBeside(const std::string& target, mode_t mode, std::string* name, int* error) {
  static constexpr char kLetters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789";
  std::random_device random;
  UniqueFd fd;
  for (int tries = 0; tries < 100; ++tries) {
    *name = target + '.';
    for (int i = 0; i < 6; ++i) name->push_back(kLetters[random() % (sizeof kLetters - 1)]);
    fd.reset(open(name->c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, mode));
    *error = fd.valid() ? 0 : errno;
    if (*error != EEXIST) break;
  }
  return fd;
}

}  // namespace

void Output::RemoveTemporaryInSignal() {
  if (temporary_is_there) unlink(temporary_for_signal);
}

bool Output::WroteInPlace() { return wrote_in_place; }

absl::StatusOr<int> Output::CreateTemporary(const UniqueFd& old) {
  std::string temporary;
  int error = 0;
  // A new file has the mode that any program's has: by the umask, or by the directory's default ACL.
  fd_ = CreateBeside(target_, old.valid() ? 0600 : 0666, &temporary, &error);
  if (!fd_.valid()) return error;
  temporary_ = temporary;
  if (temporary.size() < sizeof temporary_for_signal) {
    strcpy(temporary_for_signal, temporary.c_str());
    temporary_is_there = true;
  }
  if (old.valid()) NRAM_RETURN_IF_ERROR(GiveRightsOf(old.get(), fd_.get(), temporary));
  return 0;
}

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
  const UniqueFd old(open(path.c_str(), O_PATH | O_CLOEXEC));
  const bool exists = old.valid();
  if (exists ? fstat(old.get(), &attributes) != 0 : errno != ENOENT) return ErrnoStatus(errno, "stat " + path);
  if (!exists || S_ISREG(attributes.st_mode)) {
    // A file that may not be written to is not replaced either.
    if (exists && faccessat(AT_FDCWD, path.c_str(), W_OK, AT_EACCESS) != 0) return ErrnoStatus(errno, "write " + path);
    output.target_ = FollowLinks(path);
    for (const std::string& input : inputs) output.is_input_ |= exists && SameFile(input, attributes);
    int error = EPERM;
    if (!exists || MayReplace(output.target_, attributes)) {
      NRAM_ASSIGN_OR_RETURN(error, output.CreateTemporary(old));
      if (error == 0) return output;
    }
    if (!exists || (error != EACCES && error != EPERM && error != EROFS)) {
      return ErrnoStatus(error, "create a temporary file beside " + output.target_);
    }
    if (output.is_input_) {
      return absl::FailedPreconditionError(absl::StrCat(
          path, " is also an input, and its directory does not permit a replacement (", strerror(error),
          "): sorting in place could destroy it. Write the output elsewhere, or make the directory writable"));
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
  // The rename removes the input, and a crash could lose records that are not on the disk yet.
  if (is_input_ && !temporary_.empty() && fdatasync(fd_.get()) != 0) return ErrnoStatus(errno, "sync " + name_);
  // A filesystem may say only now that it could not write.
  if (close(fd_.get()) != 0) {
    const int error = errno;
    if (!temporary_.empty()) Unlink();
    fd_.release();
    return ErrnoStatus(error, "write " + name_);
  }
  fd_.release();
  if (temporary_.empty()) return absl::OkStatus();
  const int error = rename(temporary_.c_str(), target_.c_str()) == 0 ? 0 : errno;
  temporary_is_there = false;
  if (error == 0) return absl::OkStatus();
  // The file may hold hours of work.
  return ErrnoStatus(error,
                     absl::StrCat("the sorted output is in ", temporary_, "; move it by hand: rename to ", target_));
}

}  // namespace nram
