// The part of Supervisor that is for fork(2).

#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/run/inject.h"
#include "client/run/supervisor.h"

namespace nram {
namespace {

// That have armed memory, at a time.
constexpr size_t kChildrenMax = 64;
constexpr ProgramMemory::Answer kRefused{.go_on = false, .result = -ENOMEM};

bool IsFork(long number, uint64_t flags) {
  return number == SYS_fork || (number == SYS_clone && (flags & CLONE_VM) == 0);
}

}  // namespace

ProgramMemory::Answer Supervisor::RefuseFork(absl::string_view why) {
  if (report_.refused_forks++ == 0) {
    const std::string text = absl::StrCat("nram run: fork(2) was refused (ENOMEM): ", why, "\n");
    (void)!write(STDERR_FILENO, text.data(), text.size());
  }
  return kRefused;
}

std::optional<ProgramMemory::Answer> Supervisor::OnFork(const seccomp_notif& told, const Owner& owner) {
  const auto thread = static_cast<pid_t>(told.pid);
  const bool armed = owner.memory->armed();
  if (!traces_) {
    if (armed)
      return RefuseFork(
          "programs may not be traced here, so a program that has outgrown its budget cannot have children");
    // If the memory is armed before the kernel copies it, registered ranges are not copied (TaskSpace::Register).
    ++report_.children;
    return ProgramMemory::Answer();
  }
  if (armed) {
    if (children_.size() >= kChildrenMax) {
      RefuseFork(absl::StrCat("there are ", kChildrenMax, " children with remote memory"));
      return kRefused;
    }
    if (const absl::Status can = owner.memory->CheckFork(thread, told.data); !can.ok()) {
      return RefuseFork(can.message());
    }
  }
  if (const auto at = forks_.find(thread); at != forks_.end() && at->second.armed == armed) {
    if (!armed) return ProgramMemory::Answer();
    if (at->second.ready) {
      ForkArmed(told, owner);
      return std::nullopt;
    }
  }
  // Between this answer and the kernel's copy of the memory nothing may be armed, and no page of armed memory may come
  // or leave, or evicted pages would be zeros in the child. So the thread is followed until the call returns: first it
  // stops before it, for the call gives way to an interrupt and begins again.
  const bool seized = traced_.contains(thread) ||
                      ptrace(PTRACE_SEIZE, thread, nullptr, PTRACE_O_TRACEEXEC | PTRACE_O_TRACESYSGOOD) == 0;
  if (!seized) return RefuseFork("the thread may not be traced");
  traced_.insert(thread);
  if (ptrace(PTRACE_INTERRUPT, thread, nullptr, nullptr) != 0) return kRefused;
  forks_[thread] = {.armed = armed};
  return ProgramMemory::Answer();
}

void Supervisor::PrepareFork(pid_t thread, Fork* fork) {
  fork->ready = ptrace(PTRACE_SETOPTIONS, thread, nullptr, kForkOptions) == 0;
  __ptrace_rseq_configuration rseq = {};
  const auto bytes = reinterpret_cast<void*>(sizeof(rseq));
  if (ptrace(PTRACE_GET_RSEQ_CONFIGURATION, thread, bytes, &rseq) > 0) fork->rseq = rseq.rseq_abi_pointer;
}

void Supervisor::ForkArmed(const seccomp_notif& told, const Owner& owner) {
  const auto thread = static_cast<pid_t>(told.pid);
  // The child's helper must be this process' own child, even if its parent has ended by then.
  prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  const bool frozen = owner.memory->BeginFork(told.data, forks_[thread].rseq);
  Answer(told.id, frozen ? ProgramMemory::Answer() : kRefused);
  // The kernel goes on at once: nothing that it needs waits for this thread.
  const absl::StatusOr<int> stop = AwaitStop(thread);
  const int event = stop.ok() ? *stop >> 16 : 0;
  unsigned long child = 0;
  const bool forked = (event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_CLONE) &&
                      ptrace(PTRACE_GETEVENTMSG, thread, nullptr, &child) == 0;
  if (forked) {
    const auto pid = static_cast<pid_t>(child);
    if (const absl::Status adopted = AdoptChild(owner.memory, pid); adopted.ok()) {
      ++report_.armed_children;
    } else {
      const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
      KillChild(pid, pidfd.get(), adopted);
    }
  }
  owner.memory->EndFork();
  if (!stop.ok()) return;  // its end is seen elsewhere
  if (!forked) return OnStopped(thread, *stop);
  EndTracedFork(thread);
}

absl::Status Supervisor::AdoptChild(ProgramMemory* parent, pid_t pid) {
  NRAM_RETURN_IF_ERROR(AwaitStop(pid).status());
  // Its own children are none of this call's; the end of this process still is its own.
  if (ptrace(PTRACE_SETOPTIONS, pid, nullptr, PTRACE_O_EXITKILL) != 0) return ErrnoStatus(errno, "PTRACE_SETOPTIONS");
  Child child;
  child.pid = pid;
  child.pidfd = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  if (!child.pidfd.valid()) return ErrnoStatus(errno, "pidfd_open of a child");
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Helper> helper, InjectHelper(pid, HelperParent::kNobody));
  // One that had this number has ended, which was not seen yet.
  const auto former =
      std::find_if(children_.begin(), children_.end(), [pid](const Child& one) { return one.pid == pid; });
  if (former != children_.end()) EndChild(former);
  // Its address does not change as long as its memory lives.
  children_.push_back(std::move(child));
  const Child* const kept = &children_.back();
  absl::StatusOr<std::unique_ptr<ProgramMemory>> memory = parent->Fork(
      std::move(helper),
      [this, pid, pidfd = kept->pidfd.get()](const absl::Status& failure) { KillChild(pid, pidfd, failure); });
  if (!memory.ok()) {
    children_.pop_back();
    return memory.status();
  }
  children_.back().memory = *std::move(memory);
  if (ptrace(PTRACE_DETACH, pid, nullptr, nullptr) != 0) {
    EndChild(std::prev(children_.end()));
    return ErrnoStatus(errno, "PTRACE_DETACH of a child");
  }
  return absl::OkStatus();
}

