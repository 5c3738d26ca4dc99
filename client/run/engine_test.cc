// The engine over an address space and a store that are maps.

#include "client/run/engine.h"

#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "base/test_seed.h"
#include "client/run/engine_fixture.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

TEST_F(RunEngineTest, FourTimesTheBudgetKeepsItsContents) {
  engine_.Attach(kBase, 4 * kBudget);
  engine_.Start();
  for (uint64_t page = 0; page < 4 * kBudget; ++page) Put(page, page + 1);
  for (uint64_t page = 0; page < 4 * kBudget; ++page) ASSERT_EQ(Get(page), page + 1) << page;
  EXPECT_LE(space_.peak(), kBudget);
  EXPECT_LE(counters_.peak_pages, kBudget);
  EXPECT_GE(counters_.written_pages, 3 * kBudget);
  EXPECT_TRUE(failure_.ok()) << failure_;
}

TEST_F(RunEngineTest, WhatIsOnlyReadIsNotWrittenAgain) {
  engine_.Attach(kBase, 4 * kBudget);
  engine_.Start();
  for (uint64_t page = 0; page < 4 * kBudget; ++page) Put(page, page + 1);
  for (uint64_t page = 0; page < 4 * kBudget; ++page) ASSERT_EQ(Get(page), page + 1);
  const uint64_t written = counters_.written_pages;
  for (int round = 0; round < 2; ++round) {
    for (uint64_t page = 0; page < 4 * kBudget; ++page) ASSERT_EQ(Get(page), page + 1);
  }
  // Eight budgets are evicted. The pages that were dirty in memory at the beginning are written once. On a busy machine
  // the writes may have become several streams. The reads may continue one of them: its next windows are mapped
  // writable.
  EXPECT_LE(counters_.written_pages, written + 2 * kBudget);
}

TEST_F(RunEngineTest, WhoGoesInOrderFaultsSeldom) {
  constexpr uint64_t kPages = 4 * kBudget;
  constexpr uint64_t kSeldom = kPages / 8;
  engine_.Attach(kBase, kPages);
  engine_.Start();
  const auto faults = [this](auto visit) {
    const uint64_t before = counters_.faults;
    visit();
    return counters_.faults - before;
  };
  EXPECT_LE(faults([&] {
              for (uint64_t page = 0; page < kPages; ++page) Put(page, page + 1);
            }),
            kSeldom);
  EXPECT_LE(faults([&] {
              for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(Get(page), page + 1);
            }),
            kSeldom);
  // Nor does it where it reads first and then writes.
  EXPECT_LE(faults([&] {
              for (uint64_t page = 0; page < kPages; ++page) Put(page, Get(page) + 1);
            }),
            kSeldom);
  EXPECT_LE(faults([&] {
              for (uint64_t page = kPages; page-- > 0;) ASSERT_EQ(Get(page), page + 2);
            }),
            kSeldom);
  EXPECT_GT(counters_.ahead_pages, 0u);
}

TEST_F(RunEngineTest, LonePagesThatAreReadAndThenWrittenComeWritable) {
  constexpr uint64_t kPages = 8 * kBudget;
  engine_.Attach(kBase, kPages);
  engine_.Start();
  for (uint64_t page = 0; page < kPages; ++page) Put(page, page + 1);
  std::mt19937_64 random(TestSeed());
  constexpr uint64_t kSteps = 4'000;
  const uint64_t before = counters_.first_writes;
  for (uint64_t step = 0; step < kSteps; ++step) {
    const uint64_t page = random() % kPages;
    Put(page, Get(page));
  }
  EXPECT_LE(counters_.first_writes - before, kSteps / 4);
  // A thread that only reads has nothing written again, after a while.
  for (uint64_t step = 0; step < 4 * kSteps; ++step) Get(random() % kPages);
  const uint64_t written = counters_.written_pages;
  for (uint64_t step = 0; step < kSteps; ++step) Get(random() % kPages);
  EXPECT_LE(counters_.written_pages, written + kBudget);
}

