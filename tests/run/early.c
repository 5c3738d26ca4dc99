// A library whose constructor does what the constructors of others may do before that of nram run: it sets a variable,
// runs a program, and leaves a process behind, which asks for memory when this one has ended.

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
  // Its end is known to nram run, which lets go of its memory next.
  while (kill(parent, 0) == 0) usleep(1000);
  void* const memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  _exit(memory == MAP_FAILED);
}

__attribute__((constructor)) static void Begin(void) {
  // In the program that nram run executes, not in the commands before it, and in what this begins.
  if (getenv("NRAM_RUN_START") == NULL || getenv("EARLY") != NULL) return;
  setenv("EARLY", "1", 1);
  if (system("/bin/true") != 0) abort();
  const pid_t parent = getpid();
  if (fork() == 0) Stay(parent);
}
