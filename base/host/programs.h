#ifndef NRAM_BASE_HOST_PROGRAMS_H_
#define NRAM_BASE_HOST_PROGRAMS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nram {

// Finds the daemon or library `name` that goes with this command: the environment's `variable` names it, or it is
// beside this program, in ../lib/nram, or in the build's `folder`. NOT_FOUND says where it was looked for.
absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& folder, const char* variable);

// The processes of the machine. Some may have ended when this returns.
std::vector<int> ListProcesses();
// The kernel's name for a process, of 15 bytes at most; "" if it has ended.
std::string ProcessName(int pid);

}  // namespace nram

#endif  // NRAM_BASE_HOST_PROGRAMS_H_
