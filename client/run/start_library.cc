// The library that is loaded first into a program that `nram run` may not trace (adr/0026). Before the program's main
// it makes the helper in the program's memory, and says so; then it is done. It leaves no descriptor,
// variable or signal mask of its own.

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "client/run/start_message.h"

#ifndef MAP_FIXED_NOREPLACE
#define MAP_FIXED_NOREPLACE 0x100000
#endif

namespace nram {
namespace {

struct PollFd {  // poll(2)'s
  int fd;
  short events;
  short revents;
};
constexpr short kReadable = 1;

// A variable in a list, "NAME=VALUE". Null: it is not there.
char* Find(char** list, const char* name) {
  const size_t length = strlen(name);
  for (; *list != nullptr; ++list) {
    if (strncmp(*list, name, length) == 0 && (*list)[length] == '=') return *list;
  }
  return nullptr;
}

void Remove(char** list, const char* variable) {
  if (list == nullptr) return;
  while (*list != nullptr && *list != variable) ++list;
  for (; *list != nullptr; ++list) *list = list[1];
}

// Removes it from the program's first environment, and from the list that earlier constructors may have made of that.
void Remove(const char* variable, char** first) {
  Remove(first, variable);
  if (environ != first) Remove(environ, variable);
}

// The socket; -1: this is not a program that `nram run` has begun.
int TakeSocket(char** variables) {
  char* const variable = Find(variables, kStartVariable);
  if (variable == nullptr) return -1;
  int socket = 0;
  for (const char* digit = variable + sizeof(kStartVariable); *digit >= '0' && *digit <= '9' && socket < (1 << 24);) {
    socket = socket * 10 + *digit++ - '0';
  }
  Remove(variable, variables);
  return socket;
}

// The user's own libraries are behind this one's path.
void RestorePreload(char** variables) {
  char* const variable = Find(variables, kPreloadVariable);
  if (variable == nullptr) return;
  const char* const others = strchr(variable, ':');
  if (others == nullptr) {
    Remove(variable, variables);
  } else {
    memmove(variable + sizeof(kPreloadVariable), others + 1, strlen(others + 1) + 1);
  }
}

// Whether the process that has made the socket has begun this one. Not so in programs that an earlier constructor has
// begun.
bool IsForThis(int socket) {
  ucred maker = {};
  socklen_t bytes = sizeof(maker);
  return getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &maker, &bytes) == 0 && maker.pid == getppid();
}

// The clone(2) that makes the helper, which goes on in its own code.
long CloneHelper(const StartOrder& order, long socket) {
  long result = SYS_clone;
  const long process = getpid();
  register long code asm("r15") = static_cast<long>(order.base + order.entry);
  register long its_socket asm("r12") = socket;
  register long message asm("r13") = static_cast<long>(order.message);
  register long program asm("r14") = process;
  register long unused asm("r10") = 0;
  register long storage asm("r8") = 0;
  asm volatile(
      "xorl %%ebx, %%ebx\n"
      "syscall\n"
      "testq %%rax, %%rax\n"
      "jnz 1f\n"
      "jmp *%%r15\n"
      "1:\n"
      : "+a"(result)
      : "D"(long{CLONE_VM | CLONE_PARENT | SIGCHLD}), "S"(order.stack_top), "d"(0L), "r"(unused), "r"(storage),
        "r"(code), "r"(its_socket), "r"(message), "r"(program)
      : "rbx", "rcx", "r11", "memory", "cc");
  return result;
}

void Fail(StartReport* report, StartStep step, int error) {
  report->step = step;
  report->error = error;
}

// Puts the code where the helper is to be.
bool Place(const StartOrder& order, StartReport* report) {
  void* const base = reinterpret_cast<void*>(order.base);
  const void* const at =
      mmap(base, order.bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  if (at == MAP_FAILED) {
    Fail(report, kStartMap, errno);
    return false;
  }
  memcpy(base, order.code, order.code_bytes);
  if (mprotect(base, 4096, PROT_READ | PROT_EXEC) != 0) {
    Fail(report, kStartProtect, errno);
    return false;
  }
  // Children have no helper. By the pages here `nram run` knows which process' memory a thread has.
  if (madvise(base, order.bytes, MADV_DONTFORK) != 0) {
    Fail(report, kStartAdvise, errno);
    return false;
  }
  return true;
}

void MakeHelper(const StartOrder& order, int socket, StartReport* report) {
  if (!Place(order, report)) return;
  report->socket = socket;
  report->pidfd = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
  if (report->pidfd < 0) return Fail(report, kStartPidfd, errno);
  const PollFd program_end = {report->pidfd, kReadable, 0};
  memcpy(reinterpret_cast<void*>(order.stack_top), &program_end, sizeof(program_end));
  // The helper is to have no signals. The C library's functions would leave its own two out.
  const uint64_t all = ~uint64_t{0};
  uint64_t mask = 0;
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &mask, sizeof(mask));
  const long helper = CloneHelper(order, socket);
  syscall(SYS_rt_sigprocmask, SIG_SETMASK, &mask, nullptr, sizeof(mask));
  if (helper < 0) return Fail(report, kStartClone, static_cast<int>(-helper));
  report->helper = static_cast<int32_t>(helper);
}

// The linker gives these to each constructor; the constructors of all other libraries have run.
__attribute__((constructor)) void Begin(int /*count*/, char** /*words*/, char** variables) {
  const int socket = TakeSocket(variables);
  if (socket < 0) return;
  RestorePreload(variables);
  StartOrder order;
  if (!IsForThis(socket) || recv(socket, &order, sizeof(order), MSG_DONTWAIT) != sizeof(order) ||
      order.magic != kStartMagic || order.code_bytes > sizeof(order.code)) {
    return;
  }
  StartReport report;
  MakeHelper(order, socket, &report);
  const bool reported = send(socket, &report, sizeof(report), MSG_NOSIGNAL) == sizeof(report);
  // The helper has its own, whose end is to be seen.
  if (report.pidfd > 0) close(report.pidfd);
  close(socket);
  // This one is told, and answered when the memory is looked after.
  if (reported) syscall(SYS_brk, 0);
}

}  // namespace
}  // namespace nram