void Supervisor::KillChild(pid_t pid, int pidfd, const absl::Status& status) const {
  syscall(SYS_pidfd_send_signal, pidfd, SIGKILL, nullptr, 0);
  const std::string text =
      absl::StrCat("nram run: a forked process (", pid, ") was killed: ", status.message(), "\n");
  (void)!write(STDERR_FILENO, text.data(), text.size());
}

void Supervisor::EndChild(std::list<Child>::iterator child) {
  child->memory->GiveBackAtEnd();
  child->memory.reset();
  children_.erase(child);
}

void Supervisor::EndChildren() {
  const auto ended = [](int pidfd) {
    pollfd fd = {pidfd, POLLIN, 0};
    return poll(&fd, 1, 0) > 0;
  };
  for (auto at = children_.begin(); at != children_.end();) {
    const auto child = at++;
    if (ended(child->pidfd.get())) {
      EndChild(child);
    } else if (ended(child->memory->helper_pidfd())) {
      KillChild(child->pid, child->pidfd.get(), absl::AbortedError("the helper in its memory was killed"));
      EndChild(child);
    }
  }
}

bool Supervisor::HasForked(pid_t thread) const {
  __ptrace_syscall_info info = {};
  user_regs_struct registers;
  if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof(info), &info) <= 0 || info.op != PTRACE_SYSCALL_INFO_EXIT ||
      ptrace(PTRACE_GETREGS, thread, nullptr, &registers) != 0) {
    return false;
  }
  const bool begins_again = info.exit.rval <= -512 && info.exit.rval >= -516;
  return !begins_again && IsFork(static_cast<long>(registers.orig_rax), registers.rdi);
}

void Supervisor::OnForked(pid_t thread) {
  user_regs_struct registers;
  if (ptrace(PTRACE_GETREGS, thread, nullptr, &registers) == 0 && static_cast<int64_t>(registers.rax) > 0) {
    ++report_.children;
  }
  EndTracedFork(thread);
}

void Supervisor::EndTracedFork(pid_t thread) {
  ptrace(PTRACE_DETACH, thread, nullptr, nullptr);
  traced_.erase(thread);
  forks_.erase(thread);
  if (forks_.empty()) AnswerHeld();
}

}  // namespace nram
