// A library whose constructor runs before that of nram run, and behaves like other libraries' constructors. It sets a
// variable, runs a program, and leaves a process behind, which maps memory when the program has ended.

#define _DEFAULT_SOURCE
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

static void Stay(pid_t parent) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigprocmask(SIG_BLOCK, &set, NULL);
  int signal = 0;
  prctl(PR_SET_PDEATHSIG, SIGTERM);
  if (getppid() == parent) sigwait(&set, &signal);
  // nram run has seen its end, and lets go of its memory next.
  while (kill(parent, 0) == 0) usleep(1000);
  void* const memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  _exit(memory == MAP_FAILED);
}

__attribute__((constructor)) static void Begin(void) {
  // In the program that nram run executes; not in the commands before it, nor in this constructor's own programs.
  if (getenv("NRAM_RUN_START") == NULL || getenv("EARLY") != NULL) return;
  setenv("EARLY", "1", 1);
  if (system("/bin/true") != 0) abort();
  const pid_t parent = getpid();
  if (fork() == 0) Stay(parent);
}
