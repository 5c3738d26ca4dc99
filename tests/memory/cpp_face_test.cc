// The C++ face of the memory API on real servers: ownership, exceptions, arrays larger than the budget.

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <new>
#include <numeric>
#include <span>
#include <stdexcept>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/units.h"
#include "client/memory/nram.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/memory/cpp_face_util.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::nram::memory::Allocator;
using ::nram::memory::Array;
using ::nram::memory::DefaultOptions;
using ::nram::memory::Memory;
using ::nram::memory::MemoryResource;
using ::testing::HasSubstr;

// Returns the errno of the std::system_error that `call` throws, 0 if it throws none; its text must be that of
// nram_error().
template <typename Call>
int ErrorOf(Call call) {
  try {
    call();
  } catch (const std::system_error& error) {
    EXPECT_STRNE(nram_error(), "");
    EXPECT_THAT(error.what(), HasSubstr(nram_error()));
    return error.code().value();
  }
  return 0;
}

static_assert(!std::is_copy_constructible_v<Memory> && std::is_nothrow_move_constructible_v<Memory>);
static_assert(!std::is_copy_constructible_v<Array<int>> && std::is_nothrow_move_constructible_v<Array<int>>);
static_assert(!std::is_copy_assignable_v<Array<int>> && std::is_nothrow_move_assignable_v<Array<int>>);
// Objects on a Memory must not be made from a temporary Memory.
static_assert(!std::is_constructible_v<MemoryResource, Memory>);
static_assert(!std::is_constructible_v<Allocator<int>, Memory>);
static_assert(!std::is_constructible_v<Array<int>, Memory, size_t>);
static_assert(std::is_convertible_v<Array<int>&, std::span<int>>);
static_assert(std::is_convertible_v<Array<const int>&, std::span<const int>>);

TEST(CppMemoryTest, OpensAndCountsAndCloses) {
  TestPool servers(1);
  Memory memory = Open(servers);
  ASSERT_NE(memory.get(), nullptr);
  EXPECT_EQ(memory.Stats().budget_bytes, kBudget);
  EXPECT_EQ(memory.Stats().mapped_bytes, 0);
  memory.Close();
  EXPECT_EQ(memory.get(), nullptr);
  memory.Close();
}

TEST(CppMemoryTest, ErrorsAreExceptionsWithTheirText) {
  TestPool servers(1);
  const std::string pool = PoolText(servers);
  nram_options options = DefaultOptions();
  options.budget_bytes = 4096;
  EXPECT_EQ(ErrorOf([&] { Memory memory(pool.c_str(), options); }), EINVAL);
  options = DefaultOptions();
  options.page_bytes = 5000;
  EXPECT_EQ(ErrorOf([&] { Memory memory(pool.c_str(), options); }), EINVAL);
  EXPECT_EQ(ErrorOf([&] { Memory memory("host:no-port"); }), EINVAL);
}

TEST(CppMemoryTest, TheBudgetMayChange) {
  TestPool servers(1);
  nram_options options = DefaultOptions();
  options.budget_bytes = kBudget;
  std::vector<uint64_t> told;
  options.on_budget_context = &told;
  options.on_budget = [](uint64_t before, uint64_t now, void* context) {
    auto* const list = static_cast<std::vector<uint64_t>*>(context);
    list->push_back(before);
    list->push_back(now);
  };
  Memory memory(PoolText(servers).c_str(), options);
  memory.SetBudget(3 * kBudget);
  memory.SetBudget(2 * kBudget);
  EXPECT_EQ(memory.Stats().budget_bytes, 2 * kBudget);
  EXPECT_EQ(memory.Stats().budget_grew, 1);
  EXPECT_EQ(memory.Stats().budget_shrank, 1);
  EXPECT_EQ(told, (std::vector<uint64_t>{kBudget, 3 * kBudget, 3 * kBudget, 2 * kBudget}));
  EXPECT_EQ(ErrorOf([&] { memory.SetBudget(kBudget - 1); }), EINVAL);
  Array<char> pinned(memory, kBudget / 2 + 4096 * 32);
  if (nram_advise(memory.get(), pinned.data(), pinned.size(), NRAM_PIN) == 0) {
    EXPECT_EQ(ErrorOf([&] { memory.SetBudget(kBudget); }), EBUSY);
  }
  EXPECT_EQ(memory.Stats().budget_bytes, 2 * kBudget);

  // A program that was built before has shorter structures.
  nram_options older = options;
  older.size = offsetof(nram_options, budget_min_bytes);
  EXPECT_EQ(Memory(PoolText(servers).c_str(), older).Stats().budget_bytes, kBudget);
  nram_stats stats{};
  stats.size = offsetof(nram_stats, budget_shrank);
  stats.budget_shrank = 77;
  ASSERT_EQ(nram_get_stats(memory.get(), &stats), 0);
  EXPECT_EQ(stats.budget_shrank, 77);
}

