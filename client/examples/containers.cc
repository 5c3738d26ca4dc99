// Containers of C++ in nram memory: a std::vector with an allocator, and a std::pmr::unordered_map with strings.

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <memory_resource>
#include <new>
#include <nram.hpp>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "example.h"

namespace {

constexpr char kHelp[] =
    R"(usage: containers [--numbers=N] [--entries=N] [--lookups=N] [--budget-mib=N] [--pool=HOST:PORT,...]

Sorts a std::vector whose elements are in nram memory, then fills a std::pmr::unordered_map from numbers to strings of
some 80 characters, all of it in nram memory, and looks some up in random order. Everything is checked.

  --numbers=N     in the vector (default 4000000: 31 MiB, twice that while it grows)
  --entries=N     in the map (default 150000: some 25 MiB)
  --lookups=N     (default 10000)
  --budget-mib=N  local memory, MiB (default 8; 4 or more)
  --pool=POOL     default: $NRAM_POOL, else the pool of `nram up`
)";

// Returns the number of wrong elements.
uint64_t SortVector(nram::memory::Memory& memory, uint64_t count) {
  const double bytes = static_cast<double>(count * sizeof(uint64_t));
  std::vector<uint64_t, nram::memory::Allocator<uint64_t>> numbers(memory);

  example_phase phase = ExampleBegin(memory.get());
  std::mt19937_64 random(1);
  uint64_t sum_before = 0;
  for (uint64_t i = 0; i < count; ++i) {
    numbers.push_back(random());
    sum_before += numbers.back();
  }
  ExampleEnd(&phase, "vector, filled:", count, "numbers", bytes);

  phase = ExampleBegin(memory.get());
  std::sort(numbers.begin(), numbers.end());
  ExampleEnd(&phase, "vector, sorted:", count, "numbers", bytes);

  uint64_t wrong = 0;
  uint64_t sum_after = 0;
  for (uint64_t i = 0; i < count; ++i) {
    if (i > 0 && numbers[i - 1] > numbers[i]) ++wrong;
    sum_after += numbers[i];
  }
  return wrong + (sum_before != sum_after);
}

// Makes a text that is different for each entry, and too long for a string's own buffer.
void AppendText(uint64_t i, std::pmr::string* text) {
  const std::string number = std::to_string(i);
  while (text->size() < 80) text->append("entry ").append(number).append("; ");
}

uint64_t UseMap(nram::memory::Memory& memory, uint64_t entries, uint64_t lookups) {
  nram::memory::MemoryResource resource(memory);
  // The map passes its resource on to the strings.
  std::pmr::unordered_map<uint64_t, std::pmr::string> map(&resource);

  example_phase phase = ExampleBegin(memory.get());
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < entries; ++i) {
    std::pmr::string& text = map[i];
    AppendText(i, &text);
    bytes += text.size();
  }
  ExampleEnd(&phase, "map, filled:", entries, "entries", static_cast<double>(bytes));

  phase = ExampleBegin(memory.get());
  std::mt19937_64 random(2);
  uint64_t wrong = map.size() != entries;
  bytes = 0;
  for (uint64_t n = 0; n < lookups; ++n) {
    const uint64_t i = random() % (entries + entries / 8 + 1);  // some are missing
    const auto found = map.find(i);
    if ((found != map.end()) != (i < entries)) ++wrong;
    if (found == map.end()) continue;
    std::pmr::string expected;  // local memory
    AppendText(i, &expected);
    if (found->second != expected) ++wrong;
    bytes += expected.size();
  }
  ExampleEnd(&phase, "map, looked up:", lookups, "entries", static_cast<double>(bytes));
  return wrong;
}

int Run(int argc, char** argv) {
  uint64_t numbers = 4'000'000;
  uint64_t entries = 150'000;
  uint64_t lookups = 10'000;
  uint64_t budget_mib = 8;
  const example_option options[] = {{"--numbers=", &numbers, 1, uint64_t{1} << 40},
                                    {"--entries=", &entries, 1, uint64_t{1} << 36},
                                    {"--lookups=", &lookups, 1, uint64_t{1} << 36},
                                    {"--budget-mib=", &budget_mib, 1, 1 << 24}};
  const char* pool = ExampleParse(argc, argv, kHelp, options, 4);

  nram_options memory_options = nram::memory::DefaultOptions();
  memory_options.budget_bytes = budget_mib << 20;
  nram::memory::Memory memory(pool, memory_options);
  const uint64_t wrong = SortVector(memory, numbers) + UseMap(memory, entries, lookups);
  memory.Close();
  if (wrong != 0) {
    fprintf(stderr, "wrong: %llu entries\n", static_cast<unsigned long long>(wrong));
    return 1;
  }
  printf("all numbers and entries are right\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ExampleMain(&Run, argc, argv); }
