// Transposes in place a matrix that does not fit the budget: rows are managed objects, and the program adheres to two
// blocks of rows at a time.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nram/managed.hpp>
#include <vector>

#include "example.h"

namespace {

constexpr char kHelp[] =
    R"(usage: transpose [--n=N] [--budget-mib=N] [--pool=HOST:PORT,...]

Fills a matrix of N times N doubles in managed memory, transposes it in place, and checks every entry.

  --n=N           rows and columns (default 2048: 32 MiB)
  --budget-mib=N  local memory, MiB (default 8), for more than three rows
  --pool=POOL     default: $NRAM_POOL, else the pool of `nram up`
)";

using Matrix = nram::managed<double, 2>;
using Rows = std::vector<nram::adhere<double>>;

double Entry(uint64_t row, uint64_t column) { return static_cast<double>(row << 20 | column); }

// Adheres to all rows of a block, for which the budget has room.
Rows Adhere(Matrix& matrix, uint64_t begin, uint64_t end) {
  Rows rows;
  for (uint64_t i = begin; i < end; ++i) rows.emplace_back(matrix[i]);
  return rows;
}

// Exchanges the entries of these rows with those of these columns.
void SwapBlocks(const Rows& upper, uint64_t upper_begin, const Rows& lower, uint64_t lower_begin) {
  for (uint64_t i = 0; i < upper.size(); ++i) {
    for (uint64_t j = 0; j < lower.size(); ++j) {
      if (upper_begin + i < lower_begin + j) std::swap(upper[i][lower_begin + j], lower[j][upper_begin + i]);
    }
  }
}

void Transpose(Matrix& matrix, uint64_t block) {
  const uint64_t n = matrix.size();
  for (uint64_t first = 0; first < n; first += block) {
    const Rows upper = Adhere(matrix, first, std::min(first + block, n));
    SwapBlocks(upper, first, upper, first);
    for (uint64_t second = first + block; second < n; second += block) {
      SwapBlocks(upper, first, Adhere(matrix, second, std::min(second + block, n)), second);
    }
  }
}

int Run(int argc, char** argv) {
  uint64_t n = 2048;
  uint64_t budget_mib = 8;
  const example_option options[] = {{"--n=", &n, 1, 1 << 20}, {"--budget-mib=", &budget_mib, 1, 1 << 24}};
  const char* pool = ExampleParse(argc, argv, kHelp, options, 2);
  nram::managed_options managed_options = nram::managed_memory::default_options();
  managed_options.budget_bytes = budget_mib << 20;
  nram::managed_memory memory(pool, managed_options);

  // Guards hold two blocks of rows, and a third is on its way to or from the pool. Small rows share blocks of 64 KiB.
  const uint64_t row_bytes = (n * sizeof(double) + 4095) / 4096 * 4096;
  const uint64_t third = (budget_mib << 20) / 3 - (2 << 16);
  const uint64_t block = std::min<uint64_t>(n, third / row_bytes);
  if (block == 0) {
    fprintf(stderr, "transpose: the budget is too small for rows of %zu bytes\n", static_cast<size_t>(row_bytes));
    return 2;
  }
  Matrix matrix(memory, n, n);
  for (uint64_t i = 0; i < n; ++i) {
    const nram::adhere<double> row(matrix[i]);
    for (uint64_t j = 0; j < n; ++j) row[j] = Entry(i, j);
  }
  Transpose(matrix, block);
  for (uint64_t i = 0; i < n; ++i) {
    const nram::adhere<const double> row(matrix[i]);
    for (uint64_t j = 0; j < n; ++j) {
      if (row[j] == Entry(j, i)) continue;
      fprintf(stderr, "wrong: row %llu, column %llu\n", static_cast<unsigned long long>(i),
              static_cast<unsigned long long>(j));
      return 1;
    }
  }
  const nram_managed_stats stats = memory.stats();
  printf("transposed %llu rows, %llu at a time: %.1f MiB fetched (%.1f ahead of use), %.1f MiB written\n",
         static_cast<unsigned long long>(n), static_cast<unsigned long long>(block),
         static_cast<double>(stats.fetched_bytes) / (1 << 20), static_cast<double>(stats.ahead_bytes) / (1 << 20),
         static_cast<double>(stats.written_bytes) / (1 << 20));
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ExampleMain(&Run, argc, argv); }
