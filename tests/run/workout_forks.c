// The exercises of workout.c that fork.

#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/run/workout.h"

static void AwaitChild(pid_t child) {
  int status = 0;
  Check(waitpid(child, &status, 0) == child && status == 0, "the child");
}

// Verifies the inherited words, makes them its own, and has a child that does the same.
static void BeChild(uint64_t* words, size_t bytes, uint64_t salt, int generations) {
  pid_t child = 0;
  Verify(words, bytes / 8, salt);
  while (--generations > 0 && (child = fork()) == 0) Verify(words, bytes / 8, salt);
  Check(child >= 0, "fork in a child");
  Fill(words, bytes / 8, salt + 1);
  // Its own memory is allocated and freed as before.
  uint64_t* const more = Allocate(bytes / 2);
  Fill(more, bytes / 16, salt + 2);
  Verify(words, bytes / 8, salt + 1);
  Verify(more, bytes / 16, salt + 2);
  free(more);
  if (child > 0) AwaitChild(child);
  Check(waitpid(-1, NULL, __WALL) == -1 && errno == ECHILD, "there is no child that is not its own");
  _exit(0);
}

void DoFork(size_t bytes) {
  uint64_t* const words = Allocate(bytes);
  Fill(words, bytes / 8, 3);
  for (int round = 0; round < 2; ++round) {
    const pid_t child = fork();
    Check(child >= 0, "fork");
    if (child == 0) BeChild(words, bytes, 3 + (uint64_t)round, 2);
    Verify(words, bytes / 8, 3 + (uint64_t)round);
    Fill(words, bytes / 8, 4 + (uint64_t)round);
    AwaitChild(child);
    Check(waitpid(-1, NULL, __WALL) == -1 && errno == ECHILD, "nobody else's end is seen");
    Verify(words, bytes / 8, 4 + (uint64_t)round);
  }
}

struct ForkShare {
  uint64_t* words;
  size_t count;
  volatile int* stop;
};

// Keeps the values of its words, and writes to all of them.
static void* KeepWriting(void* context) {
  const struct ForkShare* const share = context;
  while (!*share->stop) {
    for (size_t i = 0; i < share->count; i += 64) {
      Check(share->words[i] == Mix(i + 5), "a word of a thread");
      share->words[i] = Mix(i + 5);
    }
  }
  return NULL;
}

void DoForks(size_t bytes) {
  enum { kThreads = 2, kChildren = 4 };
  volatile int stop = 0;
  pthread_t threads[kThreads];
  struct ForkShare shares[kThreads];
  for (size_t i = 0; i < kThreads; ++i) {
    shares[i] = (struct ForkShare){Allocate(bytes / 4), bytes / 4 / 8, &stop};
    Fill(shares[i].words, shares[i].count, 5);
  }
  uint64_t* const words = Allocate(bytes / 2);
  Fill(words, bytes / 16, 6);
  for (size_t i = 0; i < kThreads; ++i) {
    Check(pthread_create(&threads[i], NULL, &KeepWriting, &shares[i]) == 0, "pthread_create");
  }
  pid_t children[kChildren];
  for (uint64_t i = 0; i < kChildren; ++i) {
    children[i] = fork();
    Check(children[i] >= 0, "fork");
    if (children[i] == 0) {
      Verify(words, bytes / 16, 6 + i);
      for (size_t k = 0; k < kThreads; ++k) Verify(shares[k].words, shares[k].count, 5);
      Fill(words, bytes / 16, 100 + i);
      Verify(words, bytes / 16, 100 + i);
      _exit(0);
    }
    Fill(words, bytes / 16, 6 + i + 1);
  }
  for (size_t i = 0; i < kChildren; ++i) AwaitChild(children[i]);
  Verify(words, bytes / 16, 6 + kChildren);
  stop = 1;
  for (size_t i = 0; i < kThreads; ++i) pthread_join(threads[i], NULL);
}

