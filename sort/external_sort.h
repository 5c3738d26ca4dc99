#ifndef NRAM_SORT_EXTERNAL_SORT_H_
#define NRAM_SORT_EXTERNAL_SORT_H_

// An external merge sort: several threads gather, sort and write runs, which are then merged with read-ahead, in as
// many passes as the memory makes necessary (mostly one).

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "sort/order.h"
#include "sort/record_format.h"
#include "sort/scratch.h"

namespace nram {

enum class SortPhase { kBuilding, kMerging, kWriting };

struct SortProgress {
  SortPhase phase = SortPhase::kBuilding;  // kWriting: the last merge
  uint64_t done_bytes = 0;
  uint64_t total_bytes = 0;  // Input::kUnknown
};

struct SortOptions {
  static constexpr uint64_t kMemoryMin = 1 << 20;
  // A line may take this part of the memory, or less if a thread has less.
  static constexpr uint64_t kLineShare = 9;

  std::vector<std::string> inputs = {"-"};
  std::string output;                // "": the standard output
  uint64_t memory_bytes = 64 << 20;  // for all buffers; at least kMemoryMin
  int threads = 2;                   // that build runs, beside the calling one
  uint64_t merge_block_bytes =
      64 << 10;  // read from a run at a time, at least; fewer runs are merged at once if need be
  RecordFormat format;
  OrderOptions order;
  // Called when it turns out that the input does not fit into memory.
  std::function<absl::StatusOr<std::unique_ptr<Scratch>>()> open_scratch;
  std::function<void(const SortProgress&)> on_progress;  // by the calling thread
  const std::atomic<bool>* interrupted = nullptr;        // set: end soon, with CANCELLED
};

struct SortReport {
  uint64_t input_bytes = 0;
  uint64_t records = 0;
  uint64_t output_bytes = 0;
  uint64_t scratch_bytes = 0;  // written to it, all passes
  uint64_t runs = 0;           // 0: it was sorted in memory
  uint64_t passes = 0;         // of merging
  int64_t build_ns = 0;
  int64_t merge_ns = 0;
};

// How many threads should sort on a machine with `processors`: as many as leave each one room for the longest
// lines that the memory allows, or for 64 MiB.
int ChooseSortThreads(uint64_t memory_bytes, int processors);

// Blocks. After an error the output is as it was (unless it is no regular file) and the scratch is gone.
// INVALID_ARGUMENT: bad keys, a record that is broken or too long for the memory; RESOURCE_EXHAUSTED: the scratch is
// too small (told before anything is read if the input's size is known), the disk is full, or no thread can be started;
// CANCELLED; others are the scratch's and the files'. If only the last step fails, which puts the sorted output in its
// place, the message says where the sorted output is.
absl::StatusOr<SortReport> ExternalSort(const SortOptions& options);

}  // namespace nram

#endif  // NRAM_SORT_EXTERNAL_SORT_H_
