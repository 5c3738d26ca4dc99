/* An array four times as large as its local memory: written, summed, updated, checked. */

#include <nram.h>
#include <stdint.h>
#include <stdio.h>

#include "example.h"

static const char kHelp[] =
    "usage: array [--mib=N] [--budget-mib=N] [--pool=HOST:PORT,...]\n"
    "\n"
    "Writes an array of 64-bit numbers in nram memory, sums it, updates every number, and checks every number. The\n"
    "array is read and written through a plain pointer; only the budget is in local memory at a time.\n"
    "\n"
    "  --mib=N         the array, MiB (default 256)\n"
    "  --budget-mib=N  local memory, MiB (default 64; 4 or more)\n"
    "  --pool=POOL     default: $NRAM_POOL, else the pool of `nram up`\n";

static uint64_t First(uint64_t i) { return i * i + 1; }
static uint64_t Updated(uint64_t i) { return 3 * First(i) + i; }

int main(int argc, char** argv) {
  uint64_t mib = 256;
  uint64_t budget_mib = 64;
  const struct example_option options[] = {{"--mib=", &mib, 1, 1 << 24}, {"--budget-mib=", &budget_mib, 1, 1 << 24}};
  const char* pool = ExampleParse(argc, argv, kHelp, options, 2);

  struct nram_options memory_options;
  nram_options_init(&memory_options);
  memory_options.budget_bytes = budget_mib << 20;
  nram_t* memory = nram_open(pool, &memory_options);
  ExampleCheck(memory != NULL, "nram_open");

  const size_t bytes = (size_t)mib << 20;
  const uint64_t count = bytes / sizeof(uint64_t);
  uint64_t* numbers = nram_mmap(memory, bytes, NULL, 0);
  ExampleCheck(numbers != NULL, "nram_mmap");
  /* Only a hint: the program works without it. */
  ExampleCheck(nram_advise(memory, numbers, bytes, NRAM_SEQUENTIAL) == 0, "nram_advise");

  struct example_phase phase = ExampleBegin(memory);
  uint64_t expected = 0;
  for (uint64_t i = 0; i < count; ++i) {
    numbers[i] = First(i);
    expected += First(i);
  }
  ExampleEnd(&phase, "written:", count, "numbers", bytes);

  phase = ExampleBegin(memory);
  uint64_t sum = 0;
  for (uint64_t i = 0; i < count; ++i) sum += numbers[i];
  ExampleEnd(&phase, "summed:", count, "numbers", bytes);

  phase = ExampleBegin(memory);
  for (uint64_t i = 0; i < count; ++i) numbers[i] = 3 * numbers[i] + i;
  ExampleCheck(nram_flush(memory, numbers, bytes) == 0, "nram_flush"); /* the servers have all of it now */
  ExampleEnd(&phase, "updated and flushed:", count, "numbers", bytes);

  phase = ExampleBegin(memory);
  uint64_t wrong = 0;
  for (uint64_t i = 0; i < count; ++i) wrong += numbers[i] != Updated(i);
  ExampleEnd(&phase, "checked:", count, "numbers", bytes);

  ExampleCheck(nram_munmap(memory, numbers) == 0, "nram_munmap");
  ExampleCheck(nram_close(memory) == 0, "nram_close");
  if (sum != expected || wrong != 0) {
    fprintf(stderr, "wrong: the sum is %" PRIu64 ", expected %" PRIu64 "; %" PRIu64 " numbers differ\n", sum, expected,
            wrong);
    return 1;
  }
  printf("all %" PRIu64 " numbers are right\n", count);
  return 0;
}
