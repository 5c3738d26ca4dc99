#ifndef NRAM_BASE_STATE_DIR_H_
#define NRAM_BASE_STATE_DIR_H_

// The state directory of a user: it tells commands which local pool, mounts and swap areas there are. A user with the
// right to write to it decides which servers are trusted and which processes are ended, so it is checked before use.

#include <string>

#include "absl/status/status.h"

namespace nram {

// $NRAM_STATE_DIR, /run/nram for root, $XDG_RUNTIME_DIR/nram, else /tmp/nram-<uid>.
std::string LocalStateDir();

// Makes `directory` (LocalStateDir() if empty) if it does not exist, and checks it. PERMISSION_DENIED: it is not a
// directory, belongs to another user than this one or root, or others may write to it.
absl::Status MakeStateDir(const std::string& directory = "");

// Checks without making. A directory that does not exist is good.
absl::Status CheckStateDir(const std::string& directory = "");

}  // namespace nram

#endif  // NRAM_BASE_STATE_DIR_H_
