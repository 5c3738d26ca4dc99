#ifndef NRAM_CLIENT_MANAGED_FORK_COUNT_H_
#define NRAM_CLIENT_MANAGED_FORK_COUNT_H_

#include <cstdint>

namespace nram {

// How many forks lead to this process since the first call. An object made at another count is a parent's: its threads
// are not here, and its locks may be held for ever. Thread-safe; one load after the first call.
uint32_t ForkCount();

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_FORK_COUNT_H_
