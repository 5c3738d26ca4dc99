#ifndef NRAM_TOOLS_NRAM_MOUNTS_H_
#define NRAM_TOOLS_NRAM_MOUNTS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nram {

struct MountPoint {
  std::string directory;
  std::string source;
  std::string device;  // major:minor
};

// The room of the filesystem that a path is on.
struct MountRoom {
  // 0: the sizes are right. ETIMEDOUT: its daemon does not answer. EAGAIN: no process could be made to ask. Else
  // statvfs(3)'s.
  int error = 0;
  uint64_t total_bytes = 0;
  uint64_t free_bytes = 0;
};

// Asks about all paths at once; each has `timeout_ms` in all. The calls are made in processes of their own, which are
// left behind if they do not end: a call to a filesystem whose daemon stands still cannot always be interrupted.
std::vector<MountRoom> AskRooms(const std::vector<std::string>& paths, int64_t timeout_ms);

// The absolute path without links, as realpath(3), within `timeout_ms` and in the same way. DEADLINE_EXCEEDED: a
// filesystem on the way does not answer; else realpath's error. To be called while the process has one thread.
absl::StatusOr<std::string> ResolvePath(const std::string& path, int64_t timeout_ms);

// The mounts of nram that the process `who`, or "self", sees.
std::vector<MountPoint> FindMounts(absl::string_view who);

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_MOUNTS_H_
