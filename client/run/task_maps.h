#ifndef NRAM_CLIENT_RUN_TASK_MAPS_H_
#define NRAM_CLIENT_RUN_TASK_MAPS_H_

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/fd.h"
#include "client/run/address_space.h"

namespace nram {

// A mapping that is larger than this remains local: it is a table of addresses, such as a sanitizer's shadow.
inline constexpr uint64_t kRemoteBytesMax = uint64_t{256} << 30;

// The parts of a program's memory that may be remote, by the text of /proc/PID/maps: private anonymous memory that is
// not executable, of kRemoteBytesMin and more, and the heap of brk(2). Pure.
std::vector<AddressRun> FindRemotable(absl::string_view maps);
// Whether a supervisor has put its helper's pages into such memory. Pure.
bool HasHelperPages(absl::string_view maps);
// The parts of a running task's memory that may be remote. Blocks for the length of a read from /proc.
absl::StatusOr<std::vector<AddressRun>> ReadRemotable(pid_t task);

// How many mappings have a part of the run. Blocks for the length of a read from /proc.
absl::StatusOr<size_t> CountMappings(pid_t task, const AddressRun& run);

// The process that a thread belongs to; the thread itself if it has ended.
pid_t ProcessOf(pid_t thread);

// A descriptor of a thread's process. None: `errno` says why; EBADF: there is none.
UniqueFd CopyDescriptor(pid_t thread, int number);
// The same without the right to trace: its file, opened anew. ENODEV: it is no regular file, and might be another one.
UniqueFd ReopenFile(pid_t thread, int number);
// Whether a thread has the memory in which `helper` is, the task that a supervisor has put there. Nothing: the kernel
// does not say; `errno` says why. `only`: no other memory has a helper, so that its pages tell where kcmp(2) is
// forbidden, which no child inherits.
std::optional<bool> SharesMemory(pid_t helper, pid_t thread, bool only);

// The rights of a task, as text that is equal for tasks with the same: users, capabilities, filters of calls.
absl::StatusOr<std::string> ReadRights(pid_t task);

// Which pages of a run are in memory, or in the machine's swap.
absl::StatusOr<std::vector<bool>> ReadPresent(pid_t task, const AddressRun& run);

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_TASK_MAPS_H_
