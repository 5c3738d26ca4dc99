// A donor's own work, which shows the cost of lending: `donor_job stream|chase`. stream adds up and copies 64 MiB again
// and again; chase follows pointers through 64 MiB in a random order. Until it is ended, it prints fifty times a
// second: the time (CLOCK_MONOTONIC) and its processor time, both in seconds, and the amount of work so far.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kBytes = 64 << 20, kLine = 64, kLines = kBytes / kLine, kPiece = kBytes / 16 };

static double Now(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const int chases = strcmp(argv[1], "chase") == 0;
  uint64_t* memory = aligned_alloc(2 << 20, kBytes);
  uint64_t* other = aligned_alloc(2 << 20, kBytes);
  uint32_t* order = malloc(kLines * sizeof *order);
  if (memory == NULL || other == NULL || order == NULL) return 1;
  memset(memory, 1, kBytes);
  memset(other, 1, kBytes);
  for (uint32_t i = 0; i < kLines; ++i) order[i] = i;
  srand(1);
  for (uint32_t i = kLines - 1; i > 0; --i) {
    const uint32_t j = (uint32_t)(((uint64_t)rand() << 16 ^ (uint64_t)rand()) % (i + 1));
    const uint32_t kept = order[i];
    order[i] = order[j];
    order[j] = kept;
  }
  for (uint32_t i = 0; i < kLines; ++i) {
    memory[(uint64_t)order[i] * (kLine / 8)] = (uint64_t)order[(i + 1) % kLines] * (kLine / 8);
  }
  volatile uint64_t sink = 0;
  double done = 0;
  uint64_t at = 0;
  double told = 0;
  for (uint64_t piece = 0;; piece = (piece + 1) % (kBytes / kPiece)) {
    if (chases) {
      for (int i = 0; i < 2000; ++i) at = memory[at];
      done += 2000;
    } else {
      const uint64_t first = piece * (kPiece / 8);
      memcpy(other + first, memory + first, kPiece);
      for (uint64_t i = 0; i < kPiece / 8; ++i) at += other[first + i];
      done += kPiece;
    }
    const double now = Now(CLOCK_MONOTONIC);
    if (now - told < 0.02) continue;
    told = now;
    sink = at;
    (void)sink;
    printf("%.6f %.6f %.0f\n", now, Now(CLOCK_PROCESS_CPUTIME_ID), done);
    if (fflush(stdout) != 0) return 0;
  }
}
