#ifndef NRAM_TESTS_MEMORY_ENGINE_FIXTURE_H_
#define NRAM_TESTS_MEMORY_ENGINE_FIXTURE_H_

// Memory's engine on two real servers, once for each policy.

#include <memory>
#include <string>

#include "absl/base/config.h"
#include "client/memory/memory.h"
#include "gtest/gtest.h"
#include "tests/util/test_pool.h"

namespace nram {

inline constexpr uint64_t kBudget = 4 * kMiB;

class EngineTest : public ::testing::TestWithParam<Policy> {
 protected:
  MemoryOptions Options() const {
    MemoryOptions options;
    options.pool = servers_.Options();
    options.budget_bytes = kBudget;
    options.policy = GetParam();
    return options;
  }
  std::unique_ptr<Memory> Open() { return Open(Options()); }
  std::unique_ptr<Memory> Open(const MemoryOptions& options) {
    auto memory = Memory::Open(options);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return memory.ok() ? *std::move(memory) : nullptr;
  }
  static uint64_t* Words(Memory* memory, uint64_t bytes) {
    auto base = memory->Map({.length = bytes});
    EXPECT_TRUE(base.ok()) << base.status();
    return base.ok() ? reinterpret_cast<uint64_t*>(*base) : nullptr;
  }

  TestPool servers_{2, 256 * kMiB};
};

inline constexpr uint64_t kWordsPerPage = kPageBytes / sizeof(uint64_t);

#if defined(ABSL_HAVE_ADDRESS_SANITIZER) || defined(ABSL_HAVE_THREAD_SANITIZER)
inline const auto kPolicies =
    ::testing::Values(Policy::kSecondChance);  // they differ in one line; the sanitizers are slow
#else
inline const auto kPolicies = ::testing::Values(Policy::kSecondChance, Policy::kFifo, Policy::kRandom);
#endif

inline std::string PolicyName(const ::testing::TestParamInfo<Policy>& info) {
  return info.param == Policy::kSecondChance ? "SecondChance" : info.param == Policy::kFifo ? "Fifo" : "Random";
}

}  // namespace nram

#endif  // NRAM_TESTS_MEMORY_ENGINE_FIXTURE_H_
