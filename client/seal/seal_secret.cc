#include "client/seal/seal_secret.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/fd.h"
#include "base/status.h"

namespace nram {
namespace {

absl::Status CheckFile(int fd, const std::string& path, const std::string& name, const struct stat& info) {
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(absl::StrCat(name, " is not a regular file: a key file holds the secret itself"));
  }
  const bool is_roots = info.st_uid == 0;
  if (!is_roots && info.st_uid != geteuid()) {
    return absl::PermissionDeniedError(absl::StrCat(name, " belongs to user ", info.st_uid,
                                                    ", so it is not secret: it must be this user's (chown ", geteuid(),
                                                    ") or root's"));
  }
  struct statfs system {};
  const bool is_mounted = is_roots && fstatfs(fd, &system) == 0 && system.f_type == TMPFS_MAGIC;
  const mode_t refused = is_mounted ? 0022 : is_roots ? 0027 : 0077;
  if ((info.st_mode & refused) == 0) return absl::OkStatus();
  return absl::PermissionDeniedError(
      absl::StrCat(name, " has mode ", absl::StrFormat("%04o", info.st_mode & 07777), ": others may ",
                   (info.st_mode & refused & 0022) != 0 ? "change" : "read", " it. Use chmod 600 ", path));
}

// A user with write access to the directory can replace this file by another, or by a link to one that he knows.
absl::Status CheckDirectory(const std::string& path, const std::string& name) {
  const size_t slash = path.rfind('/');
  const std::string directory = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  struct stat info {};
  if (stat(directory.c_str(), &info) != 0) return ErrnoStatus(errno, name);
  const bool is_ours = info.st_uid == 0 || info.st_uid == geteuid();
  const bool is_open = (info.st_mode & 0022) != 0 && (info.st_mode & S_ISVTX) == 0;
  if (is_ours && !is_open) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(name,
                                                  ": others may replace it, since they may write to its directory ",
                                                  directory, ". Use chmod go-w ", directory));
}

}  // namespace

absl::StatusOr<std::unique_ptr<SealSecret>> SealSecret::Read(const std::string& path) {
  const std::string name = absl::StrCat("key file ", path);
  NRAM_RETURN_IF_ERROR(CheckDirectory(path, name));
  // Not blocking: a fifo without a writer would block.
  const UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd.valid()) return ErrnoStatus(errno, name);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, name);
  NRAM_RETURN_IF_ERROR(CheckFile(fd.get(), path, name, info));
  const auto size = static_cast<size_t>(info.st_size);
  if (size < kBytesMin || size > kBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(name, " has ", size, " bytes; a secret needs ", kBytesMin, " to ",
                                                   kBytesMax, ". Make one: (umask 077; head -c 32 /dev/urandom > ",
                                                   path, ")"));
  }
  // One byte more tells whether it grows.
  NRAM_ASSIGN_OR_RETURN(std::shared_ptr<KeyMemory> memory, KeyMemory::Make(size + 1));
  size_t had = 0;
  while (had < size + 1) {
    const ssize_t n = read(fd.get(), memory->data() + had, size + 1 - had);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, name);
    if (n == 0) break;
    had += static_cast<size_t>(n);
  }
  if (had != size) return absl::FailedPreconditionError(absl::StrCat(name, " is being written: try again"));
  return std::unique_ptr<SealSecret>(new SealSecret(std::move(memory), size));
}

absl::StatusOr<std::unique_ptr<SealKey>> SealSecret::DeriveAt(std::shared_ptr<KeyMemory> memory, size_t at,
                                                              absl::Span<const uint8_t> salt,
                                                              absl::Span<const uint8_t> purpose) const {
  absl::StatusOr<std::unique_ptr<SealKey>> key =
      SealKey::DeriveAt(std::move(memory), at, {memory_->data(), bytes_}, salt, purpose);
  // Looked at afterwards: a key of zeros must not be used, whenever they became that.
  if (memory_->is_there()) return key;
  return absl::FailedPreconditionError("a child after fork has no copy of its parent's secret: it needs its own pool");
}

}  // namespace nram
