// Records of MIB mebibytes, sorted by qsort(3), and searched: records MIB
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct record {
  uint64_t key;
  uint64_t rest[3];
};

static int Compare(const void* a, const void* b) {
  const uint64_t x = ((const struct record*)a)->key;
  const uint64_t y = ((const struct record*)b)->key;
  return (x > y) - (x < y);
}

int main(int argc, char** argv) {
  // qsort takes as much again.
  const size_t count = argc < 2 ? 0 : strtoul(argv[1], NULL, 10) * (1 << 20) / sizeof(struct record) / 2;
  struct record* const records = malloc(count * sizeof(struct record));
  if (records == NULL) return 1;
  uint64_t at = 1;
  for (size_t i = 0; i < count; ++i) {
    at = at * 6364136223846793005u + 1442695040888963407u;
    records[i].key = at;
    for (int k = 0; k < 3; ++k) records[i].rest[k] = at + i;
  }
  qsort(records, count, sizeof(struct record), Compare);
  uint64_t sum = 0;
  for (size_t i = 0; i < count; ++i) sum = sum * 31 + records[i].key + records[i].rest[i % 3];
  printf("%zu %016lx\n", count, (unsigned long)sum);
  return 0;
}