void DoForkExec(size_t bytes) {
  uint64_t* const words = Allocate(bytes);
  Fill(words, bytes / 8, 3);
  const size_t part = bytes / 8 / 20;
  for (size_t i = 0; i < 20; ++i) {
    const pid_t child = fork();
    Check(child >= 0, "fork");
    if (child == 0) {
      execlp("no-such-program-anywhere", "none", NULL);
      execlp("true", "true", NULL);
      _exit(1);
    }
    for (size_t k = (part * i + 63) / 64 * 64; k < part * (i + 1); k += 64) words[k] = Mix(k + 3);
    AwaitChild(child);
  }
  Verify(words, bytes / 8, 3);
  Check(system("exit 7") == 7 << 8, "system");
}

void DoOrphans(size_t bytes) {
  int ends[2];
  char byte = 0;
  uint64_t* const words = Allocate(bytes);
  Fill(words, bytes / 8, 3);
  Check(pipe(ends) == 0, "pipe");
  const pid_t child = fork();
  Check(child >= 0, "fork");
  if (child > 0) {
    Fill(words, bytes / 8, 4);
    return;  // and ends
  }
  close(ends[1]);
  Check(read(ends[0], &byte, 1) == 0, "the end of the parent");
  BeChild(words, bytes, 3, 2);
}

// Some kernels have no such calls.
static void SayNoForeign(int number) {
  static const char kText[] = "no call of a 32-bit program\n";
  (void)number;
  (void)!write(1, kText, sizeof(kText) - 1);
  _exit(0);
}

void DoForeign(size_t bytes) {
  uint64_t* const words = Allocate(bytes);
  Fill(words, bytes / 8, 3);
  signal(SIGSEGV, &SayNoForeign);
  long result = 2;  // fork(2)
  __asm__ volatile("int $0x80" : "+a"(result) : : "r8", "r9", "r10", "r11", "memory");
  if (result == 0) _exit(0);
  signal(SIGSEGV, SIG_DFL);
  Check(result == -ENOMEM, "the fork is refused");
  Verify(words, bytes / 8, 3);
}

void DoAdvised(size_t bytes) {
  char* const words = (char*)Allocate(bytes);
  Fill((uint64_t*)words, bytes / 8, 3);
  Check(madvise(words + PAGE - (uintptr_t)words % PAGE, PAGE, MADV_WIPEONFORK) == 0, "MADV_WIPEONFORK");
  printf(fork() == -1 && errno == ENOMEM ? "refused " : "wrong ");
  Verify((uint64_t*)words, bytes / 8, 3);
}

struct Early {
  const uint64_t* words;
  size_t count;
  atomic_int done;
};

// Children see the words as they were. Where a fork cannot be followed, they end, and later forks are refused.
static void* ForkMany(void* context) {
  struct Early* const early = context;
  int refused = 0;
  int ended = 0;
  for (int i = 0; i < 200 && !refused && !early->done; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      Verify(early->words, early->count, 5);
      _exit(0);
    }
    refused = child < 0;
    Check(child > 0 || errno == ENOMEM, "fork while another thread allocates");
    int status = 0;
    if (child > 0) Check(waitpid(child, &status, 0) == child, "waitpid");
    ended += WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV;
    Check(status == 0 || ended > 0, "a child of a thread");
  }
  Check(ended == 0 || refused, "children that have ended");
  return NULL;
}

void DoForkGrow(size_t bytes) {
  struct Early early = {NULL, MIB, 0};
  uint64_t* const words = Allocate(early.count * 8);
  Fill(words, early.count, 5);
  early.words = words;
  pthread_t thread;
  Check(pthread_create(&thread, NULL, &ForkMany, &early) == 0, "pthread_create");
  uint64_t* const more = Allocate(bytes);
  Fill(more, bytes / 8, 6);
  Verify(more, bytes / 8, 6);
  early.done = 1;
  pthread_join(thread, NULL);
  Verify(words, early.count, 5);
}