TEST_F(RunEngineTest, ZerosAreNotStored) {
  engine_.Attach(kBase, 4 * kBudget);
  engine_.Start();
  for (uint64_t page = 0; page < 4 * kBudget; ++page) ASSERT_EQ(Get(page), 0u);
  EXPECT_EQ(store_.size(), 0u);
  // Nor do they show the former data again.
  for (uint64_t page = 0; page < 4 * kBudget; ++page) Put(page, 7);
  for (uint64_t page = 0; page < 4 * kBudget; ++page) Put(page, 0);
  for (uint64_t page = 0; page < 4 * kBudget; ++page) ASSERT_EQ(Get(page), 0u) << page;
}

TEST_F(RunEngineTest, WhatWasThereBeforeLeavesAndComesBack) {
  for (uint64_t page = 0; page < 2 * kBudget; ++page) {
    if (page % 3 != 0) space_.Fill(Address(page), std::byte{9});
  }
  std::vector<bool> present(2 * kBudget);
  for (uint64_t page = 0; page < present.size(); ++page) present[page] = page % 3 != 0;
  engine_.Attach(kBase, 2 * kBudget, present);
  engine_.Start();
  for (uint64_t page = 0; page < 2 * kBudget; ++page) {
    ASSERT_EQ(Get(page), page % 3 != 0 ? 0x0909090909090909u : 0u) << page;
  }
  EXPECT_LE(engine_.resident_pages(), kBudget);
}

TEST_F(RunEngineTest, PinnedAndHeldPagesStay) {
  engine_.Attach(kBase, 4 * kBudget);
  engine_.Start();
  Put(3, 33);
  EXPECT_TRUE(engine_.Pin(Address(3), absl::MakeSpan(buffer_)));
  EXPECT_FALSE(engine_.Pin(Address(4 * kBudget), absl::MakeSpan(buffer_)));
  Put(5, 55);
  space_.Hold(Address(5));
  for (uint64_t page = 10; page < 4 * kBudget; ++page) Put(page, page);
  EXPECT_TRUE(space_.Has(Address(3)));
  EXPECT_TRUE(space_.Has(Address(5)));
  EXPECT_GT(counters_.stayed_pages, 0u);
  EXPECT_EQ(Get(3), 33u);
  EXPECT_EQ(Get(5), 55u);
  // One that is clean, too.
  uint64_t clean = 10;
  while (space_.Has(Address(clean))) ++clean;
  EXPECT_EQ(Get(clean), clean);
  space_.Hold(Address(clean));
  for (uint64_t page = 10; page < 4 * kBudget; ++page) ASSERT_EQ(Get(page), page);
  EXPECT_TRUE(space_.Has(Address(clean)));
  Put(clean, clean);
  // A pin brings an evicted page back.
  uint64_t missing = 10;
  while (space_.Has(Address(missing))) ++missing;
  EXPECT_TRUE(engine_.Pin(Address(missing), absl::MakeSpan(buffer_)));
  EXPECT_TRUE(space_.Has(Address(missing)));
  EXPECT_EQ(Get(missing), missing);
}

TEST_F(RunEngineTest, PinnedPagesAreWrittenToWithoutAFault) {
  engine_.Attach(kBase, 4 * kBudget);
  engine_.Start();
  for (uint64_t page = 0; page < 4 * kBudget; ++page) Put(page, page);
  for (uint64_t page = 0; page < 4 * kBudget; ++page) ASSERT_EQ(Get(page), page);
  uint64_t clean = 0;
  while (clean < 4 * kBudget && !space_.IsProtected(Address(clean))) ++clean;
  ASSERT_LT(clean, 4 * kBudget);
  EXPECT_TRUE(engine_.Pin(Address(clean), absl::MakeSpan(buffer_)));
  EXPECT_TRUE(space_.Has(Address(clean)));
  EXPECT_FALSE(space_.IsProtected(Address(clean)));
}

