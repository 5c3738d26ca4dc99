#ifndef NRAM_BASE_HOST_HOST_MEMORY_H_
#define NRAM_BASE_HOST_HOST_MEMORY_H_

// The state of this host's memory. `--donate=auto` and `nram df` show it, and a server refuses to lend more memory than
// the host has.

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "base/file.h"

namespace nram {

struct HostMemory {
  uint64_t total_bytes = 0;
  // As much as programs could get without swapping: the kernel's MemAvailable, or less if a cgroup limits this process.
  uint64_t available_bytes = 0;
  // Memory that holds nothing at all at present (the kernel's MemFree).
  uint64_t idle_bytes = 0;
};

// Reads /proc/meminfo and this process's memory cgroup (v1 or v2). `root` is put before every path, for tests.
absl::StatusOr<HostMemory> ReadHostMemory(const std::string& root = "");

// The memory of the whole machine, whatever limits this process.
struct MachineMemory {
  uint64_t available_bytes = 0;
  uint64_t swap_free_bytes = 0;
};
absl::StatusOr<MachineMemory> ReadMachineMemory(const std::string& root = "");

// Identifies this boot: two processes that read the same text share a kernel, and so its RAM. "unknown" if it cannot be
// read.
std::string BootId();

// The resident set of a process (0: this one), its anonymous part, and its bytes in swap besides; zeros if it cannot be
// read.
struct ProcessMemory {
  uint64_t resident_bytes = 0;
  uint64_t anonymous_bytes = 0;
  uint64_t swapped_bytes = 0;
};
ProcessMemory ReadProcessMemory(int pid = 0);

// Sets this process's oom_score_adj, -1000 (never ended by the OOM killer) to 1000 (first). Lowering it needs
// privileges.
absl::Status WriteOomScore(int score);

}  // namespace nram

#endif  // NRAM_BASE_HOST_HOST_MEMORY_H_
