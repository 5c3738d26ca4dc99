#ifndef NRAM_TOOLS_NRAM_DOORS_H_
#define NRAM_TOOLS_NRAM_DOORS_H_

// `nram doctor`'s looks at this machine: the doors that this user has, its mounts, and the servers that run here.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace nram {

enum class Verdict { kGood, kAdvice, kBad };

struct Finding {
  Verdict verdict;
  std::string what;
  std::string why;  // with the remedy; "" if it is good
};

// The rights of this user: to mount (/dev/fuse, fusermount3), to use the memory API (userfaultfd) and `nram run`
// (userfaultfd, tracing), and to seal pages (locked memory). Makes a child for a moment: for a process that has one
// thread. Does not wait.
std::vector<Finding> CheckDoors();

// Whether the filesystems mounted on these directories answer (AskRooms).
std::vector<Finding> CheckMounts(const std::vector<std::string>& directories, int64_t timeout_ms);

// Whether the kernel may swap out a memory server of this machine. That is bad if other machines can reach the server,
// else advice (a local pool for a trial). There are no findings if no server runs here.
std::vector<Finding> CheckServersHere();

// The finding of CheckServersHere for one process. `root` is put before every path, for tests.
Finding CheckServerProcess(int pid, const std::string& root = "");

// The lowest number in the files of these names ("/memory.max"), in the process's memory cgroup and the groups above it
// (v1 or v2). Nothing: no file has a number. `process` is its directory in /proc.
std::optional<uint64_t> LowestInCgroups(const std::string& process, const std::vector<std::string>& files,
                                        const std::string& root = "");

// "23 h", "45 min", "12 days": a time from now on, in the largest unit that has two of it, or in minutes.
std::string FormatTimeLeft(int64_t seconds);

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_DOORS_H_
