#ifndef NRAM_CLIENT_EXAMPLES_EXAMPLE_H_
#define NRAM_CLIENT_EXAMPLES_EXAMPLE_H_

/* Code that the examples share: options, a clock, a report, and nothing of nram's API. C11 and C++. */

#include <inttypes.h>
#include <nram.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* "--name=N": `name` includes the dashes and the "=". */
struct example_option {
  const char* name;
  uint64_t* value;
  uint64_t minimum;
  uint64_t maximum;
};

/*
 * Sets the options from the command line and returns the value of --pool=, or NULL. Prints `help` for --help, and ends
 * the program with 2 for unknown options and wrong values.
 */
static inline const char* ExampleParse(int argc, char** argv, const char* help, const struct example_option* options,
                                       int count) {
  const char* pool = NULL;
  for (int i = 1; i < argc; ++i) {
    if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
      fputs(help, stdout);
      exit(0);
    }
    if (strncmp(argv[i], "--pool=", 7) == 0) {
      pool = argv[i] + 7;
      continue;
    }
    const struct example_option* option = NULL;
    for (int j = 0; j < count && option == NULL; ++j) {
      if (strncmp(argv[i], options[j].name, strlen(options[j].name)) == 0) option = &options[j];
    }
    if (option == NULL) {
      fprintf(stderr, "%s: \"%s\": no such option; see --help\n", argv[0], argv[i]);
      exit(2);
    }
    const char* digits = argv[i] + strlen(option->name);
    char* end = NULL;
    const unsigned long long value = strtoull(digits, &end, 10);
    if (*digits < '0' || *digits > '9' || *end != '\0' || value < option->minimum || value > option->maximum) {
      fprintf(stderr, "%s: \"%s\": expected a number from %" PRIu64 " to %" PRIu64 "\n", argv[0], argv[i],
              option->minimum, option->maximum);
      exit(2);
    }
    *option->value = value;
  }
  return pool;
}

/* Ends the program with nram_error() if `ok` is false: the call before it failed. */
static inline void ExampleCheck(int ok, const char* what) {
  if (ok) return;
  fprintf(stderr, "%s: %s\n", what, nram_error());
  exit(1);
}

/* A part of the program whose time and traffic are reported. */
struct example_phase {
  nram_t* memory;
  struct nram_stats before;
  struct timespec began;
};

static inline struct nram_stats ExampleStats(nram_t* memory) {
  struct nram_stats stats;
  memset(&stats, 0, sizeof stats);
  stats.size = sizeof stats;
  ExampleCheck(nram_get_stats(memory, &stats) == 0, "nram_get_stats");
  return stats;
}

static inline struct example_phase ExampleBegin(nram_t* memory) {
  struct example_phase phase;
  phase.memory = memory;
  phase.before = ExampleStats(memory);
  timespec_get(&phase.began, TIME_UTC);
  return phase;
}

/*
 * Prints one line, such as "summed: 1000 numbers, ...", and returns the seconds. `bytes`: the size of the program's
 * work.
 */
static inline double ExampleEnd(const struct example_phase* phase, const char* what, uint64_t count, const char* things,
                                double bytes) {
  struct timespec now;
  timespec_get(&now, TIME_UTC);
  double seconds = (double)(now.tv_sec - phase->began.tv_sec) + (double)(now.tv_nsec - phase->began.tv_nsec) / 1e9;
  if (seconds < 1e-9) seconds = 1e-9;
  const struct nram_stats after = ExampleStats(phase->memory);
  const double mib = 1024 * 1024;
  printf("%-24s %" PRIu64 " %s in %.2f s, %.1f MB/s; %" PRIu64 " faults, %.1f MiB fetched, %.1f MiB written\n", what,
         count, things, seconds, bytes / 1e6 / seconds, after.faults - phase->before.faults,
         (double)(after.fetched_bytes - phase->before.fetched_bytes) / mib,
         (double)(after.written_bytes - phase->before.written_bytes) / mib);
  fflush(stdout);
  return seconds;
}

#ifdef __cplusplus
#include <exception>
#include <new>

/* Runs a C++ example. An exception is a message and 1; nram_error() explains an allocation that failed. */
inline int ExampleMain(int (*run)(int argc, char** argv), int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::bad_alloc& error) {
    fprintf(stderr, "%s: %s: %s\n", argv[0], error.what(), nram_error());
    return 1;
  } catch (const std::exception& error) {
    fprintf(stderr, "%s: %s\n", argv[0], error.what());
    return 1;
  }
}
#endif

#endif /* NRAM_CLIENT_EXAMPLES_EXAMPLE_H_ */
