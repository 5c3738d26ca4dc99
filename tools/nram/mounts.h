#ifndef NRAM_TOOLS_NRAM_MOUNTS_H_
#define NRAM_TOOLS_NRAM_MOUNTS_H_

#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace nram {

struct MountPoint {
  std::string directory;
  std::string source;
  std::string device;  // major:minor
};

// The mounts of nram that the process `who`, or "self", sees.
std::vector<MountPoint> FindMounts(absl::string_view who);

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_MOUNTS_H_
