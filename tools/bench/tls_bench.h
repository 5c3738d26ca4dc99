#ifndef NRAM_TOOLS_BENCH_TLS_BENCH_H_
#define NRAM_TOOLS_BENCH_TLS_BENCH_H_

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/pool/pool.h"
#include "tools/bench/pool_bench.h"

namespace nram {

// AES-256-GCM as this process uses it, bytes per second of one processor: over records of TLS, and over pages.
double MeasureCipher();
absl::StatusOr<double> MeasurePageCipher();

// The cost of TLS, of sealed pages and of both: each workload runs alternately in a plain region of the pool without
// certificates and with one of these. A row's `bare` is the plain region. The reference for streams is the sum of the
// plain stream's and the ciphers' own times on one end, measured in the same rounds; `stored` is the plain region then.
absl::Status RunTlsBench(Pool* plain, Pool* tls, const PoolBenchOptions& options,
                         absl::FunctionRef<void(const BenchRow&)> report);

}  // namespace nram

#endif  // NRAM_TOOLS_BENCH_TLS_BENCH_H_
