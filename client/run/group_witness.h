#ifndef NRAM_CLIENT_RUN_GROUP_WITNESS_H_
#define NRAM_CLIENT_RUN_GROUP_WITNESS_H_

#include <sys/types.h>

#include "absl/status/status.h"
#include "base/fd.h"

namespace nram {

// Tells a signal for this process from one for its whole group: the kernel does not say. A process of the same group
// blocks all signals, and is asked whether it has got one as well. For one thread at a time.
class GroupWitness {
 public:
  GroupWitness() = default;
  // Kills the witness. Its end is waited for here, if no other code of this process has done so.
  ~GroupWitness();
  GroupWitness(const GroupWitness&) = delete;
  GroupWitness& operator=(const GroupWitness&) = delete;

  // To be called once, while this process has one thread. The witness ends with that thread. Errors: fork's.
  absl::Status Start();

  // Whether the witness has got `signal` of process `sender` (0: the kernel) since it was last asked for that number.
  // The kernel gives a signal to the youngest members of a group first, so a caller that has got one for the group is
  // told so. One from another sender is forgotten: a job scheduler signals the processes of a job one by one, and may
  // reach the witness after the question. Two signals with the same number are one, the first, to the kernel while the
  // caller has not taken it: one for the caller alone is lost in the group's then, also if the group's other processes
  // have taken theirs. Blocks for a second at most; false if there is no answer.
  bool HasGot(int signal, pid_t sender);

 private:
  UniqueFd process_;
  UniqueFd socket_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_RUN_GROUP_WITNESS_H_
