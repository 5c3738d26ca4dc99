#include "swap/swap_guard.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/swap.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "base/clock.h"
#include "base/fd.h"
#include "base/host/host_memory.h"
#include "base/poll_until.h"
#include "base/status.h"
#include "base/subprocess.h"

namespace nram {
namespace {

constexpr int kTickMs = 1'000;

// The answers of the mount, or its silence.
struct Look {
  std::atomic<int> silent_ticks{0};
  std::atomic<bool> cut_off{false};  // by the kernel, which had waited too long
};

// Asks the mount again and again, on a thread that may wait for it as long as it likes.
void KeepLooking(const std::string& mount, Look* look) {
  std::thread([mount, look] {
    while (true) {
      struct statvfs room {};
      if (statvfs(mount.c_str(), &room) != 0 && (errno == ENOTCONN || errno == ECONNABORTED)) {
        look->cut_off = true;
      } else {
        look->silent_ticks = 0;
      }
      SleepMs(kTickMs);
    }
  }).detach();
}

// Returns when the daemon has ended, and ends it if it is silent for too long. Silence is counted in ticks of this
// process, so that a machine that stood still does not look like a daemon that did.
void AwaitDaemon(int daemon, const std::string& mount, int64_t silence_ms) {
  static Look look;
  KeepLooking(mount, &look);
  pollfd ended{daemon, POLLIN, 0};
  while (poll(&ended, 1, kTickMs) <= 0) {
    if (++look.silent_ticks * int64_t{kTickMs} < silence_ms && !look.cut_off) continue;
    (void)syscall(SYS_pidfd_send_signal, daemon, SIGKILL, nullptr, 0);
  }
}

[[noreturn]] void Guard(const GuardOptions& options) {
  prctl(PR_SET_NAME, kGuardName);
  // Its requests to the kernel must not wait for pages to be written out: that may wait for the daemon that it watches.
  prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
  // As far as it may: it must not need the area that it is to take away.
  (void)WriteOomScore(-1000);
  (void)mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
  const sched_param priority{.sched_priority = 1};
  (void)sched_setscheduler(0, SCHED_RR, &priority);
  (void)FindUse(options.device);  // once, so that its memory is there
  AwaitDaemon(kGuardFd, options.mount, options.silence_ms);
  // If `nram swapoff` has ended the daemon, the kernel does not have the area any more. Each swapoff(2) runs in a
  // child: a process in swapoff(2) is the kernel's first choice when a machine is out of memory, whatever its score. It
  // is a bare fork, not a Subprocess: the guard must need as little memory as possible, and goes on if fork fails.
  while (FindUse(options.device).has_value()) {
    const pid_t trying = fork();
    if (trying == 0) _exit(SwapOffWhole(options.device, /*insist=*/true) == 0 ? 0 : 1);
    // Without a child the guard does it itself: at risk, but better than not at all.
    if (trying < 0) (void)swapoff(options.device.path.c_str());
    while (trying > 0 && waitpid(trying, nullptr, 0) < 0 && errno == EINTR) {
    }
    SleepMs(20);  // not all the time, if the kernel refuses at once
  }
  _exit(0);
}

}  // namespace

absl::Status StartGuard(const GuardOptions& options) {
  const UniqueFd daemon = OpenProcess(options.daemon_pid);
  if (!daemon.valid()) return ErrnoStatus(errno, "watch the area's daemon");
  // A bare fork, not a Subprocess: the child has no owner and outlives this command.
  const pid_t child = fork();
  if (child < 0) return ErrnoStatus(errno, "fork");
  if (child > 0) return absl::OkStatus();
  setsid();
  const UniqueFd nothing(open("/dev/null", O_RDWR));
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) dup2(nothing.get(), fd);
  // Nothing that it was started with is kept from its owners, its starter's locks least of all.
  dup3(daemon.get(), kGuardFd, O_CLOEXEC);
  CloseFrom(kGuardFd + 1);
  program_invocation_name[0] = '@';  // as the daemon's, fsd/hang_proof.cc
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) (void)signal(number, SIG_IGN);
  (void)!chdir("/");
  Guard(options);
}

}  // namespace nram
