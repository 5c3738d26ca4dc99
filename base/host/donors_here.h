#ifndef NRAM_BASE_HOST_DONORS_HERE_H_
#define NRAM_BASE_HOST_DONORS_HERE_H_

#include <string>

namespace nram {

// The memory servers of this machine that follow its available memory (--donate=auto, --give-back) and share it with
// process `self`, which counts as one of them. Two share it if the same cgroup (v1 or v2) limits both, or none does. At
// least 1. A server that this process cannot see, of another container say, does not count. `root` is put before
// every path, for tests. Reads some files of each process: for a call every some seconds.
int CountDonorsHere(int self, const std::string& root = "");

}  // namespace nram

#endif  // NRAM_BASE_HOST_DONORS_HERE_H_
