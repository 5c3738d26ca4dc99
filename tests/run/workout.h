// The parts that the exercises of workout.c have in common. Each file that includes this defines _GNU_SOURCE first.

#ifndef NRAM_TESTS_RUN_WORKOUT_H_
#define NRAM_TESTS_RUN_WORKOUT_H_

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define PAGE 4096ul
#define MIB (1ul << 20)

static inline uint64_t Mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdull;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ull;
  return x ^ (x >> 33);
}

static inline void Check(int right, const char* what) {
  if (right) return;
  printf("wrong: %s (errno %d)\n", what, errno);
  fflush(stdout);
  abort();
}

static inline void Fill(uint64_t* words, size_t count, uint64_t salt) {
  for (size_t i = 0; i < count; i += 64) words[i] = Mix(i + salt);
}

static inline void Verify(const uint64_t* words, size_t count, uint64_t salt) {
  for (size_t i = 0; i < count; i += 64) Check(words[i] == Mix(i + salt), "a word in order");
  const size_t lines = count / 64;
  for (size_t k = 0; k < lines / 64; ++k) {
    const size_t i = Mix(k) % lines * 64;
    Check(words[i] == Mix(i + salt), "a word at random");
  }
}

static inline uint64_t* Allocate(size_t bytes) {
  uint64_t* const words = malloc(bytes);
  Check(words != NULL, "malloc");
  return words;
}

// The exercises of workout_forks.c, with `bytes` bytes in memory.
void DoFork(size_t bytes);
void DoForks(size_t bytes);
void DoForkExec(size_t bytes);
void DoForkGrow(size_t bytes);
void DoOrphans(size_t bytes);
void DoForeign(size_t bytes);
void DoAdvised(size_t bytes);

#endif  // NRAM_TESTS_RUN_WORKOUT_H_
