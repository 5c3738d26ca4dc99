// Goes over objects round after round, of which only a part fits the budget: nram fetches the next objects ahead, and a
// round of reading writes nothing back.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nram/managed.hpp>
#include <vector>

#include "example.h"

namespace {

constexpr char kHelp[] =
    R"(usage: cyclic_scan [--mib=N] [--object-kib=N] [--rounds=N] [--budget-mib=N] [--write=1] [--pool=HOST:PORT,...]

Makes objects of numbers in managed memory and sums them, round after round.

  --mib=N         all objects, MiB (default 128)
  --object-kib=N  an object, KiB (default 128)
  --rounds=N      after the first (default 3)
  --budget-mib=N  local memory, MiB (default 32)
  --write=1       each round adds one to each number
  --pool=POOL     default: $NRAM_POOL, else the pool of `nram up`
)";

uint64_t Sum(const std::vector<nram::managed<uint64_t>>& objects) {
  uint64_t sum = 0;
  for (const auto& object : objects) {
    for (const uint64_t number : nram::adhere<const uint64_t>(object)) sum += number;
  }
  return sum;
}

uint64_t SumAndAdd(std::vector<nram::managed<uint64_t>>& objects) {
  uint64_t sum = 0;
  for (auto& object : objects) {
    for (uint64_t& number : nram::adhere<uint64_t>(object)) sum += number++;
  }
  return sum;
}

int Run(int argc, char** argv) {
  uint64_t mib = 128, object_kib = 128, rounds = 3, budget_mib = 32, writes = 0;
  const example_option options[] = {{"--mib=", &mib, 1, 1 << 24},
                                    {"--object-kib=", &object_kib, 1, 1 << 20},
                                    {"--rounds=", &rounds, 1, 1 << 20},
                                    {"--budget-mib=", &budget_mib, 1, 1 << 24},
                                    {"--write=", &writes, 0, 1}};
  const char* pool = ExampleParse(argc, argv, kHelp, options, 5);
  nram::managed_options managed_options = nram::managed_memory::default_options();
  managed_options.budget_bytes = budget_mib << 20;
  nram::managed_memory memory(pool, managed_options);

  const uint64_t count = object_kib * 1024 / sizeof(uint64_t);
  std::vector<nram::managed<uint64_t>> objects;
  for (uint64_t i = 0; i < mib * 1024 / object_kib; ++i) objects.emplace_back(memory, count, i);
  const uint64_t numbers = objects.size() * count;
  const uint64_t first_sum = Sum(objects);  // the new objects are written back now
  for (uint64_t round = 1; round <= rounds; ++round) {
    const nram_managed_stats before = memory.stats();
    const auto began = std::chrono::steady_clock::now();
    const uint64_t sum = writes != 0 ? SumAndAdd(objects) : Sum(objects);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - began;
    const nram_managed_stats after = memory.stats();
    if (sum != first_sum + (writes != 0 ? (round - 1) * numbers : 0)) {
      fprintf(stderr, "wrong: the sum of round %llu\n", static_cast<unsigned long long>(round));
      return 1;
    }
    printf("round %llu: %.1f MB/s; waited for %llu objects, %.1f MiB fetched, %.1f of them ahead, %.1f MiB written\n",
           static_cast<unsigned long long>(round), static_cast<double>(numbers) * 8e-6 / seconds.count(),
           static_cast<unsigned long long>(after.misses - before.misses),
           static_cast<double>(after.fetched_bytes - before.fetched_bytes) / (1 << 20),
           static_cast<double>(after.ahead_bytes - before.ahead_bytes) / (1 << 20),
           static_cast<double>(after.written_bytes - before.written_bytes) / (1 << 20));
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ExampleMain(&Run, argc, argv); }
