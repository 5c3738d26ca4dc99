#include "client/run/inject.h"

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/run/helper_code.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace nram {
namespace {

constexpr uint64_t kSyscallAndStop = 0xCC050F;  // syscall; int3

absl::Status WriteMemory(pid_t pid, uint64_t to, const void* from, size_t bytes) {
  const iovec local = {const_cast<void*>(from), bytes};
  const iovec remote = {reinterpret_cast<void*>(to), bytes};
  if (process_vm_writev(pid, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes)) {
    return ErrnoStatus(errno, "writing to the program's memory");
  }
  return absl::OkStatus();
}

absl::Status ReadMemory(pid_t pid, uint64_t from, void* to, size_t bytes) {
  const iovec local = {to, bytes};
  const iovec remote = {reinterpret_cast<void*>(from), bytes};
  if (process_vm_readv(pid, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes)) {
    return ErrnoStatus(errno, "reading the program's memory");
  }
  return absl::OkStatus();
}

// A stopped thread that makes calls for its tracer. Its registers, its code and its signal mask come back at the end.
class BorrowedThread {
 public:
  explicit BorrowedThread(pid_t pid) : pid_(pid) {}

  absl::Status Begin() {
    if (ptrace(PTRACE_GETREGS, pid_, nullptr, &registers_) != 0) return ErrnoStatus(errno, "PTRACE_GETREGS");
    errno = 0;
    code_ = static_cast<uint64_t>(ptrace(PTRACE_PEEKTEXT, pid_, registers_.rip, nullptr));
    if (errno != 0) return ErrnoStatus(errno, "PTRACE_PEEKTEXT");
    if (ptrace(PTRACE_GETSIGMASK, pid_, sizeof(mask_), &mask_) != 0) return ErrnoStatus(errno, "PTRACE_GETSIGMASK");
    // The helper inherits this mask: no signal of the terminal or of the program's group is for it.
    const uint64_t all = ~(uint64_t{1} << (SIGTRAP - 1));
    if (ptrace(PTRACE_SETSIGMASK, pid_, sizeof(all), &all) != 0) return ErrnoStatus(errno, "PTRACE_SETSIGMASK");
    begun_ = true;
    const uint64_t patched = (code_ & ~uint64_t{0xFFFFFF}) | kSyscallAndStop;
    if (ptrace(PTRACE_POKETEXT, pid_, registers_.rip, patched) != 0) return ErrnoStatus(errno, "PTRACE_POKETEXT");
    return absl::OkStatus();
  }

  absl::Status End() {
    if (!std::exchange(begun_, false)) return absl::OkStatus();
    if (ptrace(PTRACE_POKETEXT, pid_, registers_.rip, code_) != 0 ||
        ptrace(PTRACE_SETSIGMASK, pid_, sizeof(mask_), &mask_) != 0 ||
        ptrace(PTRACE_SETREGS, pid_, nullptr, &registers_) != 0) {
      return ErrnoStatus(errno, "giving the program's thread back");
    }
    return absl::OkStatus();
  }
  ~BorrowedThread() { (void)End(); }

  absl::StatusOr<int64_t> Call(uint64_t number, std::initializer_list<uint64_t> arguments) {
    user_regs_struct now = registers_;
    return Run(number, arguments, now);
  }
  // The clone(2) at the beginning of the helper's code. The task made last leaves its number at kMessage.
  absl::StatusOr<int64_t> Clone(int socket, HelperParent parent) {
    user_regs_struct now = registers_;
    now.rip = HelperPlace::kBase;
    now.rbx = parent == HelperParent::kNobody ? 1 : 0;
    now.r12 = static_cast<uint64_t>(socket);
    now.r13 = HelperPlace::kMessage;
    now.r14 = static_cast<uint64_t>(pid_);
    const uint64_t its_parent = parent == HelperParent::kPrograms ? CLONE_PARENT | SIGCHLD : 0;
    return Run(SYS_clone, {CLONE_VM | CLONE_PARENT_SETTID | its_parent, HelperPlace::kStackTop, HelperPlace::kMessage},
               now);
  }

 private:
  absl::StatusOr<int64_t> Run(uint64_t number, std::initializer_list<uint64_t> arguments, user_regs_struct now) {
    unsigned long long* const places[] = {&now.rdi, &now.rsi, &now.rdx, &now.r10, &now.r8, &now.r9};
    size_t i = 0;
    for (const uint64_t argument : arguments) *places[i++] = argument;
    now.rax = number;
    now.orig_rax = ~0ull;  // no call is to be begun again
    if (ptrace(PTRACE_SETREGS, pid_, nullptr, &now) != 0) return ErrnoStatus(errno, "PTRACE_SETREGS");
    while (true) {
      if (ptrace(PTRACE_CONT, pid_, nullptr, nullptr) != 0) return ErrnoStatus(errno, "PTRACE_CONT");
      NRAM_ASSIGN_OR_RETURN(const int status, AwaitStop(pid_));
      if (WSTOPSIG(status) == SIGTRAP && status >> 16 == 0) break;
    }
    if (ptrace(PTRACE_GETREGS, pid_, nullptr, &now) != 0) return ErrnoStatus(errno, "PTRACE_GETREGS");
    return static_cast<int64_t>(now.rax);
  }

  const pid_t pid_;
  bool begun_ = false;
  user_regs_struct registers_ = {};
  uint64_t code_ = 0;
  uint64_t mask_ = 0;
};

absl::StatusOr<int64_t> CallOk(BorrowedThread* thread, const char* what, uint64_t number,
                               std::initializer_list<uint64_t> arguments) {
  NRAM_ASSIGN_OR_RETURN(const int64_t result, thread->Call(number, arguments));
  if (result < 0) return ErrnoStatus(static_cast<int>(-result), absl::StrCat(what, " in the program"));
  return result;
}

absl::Status PlaceCode(pid_t program, BorrowedThread* thread) {
  constexpr uint64_t kBase = HelperPlace::kBase;
  const absl::StatusOr<int64_t> at = CallOk(thread, "mmap", SYS_mmap,
                                            {kBase, HelperPlace::kBytes, PROT_READ | PROT_WRITE,
                                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, ~uint64_t{0}, 0});
  if (at.status().code() == absl::StatusCode::kAlreadyExists) {
    return absl::FailedPreconditionError("the program uses the address that the helper needs");
  }
  NRAM_RETURN_IF_ERROR(at.status());
  NRAM_RETURN_IF_ERROR(WriteMemory(program, kBase, HelperCode().data(), HelperCode().size()));
  NRAM_RETURN_IF_ERROR(CallOk(thread, "mprotect", SYS_mprotect, {kBase, 4096, PROT_READ | PROT_EXEC}).status());
  // Children have no helper, and need no pages of it.
  NRAM_RETURN_IF_ERROR(CallOk(thread, "madvise", SYS_madvise, {kBase, HelperPlace::kBytes, MADV_DONTFORK}).status());
  const pollfd none = {.fd = -1, .events = POLLIN, .revents = 0};
  return WriteMemory(program, HelperPlace::kStackTop, &none, sizeof(none));
}

// Makes the helper. Its process number.
absl::StatusOr<pid_t> CloneHelper(pid_t program, BorrowedThread* thread, int socket, HelperParent parent) {
  NRAM_ASSIGN_OR_RETURN(const int64_t made, thread->Clone(socket, parent));
  if (made < 0) return ErrnoStatus(static_cast<int>(-made), "clone of the helper");
  if (parent == HelperParent::kPrograms) return static_cast<pid_t>(made);
  // The task in between has no exit signal, and ends at once.
  NRAM_RETURN_IF_ERROR(
      CallOk(thread, "wait4", SYS_wait4, {static_cast<uint64_t>(made), 0, uint64_t{__WALL}, 0}).status());
  pid_t helper = 0;
  NRAM_RETURN_IF_ERROR(ReadMemory(program, HelperPlace::kMessage, &helper, sizeof(helper)));
  // If the second clone has failed, the number is still that of the first.
  if (helper == made) return absl::ResourceExhaustedError("clone of the helper failed");
  return helper;
}

// The helper begins, and hears of the program's end.
absl::Status SettleHelper(pid_t program, Helper* helper) {
  NRAM_RETURN_IF_ERROR(helper->Settle());
  NRAM_ASSIGN_OR_RETURN(const int64_t pidfd, helper->Call(SYS_pidfd_open, {static_cast<uint64_t>(program), 0}));
  if (pidfd < 0) return ErrnoStatus(static_cast<int>(-pidfd), "pidfd_open in the helper");
  const pollfd program_end = {.fd = static_cast<int>(pidfd), .events = POLLIN, .revents = 0};
  return WriteMemory(helper->pid(), HelperPlace::kStackTop, &program_end, sizeof(program_end));
}

}  // namespace

absl::StatusOr<int> AwaitStop(pid_t thread) {
  while (true) {
    siginfo_t info = {};
    if (waitid(P_PID, static_cast<id_t>(thread), &info, WEXITED | WSTOPPED | WNOWAIT | __WALL) != 0) {
      if (errno == EINTR) continue;
      return ErrnoStatus(errno, "waiting for the program");
    }
    if (info.si_code != CLD_TRAPPED && info.si_code != CLD_STOPPED) {
      return absl::UnavailableError("the program has ended");
    }
    // Takes the stop and never an end: it may be killed just now.
    info = {};
    if (waitid(P_PID, static_cast<id_t>(thread), &info, WSTOPPED | WNOHANG | __WALL) == 0 && info.si_pid == thread) {
      return (info.si_status << 8) | 0x7F;
    }
  }
}

absl::StatusOr<std::unique_ptr<Helper>> InjectHelper(pid_t program, HelperParent parent) {
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, program, 0)));
  if (!pidfd.valid()) return ErrnoStatus(errno, "pidfd_open");
  BorrowedThread thread(program);
  NRAM_RETURN_IF_ERROR(thread.Begin());
  NRAM_RETURN_IF_ERROR(PlaceCode(program, &thread));
  NRAM_RETURN_IF_ERROR(
      CallOk(&thread, "socketpair", SYS_socketpair, {AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, HelperPlace::kMessage})
          .status());
  int ends[2];
  NRAM_RETURN_IF_ERROR(ReadMemory(program, HelperPlace::kMessage, ends, sizeof(ends)));
  UniqueFd socket(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd.get(), ends[0], 0)));
  if (!socket.valid()) return ErrnoStatus(errno, "pidfd_getfd of the helper's socket");
  fcntl(socket.get(), F_SETFD, FD_CLOEXEC);
  // The helper must not have this end: it would not see that this process has ended.
  NRAM_RETURN_IF_ERROR(CallOk(&thread, "close", SYS_close, {static_cast<uint64_t>(ends[0])}).status());
  NRAM_ASSIGN_OR_RETURN(const pid_t helper_pid, CloneHelper(program, &thread, ends[1], parent));
  UniqueFd helper_pidfd(static_cast<int>(syscall(SYS_pidfd_open, helper_pid, 0)));
  if (!helper_pidfd.valid()) return ErrnoStatus(errno, "pidfd_open of the helper");
  NRAM_RETURN_IF_ERROR(CallOk(&thread, "close", SYS_close, {static_cast<uint64_t>(ends[1])}).status());
  NRAM_RETURN_IF_ERROR(thread.End());
  auto helper = std::make_unique<Helper>(helper_pid, std::move(helper_pidfd), std::move(socket), ends[1]);
  NRAM_RETURN_IF_ERROR(SettleHelper(program, helper.get()));
  return helper;
}

}  // namespace nram
