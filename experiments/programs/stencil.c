// A field of MIB mebibytes, smoothed by all threads a few times: stencil MIB
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char** argv) {
  const size_t count = strtoul(argv[1], NULL, 10) * (1 << 20) / sizeof(double) / 2;
  double* from = malloc(count * sizeof(double));
  double* to = calloc(count, sizeof(double));
  if (argc < 2 || from == NULL || to == NULL) return 1;
#pragma omp parallel for
  for (size_t i = 0; i < count; ++i) from[i] = (double)(i * 2654435761u % 1000003);
  for (int step = 0; step < 4; ++step) {
#pragma omp parallel for
    for (size_t i = 1; i < count - 1; ++i) to[i] = (from[i - 1] + 2 * from[i] + from[i + 1]) / 4;
    double* const swapped = from;
    from = to;
    to = swapped;
  }
  double sum = 0;
  for (size_t i = 0; i < count; ++i) sum += from[i] * (double)(i % 7);
  printf("%zu %.17g\n", count, sum);
  return 0;
}
