// The part of Supervisor that is for programs that may not be traced (adr/0026).

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "client/run/supervisor.h"
#include "client/run/task_maps.h"

namespace nram {
namespace {

// Of calls before the library has reported.
constexpr size_t kEarlyMax = 4096;

void Say(absl::string_view text) { (void)!write(STDERR_FILENO, text.data(), text.size()); }

}  // namespace

std::optional<ProgramMemory::Answer> Supervisor::OnCallUntraced(const seccomp_notif& told) {
  const auto thread = static_cast<pid_t>(told.pid);
  if (start_ != nullptr) {
    // Programs that it has begun before its library are local.
    if (IsThreadOf(program_, thread)) return OnEarlyCall(told);
    return std::nullopt;
  }
  // The other threads have ended when a new program makes its calls, and its only one has the process' number.
  if (executing_.empty() || memory_ == nullptr || !IsThreadOf(program_, thread)) return std::nullopt;
  const std::optional<bool> shares = SharesMemory(memory_->helper_pid(), thread, /*only=*/true);
  if (!shares.has_value()) return std::nullopt;
  if (!*shares) {
    OnExecutedUntraced();
  } else {
    executing_.erase(thread);  // the call has failed
  }
  return std::nullopt;
}

std::optional<ProgramMemory::Answer> Supervisor::OnEarlyCall(const seccomp_notif& told) {
  absl::StatusOr<std::unique_ptr<Helper>> helper = start_->TakeHelper();
  if (!helper.ok()) {
    start_.reset();
    Fail(helper.status());
    return std::nullopt;
  }
  if (*helper != nullptr) {
    start_.reset();
    const absl::Status status = LookAfter(*std::move(helper), std::exchange(early_, {}));
    if (!status.ok()) Fail(status);
    return std::nullopt;
  }
  seccomp_data call = told.data;
  // Before its call of execve(2) has an end it is not this program.
  report_.begun |= call.nr != SYS_execve && call.nr != SYS_execveat;
  if (call.nr == SYS_mmap && (call.args[3] & MAP_LOCKED) != 0) call.nr = SYS_mlock;
  switch (call.nr) {
    case SYS_clone:
    case SYS_set_tid_address:
    case SYS_set_robust_list:
    case SYS_mlock:
    case SYS_mlock2:
    case SYS_mlockall:
      early_.emplace_back(static_cast<pid_t>(told.pid), call);
      return std::nullopt;
    case SYS_madvise:
      // Pages that the kernel may take at any time could not be told from others later.
      if (call.args[2] == MADV_FREE) return ProgramMemory::Answer{.go_on = false, .result = -EINVAL};
      return std::nullopt;
    default:
      return std::nullopt;
  }
}

void Supervisor::OnExecutedUntraced() {
  executing_.clear();
  memory_->GiveBackAtEnd();
  memory_.reset();
  if (report_.local_programs++ == 0) {
    Say("nram run: the program has executed another one, which is local: programs may not be traced here. Use nram run "
        "on that program itself\n");
  }
}

void Supervisor::CheckStarted() {
  if (end_.has_value() || (MonotonicNs() < start_until_ns_ && early_.size() < kEarlyMax)) return;
  start_.reset();
  constexpr char kText[] =
      "its start-up library (libnram-run.so), which nram run needs here, has not started";
  Fail(absl::DeadlineExceededError(kText));
}

void Supervisor::SayNotStarted() {
  Say("nram run: the program ended before its start-up library started: nothing was remote\n");
}

}  // namespace nram
