#include "client/pool/seal_choice.h"

#include <cstdlib>
#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace nram {

absl::StatusOr<Seal> ChooseSeal(std::optional<bool> given) {
  if (given.has_value()) return *given ? Seal::kYes : Seal::kNo;
  const char* const variable = std::getenv("NRAM_SEAL");
  const std::string text = variable == nullptr ? "" : variable;
  if (text.empty()) return Seal::kAuto;
  if (text == "1") return Seal::kYes;
  if (text == "0") return Seal::kNo;
  return absl::InvalidArgumentError(absl::StrCat("$NRAM_SEAL: \"", text, "\" is not accepted: expected 1 or 0"));
}

absl::StatusOr<std::string> ChooseKeyFile(const std::string& given) {
  const char* const variable = std::getenv("NRAM_KEY_FILE");
  const std::string named = !given.empty() ? given : variable == nullptr ? "" : variable;
  if (named.empty()) return named;
  // Daemons leave the directory that they were started in.
  std::error_code error;
  std::string path = std::filesystem::absolute(named, error).string();
  if (error) return absl::InvalidArgumentError(absl::StrCat("key file ", named, ": ", error.message()));
  return path;
}

}  // namespace nram
