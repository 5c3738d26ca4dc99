// A matrix multiplication for a slow and large memory: the tiles of a matrix lie together, and a panel of rows of A and
// of C remains in use while all of B passes in order.

#include <algorithm>

#include "base/status.h"
#include "experiments/memory/backing.h"
#include "experiments/memory/pattern.h"
#include "experiments/memory/work.h"

namespace nram {
namespace {

constexpr uint64_t kTile = 64;  // rows and columns; 32 KiB
constexpr uint64_t kTileDoubles = kTile * kTile;
// A's and C's panels together are then a twelfth of the memory of all three matrices.
constexpr uint64_t kPanels = 8;

struct Matrix {
  double* data;
  uint64_t tiles;  // in each direction

  double* Tile(uint64_t row, uint64_t column) const { return data + (row * tiles + column) * kTileDoubles; }
};

// c += a * b
void MultiplyTile(const double* __restrict a, const double* __restrict b, double* __restrict c) {
  for (uint64_t i = 0; i < kTile; ++i) {
    double* to = c + i * kTile;
    for (uint64_t k = 0; k < kTile; k += 4) {
      const double* f = a + i * kTile + k;
      const double* from = b + k * kTile;
      for (uint64_t j = 0; j < kTile; ++j) {
        to[j] += f[0] * from[j] + f[1] * from[kTile + j] + f[2] * from[2 * kTile + j] + f[3] * from[3 * kTile + j];
      }
    }
  }
}

// The columns of tiles [begin, end) of c += a * b.
void MultiplyColumns(const Matrix& a, const Matrix& b, const Matrix& c, uint64_t begin, uint64_t end) {
  const uint64_t panel = std::max<uint64_t>(a.tiles / kPanels, 1);
  for (uint64_t first = 0; first < a.tiles; first += panel) {
    const uint64_t last = std::min(first + panel, a.tiles);
    for (uint64_t k = 0; k < a.tiles; ++k) {
      for (uint64_t j = begin; j < end; ++j) {
        for (uint64_t i = first; i < last; ++i) MultiplyTile(a.Tile(i, k), b.Tile(k, j), c.Tile(i, j));
      }
    }
  }
}

// Whole numbers from -3 to 3: every sum is then exact, in any order of additions.
void Fill(const Matrix& matrix, uint64_t seed) {
  const uint64_t count = matrix.tiles * matrix.tiles * kTileDoubles;
  for (uint64_t i = 0; i < count; ++i) {
    matrix.data[i] = static_cast<double>(Mix(seed + i * 0x9E3779B97F4A7C15u) % 7) - 3;
  }
}

std::vector<double> Times(const Matrix& matrix, const std::vector<double>& vector) {
  std::vector<double> product(vector.size(), 0);
  for (uint64_t i = 0; i < matrix.tiles; ++i) {
    for (uint64_t j = 0; j < matrix.tiles; ++j) {
      const double* tile = matrix.Tile(i, j);
      for (uint64_t row = 0; row < kTile; ++row) {
        double sum = 0;
        for (uint64_t column = 0; column < kTile; ++column) {
          sum += tile[row * kTile + column] * vector[j * kTile + column];
        }
        product[i * kTile + row] += sum;
      }
    }
  }
  return product;
}

}  // namespace

absl::StatusOr<WorkResult> RunMatrix(const WorkOptions& options, Backing* backing) {
  if (!backing->keeps_writes()) return absl::FailedPreconditionError("the bare loop keeps nothing that is written");
  const uint64_t n = options.n;
  if (n % kTile != 0) return absl::InvalidArgumentError("--n: expected a multiple of 64");
  WorkResult result;
  result.bytes = 3 * n * n * sizeof(double);
  Matrix matrices[3];
  for (Matrix& matrix : matrices) {
    NRAM_ASSIGN_OR_RETURN(const Backing::Memory memory, backing->Map(n * n * sizeof(double)));
    matrix = {reinterpret_cast<double*>(memory.words), n / kTile};
  }
  const Matrix &a = matrices[0], &b = matrices[1], &c = matrices[2];
  Fill(a, Mix(options.seed));
  Fill(b, Mix(options.seed + 1));

  const Timing timing(backing);
  RunThreads(options.threads, [&](int64_t thread) {
    MultiplyColumns(a, b, c, c.tiles * thread / options.threads, c.tiles * (thread + 1) / options.threads);
  });
  timing.Stop(&result);
  result.ops = 2 * n * n * n;

  // Freivalds' check: if C is wrong anywhere, C x differs from A (B x) for nearly every x. All numbers stay below 2^53.
  std::vector<double> x(n);
  for (uint64_t i = 0; i < n; ++i) x[i] = static_cast<double>(Mix(options.seed ^ ~i) % 1000);
  result.verified = Times(c, x) == Times(a, Times(b, x));
  return result;
}

}  // namespace nram
