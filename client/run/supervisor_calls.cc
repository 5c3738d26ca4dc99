// The half of Supervisor that answers calls.

#include <linux/capability.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "client/run/call_filter.h"
#include "client/run/supervisor.h"
#include "client/run/task_maps.h"

namespace nram {
namespace {

// The longest that a call that arms waits for a fork.
constexpr int64_t kHeldMs = 10'000;
// The answer to a call that cannot be made now. Also when the program is to be killed: its own threads do not see it,
// and others that share its memory do not wait for ever.
constexpr ProgramMemory::Answer kRefused{.go_on = false, .result = -ENOMEM};

bool HasEnded(int pidfd) {
  pollfd fd = {pidfd, POLLIN, 0};
  return poll(&fd, 1, 0) > 0;
}

// Whether this process may see the memory of programs that are not dumpable.
bool SeesAllMemory() {
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct sets[_LINUX_CAPABILITY_U32S_3] = {};
  return syscall(SYS_capget, &header, sets) == 0 && (sets[0].effective & CAP_TO_MASK(CAP_SYS_PTRACE)) != 0;
}

}  // namespace

bool Supervisor::IsThreadOf(pid_t process, pid_t thread) {
  return access(absl::StrCat("/proc/", process, "/task/", thread).c_str(), F_OK) == 0;
}

absl::StatusOr<Supervisor::Owner> Supervisor::OwnerOf(const seccomp_notif& told) {
  const auto thread = static_cast<pid_t>(told.pid);
  std::vector<Owner> owners;
  if (memory_ != nullptr && !end_.has_value()) owners.push_back({memory_.get(), program_});
  for (const Child& child : children_) owners.push_back({child.memory.get(), child.pid});
  std::optional<Owner> unknown;
  int error = 0;
  for (const Owner& owner : owners) {
    const std::optional<bool> shares = SharesMemory(owner.memory->helper_pid(), thread, /*only=*/!traces_);
    if (shares.value_or(false)) return owner;
    if (shares.has_value()) continue;
    error = errno;
    // A child whose helper has ended is to be killed.
    if (owner.memory != memory_.get() && HasEnded(owner.memory->helper_pidfd())) continue;
    unknown = owner;
  }
  // A thread that has been killed meanwhile makes no call.
  if (!unknown.has_value() || ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_ID_VALID, &told.id) != 0) return Owner();
  if (!unknown->memory->armed()) return IsThreadOf(unknown->process, thread) ? *unknown : Owner();
  return ErrnoStatus(error, "cannot tell whether a thread shares the program's memory (kcmp)");
}

void Supervisor::OnNotification() {
  seccomp_notif told = {};
  if (ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_RECV, &told) != 0) return;  // the thread has ended
  if (!traces_) {
    if (const auto answer = OnCallUntraced(told); answer.has_value()) return Answer(told.id, *answer);
  }
  const absl::StatusOr<Owner> owner = OwnerOf(told);
  if (!owner.ok()) {
    for (const Child& child : children_) KillChild(child.pid, child.pidfd.get(), owner.status());
    Fail(owner.status());
    Answer(told.id, kRefused);
    return;
  }
  if (owner->memory != nullptr && !forks_.empty() && !IsForeign(told.data) && owner->memory->MayArm(told.data)) {
    held_.push_back({told, DeadlineAfterMs(kHeldMs)});
    return;
  }
  AnswerCall(told, *owner);
}

void Supervisor::AnswerHeld() {
  std::vector<Held> held;
  held.swap(held_);
  // Only a program that is not armed yet has such calls.
  const bool lives = memory_ != nullptr && !end_.has_value();
  for (const Held& one : held) AnswerCall(one.told, lives ? Owner{memory_.get(), program_} : Owner());
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

void Supervisor::AnswerCall(const seccomp_notif& told, const Owner& owner) {
  absl::StatusOr<std::optional<ProgramMemory::Answer>> made = ProgramMemory::Answer();
  if (owner.memory != nullptr) made = OnCall(told, owner);
  if (made.ok()) {
    if (made->has_value()) Answer(told.id, **made);
    return;
  }
  if (owner.memory == memory_.get()) Fail(made.status());
  for (const Child& child : children_) {
    if (child.memory.get() == owner.memory) KillChild(child.pid, child.pidfd.get(), made.status());
  }
  Answer(told.id, kRefused);
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

absl::StatusOr<std::optional<ProgramMemory::Answer>> Supervisor::OnCall(const seccomp_notif& told, const Owner& owner) {
  const seccomp_data& call = told.data;
  const auto thread = static_cast<pid_t>(told.pid);
  if (IsForeign(call)) return RefuseFork("a call of a 32-bit program");
  const bool forks = call.nr == SYS_fork || (call.nr == SYS_clone && (call.args[0] & CLONE_VM) == 0);
  const bool executes = call.nr == SYS_execve || call.nr == SYS_execveat;
  if (executes) {
    // A child that shares the memory has its own from here on, and that is local.
    if (!traces_) {
      if (IsThreadOf(owner.process, thread)) executing_.insert(thread);
      return ProgramMemory::Answer();
    }
    if (IsThreadOf(owner.process, thread) && !traced_.contains(thread) &&
        ptrace(PTRACE_SEIZE, thread, nullptr, PTRACE_O_TRACEEXEC | PTRACE_O_TRACESYSGOOD) == 0) {
      traced_.insert(thread);
    }
    return ProgramMemory::Answer();
  }
  if (forks) return OnFork(told, owner);
  if (call.nr == SYS_prctl) return OnDumpable(call);
  NRAM_ASSIGN_OR_RETURN(const ProgramMemory::Answer answer, owner.memory->OnCall(thread, call));
  report_.armed |= owner.memory->armed();
  return answer;
}

ProgramMemory::Answer Supervisor::OnDumpable(const seccomp_data& call) {
  if (call.args[1] == 1 || SeesAllMemory()) return {};
  if (report_.refused_hidings++ == 0) {
    static constexpr char kText[] =
        "nram run: prctl(PR_SET_DUMPABLE) was refused (EPERM): this user could no longer manage the program's "
        "memory; root can\n";
    (void)!write(STDERR_FILENO, kText, sizeof(kText) - 1);
  }
  return {.go_on = false, .result = -EPERM};
}

}  // namespace nram
