#include "client/run/program_memory.h"

#include <glog/logging.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/string_view.h"
#include "base/fd.h"
#include "base/status.h"
#include "base/units.h"
#include "client/run/call_filter.h"
#include "client/run/task_maps.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif
#ifndef MADV_DONTNEED_LOCKED
#define MADV_DONTNEED_LOCKED 24
#endif
#ifndef MREMAP_DONTUNMAP
#define MREMAP_DONTUNMAP 4
#endif

namespace nram {
namespace {

constexpr int kFaultThreads = 4;
constexpr uint64_t kAddressEnd = uint64_t{1} << 56;  // the kernel gives none from there on
constexpr uint64_t kMadviseGuardInstall = 102;
constexpr __rlimit_resource kLimits[] = {RLIMIT_AS, RLIMIT_DATA, RLIMIT_MEMLOCK};

ProgramMemory::Answer Made(int64_t result) { return {.go_on = false, .result = result}; }
constexpr ProgramMemory::Answer kGoOn;

void Say(absl::string_view text) { (void)!write(STDERR_FILENO, text.data(), text.size()); }

bool IsError(int64_t result) { return result < 0 && result > -4096; }

// The pages that [address, address + length) touches; nothing if that is no range that the kernel would take.
std::optional<AddressRun> PagesOf(uint64_t address, uint64_t length) {
  const uint64_t end = address + RoundUp(length, kPageBytes);
  if (address % kPageBytes != 0 || length == 0 || length > kRegionBytesMax || end < address) return std::nullopt;
  return AddressRun{address, (end - address) / kPageBytes};
}

bool MayBeRemote(const seccomp_data& call) {
  const uint64_t flags = call.args[3];
  return (flags & MAP_ANONYMOUS) != 0 && (flags & (MAP_PRIVATE | MAP_SHARED)) == MAP_PRIVATE &&
         (flags & (MAP_STACK | MAP_HUGETLB | MAP_GROWSDOWN)) == 0 && (call.args[2] & PROT_EXEC) == 0 &&
         call.args[1] >= kRemoteBytesMin && call.args[1] <= kRemoteBytesMax;
}

}  // namespace

ProgramMemory::ProgramMemory(const RunOptions& options, std::unique_ptr<Helper> helper,
                             std::unique_ptr<PageViews::View> store, RunCounters* counters, RunEngine::OnFatal on_fatal)
    : options_(options),
      helper_(std::move(helper)),
      store_(std::move(store)),
      counters_(counters),
      on_fatal_(std::move(on_fatal)) {}

ProgramMemory::~ProgramMemory() {
  std::vector<AddressRun> looked_after;
  if (engine_ != nullptr) {
    engine_->Stop();
    looked_after = engine_->attached();
  }
  fault_threads_.reset();
  engine_.reset();
  // If the helper was killed, other processes that share the memory must not read zeros.
  if (!helper_->Dismiss(looked_after) && space_ != nullptr) space_->PoisonMissing(looked_after);
  if (gives_back_) store_->Release();
}

void ProgramMemory::TakeLimits(pid_t thread) {
  for (size_t i = 0; i < limits_.size(); ++i) {
    rlimit now;
    if (prlimit(thread, kLimits[i], nullptr, &now) != 0) continue;
    if (now.rlim_cur == limits_[i].rlim_cur && now.rlim_max == limits_[i].rlim_max) continue;
    if (prlimit(helper_->pid(), kLimits[i], &now, nullptr) == 0) limits_[i] = now;
  }
}

void ProgramMemory::LiftLimits(bool lifted) {
  for (size_t i = 0; i < limits_.size(); ++i) {
    rlimit now = limits_[i];
    if (lifted) now.rlim_cur = now.rlim_max;
    if (now.rlim_max > 0) prlimit(helper_->pid(), kLimits[i], &now, nullptr);
  }
}

absl::StatusOr<ProgramMemory::Answer> ProgramMemory::OnCall(pid_t thread, const seccomp_data& call) {
  // Sets the helper's limits. A program of one thread that fits makes its calls without the helper.
  if (armed() || threaded_ || MayArm(call)) TakeLimits(thread);
  switch (call.nr) {
    case SYS_mmap:
      return OnMmap(thread, call);
    case SYS_brk:
      return OnBrk(call);
    case SYS_munmap:
      return OnMunmap(call);
    case SYS_mremap:
      return OnMremap(call);
    case SYS_madvise:
      return OnMadvise(call);
    case SYS_mlock:
    case SYS_mlock2:
    case SYS_mlockall:
      return OnMlock(call);
    case SYS_clone:
      threaded_ = true;
      return (call.args[0] & CLONE_CHILD_CLEARTID) != 0 ? OnThreadWord(call.args[3]) : kGoOn;
    case SYS_set_tid_address:
    case SYS_set_robust_list:
      return OnThreadWord(call.args[0]);
    default:
      return kGoOn;
  }
}

uint64_t ProgramMemory::GrowthOf(const seccomp_data& call) const {
  const uint64_t old_length = RoundUp(call.args[1], kPageBytes);
  const uint64_t new_length = RoundUp(call.args[2], kPageBytes);
  switch (call.nr) {
    case SYS_mmap:
      return MayBeRemote(call) ? old_length : 0;
    case SYS_brk:
      return brk_ != 0 && call.args[0] > brk_ && call.args[0] < kAddressEnd ? call.args[0] - brk_ : 0;
    case SYS_mremap:
      return new_length > old_length ? new_length - old_length : 0;
    default:
      return 0;
  }
}

bool ProgramMemory::MayArm(const seccomp_data& call) const {
  if (armed()) return false;
  if (call.nr == SYS_brk && brk_ == 0 && call.args[0] != 0) return true;
  const uint64_t growth = GrowthOf(call);
  return growth > 0 && remotable_bytes_ + growth > options_.budget_pages * kPageBytes;
}

absl::Status ProgramMemory::Grow(uint64_t bytes, bool look) {
  remotable_bytes_ += bytes;
  const uint64_t budget = options_.budget_pages * kPageBytes;
  if (remotable_bytes_ <= budget && !look) return absl::OkStatus();
  // The program may have unmapped memory since the last count.
  NRAM_ASSIGN_OR_RETURN(const std::vector<AddressRun> runs, ReadRemotable(helper_->pid()));
  remotable_bytes_ = bytes;
  brk_ = 0;  // no more than the heap that there is has been counted now
  for (const AddressRun& run : runs) remotable_bytes_ += run.pages * kPageBytes;
  return remotable_bytes_ <= budget ? absl::OkStatus() : Arm();
}

absl::Status ProgramMemory::Arm() {
  // The mappings of TaskSpace are not the program's own, so its limits do not apply.
  LiftLimits(true);
  absl::StatusOr<std::unique_ptr<TaskSpace>> space = TaskSpace::Open(helper_.get());
  LiftLimits(false);
  NRAM_RETURN_IF_ERROR(space.status());
  space_ = *std::move(space);
  engine_ = std::make_unique<RunEngine>(options_, space_.get(), store_.get(), counters_, on_fatal_);
  NRAM_ASSIGN_OR_RETURN(const int64_t brk, helper_->Call(SYS_brk, {0}));
  brk_ = static_cast<uint64_t>(brk);
  NRAM_ASSIGN_OR_RETURN(const std::vector<AddressRun> runs, ReadRemotable(helper_->pid()));
  NRAM_RETURN_IF_ERROR(Unlock(runs));
  const AddressRun scratch = space_->scratch();
  for (const AddressRun& run : runs) {
    if (run.begin < scratch.begin + scratch.pages * kPageBytes && run.begin + run.pages * kPageBytes > scratch.begin) {
      continue;
    }
    // Advice would keep a moved area from being one with its neighbours no more (see Remap).
    NRAM_RETURN_IF_ERROR(helper_->Call(SYS_madvise, {run.begin, run.pages * kPageBytes, MADV_NORMAL}).status());
    // Memory that cannot be registered remains local.
    if (!space_->Register(run.begin, run.pages).ok()) continue;
    // From here on only the engine adds or takes pages there, so the present pages are all.
    NRAM_ASSIGN_OR_RETURN(const std::vector<bool> present, ReadPresent(helper_->pid(), run));
    engine_->Attach(run.begin, run.pages, present);
  }
  engine_->Start();
  NRAM_ASSIGN_OR_RETURN(fault_threads_,
                        FaultThreads::Start(kFaultThreads, options_.window_pages, space_.get(), engine_.get()));
  pin_buffer_.resize(options_.window_pages * kPageBytes);
  for (const uint64_t page : pins_) engine_->Pin(page, absl::MakeSpan(pin_buffer_));
  return absl::OkStatus();
}

absl::StatusOr<int64_t> ProgramMemory::MakeCall(const seccomp_data& call) {
  return helper_->Call(static_cast<uint64_t>(call.nr),
                       {call.args[0], call.args[1], call.args[2], call.args[3], call.args[4], call.args[5]});
}

absl::StatusOr<int64_t> ProgramMemory::MakeMmap(pid_t thread, const seccomp_data& call) {
  if ((call.args[3] & MAP_ANONYMOUS) != 0) return MakeCall(call);
  const bool traces = helper_->reach() == Helper::Reach::kTraces;
  const UniqueFd file = traces ? CopyDescriptor(thread, static_cast<int>(call.args[4]))
                               : ReopenFile(thread, static_cast<int>(call.args[4]));
  if (!file.valid()) return errno == EBADF || errno == ENODEV ? -errno : -ENOMEM;
  NRAM_ASSIGN_OR_RETURN(const int64_t number, helper_->Lend(file.get()));
  if (number < 0) return -ENOMEM;
  seccomp_data made = call;
  made.args[4] = static_cast<uint64_t>(number);
  NRAM_ASSIGN_OR_RETURN(const int64_t result, MakeCall(made));
  NRAM_RETURN_IF_ERROR(helper_->Call(SYS_close, {static_cast<uint64_t>(number)}).status());
  return result;
}

absl::StatusOr<int64_t> ProgramMemory::MakeFree(const seccomp_data& call) {
  NRAM_ASSIGN_OR_RETURN(const int64_t result, MakeCall(call));
  if (IsError(result) && result != -ENOMEM) return result;
  seccomp_data made = call;
  made.args[2] = MADV_DONTNEED;
  return MakeCall(made);
}

void ProgramMemory::Restore(const std::vector<HomeRange>& ranges) {
  for (const HomeRange& range : ranges) {
    if (space_->IsRegistered(range.begin, range.pages)) {
      engine_->Reattach(range, /*moved=*/true);
    } else {
      engine_->Release(range);
    }
  }
}

absl::Status ProgramMemory::Unlock(const std::vector<AddressRun>& runs) {
  if (!locks_) return absl::OkStatus();
  Say("nram run: the program has outgrown its budget, so memory that it has locked (mlock) may be evicted as well\n");
  if (locks_future_) return helper_->Call(SYS_munlockall, {}).status();
  for (const AddressRun& run : runs) {
    NRAM_RETURN_IF_ERROR(helper_->Call(SYS_munlock, {run.begin, run.pages * kPageBytes}).status());
  }
  return absl::OkStatus();
}

absl::Status ProgramMemory::AttachNew(uint64_t begin, uint64_t end) {
  const uint64_t pages = (end - begin) / kPageBytes;
  if (engine_->Overlaps(begin, end)) {
    return absl::InternalError(
        "the program has unmapped memory by an unreported system call (of another architecture)");
  }
  if (pages == 0 || !space_->Register(begin, pages).ok()) return absl::OkStatus();
  engine_->Attach(begin, pages);
  return absl::OkStatus();
}

ProgramMemory::AnswerOr ProgramMemory::OnThreadWord(uint64_t address) {
  // The kernel writes to it when the thread ends, and threads that end get no faults. Such words and their structures
  // take less than a page, which may begin in one and end in the next.
  for (const uint64_t page : {RoundDown(address, kPageBytes), RoundDown(address + 1024, kPageBytes)}) {
    if (address == 0 || !pins_.insert(page).second) continue;
    if (armed()) engine_->Pin(page, absl::MakeSpan(pin_buffer_));
  }
  return kGoOn;
}

void ProgramMemory::MovePins(uint64_t begin, uint64_t end, uint64_t to) {
  const std::vector<uint64_t> moved(pins_.lower_bound(begin), pins_.lower_bound(end));
  ForgetPins(begin, end);
  for (const uint64_t page : moved) pins_.insert(page - begin + to);
}

void ProgramMemory::PinAgain(uint64_t begin, uint64_t end) {
  for (auto page = pins_.lower_bound(begin); page != pins_.end() && *page < end; ++page) {
    engine_->Pin(*page, absl::MakeSpan(pin_buffer_));
  }
}

ProgramMemory::AnswerOr ProgramMemory::MakeUnarmed(const seccomp_data& call) {
  if (!threaded_) return kGoOn;
  NRAM_ASSIGN_OR_RETURN(const int64_t result, MakeCall(call));
  return Made(result);
}

ProgramMemory::AnswerOr ProgramMemory::OnMmap(pid_t thread, const seccomp_data& call) {
  const bool may_be_remote = MayBeRemote(call);
  const bool fixed = (call.args[3] & (MAP_FIXED | MAP_FIXED_NOREPLACE)) == MAP_FIXED;
  if (!armed()) {
    locks_ |= (call.args[3] & MAP_LOCKED) != 0;
    if (may_be_remote) NRAM_RETURN_IF_ERROR(Grow(GrowthOf(call)));
    if (!armed()) {
      if (!fixed || !threaded_) return kGoOn;
      NRAM_ASSIGN_OR_RETURN(const int64_t result, MakeMmap(thread, call));
      return Made(result);
    }
  }
  const AddressRun over = PagesOf(call.args[0], call.args[1]).value_or(AddressRun());
  const uint64_t over_end = over.begin + over.pages * kPageBytes;
  const bool replaces = fixed && engine_->Overlaps(over.begin, over_end);
  if (!may_be_remote && !replaces) return kGoOn;
  seccomp_data made = call;
  // Memory that may be remote must not be filled before its use.
  if (may_be_remote) made.args[3] &= ~static_cast<uint64_t>(MAP_POPULATE | MAP_LOCKED);
  std::vector<HomeRange> replaced;
  if (replaces) replaced = engine_->Detach(over.begin, over_end);
  NRAM_ASSIGN_OR_RETURN(const int64_t result, MakeMmap(thread, made));
  if (IsError(result)) {
    Restore(replaced);
  } else {
    for (const HomeRange& range : replaced) engine_->Release(range);
    if (fixed) ForgetPins(over.begin, over_end);
    const auto begin = static_cast<uint64_t>(result);
    if (may_be_remote) NRAM_RETURN_IF_ERROR(AttachNew(begin, begin + RoundUp(call.args[1], kPageBytes)));
  }
  if (replaces) engine_->EndChange();
  return Made(result);
}

ProgramMemory::AnswerOr ProgramMemory::OnBrk(const seccomp_data& call) {
  const uint64_t asked = call.args[0];
  if (!armed()) {
    // Where it matters, the helper says whether the kernel has moved the heap's end as asked. That takes longer than
    // the call.
    if (brk_ == 0 || MayArm(call)) {
      NRAM_ASSIGN_OR_RETURN(const int64_t now, helper_->Call(SYS_brk, {0}));
      brk_ = static_cast<uint64_t>(now);
    }
    const uint64_t grown = GrowthOf(call);
    if (grown > 0) NRAM_RETURN_IF_ERROR(Grow(grown));
    if (!armed()) {
      if (asked < kAddressEnd) brk_ = std::max(brk_, asked);
      return MakeUnarmed(call);
    }
  }
  const uint64_t old_end = RoundUp(brk_, kPageBytes);
  const uint64_t asked_end = RoundUp(asked, kPageBytes);
  std::vector<HomeRange> shrunk;
  if (asked != 0 && asked_end < old_end && engine_->Overlaps(asked_end, old_end)) {
    shrunk = engine_->Detach(asked_end, old_end);
  }
  NRAM_ASSIGN_OR_RETURN(const int64_t result, helper_->Call(SYS_brk, {asked}));
  brk_ = static_cast<uint64_t>(result);
  const uint64_t new_end = RoundUp(brk_, kPageBytes);
  for (const HomeRange& range : shrunk) {
    if (new_end < old_end) {
      engine_->Release(range);
    } else {
      engine_->Reattach(range, /*moved=*/false);
    }
  }
  engine_->EndChange();
  if (new_end < old_end) ForgetPins(new_end, old_end);
  if (new_end > old_end) NRAM_RETURN_IF_ERROR(AttachNew(old_end, new_end));
  return Made(result);
}

ProgramMemory::AnswerOr ProgramMemory::OnMunmap(const seccomp_data& call) {
  const auto run = PagesOf(call.args[0], call.args[1]);
  if (run.has_value()) ForgetPins(run->begin, run->begin + run->pages * kPageBytes);
  if (!armed()) return MakeUnarmed(call);
  if (!run.has_value()) return kGoOn;
  const uint64_t end = run->begin + run->pages * kPageBytes;
  if (!engine_->Overlaps(run->begin, end)) return kGoOn;
  const std::vector<HomeRange> ranges = engine_->Detach(run->begin, end);
  NRAM_ASSIGN_OR_RETURN(const int64_t result, MakeCall(call));
  for (const HomeRange& range : ranges) {
    if (IsError(result)) {
      engine_->Reattach(range, /*moved=*/false);
    } else {
      engine_->Release(range);
    }
  }
  engine_->EndChange();
  return Made(result);
}

absl::StatusOr<int64_t> ProgramMemory::Remap(const seccomp_data& call, bool ours) {
  if (!ours) return MakeCall(call);
  // The kernel may merge the moved area with a neighbour, and ends the registration of all of it. An area with other
  // advice is not merged.
  const uint64_t length = RoundUp(call.args[1], kPageBytes);
  NRAM_RETURN_IF_ERROR(helper_->Call(SYS_madvise, {call.args[0], length, MADV_RANDOM}).status());
  NRAM_ASSIGN_OR_RETURN(const int64_t result, MakeCall(call));
  if (IsError(result)) {
    NRAM_RETURN_IF_ERROR(helper_->Call(SYS_madvise, {call.args[0], length, MADV_NORMAL}).status());
  }
  return result;
}

ProgramMemory::AnswerOr ProgramMemory::OnMremap(const seccomp_data& call) {
  const uint64_t old_length = RoundUp(call.args[1], kPageBytes);
  const uint64_t new_length = RoundUp(call.args[2], kPageBytes);
  if (!armed()) {
    partly_inherited_ |= advised_small_ && new_length > old_length;
    if (new_length > old_length) NRAM_RETURN_IF_ERROR(Grow(GrowthOf(call)));
    if (!armed()) return MakeUnarmed(call);
  }
  const auto from = PagesOf(call.args[0], call.args[1]);
  const auto to = PagesOf(call.args[4], call.args[2]);
  const bool fixed = (call.args[3] & MREMAP_FIXED) != 0;
  const auto overlaps = [this](const std::optional<AddressRun>& run) {
    return run.has_value() && engine_->Overlaps(run->begin, run->begin + run->pages * kPageBytes);
  };
  const bool ours = overlaps(from);
  if (!ours && !(fixed && overlaps(to))) return kGoOn;
  // Two mappings of the same pages, of which one would be empty, have no home each.
  if ((call.args[3] & MREMAP_DONTUNMAP) != 0) return Made(-EINVAL);
  // From Linux 6.17 on a move may be of several mappings, and fail half way. It is EFAULT, as it was before.
  if (fixed && old_length == new_length && from.has_value()) {
    NRAM_ASSIGN_OR_RETURN(const size_t mappings, CountMappings(helper_->pid(), *from));
    if (mappings > 1) return Made(-EFAULT);
  }
  std::vector<HomeRange> replaced;
  if (fixed && overlaps(to)) replaced = engine_->Detach(to->begin, to->begin + to->pages * kPageBytes);
  std::vector<HomeRange> ranges;
  if (ours) ranges = engine_->Detach(from->begin, from->begin + from->pages * kPageBytes);
  NRAM_ASSIGN_OR_RETURN(const int64_t result, Remap(call, ours));
  if (IsError(result)) {
    Restore(replaced);
  } else {
    for (const HomeRange& range : replaced) engine_->Release(range);
    if (fixed && to.has_value()) ForgetPins(to->begin, to->begin + to->pages * kPageBytes);
    if (from.has_value()) MovePins(from->begin, from->begin + from->pages * kPageBytes, static_cast<uint64_t>(result));
  }
  const auto begin = static_cast<uint64_t>(result);
  if (!IsError(result) && ours) {
    // A move ends the registration, and may leave pages protected that no fault would make writable again.
    if (!space_->Register(begin, new_length / kPageBytes).ok()) {
      return absl::InternalError("memory that the program has moved can no longer be managed");
    }
    space_->Unprotect(begin, new_length / kPageBytes);
    NRAM_RETURN_IF_ERROR(helper_->Call(SYS_madvise, {begin, new_length, MADV_NORMAL}).status());
  }
  for (HomeRange range : ranges) {
    if (IsError(result)) {
      // A move that the kernel has taken back half way has dropped protection.
      const bool moves = (call.args[3] & MREMAP_MAYMOVE) != 0;
      if (moves) space_->Unprotect(range.begin, range.pages);
      engine_->Reattach(range, moves);
      continue;
    }
    const uint64_t offset = (range.begin - from->begin) / kPageBytes;
    const uint64_t pages = new_length / kPageBytes;
    const uint64_t kept = std::min(range.pages, pages - std::min(pages, offset));
    range.begin = begin + offset * kPageBytes;
    if (kept < range.pages) engine_->Release({0, range.pages - kept, range.home + kept});
    range.pages = kept;
    engine_->Reattach(range, /*moved=*/true);
  }
  if (!IsError(result) && ours && new_length > old_length) {
    engine_->Attach(begin + old_length, (new_length - old_length) / kPageBytes);
  }
  engine_->EndChange();
  return Made(result);
}

ProgramMemory::AnswerOr ProgramMemory::OnMadvise(const seccomp_data& call) {
  if (call.args[2] == MADV_DONTFORK || call.args[2] == MADV_WIPEONFORK) {
    NRAM_RETURN_IF_ERROR(OnForkAdvice(call));
    return kGoOn;
  }
  const bool frees = call.args[2] == MADV_FREE;
  if (!armed()) {
    // A page that is free may be dropped by the kernel when the engine counts it already.
    if (!frees) return MakeUnarmed(call);
    NRAM_ASSIGN_OR_RETURN(const int64_t result, MakeFree(call));
    return Made(result);
  }
  const auto run = PagesOf(call.args[0], call.args[1]);
  if (!run.has_value()) return kGoOn;
  const uint64_t end = run->begin + run->pages * kPageBytes;
  if (!engine_->Overlaps(run->begin, end)) return kGoOn;
  // It would take pages out without the engine. Callers fall back to mprotect(2).
  if (call.args[2] == kMadviseGuardInstall) return Made(-EINVAL);
  // Of use for the order in which pages are fetched, some day. Areas that differ in it would merge where they must not
  // (see Remap).
  if (call.args[2] <= MADV_SEQUENTIAL) return Made(0);
  const std::vector<HomeRange> ranges = engine_->Detach(run->begin, end);
  NRAM_ASSIGN_OR_RETURN(const int64_t result, frees ? MakeFree(call) : MakeCall(call));
  for (const HomeRange& range : ranges) {
    // ENOMEM: there was something unmapped between, and all else is dropped.
    if (!IsError(result) || result == -ENOMEM) engine_->Forget(range);
    engine_->Reattach(range, /*moved=*/false);
  }
  engine_->EndChange();
  PinAgain(run->begin, end);
  return Made(result);
}

ProgramMemory::AnswerOr ProgramMemory::OnMlock(const seccomp_data& call) {
  const bool all = call.nr == SYS_mlockall;
  if (!armed()) {
    locks_ = true;
    locks_future_ |= all && (call.args[0] & MCL_FUTURE) != 0;
    return MakeUnarmed(call);
  }
  const uint64_t end = RoundUp(call.args[0] + call.args[1], kPageBytes);
  // Remote memory does not fit here. The error is the same as for a limit (ulimit -l).
  return all || engine_->Overlaps(RoundDown(call.args[0], kPageBytes), end) ? Made(-ENOMEM) : kGoOn;
}

}  // namespace nram
