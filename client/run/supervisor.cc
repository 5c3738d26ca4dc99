#include "client/run/supervisor.h"

#include <fcntl.h>
#include <glog/logging.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/subprocess.h"
#include "client/run/call_filter.h"
#include "client/run/inject.h"
#include "client/run/pass_fd.h"

#ifndef SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV
#define SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV (1UL << 5)
#endif
#ifndef SECCOMP_IOCTL_NOTIF_SET_FLAGS
#define SECCOMP_IOCTL_NOTIF_SET_FLAGS SECCOMP_IOW(4, __u64)
#define SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP 1
#endif

namespace nram {
namespace {

constexpr int kHeldLookMs = 500;
constexpr int64_t kStartMs = 60'000;  // the start-up library's time
constexpr int kForwarded[] = {SIGINT, SIGQUIT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGALRM, SIGCONT};

sigset_t WatchedSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : kForwarded) sigaddset(&set, signal);
  sigaddset(&set, SIGCHLD);
  sigaddset(&set, SIGTSTP);
  return set;
}

// A message of the process before it executes the program: the listener's number, with the listener, or an error. If
// the program cannot be executed, a second one follows with the error.
struct ChildWord {
  int listener = -1;
  int error = 0;
};

// Why execve(2) has refused a file that exists.
absl::Status NotExecuted(const std::string& path, int error) {
  const char* const why = error == ENOEXEC
                              ? "the kernel knows no such program; a script needs a first line, as #!/bin/sh"
                          : error == ENOENT ? "the program of its #! line, or its loader, does not exist"
                                            : nullptr;
  if (why == nullptr) return ErrnoStatus(error, absl::StrCat(path, ": cannot be executed"));
  return absl::FailedPreconditionError(absl::StrCat(path, ": cannot be executed: ", why));
}

bool Is64Bit(pid_t pid) {
  unsigned char head[5] = {};
  const UniqueFd file(open(absl::StrCat("/proc/", pid, "/exe").c_str(), O_RDONLY | O_CLOEXEC));
  // A file that may be executed and not read tells nothing: it is tried.
  return !file.valid() || read(file.get(), head, sizeof(head)) != sizeof(head) || head[4] == 2;
}

}  // namespace

Supervisor::Supervisor(std::string path, std::vector<std::string> words, const RunOptions& options,
                       RunCounters* counters)
    : path_(std::move(path)), words_(std::move(words)), options_(options), counters_(counters) {}

Supervisor::~Supervisor() {
  for (const Child& child : children_) syscall(SYS_pidfd_send_signal, child.pidfd.get(), SIGKILL, nullptr, 0);
  children_.clear();
  if (program_ < 0 || end_.has_value()) return;
  Kill();
  go_.reset();
  memory_.reset();
  waitpid(program_, nullptr, __WALL);
}

void Supervisor::BeTheProgram(int status_fd, int go_fd) const {
  const Argv words(words_);
  const std::vector<std::string> none;
  const Argv variables(start_ != nullptr ? start_->environment() : none);
  if (start_ != nullptr) start_->Inherit();
  const std::vector<sock_filter> filter = MakeCallFilter();
  const sock_fprog program = {.len = static_cast<unsigned short>(filter.size()),
                              .filter = const_cast<sock_filter*>(filter.data())};
  ChildWord word;
  // From the filter on nothing here may ask for memory: calls are not answered yet.
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0) {
    word.listener =
        static_cast<int>(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER,
                                 SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV, &program));
  }
  if (word.listener < 0) word.error = errno;
  char go = 0;
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(&word), sizeof(word));
  const bool said = word.listener < 0 ? write(status_fd, &word, sizeof(word)) == sizeof(word)
                                      : SendWithFd(status_fd, bytes, word.listener);
  if (said && read(go_fd, &go, 1) == 1) {
    pthread_sigmask(SIG_SETMASK, &old_mask_, nullptr);
    execve(path_.c_str(), words.get(), start_ != nullptr ? variables.get() : environ);
    word.error = errno;
    (void)!write(status_fd, &word, sizeof(word));
  }
  _exit(127);
}

