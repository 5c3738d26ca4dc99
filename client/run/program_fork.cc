// The part of ProgramMemory that is for fork(2).

#include <sched.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/units.h"
#include "client/run/program_memory.h"
#include "client/run/task_maps.h"

namespace nram {
namespace {

constexpr int kChildFaultThreads = 2;

// Whether processes that the thread forks have process numbers that are this process' own.
bool SharesProcessNumbers(pid_t thread) {
  struct stat theirs;
  struct stat ours;
  return stat(absl::StrCat("/proc/", thread, "/ns/pid_for_children").c_str(), &theirs) == 0 &&
         stat("/proc/self/ns/pid", &ours) == 0 && theirs.st_ino == ours.st_ino && theirs.st_dev == ours.st_dev;
}

}  // namespace

absl::Status ProgramMemory::CheckFork(pid_t thread, const seccomp_data& call) const {
  const uint64_t flags = call.nr == SYS_clone ? call.args[0] : 0;
  if ((flags & (CLONE_UNTRACED | CLONE_NEWPID | CLONE_NEWUSER)) != 0 || !SharesProcessNumbers(thread)) {
    return absl::UnimplementedError("a child that must not be traced, or that has its own user or process namespace");
  }
  if (partly_inherited_) {
    return absl::UnimplementedError(
        "the program has memory that a child must not inherit unchanged (MADV_DONTFORK, MADV_WIPEONFORK)");
  }
  // The helper in the child would have the thread's rights.
  NRAM_ASSIGN_OR_RETURN(const std::string rights, ReadRights(thread));
  NRAM_ASSIGN_OR_RETURN(const std::string before, ReadRights(helper_->pid()));
  if (rights != before) {
    return absl::UnimplementedError("the program has dropped rights since its start, or filters its calls (seccomp)");
  }
  return absl::OkStatus();
}

void ProgramMemory::AllowHugePages(bool allowed) {
  (void)helper_->Call(SYS_prctl, {PR_SET_THP_DISABLE, allowed ? 0u : 1u, 0, 0, 0});
  huge_pages_off_ = !allowed;
}

bool ProgramMemory::BeginFork(const seccomp_data& call, uint64_t rseq) {
  // Where few pages are, khugepaged fills the others with zeros. It leaves registered memory alone, and the child's is
  // not registered at once.
  const absl::StatusOr<int64_t> off = helper_->Call(SYS_prctl, {PR_GET_THP_DISABLE, 0, 0, 0, 0});
  if (off.ok() && *off == 0) AllowHugePages(false);
  // The kernel writes to these words while faults are not answered: in the child not yet, in the parent not now.
  if (rseq != 0) (void)OnThreadWord(rseq);
  const uint64_t flags = call.nr == SYS_clone ? call.args[0] : 0;
  if ((flags & (CLONE_PARENT_SETTID | CLONE_PIDFD)) != 0) (void)OnThreadWord(call.args[2]);
  if ((flags & (CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID)) != 0) (void)OnThreadWord(call.args[3]);
  return engine_->Freeze();
}

void ProgramMemory::EndFork() {
  engine_->Thaw();
  if (huge_pages_off_) AllowHugePages(true);
}

absl::StatusOr<std::unique_ptr<ProgramMemory>> ProgramMemory::Fork(std::unique_ptr<Helper> helper,
                                                                   RunEngine::OnFatal on_fatal) {
  RunOptions options = options_;
  options.evictors = options.readers = 1;
  const RunEngine::Stored stored = engine_->stored();
  auto child = std::make_unique<ProgramMemory>(options, std::move(helper), store_->Copy(stored.all, stored.remote),
                                               counters_, std::move(on_fatal));
  child->gives_back_ = true;
  child->threaded_ = threaded_;
  child->partly_inherited_ = partly_inherited_;
  child->brk_ = brk_;
  child->pins_ = pins_;
  child->TakeLimits(child->helper_->pid());
  child->LiftLimits(true);
  absl::StatusOr<std::unique_ptr<TaskSpace>> space = TaskSpace::Open(child->helper_.get());
  child->LiftLimits(false);
  NRAM_RETURN_IF_ERROR(space.status());
  child->space_ = *std::move(space);
  // Remote pages are missing, and would be zeros, until this.
  for (const AddressRun& run : engine_->attached()) {
    NRAM_RETURN_IF_ERROR(Annotate(child->space_->Register(run.begin, run.pages), "memory of a child"));
  }
  // It has inherited that, too.
  if (huge_pages_off_) child->AllowHugePages(true);
  child->engine_ =
      std::make_unique<RunEngine>(options, child->space_.get(), child->store_.get(), counters_, child->on_fatal_);
  child->engine_->CopyFrom(*engine_);
  child->pin_buffer_.resize(options.window_pages * kPageBytes);
  child->engine_->Start();
  NRAM_ASSIGN_OR_RETURN(child->fault_threads_, FaultThreads::Start(kChildFaultThreads, options.window_pages,
                                                                   child->space_.get(), child->engine_.get()));
  return child;
}

absl::Status ProgramMemory::OnForkAdvice(const seccomp_data& call) {
  const uint64_t end = RoundUp(call.args[0] + call.args[1], kPageBytes);
  bool remotable = false;
  if (armed()) {
    remotable = engine_->Overlaps(call.args[0], end);
  } else {
    NRAM_ASSIGN_OR_RETURN(const std::vector<AddressRun> runs, ReadRemotable(helper_->pid()));
    for (const AddressRun& run : runs) {
      remotable |= run.begin < end && run.begin + run.pages * kPageBytes > call.args[0];
    }
  }
  partly_inherited_ |= remotable;
  advised_small_ |= !remotable;
  return absl::OkStatus();
}

}  // namespace nram