TEST(CppMemoryTest, TheEnvironmentSaysHowTheBudgetFollowsTheMachine) {
  TestPool servers(1);
  const std::string pool = PoolText(servers);
  const auto budget = [&](const char* text) {
    setenv("NRAM_BUDGET", text, 1);
    return Memory(pool.c_str()).Stats().budget_bytes;
  };
  EXPECT_EQ(budget("6M"), 6 << 20);
  EXPECT_GE(budget("auto"), 64 << 20);
  EXPECT_GE(budget("auto:4M-8M"), 4 << 20);
  EXPECT_LE(budget("auto:4M-8M"), 8 << 20);
  for (const char* wrong : {"auto:", "auto:4M", "auto:4M-", "auto:0-8M", "auto:8M-4M", "auto:1M-8M", "automatic",
                            "Auto", "auto:4M-8M-16M"}) {
    EXPECT_EQ(ErrorOf([&] { budget(wrong); }), EINVAL) << wrong;
  }
  // A program's bounds apply to a budget that follows the machine, by the option or by the environment.
  nram_options options = DefaultOptions();
  options.budget_min_bytes = 5 << 20;
  options.budget_max_bytes = 5 << 20;
  setenv("NRAM_BUDGET", "auto:4M-8M", 1);
  EXPECT_EQ(Memory(pool.c_str(), options).Stats().budget_bytes, 5 << 20);
  setenv("NRAM_BUDGET", "7M", 1);
  EXPECT_EQ(Memory(pool.c_str(), options).Stats().budget_bytes, 7 << 20);
  options.budget_bytes = NRAM_BUDGET_AUTO;
  EXPECT_EQ(Memory(pool.c_str(), options).Stats().budget_bytes, 5 << 20);
  options.budget_bytes = 6 << 20;
  EXPECT_EQ(ErrorOf([&] { Memory memory(pool.c_str(), options); }), EINVAL);
  unsetenv("NRAM_BUDGET");
}

TEST(CppMemoryTest, MovesTakeTheHandleAlong) {
  TestPool servers(1);
  Memory first = Open(servers);
  nram_t* const handle = first.get();
  Array<int> numbers(first, 100);
  numbers[99] = 7;
  Memory second = std::move(first);
  EXPECT_EQ(first.get(), nullptr);
  EXPECT_EQ(second.get(), handle);
  first = std::move(second);
  EXPECT_EQ(first.get(), handle);
  EXPECT_EQ(numbers[99], 7);
  numbers.Unmap();
  first = Open(servers);  // closes the first handle
  EXPECT_EQ(first.Stats().mapped_bytes, 0);
}

TEST(CppArrayTest, IsZerosAndHoldsFourTimesTheBudget) {
  TestPool servers(2);
  Memory memory = Open(servers);
  Array<uint64_t> numbers(memory, 4 * kBudget / sizeof(uint64_t));
  EXPECT_EQ(numbers.size_bytes(), 4 * kBudget);
  EXPECT_TRUE(std::all_of(numbers.begin(), numbers.end(), [](uint64_t number) { return number == 0; }));
  std::iota(numbers.begin(), numbers.end(), 1);
  const std::span<uint64_t> span = numbers;
  uint64_t wrong = 0;
  for (size_t i = 0; i < span.size(); ++i) wrong += span[i] != i + 1;
  EXPECT_EQ(wrong, 0);
  EXPECT_EQ(numbers.front(), 1);
  EXPECT_EQ(numbers.back(), numbers.size());
  const nram_stats stats = memory.Stats();
  EXPECT_LE(stats.resident_bytes, kBudget);
  EXPECT_GE(stats.written_bytes, 3 * kBudget);
  EXPECT_GE(stats.fetched_bytes, 3 * kBudget);
}

TEST(CppArrayTest, OfNothingMapsNothing) {
  TestPool servers(1);
  Memory memory = Open(servers);
  Array<int> none(memory, 0);
  EXPECT_TRUE(none.empty());
  EXPECT_EQ(none.begin(), none.end());
  none.Prefetch();
  none.Flush();
  none.Advise(NRAM_DROP, 0, 0);
  none.Unmap();
  EXPECT_EQ(memory.Stats().mapped_bytes, 0);
}

