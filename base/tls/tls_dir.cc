#include "base/tls/tls_dir.h"

#include <errno.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace nram {

bool MayExist(const std::string& path) {
  struct stat info;
  return lstat(path.c_str(), &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

std::string ServerTlsDir() {
  const char* const named = std::getenv(kTlsDirVariable);
  if (named != nullptr && *named != '\0') return named;
  const std::string at = std::string(kTlsDirDefault) + "/";
  return MayExist(at + "server.pem") || MayExist(at + "tls.crt") ? kTlsDirDefault : "";
}

absl::Status SetTlsDir(absl::string_view directory) {
  std::error_code error;
  if (directory == kNoTls) {
    setenv(kTlsDirVariable, kNoTls, /*overwrite=*/1);
    return absl::OkStatus();
  }
  const std::string path = std::filesystem::absolute(std::string(directory), error).string();
  if (directory.empty() || error) return absl::InvalidArgumentError("expected a directory with certificates");
  setenv(kTlsDirVariable, path.c_str(), /*overwrite=*/1);
  return absl::OkStatus();
}

}  // namespace nram
