#include "base/state_dir.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace nram {

std::string LocalStateDir() {
  if (const char* dir = std::getenv("NRAM_STATE_DIR"); dir != nullptr && *dir != '\0') return dir;
  if (geteuid() == 0) return "/run/nram";
  if (const char* dir = std::getenv("XDG_RUNTIME_DIR"); dir != nullptr && *dir != '\0')
    return absl::StrCat(dir, "/nram");
  return absl::StrCat("/tmp/nram-", geteuid());
}

absl::Status CheckStateDir(const std::string& directory) {
  const std::string path = directory.empty() ? LocalStateDir() : directory;
  struct stat info;
  if (lstat(path.c_str(), &info) != 0) return errno == ENOENT ? absl::OkStatus() : ErrnoStatus(errno, path);
  const char* why = !S_ISDIR(info.st_mode)                         ? " is not a directory"
                    : info.st_uid != geteuid() && info.st_uid != 0 ? " belongs to another user"
                    : (info.st_mode & (S_IWGRP | S_IWOTH)) != 0    ? " may be written to by others"
                                                                   : nullptr;
  if (why == nullptr) return absl::OkStatus();
  return absl::PermissionDeniedError(absl::StrCat(path, why, "; set NRAM_STATE_DIR to a directory of your own"));
}

absl::Status MakeStateDir(const std::string& directory) {
  const std::string path = directory.empty() ? LocalStateDir() : directory;
  if (mkdir(path.c_str(), 0755) != 0 && errno != EEXIST) return ErrnoStatus(errno, absl::StrCat("create ", path));
  return CheckStateDir(path);
}

}  // namespace nram
