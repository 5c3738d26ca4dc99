// Multiplies matrices that do not fit the budget, tile by tile. A tile lies in one piece, so that it comes in few large
// requests, and the next two are on their way while two are multiplied.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <nram.hpp>
#include <random>
#include <vector>

#include "example.h"

namespace {

constexpr char kHelp[] =
    R"(usage: matrix [--n=N] [--tile=N] [--budget-mib=N] [--pool=HOST:PORT,...]

Multiplies two matrices of N times N doubles in nram memory into a third, tile by tile, and checks some entries against
their sums.

  --n=N           rows and columns, a multiple of the tile's (default 1536: three matrices of 18 MiB)
  --tile=N        rows and columns of a tile (default 256: 512 KiB)
  --budget-mib=N  local memory, MiB (default 16; 4 or more, and at least six tiles)
  --pool=POOL     default: $NRAM_POOL, else the pool of `nram up`
)";

// Small whole numbers, so that sums are exact.
double EntryOfA(uint64_t row, uint64_t column) { return static_cast<double>((row * 7 + column * 13) % 19) - 9; }
double EntryOfB(uint64_t row, uint64_t column) { return static_cast<double>((row * 5 + column * 11) % 23) - 11; }

class Matrix {
 public:
  Matrix(nram::memory::Memory& memory, uint64_t n, uint64_t tile)
      : tile_(tile), tiles_(n / tile), entries_(memory, n * n) {}

  // Row after row.
  double* Tile(uint64_t i, uint64_t j) const { return &entries_[First(i, j)]; }
  void PrefetchTile(uint64_t i, uint64_t j) const { entries_.Prefetch(First(i, j), tile_ * tile_); }
  double At(uint64_t row, uint64_t column) const {
    return Tile(row / tile_, column / tile_)[row % tile_ * tile_ + column % tile_];
  }
  uint64_t tile() const { return tile_; }
  uint64_t tiles() const { return tiles_; }

 private:
  uint64_t First(uint64_t i, uint64_t j) const { return (i * tiles_ + j) * tile_ * tile_; }

  uint64_t tile_;
  uint64_t tiles_;
  nram::memory::Array<double> entries_;
};

template <typename Entry>
void Fill(const Matrix& matrix, Entry entry) {
  const uint64_t t = matrix.tile();
  for (uint64_t i = 0; i < matrix.tiles(); ++i) {
    for (uint64_t j = 0; j < matrix.tiles(); ++j) {
      double* tile = matrix.Tile(i, j);
      for (uint64_t row = 0; row < t; ++row) {
        for (uint64_t column = 0; column < t; ++column) *tile++ = entry(i * t + row, j * t + column);
      }
    }
  }
}

// c += a * b
void MultiplyTiles(const double* a, const double* b, double* __restrict c, uint64_t t) {
  for (uint64_t i = 0; i < t; ++i) {
    for (uint64_t k = 0; k < t; ++k) {
      const double factor = a[i * t + k];
      for (uint64_t j = 0; j < t; ++j) c[i * t + j] += factor * b[k * t + j];
    }
  }
}

void Multiply(const Matrix& a, const Matrix& b, const Matrix& c) {
  const uint64_t t = c.tile();
  const uint64_t tiles = c.tiles();
  std::vector<double> sum(t * t);
  const uint64_t steps = tiles * tiles * tiles;
  for (uint64_t step = 0; step < steps; ++step) {
    const uint64_t i = step / tiles / tiles, j = step / tiles % tiles, k = step % tiles;
    if (const uint64_t next = step + 1; next < steps) {
      a.PrefetchTile(next / tiles / tiles, next % tiles);
      b.PrefetchTile(next % tiles, next / tiles % tiles);
    }
    if (k == 0) std::fill(sum.begin(), sum.end(), 0.0);
    MultiplyTiles(a.Tile(i, k), b.Tile(k, j), sum.data(), t);
    if (k == tiles - 1) std::copy(sum.begin(), sum.end(), c.Tile(i, j));
  }
}

int Run(int argc, char** argv) {
  uint64_t n = 1536;
  uint64_t tile = 256;
  uint64_t budget_mib = 16;
  const example_option options[] = {
      {"--n=", &n, 1, 1 << 20}, {"--tile=", &tile, 1, 1 << 16}, {"--budget-mib=", &budget_mib, 1, 1 << 24}};
  const char* pool = ExampleParse(argc, argv, kHelp, options, 3);
  if (n % tile != 0) {
    fprintf(stderr, "matrix: --n must be a multiple of --tile\n");
    return 2;
  }

  nram_options memory_options = nram::memory::DefaultOptions();
  memory_options.budget_bytes = budget_mib << 20;
  nram::memory::Memory memory(pool, memory_options);
  const Matrix a(memory, n, tile), b(memory, n, tile), c(memory, n, tile);
  const double matrix_bytes = static_cast<double>(n * n * sizeof(double));
  printf("three matrices of %.1f MiB, %llu MiB of them here at a time\n", matrix_bytes / (1 << 20),
         static_cast<unsigned long long>(budget_mib));

  example_phase phase = ExampleBegin(memory.get());
  Fill(a, EntryOfA);
  Fill(b, EntryOfB);
  ExampleEnd(&phase, "filled:", 2 * n * n, "entries", 2 * matrix_bytes);

  phase = ExampleBegin(memory.get());
  Multiply(a, b, c);
  // Each entry of a and b is used once for each row or column of tiles.
  const double used_bytes = (2 * static_cast<double>(n / tile) + 1) * matrix_bytes;
  const double seconds = ExampleEnd(&phase, "multiplied:", n * n, "entries", used_bytes);
  const double operations = 2.0 * static_cast<double>(n) * static_cast<double>(n) * static_cast<double>(n);
  printf("%-24s %.2f Gflop/s\n", "", operations / 1e9 / seconds);

  std::mt19937_64 random(1);
  constexpr int kChecks = 200;
  for (int check = 0; check < kChecks; ++check) {
    const uint64_t row = random() % n, column = random() % n;
    double sum = 0;
    for (uint64_t k = 0; k < n; ++k) sum += EntryOfA(row, k) * EntryOfB(k, column);
    if (c.At(row, column) != sum) {
      fprintf(stderr, "wrong: row %llu, column %llu is %g, expected %g\n", static_cast<unsigned long long>(row),
              static_cast<unsigned long long>(column), c.At(row, column), sum);
      return 1;
    }
  }
  printf("%d entries checked, all right\n", kChecks);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return Run(argc, argv);
  } catch (const std::exception& error) {
    fprintf(stderr, "matrix: %s\n", error.what());
    return 1;
  }
}
