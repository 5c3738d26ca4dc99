#ifndef NRAM_FSD_HANG_PROOF_H_
#define NRAM_FSD_HANG_PROOF_H_

// The kernel needs a swap daemon in order to free memory, so the daemon may not wait for memory itself.

#include "absl/status/status.h"

namespace nram {

// Must be called before there are threads. The process and the threads that it starts:
//   - never write pages out, to themselves least of all, when they need memory (PR_SET_IO_FLUSHER, Linux 5.6);
//   - are spared by the OOM killer;
//   - are real-time tasks, to which the kernel gives memory from its reserve (vm.min_free_kbytes);
//   - have small stacks, and one heap that is there from the start, so that malloc asks the kernel for nothing;
//   - log into a pipe that another process writes to the log file, and drop what does not fit.
// FAILED_PRECONDITION: this process may not do the first three, which needs CAP_SYS_RESOURCE and CAP_SYS_NICE; with
// `unprotected` it goes on without them and says so in the log.
absl::Status PrepareHangProof(bool unprotected);

// Locks all memory that the process has or gets. Must be called when all threads run and all buffers are there.
absl::Status LockMemory();

}  // namespace nram

#endif  // NRAM_FSD_HANG_PROOF_H_
