#ifndef NRAM_EXPERIMENTS_MEMORY_WORK_H_
#define NRAM_EXPERIMENTS_MEMORY_WORK_H_

// A workload of the memory bench: its options, its results, and the list of workloads.

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/units.h"
#include "client/memory/nram.h"

namespace nram {

enum class BackingKind { kNram, kMalloc, kFile, kBare };

struct WorkOptions {
  BackingKind backing = BackingKind::kNram;
  uint64_t budget_bytes = 256 * kMiB;  // of local memory; nram and bare only
  int64_t mib = 1024;                  // of the array; not for matrix
  int64_t threads = 1;                 // scan, random, matrix
  int64_t seed = 1;
  int64_t count = 100'000;             // random: accesses of all threads together; resident, ping-pong: one repeat's
  int64_t skew = 1;                    // random: with n, half of the accesses go to one page of 2^n
  bool write = false;                  // scan: writes to each page too
  int64_t n = 4096;                    // matrix: of n x n
  bool libc_qsort = false;             // sort: qsort() instead of std::sort
  bool apart = false;                  // ping-pong: the two ends on two processors
  std::string directory = "/var/tmp";  // file
  int64_t batch_pages = 16;            // bare: pages a fault
  int64_t handlers = 0;                // 0: nram's default; bare: 1
  uint64_t page_bytes = 0;             // nram; 0: its default
  nram_policy policy = NRAM_POLICY_DEFAULT;
  nram_advice advice = NRAM_NORMAL;
};

struct WorkResult {
  // The timed part alone: without filling, warming up and the checks that follow.
  double seconds = 0;
  double cpu_seconds = 0;  // of this process, all threads
  uint64_t ops = 0;
  uint64_t bytes = 0;     // of the memory that was worked on
  bool verified = false;  // every word read, and every result, was right
  nram_stats stats{};     // counters: of the timed part; others: at its end. Zeros for figures that a backing lacks
  std::vector<std::pair<std::string, double>> more;
};

class Backing;

// Measures the timed part of a workload, from its construction on.
class Timing {
 public:
  explicit Timing(const Backing* backing);
  // Sets seconds, cpu_seconds and stats.
  void Stop(WorkResult* result) const;

 private:
  const Backing* const backing_;
  nram_stats stats_;
  double cpu_seconds_;
  int64_t began_ns_;
};

// Runs `run(0)` to `run(count - 1)` at the same time, the last on the calling thread; returns when all have ended.
void RunThreads(int64_t count, const std::function<void(int64_t)>& run);

// Reads one word of every page in order; with `write`, writes that word too. Each thread takes a part of its own.
absl::StatusOr<WorkResult> RunScan(const WorkOptions& options, Backing* backing);
// Reads one word of a page at random; all pages were written before.
absl::StatusOr<WorkResult> RunRandom(const WorkOptions& options, Backing* backing);
// Reads an array that is all here, in order and at random, in turns with ordinary memory in this process.
// FAILED_PRECONDITION: the budget is no larger than the array.
absl::StatusOr<WorkResult> RunResident(const WorkOptions& options, Backing* backing);
// Sorts random 64-bit numbers.
absl::StatusOr<WorkResult> RunSort(const WorkOptions& options, Backing* backing);
// Multiplies two matrices, tile by tile.
absl::StatusOr<WorkResult> RunMatrix(const WorkOptions& options, Backing* backing);

}  // namespace nram

#endif  // NRAM_EXPERIMENTS_MEMORY_WORK_H_