TEST(CppArrayTest, MovesTakeTheMappingAlongAndAssignmentUnmaps) {
  TestPool servers(1);
  Memory memory = Open(servers);
  Array<int> first(memory, 1000);
  first[999] = 5;
  int* const address = first.data();
  Array<int> second = std::move(first);
  EXPECT_TRUE(first.empty());
  EXPECT_EQ(first.data(), nullptr);
  EXPECT_EQ(second.data(), address);
  EXPECT_EQ(second[999], 5);

  Array<int> third(memory, 2000);
  const int* const old = third.data();
  EXPECT_NE(nram_length(memory.get(), old), 0);
  third = std::move(second);
  EXPECT_EQ(nram_length(memory.get(), old), 0);
  EXPECT_EQ(third.size(), 1000);
  EXPECT_EQ(third[999], 5);
  first = std::move(third);  // from moved-from to full
  EXPECT_EQ(first[999], 5);

  { Array<int> last = std::move(first); }
  EXPECT_EQ(nram_length(memory.get(), address), 0);
  EXPECT_EQ(memory.Stats().mapped_bytes, 0);
}

TEST(CppArrayTest, TooLargeIsAnErrorAndChangesNothing) {
  TestPool servers(1);
  Memory memory = Open(servers);
  EXPECT_EQ(ErrorOf([&] { Array<char> all(memory, uint64_t{1} << 40); }), ENOMEM);
  EXPECT_EQ(std::string(nram_error()).rfind("mapping 1.00 TiB: the pool has ", 0), 0u) << nram_error();
  EXPECT_THROW(Array<uint64_t>(memory, std::numeric_limits<size_t>::max() / 2), std::bad_array_new_length);
  EXPECT_EQ(memory.Stats().mapped_bytes, 0);
  Array<char> some(memory, kMiB);
  some[kMiB - 1] = 'x';
  EXPECT_EQ(some[kMiB - 1], 'x');
}

TEST(CppArrayTest, AdviceStaysWithinTheArray) {
  TestPool servers(1);
  Memory memory = Open(servers);
  Array<uint64_t> numbers(memory, kMiB / sizeof(uint64_t));
  std::iota(numbers.begin(), numbers.end(), 0);
  numbers.Flush();
  EXPECT_GE(memory.Stats().written_bytes, kMiB - kPageBytes);
  numbers.Advise(NRAM_DONT_NEED);
  EXPECT_EQ(numbers[12345], 12345);
  numbers.Prefetch(0, 4096);
  numbers.Advise(NRAM_RANDOM);
  EXPECT_THROW(numbers.Prefetch(0, numbers.size() + 1), std::out_of_range);
  EXPECT_THROW(numbers.Flush(numbers.size() + 1), std::out_of_range);
  EXPECT_THROW(numbers.Advise(NRAM_DROP, 1, numbers.size()), std::out_of_range);
  numbers.Flush(numbers.size());

  numbers.Advise(NRAM_DROP, 0, 512);  // one page
  EXPECT_EQ(numbers[511], 0);
  EXPECT_EQ(numbers[512], 512);

  Array<char> large(memory, kBudget);
  EXPECT_EQ(ErrorOf([&] { large.Advise(NRAM_PIN); }), ENOSPC);
}

TEST(CppArrayTest, NamedArraysAreSharedByName) {
  TestPool servers(2);
  Memory memory = Open(servers);
  Array<int> numbers(memory, 100'000, "numbers");
  std::iota(numbers.begin(), numbers.end(), 0);
  numbers.Flush();
  EXPECT_EQ(ErrorOf([&] { Array<int> again(memory, 10, "numbers"); }), EEXIST);

  Memory reader = Open(servers);
  const auto seen = Array<const int>::Attach(reader, "numbers");
  EXPECT_GE(seen.size(), numbers.size());
  EXPECT_TRUE(std::equal(numbers.begin(), numbers.end(), seen.begin()));
  const auto part = Array<const int>::Attach(reader, "numbers", 1024);
  EXPECT_EQ(part.size(), 1024);
  EXPECT_EQ(part.back(), 1023);
  EXPECT_EQ(ErrorOf([&] { Array<const int>::Attach(reader, "letters"); }), ENOENT);
}

TEST(CppArrayTest, KeptArraysOutliveTheirMemory) {
  TestPool servers(2);
  {
    Memory memory = Open(servers);
    Array<int> numbers(memory, 100'000, "kept", NRAM_MAP_KEEP);
    std::iota(numbers.begin(), numbers.end(), 1);
    numbers.Unmap();
    EXPECT_TRUE(numbers.empty());
    memory.Close();
  }
  Memory memory = Open(servers);
  auto numbers = Array<int>::Attach(memory, "kept", 100'000);
  EXPECT_EQ(numbers.front(), 1);
  EXPECT_EQ(numbers.back(), 100'000);
  numbers[0] = 2;
  EXPECT_EQ(numbers[0], 2);
}

}  // namespace
}  // namespace nram
