// Budgets that change while the memory is in use.

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/poll_until.h"
#include "gmock/gmock.h"
#include "tests/memory/engine_fixture.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

// As the kernel reports it.
uint64_t ResidentPages(const void* base, uint64_t bytes) {
  std::vector<unsigned char> pages(bytes / kPageBytes);
  EXPECT_EQ(mincore(const_cast<void*>(base), bytes, pages.data()), 0);
  return static_cast<uint64_t>(std::count_if(pages.begin(), pages.end(), [](unsigned char page) { return page & 1; }));
}

class EngineBudgetTest : public EngineTest {
 protected:
  static constexpr uint64_t kBytes = 48 * kMiB;
  static constexpr uint64_t kWords = kBytes / sizeof(uint64_t);

  std::unique_ptr<Memory> OpenWith(uint64_t budget_bytes) {
    MemoryOptions options = Options();
    options.budget_bytes = budget_bytes;
    return Open(options);
  }
  static bool AwaitResident(const Memory& memory, uint64_t bytes) {
    return PollUntil(DeadlineAfterMs(60'000), 1, [&] { return memory.resident_bytes() <= bytes; });
  }
};

TEST_P(EngineBudgetTest, ShrinksWithAllDirtyAndGrowsAgain) {
  auto memory = OpenWith(2 * kBytes);
  uint64_t* const words = Words(memory.get(), kBytes);
  ASSERT_NE(words, nullptr);
  for (uint64_t i = 0; i < kWords; ++i) words[i] = i * 3;
  EXPECT_EQ(ResidentPages(words, kBytes), kBytes / kPageBytes);
  for (int round = 0; round < 3; ++round) {
    ASSERT_TRUE(memory->SetBudget(kBudget).ok());
    EXPECT_EQ(memory->budget().bytes(), kBudget);
    ASSERT_TRUE(AwaitResident(*memory, kBudget)) << memory->resident_bytes();
    EXPECT_LE(ResidentPages(words, kBytes), kBudget / kPageBytes);
    for (uint64_t i = 0; i < kWords; ++i) ASSERT_EQ(words[i], i * 3 + round);
    EXPECT_LE(memory->resident_bytes(), kBudget);
    ASSERT_TRUE(memory->SetBudget(2 * kBytes).ok());
    for (uint64_t i = 0; i < kWords; ++i) ++words[i];
    EXPECT_EQ(ResidentPages(words, kBytes), kBytes / kPageBytes) << "a larger budget is not used";
  }
  EXPECT_EQ(memory->budget().shrank(), 3u);
  EXPECT_EQ(memory->budget().grew(), 3u);
}

TEST_P(EngineBudgetTest, ChangesWhileThreadsReadAndWrite) {
  auto memory = OpenWith(32 * kMiB);
  uint64_t* const words = Words(memory.get(), kBytes);
  ASSERT_NE(words, nullptr);
  constexpr int kThreads = 3;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      // Each thread has pages of its own, and knows their contents.
      std::mt19937_64 random(static_cast<uint64_t>(t));
      constexpr uint64_t kPages = kBytes / kPageBytes / kThreads;
      std::vector<uint64_t> counts(kPages);
      for (int i = 0; i < 15'000; ++i) {
        const uint64_t page = i % 3 == 0 ? static_cast<uint64_t>(i / 3) % kPages : random() % kPages;
        uint64_t* const word = words + (page * kThreads + static_cast<uint64_t>(t)) * kWordsPerPage;
        ASSERT_EQ(word[0], counts[page]);
        ASSERT_EQ(word[kWordsPerPage - 1], counts[page] * 7);
        if (i % 2 == 0) continue;
        word[0] = ++counts[page];
        word[kWordsPerPage - 1] = counts[page] * 7;
      }
      --running;
    });
  }
  std::mt19937_64 random(99);
  int changes = 0;
  while (running > 0 || changes < 50) {
    const uint64_t bytes = kBudget + random() % (60 * kMiB);
    ASSERT_TRUE(memory->SetBudget(bytes).ok());
    if (++changes % 2 == 0) {
      EXPECT_TRUE(AwaitResident(*memory, bytes)) << memory->resident_bytes();
    }
  }
  for (std::thread& thread : threads) thread.join();
  ASSERT_TRUE(memory->SetBudget(kBudget).ok());
  EXPECT_TRUE(AwaitResident(*memory, kBudget)) << memory->resident_bytes();
  EXPECT_EQ(memory->counters().lost_pages, 0u);
}

