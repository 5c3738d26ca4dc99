#ifndef NRAM_SORT_RUN_BUILDER_H_
#define NRAM_SORT_RUN_BUILDER_H_

// The first half of an external sort: reads the input into workspaces, which threads sort and write to the scratch as
// runs. If all of the input fits into workspaces, they stay, sorted.

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/sync.h"
#include "sort/external_sort.h"
#include "sort/input.h"
#include "sort/merge.h"
#include "sort/order.h"
#include "sort/workspace.h"

namespace nram {

// For one use, by one thread.
class RunBuilder {
 public:
  // All arguments must outlive it. `memory` is cut into workspaces and, for each thread, a buffer to write through.
  RunBuilder(const SortOptions& options, const Order& order, Input* input, absl::Span<char> memory);
  ~RunBuilder();

  // Blocks until the input is read, sorted and, if it did not fit into memory, written. Then either scratch() and
  // runs() are there, or the records are in workspaces(). Fills in the fields of `report` that tell of the input.
  absl::Status Build(SortReport* report);

  std::unique_ptr<Scratch> TakeScratch() { return std::move(scratch_); }
  // In input order, packed from the scratch's begin.
  std::vector<Run> TakeRuns();
  absl::Span<const std::unique_ptr<Workspace>> workspaces() const { return workspaces_; }

 private:
  struct Job {
    Workspace* workspace;
    bool sort;
    bool write;
    size_t rank;  // of the run, in input order
  };

  bool interrupted() const { return options_.interrupted != nullptr && options_.interrupted->load(); }
  absl::Status OpenScratch();
  // Starts as many threads as possible. RESOURCE_EXHAUSTED: none.
  absl::Status StartWorkers();
  absl::Status TooLong(uint64_t line_bytes) const;
  absl::Status Fill(Workspace* workspace, SortReport* report, bool* at_end);
  absl::Status EndFile(Workspace* workspace);
  void Give(const Job& job);
  absl::StatusOr<Workspace*> AwaitIdle();
  absl::Status AwaitWorkers();
  void StopWorkers();
  void Work(absl::Span<char> staging);
  absl::Status Do(const Job& job, absl::Span<char> staging);

  const SortOptions& options_;
  const Order& order_;
  Input* const input_;
  const uint64_t memory_bytes_;
  uint64_t read_bytes_ = 0;  // at a time
  uint64_t workspace_bytes_ = 0;
  std::vector<absl::Span<char>> stagings_;  // one a worker
  std::vector<std::unique_ptr<Workspace>> workspaces_;
  std::string carried_;  // the begin of a record that the last workspace had no room for
  std::unique_ptr<Scratch> scratch_;

  Mutex mu_;
  CondVar changed_;
  std::deque<Job> jobs_ ABSL_GUARDED_BY(mu_);
  size_t busy_ ABSL_GUARDED_BY(mu_) = 0;  // jobs that are being done
  std::vector<Workspace*> idle_ ABSL_GUARDED_BY(mu_);
  std::vector<Run> runs_ ABSL_GUARDED_BY(mu_);
  uint64_t scratch_end_ ABSL_GUARDED_BY(mu_) = 0;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<std::thread> workers_;
};

}  // namespace nram

#endif  // NRAM_SORT_RUN_BUILDER_H_