absl::Status Supervisor::Start(const std::string& library) {
  traces_ = library.empty();
  if (!traces_) {
    NRAM_ASSIGN_OR_RETURN(start_, UntracedStart::Make(library));
  }
  int status_ends[2];
  int go_ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, status_ends) != 0) return ErrnoStatus(errno, "socketpair");
  status_ = UniqueFd(status_ends[0]);
  UniqueFd status_out(status_ends[1]);
  if (pipe2(go_ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  UniqueFd go_in(go_ends[0]);
  go_ = UniqueFd(go_ends[1]);
  const sigset_t watched = WatchedSignals();
  pthread_sigmask(SIG_BLOCK, &watched, &old_mask_);
  signals_ = UniqueFd(signalfd(-1, &watched, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!signals_.valid()) return ErrnoStatus(errno, "signalfd");
  NRAM_RETURN_IF_ERROR(witness_.Start());
  // Not a Subprocess: the child is traced, and its stops are waited for here.
  program_ = fork();
  if (program_ < 0) return ErrnoStatus(errno, "fork");
  if (program_ == 0) {
    go_.reset();
    BeTheProgram(status_out.get(), go_in.get());
  }
  pidfd_ = UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, program_, 0)));
  signal(SIGPIPE, SIG_IGN);  // a program that was killed does not read its pipe
  signal(SIGXFSZ, SIG_IGN);  // an error in its place
  status_out.reset();
  go_in.reset();
  if (start_ != nullptr) start_->CloseIts();
  NRAM_RETURN_IF_ERROR(TakeListener(status_.get()));
  if (!traces_) return absl::OkStatus();
  if (ptrace(PTRACE_SEIZE, program_, nullptr, PTRACE_O_TRACEEXEC | PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL) != 0) {
    return ErrnoStatus(errno, "the program may not be traced (ptrace)");
  }
  traced_.insert(program_);
  return absl::OkStatus();
}

absl::Status Supervisor::TakeListener(int status_fd) {
  ChildWord word;
  const absl::Span<std::byte> bytes(reinterpret_cast<std::byte*>(&word), sizeof(word));
  if (ReceiveWithFd(status_fd, bytes, &listener_) != sizeof(word)) return absl::InternalError("the child has ended");
  if (word.error == EBUSY) {
    return absl::FailedPreconditionError(
        "another program receives this one's system calls already, as `nram run` does: the two cannot be nested");
  }
  if (word.error != 0) return ErrnoStatus(word.error, "cannot install a filter of system calls (seccomp)");
  if (!listener_.valid()) return absl::ResourceExhaustedError("too many open files");
  ioctl(listener_.get(), SECCOMP_IOCTL_NOTIF_SET_FLAGS, SECCOMP_USER_NOTIF_FD_SYNC_WAKE_UP);  // Linux 6.6
  return absl::OkStatus();
}

void Supervisor::Fail(const absl::Status& status) {
  {
    MutexLock lock(&mu_);
    if (!failure_.ok()) return;
    failure_ = status;
  }
  Kill();
}

absl::Status Supervisor::Failure() {
  MutexLock lock(&mu_);
  return failure_;
}

void Supervisor::Kill() const { syscall(SYS_pidfd_send_signal, pidfd_.get(), SIGKILL, nullptr, 0); }

absl::StatusOr<RunEnd> Supervisor::Run(PageStore* store) {
  views_ = std::make_unique<PageViews>(store);
  start_until_ns_ = DeadlineAfterMs(kStartMs);
  if (write(go_.get(), "g", 1) != 1) return ErrnoStatus(errno, "starting the program");
  while (!ended_) NRAM_RETURN_IF_ERROR(Await());
  Reap();
  if (end_->signal == SIGKILL) NRAM_RETURN_IF_ERROR(Failure());
  if (start_ != nullptr && report_.begun) SayNotStarted();
  ChildWord word;
  if (!report_.begun && recv(status_.get(), &word, sizeof(word), MSG_DONTWAIT) == sizeof(word)) {
    report_.refused = true;
    return NotExecuted(path_, word.error);
  }
  return *end_;
}

