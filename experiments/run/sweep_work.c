// Passes over a working set, as CacheBench does, and measures the bandwidth. It is an ordinary program: the command
// that starts it decides where its memory is.
//
//   sweep_work MIB SECONDS
//
// Prints for read, write, modify (both) and random (a word of any page): its name and MB/s of the working set, a line
// each. Every exercise makes at least one whole pass, and stops at the end of a pass after SECONDS. It verifies the
// words: exit code 1 if one is wrong.

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PAGE 4096ul
#define WORDS (PAGE / sizeof(uint64_t))

static uint64_t* set;
static size_t pages;
static uint64_t written;  // each word of a page has the page's number plus this
static uint64_t sum;

static double Now(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void Check(size_t page, uint64_t word) {
  if (word == page + written) return;
  fprintf(stderr, "sweep_work: page %zu has %llu instead of %llu\n", page, (unsigned long long)word,
          (unsigned long long)(page + written));
  exit(1);
}

static void Read(void) {
  for (size_t page = 0; page < pages; ++page) {
    const uint64_t* const at = set + page * WORDS;
    for (size_t i = 0; i < WORDS; ++i) sum += at[i];
    Check(page, at[WORDS - 1]);
  }
}

static void Write(void) {
  ++written;
  for (size_t page = 0; page < pages; ++page) {
    uint64_t* const at = set + page * WORDS;
    for (size_t i = 0; i < WORDS; ++i) at[i] = page + written;
  }
}

static void Modify(void) {
  for (size_t page = 0; page < pages; ++page) {
    uint64_t* const at = set + page * WORDS;
    Check(page, at[0]);
    for (size_t i = 0; i < WORDS; ++i) ++at[i];
  }
  ++written;
}

// As many pages as there are; MB/s count whole pages, since these travel.
static void Random(void) {
  static uint64_t state = 88172645463325252ull;
  for (size_t i = 0; i < pages; ++i) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    const size_t page = state % pages;
    Check(page, set[page * WORDS + state / pages % WORDS]);
  }
}

int main(int argc, char** argv) {
  const double mib = argc == 3 ? atof(argv[1]) : 0;
  const double seconds = argc == 3 ? atof(argv[2]) : 0;
  if (mib <= 0 || mib > 1 << 20 || seconds <= 0) {
    fprintf(stderr, "usage: sweep_work MIB SECONDS\n");
    return 2;
  }
  pages = (size_t)(mib * 1048576 / PAGE);
  if (pages == 0) pages = 1;
  set = malloc(pages * PAGE);
  if (set == NULL) {
    perror("sweep_work: malloc");
    return 1;
  }
  Write();
  const struct {
    const char* name;
    void (*pass)(void);
  } exercises[] = {{"read", Read}, {"write", Write}, {"modify", Modify}, {"random", Random}};
  for (size_t i = 0; i < sizeof exercises / sizeof *exercises; ++i) {
    exercises[i].pass();  // after the former exercise
    const double began = Now();
    double took;
    size_t passes = 0;
    do {
      exercises[i].pass();
      ++passes;
      took = Now() - began;
    } while (took < seconds);
    printf("%s %.1f\n", exercises[i].name, 1e-6 * (double)(passes * pages * PAGE) / took);
    fflush(stdout);
  }
  return sum == 1 ? 3 : 0;  // so that no read is left out
}
