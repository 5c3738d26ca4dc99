#include "base/subprocess.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/poll_until.h"
#include "base/status.h"

namespace nram {
namespace {

constexpr size_t kSaidBytesMax = 64 << 10;
constexpr int kLookMs = 2;  // without a pidfd

// In the child, where only what signal-safety(7) lists may be called.
void BecomeChild(const SubprocessOptions& options, pid_t parent) {
  if (options.death_signal != 0) {
    prctl(PR_SET_PDEATHSIG, options.death_signal);
    if (getppid() != parent) _exit(Subprocess::kCannotRun);  // it has ended already
  }
  if (options.new_session) setsid();
  if (options.processor >= 0) {
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(options.processor, &set);
    sched_setaffinity(0, sizeof set, &set);
  }
  if (options.in >= 0) dup2(options.in, STDIN_FILENO);
  if (options.out >= 0) dup2(options.out, STDOUT_FILENO);
  if (options.err >= 0) dup2(options.err, STDERR_FILENO);
  if (options.close_others) CloseFrom(STDERR_FILENO + 1);
}

int PollMs(int64_t deadline_ns) {
  const int64_t left_ns = std::max<int64_t>(deadline_ns - MonotonicNs(), 0);
  return static_cast<int>(std::min<int64_t>((left_ns + kNsPerMs - 1) / kNsPerMs, 1'000'000));
}

}  // namespace

UniqueFd OpenProcess(pid_t pid) { return UniqueFd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

bool AwaitEnd(int process, int64_t deadline_ns) {
  pollfd end{process, POLLIN, 0};
  while (poll(&end, 1, PollMs(deadline_ns)) <= 0) {
    if (MonotonicNs() >= deadline_ns) return false;
  }
  return true;
}

Subprocess::Subprocess(pid_t pid) : pid_(pid), pidfd_(OpenProcess(pid)) {}

Subprocess& Subprocess::operator=(Subprocess&& other) noexcept {
  if (this == &other) return *this;
  Kill();
  pid_ = std::exchange(other.pid_, -1);
  pidfd_ = std::move(other.pidfd_);
  ended_ = other.ended_;
  return *this;
}

absl::StatusOr<Subprocess> Subprocess::StartFunction(absl::FunctionRef<int()> run, const SubprocessOptions& options) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child == 0) {
    BecomeChild(options, parent);
    _exit(run());
  }
  return Subprocess(child);
}

absl::StatusOr<Subprocess> Subprocess::Start(const std::vector<std::string>& words, const SubprocessOptions& options) {
  const Argv argv(words);
  return StartFunction(
      [&argv] {
        execvp(argv.get()[0], argv.get());
        return kCannotRun;
      },
      options);
}

std::optional<Subprocess::Ended> Subprocess::WaitUntil(int64_t deadline_ns) {
  if (pid_ < 0 || ended_.has_value()) return ended_;
  int status = 0;
  pid_t waited = 0;
  const auto look = [&](int flags) {
    while ((waited = waitpid(pid_, &status, flags)) < 0 && errno == EINTR) {
    }
    return waited != 0;
  };
  if (deadline_ns == kNoDeadline) {
    look(0);
  } else if (!pidfd_.valid()) {
    PollUntil(deadline_ns, kLookMs, [&] { return look(WNOHANG); });
  } else {
    if (!look(WNOHANG) && AwaitEnd(pidfd_.get(), deadline_ns)) look(WNOHANG);
  }
  if (waited == 0) return std::nullopt;
  // Other code has waited for it, against the contract: it has ended, and its status is lost.
  if (waited < 0) status = 0;
  ended_ = WIFSIGNALED(status) ? Ended{0, WTERMSIG(status)} : Ended{WEXITSTATUS(status), 0};
  return ended_;
}

void Subprocess::Signal(int number) const {
  if (pid_ > 0 && !ended_.has_value()) kill(pid_, number);
}

void Subprocess::Kill() {
  if (pid_ < 0 || WaitUntil(0).has_value()) return;
  Signal(SIGKILL);
  WaitUntil(kNoDeadline);
}

pid_t Subprocess::Release() {
  pidfd_.reset();
  return std::exchange(pid_, -1);
}

absl::StatusOr<HeardProgram> HearProgram(const std::vector<std::string>& words, int64_t deadline_ns) {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return ErrnoStatus(errno, "pipe");
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  (void)fcntl(from.get(), F_SETFL, O_NONBLOCK);
  const UniqueFd nothing(open("/dev/null", O_WRONLY | O_CLOEXEC));
  SubprocessOptions options;
  options.out = nothing.get();
  options.err = to.get();
  NRAM_ASSIGN_OR_RETURN(Subprocess program, Subprocess::Start(words, options));
  to.reset();
  std::string said;
  // The end of the program counts, not of its stream: a daemon that it leaves behind may keep the stream open.
  for (bool open = true, ended = false; !ended;) {
    pollfd either[] = {{open ? from.get() : -1, POLLIN, 0}, {program.end_fd(), POLLIN, 0}};
    const int longest_ms = program.end_fd() >= 0 ? PollMs(deadline_ns) : kLookMs;
    (void)poll(either, 2, longest_ms);
    ended = program.WaitUntil(0).has_value();
    char buffer[4096];
    ssize_t n = 0;
    while (open && (n = read(from.get(), buffer, sizeof buffer)) > 0) {
      said.append(buffer, std::min<size_t>(static_cast<size_t>(n), kSaidBytesMax - said.size()));
    }
    open = open && n < 0 && (errno == EAGAIN || errno == EINTR);
    if (!ended && MonotonicNs() >= deadline_ns) {
      program.Kill();
      return absl::DeadlineExceededError(absl::StrCat(words[0], " took too long and was killed"));
    }
  }
  absl::StripTrailingAsciiWhitespace(&said);
  return HeardProgram{*program.WaitUntil(0), said};
}

absl::Status RunProgram(const std::vector<std::string>& words, int64_t deadline_ns) {
  NRAM_ASSIGN_OR_RETURN(const HeardProgram heard, HearProgram(words, deadline_ns));
  if (heard.ended.ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(heard.said.empty() ? absl::StrCat(words[0], " failed") : heard.said);
}

}  // namespace nram
