// The part of Supervisor that is for programs that may not be traced (adr/0026).

#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

#include "base/clock.h"
#include "client/run/supervisor.h"
#include "client/run/task_maps.h"

namespace nram {
namespace {

// Of calls that name words of threads, before the program begins.
constexpr size_t kEarlyMax = 4096;

void Say(absl::string_view text) { (void)!write(STDERR_FILENO, text.data(), text.size()); }

}  // namespace

void Supervisor::OnCallUntraced(const seccomp_notif& told) {
  const auto thread = static_cast<pid_t>(told.pid);
  if (start_ != nullptr) {
    absl::StatusOr<std::unique_ptr<Helper>> helper = start_->TakeHelper();
    if (!helper.ok()) {
      start_.reset();
      return Fail(helper.status());
    }
    if (*helper == nullptr) {
      const int number = told.data.nr;
      if (number == SYS_clone || number == SYS_set_tid_address || number == SYS_set_robust_list) {
        early_.emplace_back(thread, told.data);
      }
      return;
    }
    start_.reset();
    report_.begun = true;
    absl::Status status = LookAfter(*std::move(helper));
    for (const auto& [caller, call] : early_) {
      if (status.ok()) status = memory_->OnCall(caller, call).status();
    }
    early_.clear();
    if (!status.ok()) Fail(status);
    return;
  }
  // The other threads have ended when a new program makes its calls, and its only one has the process' number.
  if (executing_ < 0 || memory_ == nullptr || !IsThreadOf(program_, thread)) return;
  const std::optional<bool> shares = SharesMemory(memory_->helper_pid(), thread);
  if (!shares.has_value()) return;
  if (!*shares) return OnExecutedUntraced();
  if (thread == executing_) executing_ = -1;  // the call has failed
}

void Supervisor::OnExecutedUntraced() {
  executing_ = -1;
  memory_->GiveBackAtEnd();
  memory_.reset();
  if (report_.local_programs++ == 0) {
    Say("nram run: the program has executed another one, which is local: programs may not be traced here. Run that one "
        "itself\n");
  }
}

void Supervisor::CheckStarted() {
  if (end_.has_value() || (MonotonicNs() < start_until_ns_ && early_.size() < kEarlyMax)) return;
  start_.reset();
  constexpr char kText[] = "its start-up library, without which nram run cannot go on here, has not begun";
  Fail(absl::DeadlineExceededError(kText));
}

void Supervisor::SayNotStarted() {
  Say("nram run: the program has ended before its start-up library began: nothing was remote\n");
}

}  // namespace nram