absl::Status Supervisor::Await() {
  std::vector<pollfd> fds = {{signals_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
  for (const Child& child : children_) {
    fds.push_back({child.pidfd.get(), POLLIN, 0});
    fds.push_back({child.memory->helper_pidfd(), POLLIN, 0});
  }
  const bool looks = !held_.empty() || start_ != nullptr;
  if (poll(fds.data(), fds.size(), looks ? kHeldLookMs : -1) < 0 && errno != EINTR) return ErrnoStatus(errno, "poll");
  if (!held_.empty()) RefuseLateHeld();
  if (start_ != nullptr) CheckStarted();
  if ((fds[0].revents & POLLIN) != 0) OnSignal();
  if (std::any_of(fds.begin() + 2, fds.end(), [](const pollfd& fd) { return fd.revents != 0; })) EndChildren();
  if ((fds[1].revents & POLLIN) != 0) OnNotification();
  if (end_.has_value() && memory_ != nullptr) {
    if (!children_.empty()) memory_->GiveBackAtEnd();
    memory_.reset();
  }
  // No process is left whose calls would be told.
  ended_ = end_.has_value() && (fds[1].revents & (POLLHUP | POLLERR)) != 0;
  return absl::OkStatus();
}

void Supervisor::OnSignal() {
  signalfd_siginfo info;
  while (read(signals_.get(), &info, sizeof(info)) == sizeof(info)) {
    const auto signal = static_cast<int>(info.ssi_signo);
    if (signal == SIGCHLD || signal == SIGTSTP) continue;
    // A signal for the group, by the terminal or another process, reaches the program by itself.
    const bool groups = witness_.HasGot(signal, static_cast<pid_t>(info.ssi_pid)) && getpgid(program_) == getpgrp();
    if (info.ssi_code <= 0 && !groups && !end_.has_value()) kill(program_, signal);
  }
  Reap();
}

void Supervisor::Reap() {
  int status = 0;
  pid_t pid;
  while ((pid = waitpid(-1, &status, WNOHANG | WUNTRACED | __WALL)) > 0) {
    if (WIFSTOPPED(status)) {
      OnStopped(pid, status);
      continue;
    }
    traced_.erase(pid);
    if (forks_.erase(pid) > 0 && forks_.empty()) AnswerHeld();
    if (pid == program_) {
      end_ = WIFEXITED(status) ? RunEnd{WEXITSTATUS(status), 0} : RunEnd{0, WTERMSIG(status)};
    } else if (memory_ != nullptr && pid == memory_->helper_pid() && !end_.has_value()) {
      Fail(absl::AbortedError("the helper in the program's memory was killed"));
    }
  }
}

void Supervisor::OnStopped(pid_t pid, int status) {
  const int signal = WSTOPSIG(status);
  const int event = status >> 16;
  if (event == PTRACE_EVENT_EXEC) return OnExecuted(pid);
  if (event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_CLONE || event == PTRACE_EVENT_FORK) {
    // A handler of a signal has begun a thread, or a process with the same memory, in place of the fork.
    unsigned long begun = 0;
    if (ptrace(PTRACE_GETEVENTMSG, pid, nullptr, &begun) != 0) return;  // it was killed just now
    if (AwaitStop(static_cast<pid_t>(begun)).ok()) ptrace(PTRACE_DETACH, begun, nullptr, nullptr);
    ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr);
    return;
  }
  const auto fork = forks_.find(pid);
  const bool forks = fork != forks_.end();
  if (forks && signal == (SIGTRAP | 0x80) && HasForked(pid)) return OnForked(pid);
  const auto go_on = forks ? PTRACE_SYSCALL : PTRACE_CONT;
  if (!traced_.contains(pid)) {
    if (event == PTRACE_EVENT_STOP && signal == SIGTRAP) {
      // A child whose parent was killed while it forked: its memory is not looked after.
      kill(pid, SIGKILL);
      return;
    }
    // Of job control. This process stops as well, so that the shell takes the job as stopped. SIGSTOP is for the
    // program alone. Its sender continues the program alone, too, and the program's faults must be answered then.
    if (pid == program_ && signal != SIGSTOP) {
      raise(SIGSTOP);
      kill(program_, SIGCONT);
    }
    return;
  }
  if (forks && fork->second.armed) PrepareFork(pid, &fork->second);
  if (event == PTRACE_EVENT_STOP) {
    const bool group = signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU;
    ptrace(group ? PTRACE_LISTEN : go_on, pid, nullptr, nullptr);
    return;
  }
  const bool at_call = signal == (SIGTRAP | 0x80);
  ptrace(go_on, pid, nullptr, at_call ? 0 : static_cast<uintptr_t>(signal));
}

void Supervisor::OnExecuted(pid_t pid) {
  const auto child =
      std::find_if(children_.begin(), children_.end(), [pid](const Child& one) { return one.pid == pid; });
  if (child != children_.end()) {
    // The new program is local.
    EndChild(child);
    ptrace(PTRACE_DETACH, pid, nullptr, nullptr);
    traced_.erase(pid);
    // Of its other threads none is left.
    std::erase_if(traced_, [](pid_t thread) { return access(absl::StrCat("/proc/", thread).c_str(), F_OK) != 0; });
    std::erase_if(forks_, [this](const auto& one) { return !traced_.contains(one.first); });
    if (forks_.empty()) AnswerHeld();
    return;
  }
  if (pid != program_) {
    // A child that is not looked after any more, and has been killed.
    ptrace(PTRACE_DETACH, pid, nullptr, nullptr);
    traced_.erase(pid);
    return;
  }
  // The thread that has made the call, whatever its number was, has the program's. The program's others are no more.
  std::erase_if(traced_, [this](pid_t thread) {
    return std::none_of(children_.begin(), children_.end(),
                        [thread](const Child& one) { return IsThreadOf(one.pid, thread); });
  });
  std::erase_if(forks_, [this](const auto& one) { return !traced_.contains(one.first); });
  traced_.insert(pid);
  forks_.erase(pid);
  // Of threads that have ended, and of others that share the memory.
  for (Held& one : held_) one.until_ns = 0;
  RefuseLateHeld();
  const bool first = !std::exchange(report_.begun, true);
  absl::Status status = LookAfter(pid);
  if (!status.ok()) {
    // A later one that has no helper is local.
    if (first || memory_ != nullptr) {
      Fail(status);
    } else {
      ++report_.local_programs;
    }
  }
  ptrace(PTRACE_DETACH, pid, nullptr, nullptr);
  traced_.erase(pid);
}

absl::Status Supervisor::LookAfter(pid_t pid) {
  // The room in the pool of the program that was there before.
  if (memory_ != nullptr) memory_->GiveBackAtEnd();
  memory_.reset();
  // Goes on to the return of the call: registers can be set there.
  int status = 0;
  do {
    if (ptrace(PTRACE_SYSCALL, pid, nullptr, nullptr) != 0) return ErrnoStatus(errno, "PTRACE_SYSCALL");
    NRAM_ASSIGN_OR_RETURN(status, AwaitStop(pid));
  } while (WSTOPSIG(status) != (SIGTRAP | 0x80));
  if (!Is64Bit(pid)) return absl::UnimplementedError("the program is not a 64-bit one");
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Helper> helper, InjectHelper(pid, HelperParent::kPrograms));
  return LookAfter(std::move(helper), {});
}

absl::Status Supervisor::LookAfter(std::unique_ptr<Helper> helper, const std::vector<EarlyCall>& early) {
  memory_ = std::make_unique<ProgramMemory>(options_, std::move(helper), views_->Make(), counters_,
                                            [this](const absl::Status& failure) { Fail(failure); });
  for (const auto& [thread, call] : early) NRAM_RETURN_IF_ERROR(memory_->OnCall(thread, call).status());
  NRAM_RETURN_IF_ERROR(memory_->Begin());
  report_.armed |= memory_->armed();
  return absl::OkStatus();
}

}  // namespace nram
