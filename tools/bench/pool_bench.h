#ifndef NRAM_TOOLS_BENCH_POOL_BENCH_H_
#define NRAM_TOOLS_BENCH_POOL_BENCH_H_

#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/pool/pool.h"
#include "tools/bench/bare_socket.h"

namespace nram {

struct BenchRow {
  std::string name;
  std::string unit;  // "us" (lower is better) or "MB/s", "op/s"
  double bare = 0;   // medians over the rounds
  double nram = 0;
  double ratio = 0;  // median of the rounds' nram / bare
  double ratio_min = 0;
  double ratio_max = 0;
  // Rows of large operations: the median of the reference whose other end reads and writes as much memory, and the
  // median of the ratios to it.
  double stored = 0;
  double ratio_to_stored = 0;
  double mark = 0;  // the ratio that is required; 0 if none is
  bool lower_is_better = false;
  bool ok() const { return mark == 0 || (lower_is_better ? ratio <= mark : ratio >= mark); }
};

// `row` with the medians of a reference's rounds, of nram's, and of their ratios.
BenchRow Summarise(BenchRow row, const std::vector<double>& bare, const std::vector<double>& nram);

struct PoolBenchOptions {
  int rounds = 7;
  bool quick = false;  // a smoke run: the numbers mean nothing
  std::string only;    // rows whose name contains this
};

// Runs each workload alternately on the bare sockets (kCached and kStore) and on the pool, and reports every row when
// it is done. `pool` and `spinning_pool` name the same servers, the second with polling at both ends (null: those rows
// are left out).
absl::Status RunPoolBench(BareSocket* bare, BareSocket* stored, Pool* pool, Pool* spinning_pool,
                          const PoolBenchOptions& options, absl::FunctionRef<void(const BenchRow&)> report);

}  // namespace nram

#endif  // NRAM_TOOLS_BENCH_POOL_BENCH_H_
