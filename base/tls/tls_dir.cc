#include "base/tls/tls_dir.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

namespace nram {

absl::Status SetTlsDir(absl::string_view directory) {
  std::error_code error;
  const std::string path = std::filesystem::absolute(std::string(directory), error).string();
  if (directory.empty() || error) return absl::InvalidArgumentError("expected a directory with certificates");
  setenv(kTlsDirVariable, path.c_str(), /*overwrite=*/1);
  return absl::OkStatus();
}

}  // namespace nram
