#ifndef NRAM_CLIENT_POOL_SEAL_CHOICE_H_
#define NRAM_CLIENT_POOL_SEAL_CHOICE_H_

#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "client/pool/options.h"

namespace nram {

// Whether pages are sealed: as --seal or --no-seal say (`given`), else as $NRAM_SEAL does (1 or 0), else kAuto.
// INVALID_ARGUMENT: the variable says something else.
absl::StatusOr<Seal> ChooseSeal(std::optional<bool> given);

// The key file of regions with a name: `given`, else $NRAM_KEY_FILE, as an absolute path; "": none. It is not looked
// at.
absl::StatusOr<std::string> ChooseKeyFile(const std::string& given);

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_SEAL_CHOICE_H_
