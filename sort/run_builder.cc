#include "sort/run_builder.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {
namespace {

constexpr uint64_t kReadBytesMax = 1 << 20;
constexpr uint64_t kWorkspaceBytesMax = uint64_t{2} << 30;
constexpr uint64_t kStagingBytesMax = 1 << 20;
constexpr uint64_t kRecordRoomBytes = 8 << 10;  // that a workspace has beside the longest record
constexpr int64_t kLookAgainMs = 200;           // for interruption, while waiting for a worker

}  // namespace

RunBuilder::RunBuilder(const SortOptions& options, const Order& order, Input* input, absl::Span<char> memory)
    : options_(options), order_(order), input_(input), memory_bytes_(memory.size()) {
  const uint64_t threads = static_cast<uint64_t>(options.threads);
  const uint64_t unit = 2 * Scratch::kBlockBytes;
  const uint64_t staging = std::max(unit, RoundDown(std::min(kStagingBytesMax, memory.size() / 16 / threads), unit));
  for (uint64_t i = 0; i < threads; ++i) {
    stagings_.push_back(memory.subspan(0, staging));
    memory.remove_prefix(staging);
  }
  // One workspace is being filled, and each worker has one; there are more if one would be too large to address.
  const uint64_t count = std::max(threads + 1, memory.size() / kWorkspaceBytesMax + 1);
  const uint64_t bytes = workspace_bytes_ = RoundDown(memory.size() / count, Scratch::kBlockBytes);
  // Small beside the workspace: text without room for its entries is copied to the next one.
  read_bytes_ = std::min(kReadBytesMax, bytes / 16);
  MutexLock lock(&mu_);
  for (uint64_t i = 0; i < count; ++i) {
    workspaces_.push_back(std::make_unique<Workspace>(memory.subspan(i * bytes, bytes), options.format));
    idle_.push_back(workspaces_.back().get());
  }
  std::reverse(idle_.begin(), idle_.end());
}

RunBuilder::~RunBuilder() { StopWorkers(); }

std::vector<Run> RunBuilder::TakeRuns() {
  MutexLock lock(&mu_);
  return std::move(runs_);
}

absl::Status RunBuilder::OpenScratch() {
  NRAM_ASSIGN_OR_RETURN(scratch_, options_.open_scratch());
  const uint64_t total = input_->total_bytes();
  if (total == Input::kUnknown) return absl::OkStatus();
  // Each run ends with part of a block.
  return scratch_->Reserve(RoundUp(total + total / 64, Scratch::kBlockBytes));
}

absl::Status RunBuilder::StartWorkers() {
  try {
    for (const absl::Span<char> staging : stagings_) workers_.emplace_back([this, staging] { Work(staging); });
  } catch (const std::system_error& error) {
    if (workers_.empty()) {
      return absl::ResourceExhaustedError(
          absl::StrCat("cannot start a thread for sorting (", error.what(), "); see ulimit -u"));
    }
  }
  return absl::OkStatus();
}

absl::Status RunBuilder::Build(SortReport* report) {
  if (const uint64_t bytes = options_.format.record_bytes; bytes + kRecordRoomBytes > workspace_bytes_) {
    return absl::InvalidArgumentError(absl::StrCat(
        "records of ", bytes, " bytes do not fit into the ", FormatByteSize(workspace_bytes_),
        " of memory of each of ", options_.threads, " threads; give fewer --threads, or more --memory"));
  }
  // If the input surely does not fit, that is told before anything is read.
  if (const uint64_t total = input_->total_bytes(); total != Input::kUnknown && total > memory_bytes_) {
    NRAM_RETURN_IF_ERROR(OpenScratch());
  }
  NRAM_RETURN_IF_ERROR(StartWorkers());
  size_t rank = 0;
  std::vector<Workspace*> kept;  // sorted, not written: while it may all fit into memory
  for (bool at_end = false; !at_end;) {
    if (scratch_ == nullptr && kept.size() == workspaces_.size()) {
      NRAM_RETURN_IF_ERROR(AwaitWorkers());
      NRAM_RETURN_IF_ERROR(OpenScratch());
      for (Workspace* workspace : kept) Give({workspace, false, true, rank++});
    }
    NRAM_ASSIGN_OR_RETURN(Workspace* const workspace, AwaitIdle());
    NRAM_RETURN_IF_ERROR(Fill(workspace, report, &at_end));
    if (scratch_ == nullptr) {
      kept.push_back(workspace);
      Give({workspace, true, false, 0});
    } else {
      Give({workspace, true, true, rank++});
    }
  }
  NRAM_RETURN_IF_ERROR(AwaitWorkers());
  StopWorkers();
  std::string().swap(carried_);  // beside the memory, all of which the merge uses
  MutexLock lock(&mu_);
  // A workspace that was left empty has made no run.
  runs_.erase(std::remove_if(runs_.begin(), runs_.end(), [](const Run& run) { return run.bytes == 0; }), runs_.end());
  report->runs = runs_.size();
  report->scratch_bytes = scratch_end_;
  return absl::OkStatus();
}

