#ifndef NRAM_TOOLS_BENCH_STXXL_SORT_H_
#define NRAM_TOOLS_BENCH_STXXL_SORT_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"

namespace nram {

// Fills a vector of STXXL, an external-memory library, with `bytes` of seeded 8-byte keys, in a file in `directory`.
// Sorts it with `memory_bytes` and verifies it; prints the times of the three in JSON. UNIMPLEMENTED if nram was built
// without STXXL.
absl::Status SortWithStxxl(const std::string& directory, uint64_t bytes, uint64_t memory_bytes);

}  // namespace nram

#endif  // NRAM_TOOLS_BENCH_STXXL_SORT_H_
