#include "base/tls/tls_dir.h"

#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace nram {

std::string ServerTlsDir() {
  const char* const named = std::getenv(kTlsDirVariable);
  if (named != nullptr && *named != '\0') return named;
  const std::string at = std::string(kTlsDirDefault) + "/";
  const bool has_some = access((at + "server.pem").c_str(), F_OK) == 0 || access((at + "tls.crt").c_str(), F_OK) == 0;
  return has_some ? kTlsDirDefault : "";
}

absl::Status SetTlsDir(absl::string_view directory) {
  std::error_code error;
  const std::string path = std::filesystem::absolute(std::string(directory), error).string();
  if (directory.empty() || error) return absl::InvalidArgumentError("expected a directory with certificates");
  setenv(kTlsDirVariable, path.c_str(), /*overwrite=*/1);
  return absl::OkStatus();
}

}  // namespace nram
