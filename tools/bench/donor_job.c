// A donor's own work, to see what lending costs it: `donor_job stream|chase MILLISECONDS`. stream adds up and copies 64
// MiB again and again; chase follows pointers through 64 MiB in a random order. Prints how much it did a second.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { kBytes = 64 << 20, kLine = 64, kLines = kBytes / kLine };

static double Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const int chases = strcmp(argv[1], "chase") == 0;
  const double seconds = atof(argv[2]) / 1000;
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
  const double began = Now();
  double now = began;
  while (now - began < seconds) {
    if (chases) {
      for (int i = 0; i < 100000; ++i) at = memory[at];
      done += 100000;
    } else {
      memcpy(other, memory + kBytes / 16, kBytes / 2);
      for (uint64_t i = 0; i < kBytes / 16; ++i) at += other[i];
      done += kBytes;
    }
    now = Now();
  }
  sink = at;
  (void)sink;
  printf("%.0f\n", done / (now - began));
  return 0;
}
