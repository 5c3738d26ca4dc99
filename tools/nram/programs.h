#ifndef NRAM_TOOLS_NRAM_PROGRAMS_H_
#define NRAM_TOOLS_NRAM_PROGRAMS_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace nram {

// The daemon `name` that goes with this command: what the environment's `variable` names, else beside this program,
// else in the build's `folder`. NOT_FOUND says where it was looked for.
absl::StatusOr<std::string> FindProgram(const std::string& name, const std::string& folder, const char* variable);

// The processes that there are; some may have ended by now.
std::vector<int> ListProcesses();
// What the kernel calls a process, of 15 bytes at most; "" if it has ended.
std::string ProcessName(int pid);

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_PROGRAMS_H_