// Ends the file's last record.
absl::Status RunBuilder::EndFile(Workspace* workspace) {
  const size_t rest = workspace->incomplete().size();
  if (rest == 0) return absl::OkStatus();
  if (options_.format.record_bytes > 0) {
    return absl::InvalidArgumentError(absl::StrCat(input_->path(), ": its last ", rest,
                                                   " bytes are no whole record of ", options_.format.record_bytes,
                                                   " bytes; is the record size right?"));
  }
  workspace->EndLine();
  return absl::OkStatus();
}

absl::Status RunBuilder::TooLong(uint64_t line_bytes) const {
  const std::string what = absl::StrCat(input_->path(), ": a line is longer than ", FormatByteSize(line_bytes));
  if (line_bytes > memory_bytes_ / SortOptions::kLineShare || options_.threads == 1) {
    return absl::InvalidArgumentError(absl::StrCat(
        what, ", the maximum with this memory; give more --memory, about ten times the longest line"));
  }
  return absl::InvalidArgumentError(absl::StrCat(what, ", the maximum with ", options_.threads,
                                                 " threads in this memory; give fewer --threads, or more --memory"));
}

// Reads until the workspace is full or the input ends. The rest of the text goes to carried_.
absl::Status RunBuilder::Fill(Workspace* workspace, SortReport* report, bool* at_end) {
  bool fits = true;
  if (!carried_.empty()) {
    // It came from a workspace of the same size, so there is room.
    std::copy(carried_.begin(), carried_.end(), workspace->text_end());
    fits = workspace->Take(carried_.size());
    carried_.clear();
  }
  while (fits) {
    const size_t room = workspace->room();
    if (room == 0) break;
    if (interrupted()) return absl::CancelledError("interrupted");
    NRAM_ASSIGN_OR_RETURN(const size_t bytes, input_->Read({workspace->text_end(), std::min(room, read_bytes_)}));
    report->input_bytes += bytes;
    fits = workspace->Take(bytes);
    if (bytes > 0) {
      if (options_.on_progress) {
        options_.on_progress({SortPhase::kBuilding, report->input_bytes, input_->total_bytes()});
      }
      continue;
    }
    NRAM_RETURN_IF_ERROR(EndFile(workspace));
    if (interrupted()) return absl::CancelledError("interrupted");
    NRAM_ASSIGN_OR_RETURN(const bool more, input_->Next());
    if (!more) {
      *at_end = true;
      break;
    }
  }
  report->records += workspace->count();
  const absl::string_view rest = workspace->incomplete();
  // The carried text is beside the memory, and must fit into a workspace with its entry.
  if (rest.size() > memory_bytes_ / SortOptions::kLineShare || (workspace->count() == 0 && !rest.empty())) {
    return TooLong(rest.size());
  }
  carried_ = std::string(rest);
  return absl::OkStatus();
}

void RunBuilder::Give(const Job& job) {
  MutexLock lock(&mu_);
  jobs_.push_back(job);
  changed_.SignalAll();
}

absl::StatusOr<Workspace*> RunBuilder::AwaitIdle() {
  MutexLock lock(&mu_);
  while (idle_.empty() && status_.ok()) {
    if (interrupted()) return absl::CancelledError("interrupted");
    changed_.WaitUntil(&mu_, DeadlineAfterMs(kLookAgainMs));
  }
  if (!status_.ok()) return status_;
  Workspace* const workspace = idle_.back();
  idle_.pop_back();
  workspace->Clear();
  return workspace;
}

absl::Status RunBuilder::AwaitWorkers() {
  MutexLock lock(&mu_);
  while ((!jobs_.empty() || busy_ > 0) && status_.ok()) {
    if (interrupted()) return absl::CancelledError("interrupted");
    changed_.WaitUntil(&mu_, DeadlineAfterMs(kLookAgainMs));
  }
  return status_;
}

void RunBuilder::StopWorkers() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  for (std::thread& worker : workers_) worker.join();
  workers_.clear();
}

void RunBuilder::Work(absl::Span<char> staging) {
  MutexLock lock(&mu_);
  for (;;) {
    while (jobs_.empty() && !stopping_) changed_.WaitUntil(&mu_, DeadlineAfterMs(kLookAgainMs));
    if (stopping_) return;
    const Job job = jobs_.front();
    jobs_.pop_front();
    ++busy_;
    mu_.Unlock();
    const absl::Status status = Do(job, staging);
    mu_.Lock();
    --busy_;
    status_.Update(status);
    if (job.write) idle_.push_back(job.workspace);
    changed_.SignalAll();
  }
}

absl::Status RunBuilder::Do(const Job& job, absl::Span<char> staging) {
  if (job.sort) job.workspace->Sort(order_, options_.order.unique);
  if (interrupted()) return absl::CancelledError("interrupted");
  if (!job.write || job.workspace->count() == 0) return absl::OkStatus();
  Run run{0, job.workspace->record_bytes(), job.workspace->longest()};
  {
    MutexLock lock(&mu_);
    run.offset = scratch_end_;
    scratch_end_ += RoundUp(run.bytes, Scratch::kBlockBytes);
    if (runs_.size() <= job.rank) runs_.resize(job.rank + 1);
    runs_[job.rank] = run;
  }
  RunWriter writer(scratch_.get(), run.offset, staging);
  NRAM_RETURN_IF_ERROR(job.workspace->Write(&writer));
  return writer.Finish();
}

}  // namespace nram