TEST_F(RunEngineTest, PagesThatMoveKeepTheirContents) {
  engine_.Attach(kBase, 2 * kBudget);
  engine_.Start();
  for (uint64_t page = 0; page < 2 * kBudget; ++page) Put(page, page + 1);
  for (uint64_t page = 0; page < 100; ++page) Get(page);  // clean ones, too
  const uint64_t to = 10 * kBudget;
  for (const HomeRange& range : engine_.Detach(Address(0), Address(kBudget))) {
    space_.MovePages(range.begin, range.begin + to * kPageBytes, range.pages);
    engine_.Reattach({range.begin + to * kPageBytes, range.pages, range.home}, /*moved=*/true);
  }
  engine_.EndChange();
  for (uint64_t page = 0; page < kBudget; ++page) {
    ASSERT_EQ(Get(to + page), page + 1) << page;
    ASSERT_EQ(Get(kBudget + page), kBudget + page + 1) << page;
    Put(to + page, page + 2);
  }
  for (uint64_t page = 0; page < kBudget; ++page) ASSERT_EQ(Get(to + page), page + 2) << page;
}

TEST_F(RunEngineTest, WhatIsForgottenIsZerosAndTakesNoRoom) {
  engine_.Attach(kBase, 2 * kBudget);
  engine_.Start();
  for (uint64_t page = 0; page < 2 * kBudget; ++page) Put(page, page + 1);
  for (const HomeRange& range : engine_.Detach(Address(0), Address(2 * kBudget))) {
    space_.Unmap(range.begin, range.pages);
    engine_.Forget(range);
    engine_.Reattach(range, /*moved=*/false);
  }
  engine_.EndChange();
  EXPECT_EQ(engine_.resident_pages(), 0u);
  EXPECT_FALSE(engine_.HasRemotePages());
  EXPECT_EQ(store_.size(), 0u);
  for (uint64_t page = 0; page < 2 * kBudget; ++page) ASSERT_EQ(Get(page), 0u) << page;
}

TEST_F(RunEngineTest, WhatIsForgottenBitByBitTakesNoMemory) {
  const uint64_t before = engine_.metadata_bytes();
  for (uint64_t round = 0; round < 20'000; ++round) {
    engine_.Attach(kBase, 32, std::vector<bool>(32, true));
    for (const HomeRange& range : engine_.Detach(Address(0), Address(32))) engine_.Forget(range);
    engine_.EndChange();
  }
  EXPECT_LE(engine_.metadata_bytes(), before + 64 * kKiB);
}

TEST_F(RunEngineTest, WhatIsEmptiedAgainAndAgainTakesNoMemory) {
  engine_.Attach(kBase, 32);
  const uint64_t before = engine_.metadata_bytes();
  for (uint64_t round = 0; round < 6'000; ++round) {
    Put(5, round + 1);
    for (const HomeRange& range : engine_.Detach(Address(5), Address(6))) {
      space_.Unmap(range.begin, range.pages);
      engine_.Forget(range);
      engine_.Reattach(range, /*moved=*/false);
    }
    engine_.EndChange();
  }
  EXPECT_LE(engine_.metadata_bytes(), before + 32 * kKiB);
}

TEST_F(RunEngineTest, AFailureOfTheStoreIsToldOnce) {
  engine_.Attach(kBase, 2 * kBudget);
  engine_.Start();
  for (uint64_t page = 0; page < 2 * kBudget; ++page) Put(page, page + 1);
  store_.FailFromNowOn(absl::UnavailableError("gone"));
  uint64_t missing = 0;
  while (space_.Has(Address(missing))) ++missing;
  engine_.HandleFault({Address(missing), false, false}, absl::MakeSpan(buffer_));
  EXPECT_EQ(failure_, absl::UnavailableError("gone"));
  EXPECT_FALSE(space_.Has(Address(missing)));
  engine_.Stop();
}

