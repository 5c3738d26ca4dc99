/* A program whose pages fault on demand: 10 for a line "few", 20,000 for a line "many". It says "open" when it has
 * opened the pool, and "done" after each line. */

#include <nram.h>
#include <stdio.h>
#include <string.h>

enum { kPageBytes = 4096, kPages = 16384 }; /* 64 MiB, of which 4 MiB are local at a time */

int main(void) {
  struct nram_options options;
  nram_options_init(&options);
  options.budget_bytes = 4 << 20;
  nram_t* const memory = nram_open(NULL, &options);
  volatile char* const bytes = memory == NULL ? NULL : nram_mmap(memory, (size_t)kPages * kPageBytes, NULL, 0);
  if (bytes == NULL || nram_advise(memory, (void*)bytes, (size_t)kPages * kPageBytes, NRAM_RANDOM) != 0) {
    fprintf(stderr, "%s\n", nram_error());
    return 1;
  }
  setvbuf(stdout, NULL, _IOLBF, 0);
  puts("open");
  char line[16];
  size_t page = 0;
  while (fgets(line, sizeof line, stdin) != NULL) {
    for (int faults = strcmp(line, "many\n") == 0 ? 20000 : 10; faults > 0; --faults) {
      bytes[page++ % kPages * kPageBytes] = 1;
    }
    puts("done");
  }
  return nram_close(memory) == 0 ? 0 : 1;
}
