#ifndef NRAM_TESTS_MEMORY_PUBLISH_UTIL_H_
#define NRAM_TESTS_MEMORY_PUBLISH_UTIL_H_

// The parts that tests of publishing have in common: memories of a pool, words in them, versions of those.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "client/memory/memory.h"
#include "gtest/gtest.h"
#include "tests/util/test_pool.h"

namespace nram {

inline constexpr uint64_t kBudget = 4 * kMiB;
inline constexpr uint64_t kWordsPerPage = kPageBytes / sizeof(uint64_t);
inline constexpr int64_t kPatienceMs = 120'000;

inline MemoryOptions OptionsFor(const PoolOptions& pool, uint64_t budget = kBudget) {
  MemoryOptions options;
  options.pool = pool;
  options.budget_bytes = budget;
  // A slow machine is no reason to give a version up.
  options.publish_patience_ms = kPatienceMs;
  return options;
}

inline std::unique_ptr<Memory> OpenMemory(const MemoryOptions& options) {
  auto memory = Memory::Open(options);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return memory.ok() ? *std::move(memory) : nullptr;
}

inline uint64_t* MapWords(Memory* memory, const std::string& name, uint64_t bytes, bool keep = false) {
  auto base = memory->Map({.length = bytes, .name = name, .keep = keep});
  EXPECT_TRUE(base.ok()) << base.status();
  return base.ok() ? reinterpret_cast<uint64_t*>(*base) : nullptr;
}

inline uint64_t Publish(Memory* memory, std::vector<const void*> bases, uint32_t history = 2) {
  auto version = memory->Publish({.bases = std::move(bases), .history = history, .header_json = ""});
  EXPECT_TRUE(version.ok()) << version.status();
  return version.ok() ? *version : 0;
}

inline absl::Status AwaitPublished(Memory* memory, const void* base, uint64_t version = 0) {
  return memory->AwaitPublished(base, version, DeadlineAfterMs(kPatienceMs));
}

inline const uint64_t* Observe(Memory* memory, const std::string& name, uint64_t version = 0) {
  auto observed = memory->Observe(name, version, /*all=*/false);
  EXPECT_TRUE(observed.ok()) << observed.status();
  return observed.ok() ? reinterpret_cast<const uint64_t*>(observed->bases[0]) : nullptr;
}

inline uint64_t WordOf(uint64_t seed, uint64_t i) { return (i + 1) * 0x9E3779B97F4A7C15 ^ seed * 0xD1B54A32D192ED03; }

inline void Fill(uint64_t* words, uint64_t count, uint64_t seed) {
  for (uint64_t i = 0; i < count; ++i) words[i] = WordOf(seed, i);
}

// The first wrong word; `count` if all are right.
inline uint64_t FirstWrong(const uint64_t* words, uint64_t count, uint64_t seed) {
  for (uint64_t i = 0; i < count; ++i) {
    if (words[i] != WordOf(seed, i)) return i;
  }
  return count;
}

class PublishTest : public ::testing::Test {
 protected:
  std::unique_ptr<Memory> Open(uint64_t budget = kBudget) { return OpenMemory(OptionsFor(servers_.Options(), budget)); }

  TestPool servers_{2, 256 * kMiB};
};

}  // namespace nram

#endif  // NRAM_TESTS_MEMORY_PUBLISH_UTIL_H_
