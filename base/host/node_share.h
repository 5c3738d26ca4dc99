#ifndef NRAM_BASE_HOST_NODE_SHARE_H_
#define NRAM_BASE_HOST_NODE_SHARE_H_

// A budget "SIZE/node" is this machine's: the processes of a parallel program (MPI) that run here share it equally.

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nram {

// How many processes of this parallel program run on this machine, as its launcher (Open MPI's or MPICH's mpirun, srun)
// tells in the environment; 1 if there is no launcher. INVALID_ARGUMENT: its number cannot be understood, or another
// launcher has started this process as one of several. No other thread may change the environment meanwhile. Does not
// block.
absl::StatusOr<int> ProcessesOnThisNode();

// Takes "/node" off the end of `*text`. Returns the divisor for its sizes: ProcessesOnThisNode(), or 1 if it did not
// end so.
absl::StatusOr<int> ConsumeNodeShare(absl::string_view* text);

}  // namespace nram

#endif  // NRAM_BASE_HOST_NODE_SHARE_H_
