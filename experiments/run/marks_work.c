// Does one thing at a time and measures it. It is an ordinary program: the command that starts it decides where its
// memory is.
//
//   marks_work touch MIB THREADS   a word of each page in one random order, by turns: us a page, the median of 5 rounds
//   marks_work fork MIB            fork(2), with a child that reads and writes some pages: ms, the median of 7
//   marks_work calls               brk, and mmap with munmap, of memory that is not touched: us a call, each
//
// Prints a line with its figures. It verifies the words that it reads, and the pages that parent and child see of each
// other: exit code 1 if they are wrong.

#define _GNU_SOURCE
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096ul
#define WORDS (PAGE / sizeof(uint64_t))
#define THREADS_MAX 64
#define CALLS 4000

static uint64_t* set;
static size_t pages;
static size_t* order;
static size_t threads;

static double Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void Check(int right, const char* what) {
  if (right) return;
  fprintf(stderr, "marks_work: %s\n", what);
  _exit(1);
}

static int Less(const void* a, const void* b) { return *(const double*)a < *(const double*)b ? -1 : 1; }

static double Median(double* values, size_t count) {
  qsort(values, count, sizeof *values, Less);
  return values[count / 2];
}

static void Fill(const char* mib) {
  pages = (size_t)atol(mib) * 256;
  Check(pages > 0 && pages <= 1ul << 28, "MIB: 1 to 1048576");
  set = mmap(NULL, pages * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  Check(set != MAP_FAILED, "no memory");
  for (size_t i = 0; i < pages; ++i) set[i * WORDS] = i + 1;
}

static void* TouchSome(void* from) {
  for (size_t i = (size_t)from; i < pages; i += threads) Check(set[order[i] * WORDS] == order[i] + 1, "wrong word");
  return NULL;
}

static void Touch(void) {
  double took[5];
  order = malloc(pages * sizeof *order);
  Check(order != NULL, "no memory");
  for (size_t i = 0; i < pages; ++i) order[i] = i;
  for (size_t i = pages - 1; i > 0; --i) {
    const size_t other = (size_t)random() % (i + 1);
    const size_t page = order[i];
    order[i] = order[other];
    order[other] = page;
  }
  for (size_t round = 0; round < 5; ++round) {
    pthread_t ids[THREADS_MAX];
    const double began = Now();
    for (size_t i = 0; i < threads; ++i) {
      Check(pthread_create(&ids[i], NULL, TouchSome, (void*)i) == 0, "no thread");
    }
    for (size_t i = 0; i < threads; ++i) pthread_join(ids[i], NULL);
    took[round] = 1e6 * (Now() - began) / (double)pages;
  }
  printf("%.2f\n", Median(took, 5));
}

static void Fork(void) {
  const size_t step = pages / 64 + 1;
  double took[7];
  for (size_t round = 0; round < 7; ++round) {
    const double began = Now();
    const pid_t child = fork();
    took[round] = 1e3 * (Now() - began);
    Check(child >= 0, "fork is refused");
    if (child == 0) {
      for (size_t i = 0; i < pages; i += step) {
        Check(set[i * WORDS] == i + 1, "the child has a wrong word");
        set[i * WORDS] = 7;
      }
      _exit(0);
    }
    int status;
    waitpid(child, &status, 0);
    Check(status == 0, "the child has failed");
    for (size_t i = 0; i < pages; i += step) Check(set[i * WORDS] == i + 1, "the parent sees the child's write");
  }
  printf("%.1f\n", Median(took, 7));
}

static void Calls(void) {
  double began = Now();
  for (int i = 0; i < CALLS; ++i) Check(sbrk((intptr_t)PAGE) != (void*)-1, "brk is refused");
  printf("%.1f", 1e6 * (Now() - began) / CALLS);
  began = Now();
  for (int i = 0; i < CALLS; ++i) {
    void* const at = mmap(NULL, 64 * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    Check(at != MAP_FAILED && munmap(at, 64 * PAGE) == 0, "mmap is refused");
  }
  printf(" %.1f\n", 1e6 * (Now() - began) / CALLS);
}

int main(int argc, char** argv) {
  if (argc == 4 && strcmp(argv[1], "touch") == 0) {
    threads = (size_t)atol(argv[3]);
    Check(threads > 0 && threads <= THREADS_MAX, "THREADS: 1 to 64");
    Fill(argv[2]);
    Touch();
  } else if (argc == 3 && strcmp(argv[1], "fork") == 0) {
    Fill(argv[2]);
    Fork();
  } else if (argc == 2 && strcmp(argv[1], "calls") == 0) {
    Calls();
  } else {
    fprintf(stderr, "usage: marks_work touch MIB THREADS | fork MIB | calls\n");
    return 2;
  }
  return 0;
}
