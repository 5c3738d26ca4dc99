// Multiplies matrices that do not fit the budget, tile by tile. A tile is contiguous, so that it takes few large
// requests, and the next two tiles are fetched while two are multiplied.

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <nram.hpp>
#include <random>
#include <vector>

#include "example.h"

namespace {

constexpr char kHelp[] =
    R"(usage: matrix [--n=N] [--tile=N] [--budget-mib=N] [--seconds=N] [--plain=1] [--pool=HOST:PORT,...]

Multiplies two matrices of N times N doubles in nram memory into a third, tile by tile, and checks some entries against
their sums.

  --n=N           rows and columns, a multiple of the tile's (default 1536: three matrices of 18 MiB)
  --tile=N        rows and columns of a tile (default 256: 512 KiB)
  --budget-mib=N  local memory, MiB (default 16; 4 or more, and at least six tiles); 0: $NRAM_BUDGET, as "auto", which
                  follows the machine
  --seconds=N     multiply for so long, again and again, and check nothing if that is not once (default 0: once)
  --plain=1       in plain memory, to compare with
  --pool=POOL     default: $NRAM_POOL, else the pool of `nram up`
)";

// Small whole numbers, so that sums are exact.
double EntryOfA(uint64_t row, uint64_t column) { return static_cast<double>((row * 7 + column * 13) % 19) - 9; }
double EntryOfB(uint64_t row, uint64_t column) { return static_cast<double>((row * 5 + column * 11) % 23) - 11; }

class Matrix {
 public:
  // In nram memory.
  Matrix(nram::memory::Memory& memory, uint64_t n, uint64_t tile)
      : tile_(tile), tiles_(n / tile), entries_(memory, n * n), first_(entries_.data()) {}
  // In plain memory.
  Matrix(uint64_t n, uint64_t tile) : tile_(tile), tiles_(n / tile), plain_(n * n), first_(plain_.data()) {}

  // The tile's entries, row after row.
  double* Tile(uint64_t i, uint64_t j) const { return first_ + First(i, j); }
  void PrefetchTile(uint64_t i, uint64_t j) const {
    if (!entries_.empty()) entries_.Prefetch(First(i, j), tile_ * tile_);
  }
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
  std::vector<double> plain_;
  double* first_;
};

using Clock = std::chrono::steady_clock;

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

// Returns the number of pairs of tiles that it has multiplied when it is done, or at `deadline`.
uint64_t Multiply(const Matrix& a, const Matrix& b, const Matrix& c, Clock::time_point deadline) {
  const uint64_t t = c.tile();
  const uint64_t tiles = c.tiles();
  std::vector<double> sum(t * t);
  const uint64_t steps = tiles * tiles * tiles;
  for (uint64_t step = 0; step < steps; ++step) {
    const uint64_t i = step / tiles / tiles, j = step / tiles % tiles, k = step % tiles;
    if (Clock::now() > deadline) return step;
    if (const uint64_t next = step + 1; next < steps) {
      a.PrefetchTile(next / tiles / tiles, next % tiles);
      b.PrefetchTile(next % tiles, next / tiles % tiles);
    }
    if (k == 0) std::fill(sum.begin(), sum.end(), 0.0);
    MultiplyTiles(a.Tile(i, k), b.Tile(k, j), sum.data(), t);
    if (k == tiles - 1) std::copy(sum.begin(), sum.end(), c.Tile(i, j));
  }
  return steps;
}

// Multiplies again and again for `seconds`, or once if that is 0. Returns the number of multiplied pairs of tiles.
uint64_t MultiplyFor(const Matrix& a, const Matrix& b, const Matrix& c, uint64_t seconds) {
  const Clock::time_point deadline =
      seconds == 0 ? Clock::time_point::max() : Clock::now() + std::chrono::seconds(seconds);
  uint64_t pairs = Multiply(a, b, c, deadline);
  while (seconds != 0 && Clock::now() < deadline) pairs += Multiply(a, b, c, deadline);
  return pairs;
}

int Run(int argc, char** argv) {
  uint64_t n = 1536;
  uint64_t tile = 256;
  uint64_t budget_mib = 16;
  uint64_t seconds = 0;
  uint64_t plain = 0;
  const example_option options[] = {{"--n=", &n, 1, 1 << 20},
                                    {"--tile=", &tile, 1, 1 << 16},
                                    {"--budget-mib=", &budget_mib, 0, 1 << 24},
                                    {"--seconds=", &seconds, 0, 1 << 20},
                                    {"--plain=", &plain, 0, 1}};
  const char* pool = ExampleParse(argc, argv, kHelp, options, 5);
  if (n % tile != 0) {
    fprintf(stderr, "matrix: --n must be a multiple of --tile\n");
    return 2;
  }

  nram_options memory_options = nram::memory::DefaultOptions();
  memory_options.budget_bytes = budget_mib << 20;
  nram::memory::Memory memory(pool, memory_options);
  const auto make = [&] { return plain != 0 ? Matrix(n, tile) : Matrix(memory, n, tile); };
  const Matrix a = make(), b = make(), c = make();
  const double matrix_bytes = static_cast<double>(n * n * sizeof(double));
  printf("three matrices of %.1f MiB, %.0f MiB of them here at a time\n", matrix_bytes / (1 << 20),
         static_cast<double>(memory.Stats().budget_bytes) / (1 << 20));

  example_phase phase = ExampleBegin(memory.get());
  Fill(a, EntryOfA);
  Fill(b, EntryOfB);
  ExampleEnd(&phase, "filled:", 2 * n * n, "entries", 2 * matrix_bytes);

  phase = ExampleBegin(memory.get());
  const uint64_t pairs = MultiplyFor(a, b, c, seconds);
  const double entries = static_cast<double>(pairs) * static_cast<double>(tile * tile);
  const double elapsed = ExampleEnd(&phase, "multiplied:", pairs, "pairs of tiles", 2 * entries * sizeof(double));
  printf("%-24s %.2f Gflop/s, %.2f pairs of tiles a second\n", "",
         2 * entries * static_cast<double>(tile) / 1e9 / elapsed, static_cast<double>(pairs) / elapsed);

  const nram_stats stats = memory.Stats();
  if (stats.budget_shrank + stats.budget_grew > 0) {
    printf("%-24s the budget shrank %llu times and grew %llu times\n", "",
           static_cast<unsigned long long>(stats.budget_shrank), static_cast<unsigned long long>(stats.budget_grew));
  }
  if (pairs < c.tiles() * c.tiles() * c.tiles()) {
    printf("not multiplied once: nothing is checked\n");
    return 0;
  }

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

int main(int argc, char** argv) { return ExampleMain(&Run, argc, argv); }