// Buffers and sums belong to the budget too: their excess is given back.
TEST_P(EngineBudgetTest, BuffersAndSumsShrinkToo) {
  auto memory = OpenWith(256 * kMiB);
  uint64_t* const words = Words(memory.get(), kBytes);
  ASSERT_NE(words, nullptr);
  for (uint64_t i = 0; i < kWords; ++i) words[i] = i;
  ASSERT_TRUE(memory->SetBudget(kBudget).ok());
  ASSERT_TRUE(AwaitResident(*memory, kBudget)) << memory->resident_bytes();
  // Single words, whose pages are noted, and streams.
  for (uint64_t i = 0; i < kWords; i += 97 * kWordsPerPage) ++words[i];
  for (uint64_t i = 1; i < kWords; i += kWordsPerPage) ASSERT_EQ(words[i], i);
  EXPECT_LE(memory->resident_bytes(), kBudget);
  for (uint64_t i = 0; i < kWords; i += 97 * kWordsPerPage) ASSERT_EQ(words[i], i + 1);
}

TEST_P(EngineBudgetTest, PinnedPagesAreMoreThanHalfOfNoBudget) {
  auto memory = OpenWith(16 * kMiB);
  uint64_t* const words = Words(memory.get(), kBytes);
  ASSERT_NE(words, nullptr);
  const absl::Status pinned = memory->Pin(words, 4 * kMiB);
  if (absl::IsUnimplemented(pinned)) GTEST_SKIP() << pinned;
  ASSERT_TRUE(pinned.ok()) << pinned;
  const absl::Status refused = memory->SetBudget(6 * kMiB);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("1024 pages are"));
  EXPECT_EQ(memory->budget().bytes(), 16 * kMiB);
  EXPECT_TRUE(memory->SetBudget(12 * kMiB).ok());
  // The pinned ones and others go on.
  for (uint64_t i = 0; i < kWords; i += kWordsPerPage) words[i] = i;
  EXPECT_EQ(ResidentPages(words, 4 * kMiB), 4 * kMiB / kPageBytes);
  EXPECT_EQ(memory->Pin(words + 4 * kMiB / 8, 4 * kMiB).code(), absl::StatusCode::kOutOfRange);
  memory->Unpin(words, 4 * kMiB).IgnoreError();
  EXPECT_TRUE(memory->SetBudget(kBudget).ok());
  EXPECT_TRUE(AwaitResident(*memory, kBudget));
}

TEST_P(EngineBudgetTest, BudgetsOutOfRangeAreRefused) {
  auto memory = Open();
  EXPECT_EQ(memory->SetBudget(kMiB).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(memory->SetBudget(uint64_t{1} << 60).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(memory->SetBudget(kBudget).ok());
  EXPECT_EQ(memory->budget().shrank() + memory->budget().grew(), 0u);

  MemoryOptions options = Options();
  options.budget_auto = true;
  options.budget_min_bytes = 8 * kMiB;
  options.budget_max_bytes = 6 * kMiB;
  EXPECT_EQ(Memory::Open(options).status().code(), absl::StatusCode::kInvalidArgument);
  options.budget_min_bytes = kMiB;
  EXPECT_EQ(Memory::Open(options).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_P(EngineBudgetTest, ItsOwnerIsToldOfEachChangeInOrder) {
  MemoryOptions options = Options();
  std::vector<std::pair<uint64_t, uint64_t>> told;
  options.on_budget = [&](uint64_t before, uint64_t now) { told.emplace_back(before, now); };
  auto memory = Open(options);
  for (const uint64_t mib : {8, 8, 5, 20}) ASSERT_TRUE(memory->SetBudget(mib * kMiB).ok());
  EXPECT_EQ(told, (std::vector<std::pair<uint64_t, uint64_t>>{
                      {kBudget, 8 * kMiB}, {8 * kMiB, 5 * kMiB}, {5 * kMiB, 20 * kMiB}}));
}

TEST_P(EngineBudgetTest, ABudgetThatFollowsTheMachineKeepsToItsBounds) {
  MemoryOptions options = Options();
  options.budget_auto = true;
  options.budget_min_bytes = kBudget;
  options.budget_max_bytes = 24 * kMiB;
  auto memory = Open(options);
  EXPECT_GE(memory->budget().bytes(), kBudget);
  EXPECT_LE(memory->budget().bytes(), 24 * kMiB);
  uint64_t* const words = Words(memory.get(), kBytes);
  ASSERT_NE(words, nullptr);
  for (uint64_t i = 0; i < kWords; ++i) words[i] = i;
  EXPECT_EQ(memory->SetBudget(25 * kMiB).code(), absl::StatusCode::kInvalidArgument);
  for (const uint64_t ceiling : {10 * kMiB, 24 * kMiB, kBudget}) {
    ASSERT_TRUE(memory->SetBudget(ceiling).ok());
    EXPECT_LE(memory->budget().bytes(), ceiling);
    EXPECT_TRUE(AwaitResident(*memory, ceiling));
    for (uint64_t i = 0; i < kWords; i += 100) ASSERT_EQ(words[i], i);
  }
}

INSTANTIATE_TEST_SUITE_P(Policies, EngineBudgetTest, kPolicies, PolicyName);

}  // namespace
}  // namespace nram
