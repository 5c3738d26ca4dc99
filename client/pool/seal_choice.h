#ifndef NRAM_CLIENT_POOL_SEAL_CHOICE_H_
#define NRAM_CLIENT_POOL_SEAL_CHOICE_H_

#include <optional>

#include "absl/status/statusor.h"
#include "client/pool/options.h"

namespace nram {

// Whether pages are sealed: as --seal or --no-seal say (`given`), else as $NRAM_SEAL does (1 or 0), else kAuto.
// INVALID_ARGUMENT: the variable says something else.
absl::StatusOr<Seal> ChooseSeal(std::optional<bool> given);

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_SEAL_CHOICE_H_
