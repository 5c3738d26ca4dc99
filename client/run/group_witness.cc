#include "client/run/group_witness.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/status.h"
#include "base/subprocess.h"

namespace nram {
namespace {

constexpr int kAnswerMs = 1'000;
constexpr pid_t kNone = -1;

// Answers until the other end is closed. Pending signals are its memory.
[[noreturn]] void Witness(int socket) {
  prctl(PR_SET_NAME, "nram-witness");
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // No reader waits for this process to close a pipe of the program.
  if (socket != 0) dup2(socket, 0);
  syscall(SYS_close_range, 1u, ~0u, 0u);
  unsigned char signal = 0;
  while (read(0, &signal, 1) == 1) {
    sigset_t one;
    sigemptyset(&one);
    sigaddset(&one, signal);
    const timespec now = {};
    siginfo_t info = {};
    const pid_t sender = sigtimedwait(&one, &info, &now) == signal ? info.si_pid : kNone;
    if (send(0, &sender, sizeof sender, MSG_NOSIGNAL) != sizeof sender) break;
  }
  _exit(0);
}

}  // namespace

GroupWitness::~GroupWitness() {
  if (!process_.valid()) return;
  syscall(SYS_pidfd_send_signal, process_.get(), SIGKILL, nullptr, 0);
  siginfo_t ignored;
  while (waitid(P_PIDFD, static_cast<id_t>(process_.get()), &ignored, WEXITED) != 0 && errno == EINTR) {
  }
}

absl::Status GroupWitness::Start() {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return ErrnoStatus(errno, "socketpair");
  socket_ = UniqueFd(ends[0]);
  const UniqueFd its(ends[1]);
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);  // from its first instruction on
  // Not a Subprocess: the supervisor waits for all its children itself.
  const pid_t pid = fork();
  if (pid == 0) Witness(its.get());
  const int error = errno;
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (pid < 0) return ErrnoStatus(error, "fork");
  process_ = OpenProcess(pid);  // its number may mean another process once it was waited for
  return absl::OkStatus();
}

bool GroupWitness::HasGot(int signal, pid_t sender) {
  if (!socket_.valid()) return false;
  const auto asked = static_cast<unsigned char>(signal);
  pid_t got = kNone;
  pollfd fd = {socket_.get(), POLLIN, 0};
  const bool answered = send(socket_.get(), &asked, 1, MSG_NOSIGNAL) == 1 && poll(&fd, 1, kAnswerMs) == 1 &&
                        read(socket_.get(), &got, sizeof got) == sizeof got;
  // A late answer would be taken for that to another question.
  if (!answered) socket_.reset();
  return answered && got == sender;
}

}  // namespace nram
