// A solver that publishes its field while it works, and observers that watch it from other processes.

#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory_resource>
#include <nram.hpp>
#include <stdexcept>
#include <system_error>
#include <thread>
#include <vector>

#include "example.h"

namespace {

constexpr char kHelp[] =
    R"(usage: heat solve|watch|plot [--n=N] [--steps=N] [--every=N] [--budget-mib=N] [--pool=HOST:PORT,...]

`heat solve` finds the temperature of a plate of N times N points, of which one edge is hot, and publishes the plate
after every so many steps as "heat"; it ends with its standard input. `heat watch`, any number of them, started at any
time, checks each state that it sees against what the solver said of it, until the last; `heat plot` draws it as well,
with characters, in place if that is a terminal. How large the plate is they hear from the version itself. Those of
heat.f90 and of this program understand each other.

A checkpoint is one more observer, `nram checkpoint heat DIRECTORY`, and the solver waits for none of them.

  --n=N           points along an edge (default 512)
  --steps=N       of the solver (default 200)
  --every=N       steps between two versions (default 10)
  --budget-mib=N  local memory, MiB (default 8)
  --pool=POOL     default: $NRAM_POOL, else the pool of `nram up`
)";

using nram::memory::Arena;
using nram::memory::Description;
using nram::memory::Memory;
using nram::memory::Observer;

// Adds in this order in every program: the sums are compared to the last bit.
double Sum(const double* u, uint64_t n) {
  double sum = 0;
  for (uint64_t i = 0; i < n * n; ++i) sum += u[i];
  return sum;
}

// A step of Gauss and Seidel, in place.
void Step(double* u, uint64_t n) {
  for (uint64_t i = 1; i + 1 < n; ++i) {
    for (uint64_t j = 1; j + 1 < n; ++j) {
      u[i * n + j] = 0.25 * (u[(i - 1) * n + j] + u[(i + 1) * n + j] + u[i * n + j - 1] + u[i * n + j + 1]);
    }
  }
}

// One arena holds all published arrays: the plate, its sum, and the number of steps.
void Solve(Memory& memory, uint64_t n, uint64_t steps, uint64_t every) {
  Arena arena(memory, n * n * sizeof(double) + 4096, "heat");
  std::pmr::vector<double> u(n * n, 0.0, &arena);
  std::pmr::vector<double> sum(1, 0.0, &arena);
  const std::pmr::vector<int64_t> last(1, static_cast<int64_t>(steps), &arena);
  Description description;
  description.Add("temperature", u.data(), {n, n}).Add("sum", sum.data()).Add("steps", last.data());
  for (uint64_t j = 0; j < n; ++j) u[j] = 100;
  const example_phase phase = ExampleBegin(memory.get());
  for (uint64_t step = 1; step <= steps; ++step) {
    Step(u.data(), n);
    if (step % every != 0 && step != steps) continue;
    sum[0] = Sum(u.data(), n);
    description.options.step = step;
    arena.Publish(description);
  }
  ExampleEnd(&phase, "solved", steps, "steps", static_cast<double>(steps * n * n * sizeof(double)));
  if (!arena.AwaitPublished(0, 60'000)) throw std::runtime_error("the last version takes too long");
  // The plate ends with the solver, which therefore waits for the end of standard input.
  puts("published");
  fflush(stdout);
  for (int c = getchar(); c != EOF; c = getchar()) {
  }
}

Observer Find(Memory& memory) {
  for (int i = 0;; ++i) {
    try {
      return Observer(memory, "heat");
    } catch (const std::system_error& error) {
      if (error.code().value() != ENOENT || i == 600) throw;
    }
    if (i == 0) fputs("waiting for a solver to publish \"heat\"\n", stderr);
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
}

// One character for each cell of the plate, the darker the hotter.
void Draw(const double* u, uint64_t n) {
  constexpr uint64_t kRows = 24, kColumns = 64;
  constexpr char kShades[] = " .:-=+*#%@";
  if (isatty(STDOUT_FILENO) != 0) fputs("\x1b[H\x1b[J", stdout);
  std::array<char, kColumns + 1> line{};
  for (uint64_t row = 0; row < kRows; ++row) {
    for (uint64_t column = 0; column < kColumns; ++column) {
      const double heat = u[row * n / kRows * n + column * n / kColumns];
      line[column] = kShades[heat >= 100 ? 9 : heat <= 0 ? 0 : static_cast<int>(heat / 10)];
    }
    puts(line.data());
  }
}

void Watch(Memory& memory, bool plots) {
  Observer seen = Find(memory);
  uint64_t version = seen.Version();
  while (true) {
    const auto u = seen.Find<double>("temperature");
    const double sum = seen.Find<double>("sum")();
    const auto last = static_cast<uint64_t>(seen.Find<int64_t>("steps")());
    if (u.dimensions() != 2 || u.extent(0) != u.extent(1)) throw std::runtime_error("the plate is not square");
    const uint64_t n = u.extent(0);
    // Fortran's plate has the same bytes: its rows are C's columns.
    if (Sum(u.data(), n) != sum) throw std::runtime_error("this is no state that the solver has published");
    if (plots) Draw(u.data(), n);
    printf("version %llu: step %llu of %llu, mean %.6f, as the solver says\n", static_cast<unsigned long long>(version),
           static_cast<unsigned long long>(seen.Step()), static_cast<unsigned long long>(last),
           sum / static_cast<double>(n * n));
    fflush(stdout);
    if (seen.Step() == last) return;
    version = seen.Next(60'000);
    if (version == 0) throw std::runtime_error("no newer version for a minute");
  }
}

int Run(int argc, char** argv) {
  uint64_t n = 512, steps = 200, every = 10, budget_mib = 8;
  const std::array options = {example_option{"--n=", &n, 3, 1 << 16}, example_option{"--steps=", &steps, 1, 1 << 30},
                              example_option{"--every=", &every, 1, 1 << 30},
                              example_option{"--budget-mib=", &budget_mib, 4, 1 << 20}};
  const bool solves = argc > 1 && strcmp(argv[1], "solve") == 0;
  const bool plots = argc > 1 && strcmp(argv[1], "plot") == 0;
  const bool watches = plots || (argc > 1 && strcmp(argv[1], "watch") == 0);
  const int skipped = solves || watches ? 1 : 0;
  const char* const pool =
      ExampleParse(argc - skipped, argv + skipped, kHelp, options.data(), static_cast<int>(options.size()));
  if (!solves && !watches) {
    fprintf(stderr, "heat: expected \"solve\", \"watch\" or \"plot\"; see --help\n");
    return 2;
  }
  nram_options how = nram::memory::DefaultOptions();
  how.budget_bytes = budget_mib << 20;
  Memory memory(pool, how);
  if (solves) {
    Solve(memory, n, steps, every);
  } else {
    Watch(memory, plots);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ExampleMain(&Run, argc, argv); }