TEST_F(RunEngineTest, APageThatCannotBeReadIsMissedByWhoNeedsItAlone) {
  constexpr uint64_t kPages = 4 * kBudget;
  constexpr uint64_t kLost = 2 * kBudget;
  engine_.Attach(kBase, kPages);
  engine_.Start();
  for (uint64_t page = 0; page < kPages; ++page) Put(page, page + 1);
  ASSERT_FALSE(space_.Has(Address(kLost)));
  store_.Lose(kLost + 1);
  // Windows, and windows ahead, would bring it with its neighbours, up and down.
  for (uint64_t page = 0; page < kLost; ++page) ASSERT_EQ(Get(page), page + 1) << page;
  for (uint64_t page = kPages - 1; page > kLost; --page) ASSERT_EQ(Get(page), page + 1) << page;
  for (uint64_t page = 0; page < kLost; ++page) ASSERT_EQ(Get(page), page + 1) << page;
  EXPECT_TRUE(failure_.ok()) << failure_;
  EXPECT_LE(counters_.peak_pages, kBudget);
  engine_.HandleFault({Address(kLost), false, false}, absl::MakeSpan(buffer_));
  EXPECT_EQ(failure_, absl::DataLossError("lost"));
  engine_.Stop();
}

class RunEngineHomesTest : public RunEngineTest {
 protected:
  static constexpr uint64_t kHomes = 4 * kBudget + 100;

  RunEngineHomesTest() : RunEngineTest(kHomes) {}
  void Release(uint64_t page, uint64_t pages) {
    for (const HomeRange& range : engine_.Detach(Address(page), Address(page + pages))) {
      space_.Unmap(range.begin, range.pages);
      engine_.Release(range);
    }
    engine_.EndChange();
  }
};

TEST_F(RunEngineHomesTest, HomesAreGivenAgain) {
  engine_.Start();
  engine_.Attach(Address(100 * kBudget), kBudget);
  for (uint64_t page = 0; page < kBudget; ++page) Put(100 * kBudget + page, page + 7);
  std::mt19937_64 random(TestSeed());
  for (uint64_t round = 1; round <= 40; ++round) {
    // Three, whose sizes never fit into the gaps of the last round in one piece.
    const uint64_t each = kBudget - random() % 50;
    for (uint64_t i = 0; i < 3; ++i) engine_.Attach(Address(2 * i * kBudget), each);
    for (uint64_t i = 0; i < 3; ++i) {
      for (uint64_t page = 0; page < each; page += 3) Put(2 * i * kBudget + page, round * page + i);
    }
    for (uint64_t i = 0; i < 3; ++i) {
      for (uint64_t page = 0; page < each; ++page) {
        ASSERT_EQ(Get(2 * i * kBudget + page), page % 3 == 0 ? round * page + i : 0)
            << round << " " << i << " " << page;
      }
    }
    for (const uint64_t i : {1, 0, 2}) Release(2 * i * kBudget, each);
  }
  EXPECT_TRUE(failure_.ok()) << failure_;
  EXPECT_LE(engine_.homes(), kHomes);
  for (uint64_t page = 0; page < kBudget; ++page) ASSERT_EQ(Get(100 * kBudget + page), page + 7);
  // All that there are, in one mapping.
  Release(100 * kBudget, kBudget);
  EXPECT_EQ(store_.size(), 0u);
  engine_.Attach(kBase, kHomes);
  for (uint64_t page = 0; page < kHomes; ++page) Put(page, page + 1);
  for (uint64_t page = 0; page < kHomes; ++page) ASSERT_EQ(Get(page), page + 1) << page;
  EXPECT_TRUE(failure_.ok()) << failure_;
  engine_.Attach(Address(100 * kBudget), 1);
  EXPECT_TRUE(absl::IsResourceExhausted(failure_)) << failure_;
  engine_.Stop();
}

