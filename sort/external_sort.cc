#include "sort/external_sort.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/mapping.h"
#include "base/status.h"
#include "base/units.h"
#include "sort/input.h"
#include "sort/merge.h"
#include "sort/output.h"
#include "sort/run_builder.h"

namespace nram {
namespace {

constexpr uint64_t kMergeBlockBytesMax = 4 << 20;
constexpr uint64_t kOutputBytesMax = 4 << 20;

// The size of the buffers through which a merge writes: four blocks or more.
uint64_t OutputBytes(uint64_t memory_bytes) {
  constexpr uint64_t kUnit = 4 * Scratch::kBlockBytes;
  return std::max(kUnit, RoundDown(std::min(kOutputBytesMax, memory_bytes / 16), kUnit));
}

// The second half: merges the runs of the first.
class Merger {
 public:
  Merger(const SortOptions& options, const Order& order, absl::Span<char> memory, SortReport* report)
      : options_(options), order_(order), memory_(memory), report_(report) {}

  absl::Status MergeWorkspaces(absl::Span<const std::unique_ptr<Workspace>> workspaces, RecordWriter* writer);
  absl::Status MergeRuns(Scratch* scratch, std::vector<Run> runs, RecordWriter* writer);

 private:
  struct Plan {
    size_t runs = 0;           // that are merged at once, from the first on
    uint64_t block_bytes = 0;  // with which that is done
  };

  absl::StatusOr<Plan> MakePlan(absl::Span<const Run> runs, uint64_t memory_bytes) const;
  absl::Status MergeGroup(Scratch* scratch, absl::Span<const Run> runs, uint64_t block_bytes, absl::Span<char> memory,
                          SortPhase phase, RecordWriter* writer, uint64_t* written);
  absl::StatusOr<std::vector<Run>> MergePass(Scratch* scratch, absl::Span<const Run> runs);
  absl::Status Finish(absl::Span<const std::unique_ptr<Cursor>> cursors, SortPhase phase, uint64_t total,
                      RecordWriter* writer, uint64_t* written);

  const SortOptions& options_;
  const Order& order_;
  const absl::Span<char> memory_;
  SortReport* const report_;
};

absl::Status Merger::Finish(absl::Span<const std::unique_ptr<Cursor>> cursors, SortPhase phase, uint64_t total,
                            RecordWriter* writer, uint64_t* written) {
  const MergeOptions merge{options_.order.unique, [&](uint64_t bytes) {
                             if (options_.on_progress) options_.on_progress({phase, bytes, total});
                             return options_.interrupted != nullptr && options_.interrupted->load()
                                        ? absl::CancelledError("interrupted")
                                        : absl::OkStatus();
                           }};
  NRAM_RETURN_IF_ERROR(Merge(cursors, order_, options_.format, merge, writer, written));
  return writer->Finish();
}

absl::Status Merger::MergeWorkspaces(absl::Span<const std::unique_ptr<Workspace>> workspaces, RecordWriter* writer) {
  std::vector<std::unique_ptr<Cursor>> cursors;
  uint64_t total = 0;
  for (const auto& workspace : workspaces) {
    total += workspace->record_bytes();
    cursors.push_back(std::make_unique<WorkspaceCursor>(workspace.get(), &order_, options_.format));
  }
  return Finish(cursors, SortPhase::kWriting, total, writer, &report_->output_bytes);
}

// As many runs as fit with the smallest blocks, then the largest blocks with which those fit.
absl::StatusOr<Merger::Plan> Merger::MakePlan(absl::Span<const Run> runs, uint64_t memory_bytes) const {
  Plan plan{0, options_.merge_block_bytes};
  for (uint64_t sum = 0; plan.runs < runs.size(); ++plan.runs) {
    sum += RunCursor::MemoryBytes(runs[plan.runs], plan.block_bytes);
    if (sum > memory_bytes) break;
  }
  if (plan.runs < 2 && plan.runs < runs.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("lines of ", FormatByteSize(std::max(runs.front().longest, runs[runs.size() > 1].longest)),
                     " are too long to be merged in ", FormatByteSize(memory_bytes), "; give more --memory"));
  }
  for (uint64_t block = kMergeBlockBytesMax; block > plan.block_bytes; block = block / 8 * 7) {
    uint64_t sum = 0;
    for (const Run& run : runs.subspan(0, plan.runs)) sum += RunCursor::MemoryBytes(run, block);
    if (sum <= memory_bytes) plan.block_bytes = block;
  }
  return plan;
}

absl::Status Merger::MergeGroup(Scratch* scratch, absl::Span<const Run> runs, uint64_t block_bytes,
                                absl::Span<char> memory, SortPhase phase, RecordWriter* writer, uint64_t* written) {
  std::vector<std::unique_ptr<Cursor>> cursors;
  uint64_t total = 0;
  const Scratch::Room room = phase == SortPhase::kMerging ? Scratch::Room::kKeep : Scratch::Room::kFree;
  for (const Run& run : runs) {
    const uint64_t bytes = RunCursor::MemoryBytes(run, block_bytes);
    cursors.push_back(std::make_unique<RunCursor>(scratch, run, block_bytes, memory.subspan(0, bytes), room, &order_,
                                                  options_.format));
    memory.remove_prefix(bytes);
    total += run.bytes;
  }
  return Finish(cursors, phase, total, writer, written);
}

// Merges the runs in groups, as many as fit at a time, into fewer, in the same order and behind all others.
absl::StatusOr<std::vector<Run>> Merger::MergePass(Scratch* scratch, absl::Span<const Run> runs) {
  const uint64_t staging_bytes = OutputBytes(memory_.size());
  const absl::Span<char> memory = memory_.subspan(staging_bytes);
  uint64_t end = 0;
  for (const Run& run : runs) end = std::max(end, run.offset + run.bytes);
  end = RoundUp(end, Scratch::kBlockBytes);
  std::vector<Run> merged;
  while (!runs.empty()) {
    NRAM_ASSIGN_OR_RETURN(const Plan plan, MakePlan(runs, memory.size()));
    Run run{end, 0, 0};
    for (const Run& part : runs.subspan(0, plan.runs)) run.longest = std::max(run.longest, part.longest);
    RunWriter writer(scratch, run.offset, memory_.subspan(0, staging_bytes));
    NRAM_RETURN_IF_ERROR(MergeGroup(scratch, runs.subspan(0, plan.runs), plan.block_bytes, memory, SortPhase::kMerging,
                                    &writer, &run.bytes));
    end = RoundUp(end + run.bytes, Scratch::kBlockBytes);
    report_->scratch_bytes += run.bytes;
    merged.push_back(run);
    runs.remove_prefix(plan.runs);
  }
  ++report_->passes;
  return merged;
}

absl::Status Merger::MergeRuns(Scratch* scratch, std::vector<Run> runs, RecordWriter* writer) {
  for (;;) {
    NRAM_ASSIGN_OR_RETURN(const Plan plan, MakePlan(runs, memory_.size()));
    if (plan.runs == runs.size()) {
      ++report_->passes;
      return MergeGroup(scratch, runs, plan.block_bytes, memory_, SortPhase::kWriting, writer, &report_->output_bytes);
    }
    NRAM_ASSIGN_OR_RETURN(runs, MergePass(scratch, runs));
  }
}

}  // namespace

