#ifndef NRAM_BASE_HOST_DONORS_HERE_H_
#define NRAM_BASE_HOST_DONORS_HERE_H_

#include <string>

namespace nram {

// The memory servers of this machine that lend what the host leaves (--donate=auto, --give-back) and that have the same
// memory as process `self`, which counts as one of them: the host's, or that of the cgroup (v1 or v2) that limits both.
// At least 1. A server that this process cannot see, of another container say, does not count. `root` is put before
// every path, for tests. Reads some files of each process: for a call every some seconds.
int CountDonorsHere(int self, const std::string& root = "");

}  // namespace nram

#endif  // NRAM_BASE_HOST_DONORS_HERE_H_