// Threads write to words of their own in shared pages, while another one drops, moves and brings back a part of them.
TEST_F(RunEngineTest, ThreadsAndChangesAtOnce) {
  constexpr int kThreads = 4;
  constexpr uint64_t kShared = 2 * kBudget;
  engine_.Attach(kBase, kShared);
  engine_.Attach(Address(kShared), kBudget);
  engine_.Start();
  std::vector<std::thread> threads;
  for (int thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(TestSeed() + static_cast<uint64_t>(thread));
      std::vector<std::byte> buffer(options_.window_pages * kPageBytes);
      std::vector<uint64_t> model(kShared);
      const auto word = static_cast<uint64_t>(thread);
      for (int step = 0; step < 20'000; ++step) {
        const uint64_t page = random() % kShared;
        if (random() % 2 == 0) {
          model[page] = random() % 3;
          Put(page, model[page], absl::MakeSpan(buffer), word);
        } else {
          ASSERT_EQ(Get(page, absl::MakeSpan(buffer), word), model[page]) << page;
        }
      }
    });
  }
  uint64_t at = kShared;
  for (int round = 0; round < 50; ++round) {
    for (uint64_t page = 0; page < 64; ++page) Put(at + page, page + 1);
    const uint64_t to = at == kShared ? 4 * kShared : kShared;
    for (const HomeRange& range : engine_.Detach(Address(at), Address(at + kBudget))) {
      const uint64_t begin = range.begin + (to - at) * kPageBytes;
      space_.MovePages(range.begin, begin, range.pages);
      engine_.Reattach({begin, range.pages, range.home}, /*moved=*/true);
    }
    engine_.EndChange();
    at = to;
    for (uint64_t page = 0; page < 64; ++page) ASSERT_EQ(Get(at + page), page + 1);
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_TRUE(failure_.ok()) << failure_;
  EXPECT_LE(space_.peak(), kBudget);
}

// Threads go up and down through pages of their own, and read and rewrite their words. The pages ahead of them move to
// and fro.
TEST_F(RunEngineTest, StreamsAndChangesAtOnce) {
  constexpr uint64_t kThreads = 4;
  constexpr uint64_t kEach = kBudget;
  constexpr uint64_t kFar = 100 * kBudget;
  engine_.Attach(kBase, kThreads * kEach);
  engine_.Start();
  // Where each eighth of a thread's pages is; its owner and the one that moves it take turns.
  constexpr uint64_t kPart = kEach / 8;
  struct Part {
    Mutex mu;
    uint64_t first ABSL_GUARDED_BY(mu) = 0;
  };
  std::vector<Part> parts(kThreads * 8);
  for (uint64_t i = 0; i < parts.size(); ++i) {
    MutexLock lock(&parts[i].mu);
    parts[i].first = i * kPart;
  }
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(TestSeed() + thread);
      std::vector<std::byte> buffer(options_.window_pages * kPageBytes);
      std::vector<uint64_t> model(kEach);
      for (int round = 0; round < 12; ++round) {
        const bool down = random() % 2 == 0;
        const uint64_t writes = random() % 4;  // of three pages
        for (uint64_t i = 0; i < kEach; ++i) {
          const uint64_t page = down ? kEach - 1 - i : i;
          Part& part = parts[thread * 8 + page / kPart];
          MutexLock lock(&part.mu);
          const uint64_t at = part.first + page % kPart;
          ASSERT_EQ(Get(at, absl::MakeSpan(buffer)), model[page]) << page;
          if (random() % 3 < writes) Put(at, ++model[page], absl::MakeSpan(buffer));
        }
      }
    });
  }
  std::thread mover([&] {
    std::mt19937_64 random(TestSeed() + kThreads);
    while (!stop) {
      const uint64_t which = random() % parts.size();
      MutexLock lock(&parts[which].mu);
      const uint64_t from = parts[which].first;
      const uint64_t to = from >= kFar ? from - kFar : from + kFar;
      for (const HomeRange& range : engine_.Detach(Address(from), Address(from + kPart))) {
        const uint64_t begin = range.begin + (to - from) * kPageBytes;
        space_.MovePages(range.begin, begin, range.pages);
        engine_.Reattach({begin, range.pages, range.home}, /*moved=*/true);
      }
      engine_.EndChange();
      parts[which].first = to;
    }
  });
  for (std::thread& thread : threads) thread.join();
  stop = true;
  mover.join();
  EXPECT_TRUE(failure_.ok()) << failure_;
  EXPECT_LE(space_.peak(), kBudget);
  EXPECT_LE(engine_.resident_pages(), kBudget);
  EXPECT_GT(counters_.ahead_pages, 0u);
}

}  // namespace
}  // namespace nram