int ChooseSortThreads(uint64_t memory_bytes, int processors) {
  constexpr uint64_t kEnoughBytes = 64 << 20;
  // Threads write through a sixteenth; and one more workspace than threads is being filled.
  const uint64_t workspace_bytes = std::min(memory_bytes / SortOptions::kLineShare, kEnoughBytes);
  return static_cast<int>(
      std::clamp<uint64_t>(memory_bytes / 16 * 15 / workspace_bytes - 1, 1, static_cast<uint64_t>(processors)));
}

absl::StatusOr<SortReport> ExternalSort(const SortOptions& options) {
  if (options.memory_bytes < SortOptions::kMemoryMin) {
    return absl::InvalidArgumentError(absl::StrCat("memory for the buffers is ", options.memory_bytes,
                                                   " bytes; at least ", SortOptions::kMemoryMin, " are needed"));
  }
  if (options.format.record_bytes > options.memory_bytes / 64) {
    return absl::InvalidArgumentError(absl::StrCat("records of ", options.format.record_bytes,
                                                   " bytes are too long; the maximum with this memory is ",
                                                   options.memory_bytes / 64));
  }
  NRAM_ASSIGN_OR_RETURN(const Order order, Order::Make(options.order));
  NRAM_ASSIGN_OR_RETURN(Input input, Input::Open(options.inputs));
  NRAM_ASSIGN_OR_RETURN(Output output, Output::Open(options.output, options.inputs));
  NRAM_ASSIGN_OR_RETURN(const Mapping mapping,
                        Mapping::Anonymous(RoundDown(options.memory_bytes, Scratch::kBlockBytes)));
  const absl::Span<char> memory(reinterpret_cast<char*>(mapping.data()), mapping.size());
  const uint64_t output_bytes = OutputBytes(memory.size());
  const absl::Span<char> rest = memory.subspan(output_bytes);

  SortReport report;
  const int64_t began_ns = MonotonicNs();
  RunBuilder builder(options, order, &input, rest);
  NRAM_RETURN_IF_ERROR(builder.Build(&report));
  const int64_t built_ns = MonotonicNs();
  report.build_ns = built_ns - began_ns;

  const std::unique_ptr<Scratch> scratch = builder.TakeScratch();
  NRAM_RETURN_IF_ERROR(output.Begin());
  {
    OutputWriter writer(output.fd(), output.name(), memory.subspan(0, output_bytes));
    Merger merger(options, order, rest, &report);
    NRAM_RETURN_IF_ERROR(scratch == nullptr ? merger.MergeWorkspaces(builder.workspaces(), &writer)
                                            : merger.MergeRuns(scratch.get(), builder.TakeRuns(), &writer));
  }
  NRAM_RETURN_IF_ERROR(output.Commit());
  report.merge_ns = MonotonicNs() - built_ns;
  return report;
}

}  // namespace nram
