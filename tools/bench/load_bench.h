#ifndef NRAM_TOOLS_BENCH_LOAD_BENCH_H_
#define NRAM_TOOLS_BENCH_LOAD_BENCH_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "client/pool/options.h"

namespace nram {

struct LoadBenchOptions {
  int clients = 31;  // each has two connections to the server; one more client measures
  int seconds = 60;
  int server_pid = 0;  // the bench watches its memory
};

struct LoadBenchResult {
  uint64_t operations = 0;
  uint64_t bytes = 0;
  uint64_t errors = 0;       // failed operations
  uint64_t wrong_bytes = 0;  // reads that differed from the last write
  std::string first_error;
  double idle_p50_us = 0, idle_p99_us = 0;      // urgent 4 KiB reads with nothing else
  double loaded_p50_us = 0, loaded_p99_us = 0;  // and beside the load
  std::vector<uint64_t> resident_bytes;         // of the server, every tenth of the time
};

// Many clients write and read back regions of their own, 512 bytes to 1 MiB at a time, while one more measures the time
// of an urgent read. Blocks for about 1.2 times `seconds`.
absl::StatusOr<LoadBenchResult> RunLoadBench(const PoolOptions& pool, const LoadBenchOptions& options);

}  // namespace nram

#endif  // NRAM_TOOLS_BENCH_LOAD_BENCH_H_
