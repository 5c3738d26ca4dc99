// A hash table with open addressing in nram memory. Prefetching hides the wait for servers when the program knows its
// next lookups early.

#include <cstdint>
#include <cstdio>
#include <nram.hpp>

#include "example.h"

namespace {

constexpr char kHelp[] =
    R"(usage: hash_table [--keys=N] [--lookups=N] [--ahead=N] [--budget-mib=N] [--pool=HOST:PORT,...]

Inserts records of 256 bytes into a hash table that is about half full, in random order, and looks some up: first one
after the other, each waiting for its page, then with the pages of the next lookups asked for ahead. An eighth of the
lookups is for keys that are not there. Every record is checked.

  --keys=N        records (default 50000: a table of 32 MiB)
  --lookups=N     of each kind (default 20000)
  --ahead=N       lookups that are asked for ahead (default 64)
  --budget-mib=N  local memory, MiB (default 8; 4 or more)
  --pool=POOL     default: $NRAM_POOL, else the pool of `nram up`
)";

// Different numbers give different results, and only 0 gives 0.
uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

uint64_t Key(uint64_t i) { return Mix(i + 1); }

// A page has room for sixteen, so no record lies on two pages.
struct Record {
  uint64_t key;  // 0: free
  uint64_t values[31];
};
static_assert(sizeof(Record) == 256);

class HashTable {
 public:
  HashTable(nram::memory::Memory& memory, uint64_t keys_max) : records_(memory, Slots(keys_max)) {
    records_.Advise(NRAM_RANDOM);  // neighbours are not used together
  }

  // The record of the key, or the free record for it.
  Record& Find(uint64_t key) const {
    uint64_t slot = Slot(key);
    while (records_[slot].key != 0 && records_[slot].key != key) slot = (slot + 1) & (records_.size() - 1);
    return records_[slot];
  }
  // Begins to fetch the record that Find() looks at first.
  void Prefetch(uint64_t key) const { records_.Prefetch(Slot(key), 1); }
  uint64_t bytes() const { return records_.size_bytes(); }

 private:
  static uint64_t Slots(uint64_t keys_max) {
    uint64_t slots = 16;
    while (slots * 2 < keys_max * 3) slots *= 2;
    return slots;
  }
  uint64_t Slot(uint64_t key) const { return Mix(key) & (records_.size() - 1); }

  nram::memory::Array<Record> records_;
};

void Fill(uint64_t key, Record* record) {
  record->key = key;
  for (uint64_t j = 0; j < 31; ++j) record->values[j] = key + j;
}

bool IsRight(const Record& record, uint64_t key, bool present) {
  if (record.key != (present ? key : 0)) return false;
  for (uint64_t j = 0; j < 31; ++j) {
    if (record.values[j] != (present ? key + j : 0)) return false;
  }
  return true;
}

// Returns the number of wrong lookups.
uint64_t Lookup(const HashTable& table, uint64_t keys, uint64_t lookups, uint64_t ahead, uint64_t seed) {
  const auto is_present = [](uint64_t n) { return n % 8 != 7; };
  const auto key_of = [&](uint64_t n) {
    const uint64_t i = Mix(n + (seed << 40) + 1) % keys;
    return Key(is_present(n) ? i : keys + i);
  };
  uint64_t wrong = 0;
  for (uint64_t n = 0; n < ahead && n < lookups; ++n) table.Prefetch(key_of(n));
  for (uint64_t n = 0; n < lookups; ++n) {
    if (ahead > 0 && n + ahead < lookups) table.Prefetch(key_of(n + ahead));
    const uint64_t key = key_of(n);
    if (!IsRight(table.Find(key), key, is_present(n))) ++wrong;
  }
  return wrong;
}

int Run(int argc, char** argv) {
  uint64_t keys = 50'000;
  uint64_t lookups = 20'000;
  uint64_t ahead = 64;
  uint64_t budget_mib = 8;
  const example_option options[] = {{"--keys=", &keys, 1, uint64_t{1} << 36},
                                    {"--lookups=", &lookups, 1, uint64_t{1} << 36},
                                    {"--ahead=", &ahead, 1, 4096},
                                    {"--budget-mib=", &budget_mib, 1, 1 << 24}};
  const char* pool = ExampleParse(argc, argv, kHelp, options, 4);

  nram_options memory_options = nram::memory::DefaultOptions();
  memory_options.budget_bytes = budget_mib << 20;
  nram::memory::Memory memory(pool, memory_options);
  const HashTable table(memory, keys);
  printf("a table of %.1f MiB, %llu MiB of it here at a time\n", static_cast<double>(table.bytes()) / (1 << 20),
         static_cast<unsigned long long>(budget_mib));

  example_phase phase = ExampleBegin(memory.get());
  for (uint64_t i = 0; i < keys; ++i) Fill(Key(i), &table.Find(Key(i)));
  ExampleEnd(&phase, "inserted:", keys, "records", static_cast<double>(keys) * sizeof(Record));

  phase = ExampleBegin(memory.get());
  uint64_t wrong = Lookup(table, keys, lookups, 0, 1);
  ExampleEnd(&phase, "looked up one by one:", lookups, "records", static_cast<double>(lookups) * sizeof(Record));

  phase = ExampleBegin(memory.get());
  wrong += Lookup(table, keys, lookups, ahead, 2);
  ExampleEnd(&phase, "looked up ahead:", lookups, "records", static_cast<double>(lookups) * sizeof(Record));

  if (wrong != 0) {
    fprintf(stderr, "wrong: %llu lookups\n", static_cast<unsigned long long>(wrong));
    return 1;
  }
  printf("all lookups are right\n");
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return ExampleMain(&Run, argc, argv); }
