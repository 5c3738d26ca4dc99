#ifndef NRAM_TOOLS_BENCH_TLS_BENCH_H_
#define NRAM_TOOLS_BENCH_TLS_BENCH_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "client/pool/pool.h"
#include "tools/bench/pool_bench.h"

namespace nram {

// AES-256-GCM over records of TLS as this process makes them, bytes per second of one processor.
double MeasureCipher();

// What TLS costs: each workload alternately on a pool without and on one with certificates. A row's `bare` is the plain
// pool. Of streams, the reference is what the plain pool and the cipher's own speed add up to on one end, measured in
// the same rounds; `stored` is the plain pool then.
absl::Status RunTlsBench(Pool* plain, Pool* tls, const PoolBenchOptions& options,
                         absl::FunctionRef<void(const BenchRow&)> report);

}  // namespace nram

#endif  // NRAM_TOOLS_BENCH_TLS_BENCH_H_
