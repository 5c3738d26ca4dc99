// The half of Supervisor that answers calls.

#include <linux/capability.h>
#include <linux/kcmp.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/run/supervisor.h"

namespace nram {
namespace {

// So long a call that arms waits for a fork.
constexpr int64_t kHeldMs = 10'000;
// When the program is to be killed: its own threads do not see it, and others that share its memory do not wait for
// ever.
// Also of a call that cannot be made now.
constexpr ProgramMemory::Answer kRefused{.go_on = false, .result = -ENOMEM};

// Whether this process may see the memory of programs that are not dumpable.
bool SeesAllMemory() {
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  return syscall(SYS_capget, &header, sets) == 0 && (sets[0].effective & CAP_TO_MASK(CAP_SYS_PTRACE)) != 0;
}

}  // namespace

bool Supervisor::IsProgram(pid_t thread) const {
  return access(absl::StrCat("/proc/", program_, "/task/", thread).c_str(), F_OK) == 0;
}

std::optional<bool> Supervisor::SharesMemory(pid_t thread) const {
  switch (syscall(SYS_kcmp, memory_->helper_pid(), thread, KCMP_VM, 0, 0)) {
    case 0:
      return true;
    case 1:
    case 2:
      return false;
    default:
      return std::nullopt;
  }
}

absl::StatusOr<bool> Supervisor::IsOwn(const seccomp_notif& told) const {
  if (memory_ == nullptr || end_.has_value()) return false;
  const auto thread = static_cast<pid_t>(told.pid);
  if (const std::optional<bool> shares = SharesMemory(thread); shares.has_value()) return *shares;
  const int error = errno;
  // A thread that has been killed meanwhile makes no call.
  if (ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_ID_VALID, &told.id) != 0) return false;
  if (!memory_->armed()) return IsProgram(thread);
  return ErrnoStatus(error, "whether a thread has the program's memory (kcmp) cannot be known");
}

void Supervisor::OnNotification() {
  seccomp_notif told = {};
  if (ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_RECV, &told) != 0) return;  // it has gone
  const absl::StatusOr<bool> own = IsOwn(told);
  if (!own.ok()) {
    Fail(own.status());
    Answer(told.id, kRefused);
    return;
  }
  if (*own && !forks_.empty() && memory_->MayArm(told.data)) {
    held_.push_back({told, DeadlineAfterMs(kHeldMs)});
    return;
  }
  AnswerCall(told, *own);
}

void Supervisor::AnswerHeld() {
  std::vector<Held> held;
  held.swap(held_);
  for (const Held& one : held) AnswerCall(one.told, memory_ != nullptr && !end_.has_value());
}

void Supervisor::RefuseLateHeld() {
  const int64_t now_ns = MonotonicNs();
  std::erase_if(held_, [&](const Held& one) {
    if (now_ns < one.until_ns) return false;
    // The thread that forks may be in a handler of a signal, for as long as it likes.
    Answer(one.told.id, kRefused);
    return true;
  });
}

void Supervisor::AnswerCall(const seccomp_notif& told, bool own) {
  const absl::StatusOr<ProgramMemory::Answer> made =
      own ? OnCall(static_cast<pid_t>(told.pid), told.data) : ProgramMemory::Answer();
  if (!made.ok()) Fail(made.status());
  Answer(told.id, made.ok() ? *made : kRefused);
}

void Supervisor::Answer(uint64_t id, const ProgramMemory::Answer& made) const {
  seccomp_notif_resp answer = {};
  answer.id = id;
  if (made.go_on) {
    answer.flags = SECCOMP_USER_NOTIF_FLAG_CONTINUE;
  } else if (made.result < 0 && made.result > -4096) {
    answer.error = static_cast<int>(made.result);
  } else {
    answer.val = made.result;
  }
  ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_SEND, &answer);
}

absl::StatusOr<ProgramMemory::Answer> Supervisor::OnCall(pid_t thread, const seccomp_data& call) {
  const ProgramMemory::Answer go_on;
  const bool forks = call.nr == SYS_fork || (call.nr == SYS_clone && (call.args[0] & CLONE_VM) == 0);
  const bool executes = call.nr == SYS_execve || call.nr == SYS_execveat;
  if (executes) {
    // Of a child that shares the memory: it has its own from here on, and that is local.
    if (IsProgram(thread) && !traced_.contains(thread) &&
        ptrace(PTRACE_SEIZE, thread, nullptr, PTRACE_O_TRACEEXEC | PTRACE_O_TRACESYSGOOD) == 0) {
      traced_.insert(thread);
    }
    return go_on;
  }
  if (forks) return OnFork(thread);
  if (call.nr == SYS_prctl) return OnDumpable(call);
  NRAM_ASSIGN_OR_RETURN(const ProgramMemory::Answer answer, memory_->OnCall(thread, call));
  report_.armed |= memory_->armed();
  return answer;
}

ProgramMemory::Answer Supervisor::OnFork(pid_t thread) {
  if (forks_.contains(thread) && !memory_->armed()) return {};
  if (!memory_->armed()) {
    // Between this answer and the kernel's copy of the memory nothing may be armed, or evicted pages would be zeros in
    // the child. So the thread is followed until the call returns: first it stops before it, for the call gives way to
    // an interrupt and begins again.
    const bool seized = traced_.contains(thread) ||
                        ptrace(PTRACE_SEIZE, thread, nullptr, PTRACE_O_TRACEEXEC | PTRACE_O_TRACESYSGOOD) == 0;
    if (!seized || ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) != 0) return kRefused;
    traced_.insert(thread);
    forks_.insert(thread);
    return {};
  }
  if (report_.refused_forks++ == 0) {
    static constexpr char kText[] =
        "nram run: fork(2) was refused (ENOMEM): a child would not see memory that is remote; a larger --budget lets "
        "it pass\n";
    (void)!write(STDERR_FILENO, kText, sizeof(kText) - 1);
  }
  return kRefused;
}

ProgramMemory::Answer Supervisor::OnDumpable(const seccomp_data& call) {
  if (call.args[1] == 1 || SeesAllMemory()) return {};
  if (report_.refused_hidings++ == 0) {
    static constexpr char kText[] =
        "nram run: prctl(PR_SET_DUMPABLE) was refused (EPERM): this user could not look after the program's memory any "
        "more; root can\n";
    (void)!write(STDERR_FILENO, kText, sizeof(kText) - 1);
  }
  return {.go_on = false, .result = -EPERM};
}

bool Supervisor::HasForked(pid_t thread) const {
  __ptrace_syscall_info info = {};
  user_regs_struct registers;
  if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(info), &info) <= 0 || info.op != PTRACE_SYSCALL_INFO_EXIT ||
      ptrace(PTRACE_GETREGS, thread, nullptr, &registers) != 0) {
    return false;
  }
  const bool begins_again = info.exit.rval <= -512 && info.exit.rval >= -516;
  const auto number = static_cast<long>(registers.orig_rax);
  return !begins_again && (number == SYS_fork || (number == SYS_clone && (registers.rdi & CLONE_VM) == 0));
}

void Supervisor::OnForked(pid_t thread) {
  user_regs_struct registers;
  if (ptrace(PTRACE_GETREGS, thread, nullptr, &registers) == 0 && static_cast<int64_t>(registers.rax) > 0) {
    ++report_.children;
  }
  ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
  traced_.erase(thread);
  forks_.erase(thread);
  if (forks_.empty()) AnswerHeld();
}

}  // namespace nram
