#ifndef NRAM_CLIENT_RUN_INJECT_H_
#define NRAM_CLIENT_RUN_INJECT_H_

#include <sys/types.h>

#include <memory>

#include "absl/status/statusor.h"
#include "client/run/helper.h"

namespace nram {

// Waits until a traced thread has stopped. Its status, as waitpid(2) tells it. UNAVAILABLE: it has ended, and is not
// reaped here.
absl::StatusOr<int> AwaitStop(pid_t thread);

// The parent of the helper: the program's own parent, or none. Without one, the calling process adopts it, and must be
// one that adopts orphans (PR_SET_CHILD_SUBREAPER).
enum class HelperParent { kPrograms, kNobody };

// Puts a helper into the memory of a program that has just been executed, or forked. `program`: its main thread,
// stopped where execve(2) or fork(2) returns (a stop by PTRACE_SYSCALL, or a child's first one), traced by the calling
// thread. It is as it was afterwards, and still stopped. Blocks for a fraction of a millisecond. FAILED_PRECONDITION:
// the program has something at the helper's address. UNAVAILABLE: it has ended.
absl::StatusOr<std::unique_ptr<Helper>> InjectHelper(pid_t program, HelperParent parent);

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_INJECT_H_
