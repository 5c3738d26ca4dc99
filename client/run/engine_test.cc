// The engine over an address space and a store that are maps.

#include "client/run/engine.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/test_seed.h"
#include "client/run/page_views.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

constexpr uint64_t kBase = 0x10000000;
constexpr int64_t kPatienceMs = 60'000;
using Bytes = std::array<std::byte, kPageBytes>;

class FakeStore : public PageStore {
 public:
  absl::Status ReadPages(uint64_t page, absl::Span<std::byte> to) override {
    MutexLock lock(&mu_);
    if (!failure_.ok()) return failure_;
    for (uint64_t i = 0; i < to.size() / kPageBytes; ++i) {
      if (page + i == lost_) return absl::DataLossError("lost");
      const auto at = pages_.find(page + i);
      if (at == pages_.end()) return absl::InternalError(absl::StrCat("page ", page + i, " was never written"));
      memcpy(to.data() + i * kPageBytes, at->second.data(), kPageBytes);
    }
    return absl::OkStatus();
  }
  absl::Status WritePages(absl::Span<const Write> writes) override {
    MutexLock lock(&mu_);
    if (!failure_.ok()) return failure_;
    for (const Write& write : writes) {
      for (uint64_t i = 0; i < write.data.size() / kPageBytes; ++i) {
        memcpy(pages_[write.page + i].data(), write.data.data() + i * kPageBytes, kPageBytes);
      }
    }
    return absl::OkStatus();
  }
  void Forget(uint64_t page, uint64_t count) override {
    MutexLock lock(&mu_);
    for (uint64_t i = 0; i < count; ++i) pages_.erase(page + i);
  }
  void FailFromNowOn(const absl::Status& status) {
    MutexLock lock(&mu_);
    failure_ = status;
  }
  // No read that this page is in succeeds.
  void Lose(uint64_t page) {
    MutexLock lock(&mu_);
    lost_ = page;
  }
  size_t size() {
    MutexLock lock(&mu_);
    return pages_.size();
  }

 private:
  Mutex mu_;
  std::map<uint64_t, Bytes> pages_ ABSL_GUARDED_BY(mu_);
  uint64_t lost_ ABSL_GUARDED_BY(mu_) = ~uint64_t{0};
  absl::Status failure_ ABSL_GUARDED_BY(mu_);
};

// A program's memory. Its threads call Access, which faults as they would.
class FakeSpace : public AddressSpace {
 public:
  absl::Status Copy(uint64_t to, absl::Span<const std::byte> data, bool protect) override {
    MutexLock lock(&mu_);
    ++works_;
    for (uint64_t i = 0; i < data.size() / kPageBytes; ++i) {
      const uint64_t address = to + i * kPageBytes;
      if (pages_.contains(address)) return absl::AlreadyExistsError(absl::StrCat(address));
      Page& page = pages_[address];
      memcpy(page.bytes.data(), data.data() + i * kPageBytes, kPageBytes);
      page.is_protected = protect;
    }
    peak_ = std::max(peak_, pages_.size());
    WakeLocked();
    return absl::OkStatus();
  }
  void Unprotect(uint64_t begin, uint64_t pages) override {
    MutexLock lock(&mu_);
    ++works_;
    for (uint64_t i = 0; i < pages; ++i) {
      if (const auto at = pages_.find(begin + i * kPageBytes); at != pages_.end()) at->second.is_protected = false;
    }
    WakeLocked();
  }
  void Wake(uint64_t, uint64_t) override {
    MutexLock lock(&mu_);
    WakeLocked();
  }
  absl::Status Take(absl::Span<const AddressRun> runs, absl::Span<std::byte> to, std::vector<bool>* taken) override {
    MutexLock lock(&mu_);
    ++works_;
    taken->clear();
    for (const AddressRun& run : runs) {
      for (uint64_t i = 0; i < run.pages; ++i) {
        const uint64_t address = run.begin + i * kPageBytes;
        const auto at = pages_.find(address);
        EXPECT_TRUE(at != pages_.end()) << "a page is taken that is not there";
        const bool can = at != pages_.end() && !held_.contains(address);
        if (can) {
          memcpy(to.data() + taken->size() * kPageBytes, at->second.bytes.data(), kPageBytes);
          pages_.erase(at);
        }
        taken->push_back(can);
      }
    }
    return absl::OkStatus();
  }
  absl::Status Drop(absl::Span<const AddressRun> runs, std::vector<bool>* taken) override {
    MutexLock lock(&mu_);
    ++works_;
    taken->clear();
    for (const AddressRun& run : runs) {
      for (uint64_t i = 0; i < run.pages; ++i) {
        const uint64_t address = run.begin + i * kPageBytes;
        const auto at = pages_.find(address);
        EXPECT_TRUE(at != pages_.end() && at->second.is_protected) << "a page is dropped that could be written to";
        taken->push_back(at != pages_.end() && !held_.contains(address) && !at->second.is_shared);
        if (taken->back()) pages_.erase(at);
      }
    }
    return absl::OkStatus();
  }

  // False after a minute: a lost wake-up.
  template <typename Function>
  bool Access(RunEngine* engine, uint64_t address, bool write, absl::Span<std::byte> buffer, Function function) {
    const uint64_t begin = RoundDown(address, kPageBytes);
    const int64_t deadline_ns = DeadlineAfterMs(kPatienceMs);
    while (true) {
      uint64_t seen;
      bool there;
      {
        MutexLock lock(&mu_);
        const auto at = pages_.find(begin);
        there = at != pages_.end();
        if (there && !(write && at->second.is_protected)) {
          at->second.is_shared &= !write;
          function(at->second.bytes.data() + address % kPageBytes);
          return true;
        }
        seen = wakes_;
      }
      engine->HandleFault({address, write, there}, buffer);
      MutexLock lock(&mu_);
      while (wakes_ == seen) {
        if (!woken_.WaitUntil(&mu_, deadline_ns)) return false;
      }
    }
  }
  // What fork(2) does: the copy has what is there, and nothing is protected. Both have the same pages, which cannot be
  // dropped; to take them copies them first.
  void ForkTo(FakeSpace* copy) {
    MutexLock lock(&mu_);
    for (auto& [address, page] : pages_) page.is_shared = true;
    MutexLock copy_lock(&copy->mu_);
    copy->pages_ = pages_;
    for (auto& [address, page] : copy->pages_) page.is_protected = false;
  }
  void Hold(uint64_t address) {
    MutexLock lock(&mu_);
    held_.insert(address);
  }
  // What munmap(2) and mremap(2) do.
  void Unmap(uint64_t begin, uint64_t pages) {
    MutexLock lock(&mu_);
    for (uint64_t i = 0; i < pages; ++i) pages_.erase(begin + i * kPageBytes);
  }
  void MovePages(uint64_t from, uint64_t to, uint64_t pages) {
    MutexLock lock(&mu_);
    for (uint64_t i = 0; i < pages; ++i) {
      const auto at = pages_.find(from + i * kPageBytes);
      if (at == pages_.end()) continue;
      Page page = at->second;
      page.is_protected = false;
      pages_.erase(at);
      pages_[to + i * kPageBytes] = page;
    }
  }
  void Fill(uint64_t address, std::byte value) {
    MutexLock lock(&mu_);
    pages_[address].bytes.fill(value);
  }
  bool Has(uint64_t address) {
    MutexLock lock(&mu_);
    return pages_.contains(address);
  }
  bool IsProtected(uint64_t address) {
    MutexLock lock(&mu_);
    const auto at = pages_.find(address);
    return at != pages_.end() && at->second.is_protected;
  }
  size_t peak() {
    MutexLock lock(&mu_);
    return peak_;
  }
  // How often an engine has changed something.
  uint64_t works() {
    MutexLock lock(&mu_);
    return works_;
  }

 private:
  struct Page {
    Bytes bytes = {};
    bool is_protected = false;
    bool is_shared = false;
  };
  void WakeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++wakes_;
    woken_.SignalAll();
  }

  Mutex mu_;
  CondVar woken_;
  std::map<uint64_t, Page> pages_ ABSL_GUARDED_BY(mu_);
  std::set<uint64_t> held_ ABSL_GUARDED_BY(mu_);
  uint64_t wakes_ ABSL_GUARDED_BY(mu_) = 0;
  size_t peak_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t works_ ABSL_GUARDED_BY(mu_) = 0;
};

class RunEngineTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBudget = RunOptions::kBudgetPagesMin;

  explicit RunEngineTest(uint64_t homes = RunOptions().homes)
      : options_{.budget_pages = kBudget, .homes = homes}, buffer_(options_.window_pages * kPageBytes) {}

  void Put(uint64_t page, uint64_t value) { Put(page, value, absl::MakeSpan(buffer_)); }
  void Put(uint64_t page, uint64_t value, absl::Span<std::byte> buffer, uint64_t word = 0) {
    ASSERT_TRUE(space_.Access(&engine_, kBase + page * kPageBytes + word * 8, true, buffer,
                              [&](std::byte* at) { memcpy(at, &value, sizeof(value)); }));
  }
  uint64_t Get(uint64_t page) { return Get(page, absl::MakeSpan(buffer_)); }
  uint64_t Get(uint64_t page, absl::Span<std::byte> buffer, uint64_t word = 0) {
    uint64_t value = ~uint64_t{0};
    EXPECT_TRUE(space_.Access(&engine_, kBase + page * kPageBytes + word * 8, false, buffer,
                              [&](std::byte* at) { memcpy(&value, at, sizeof(value)); }));
    return value;
  }
  uint64_t Address(uint64_t page) const { return kBase + page * kPageBytes; }

  const RunOptions options_;
  FakeSpace space_;
  FakeStore store_;
  RunCounters counters_;
  absl::Status failure_;
  RunEngine engine_{options_, &space_, &store_, &counters_, [this](const absl::Status& status) { failure_ = status; }};
  std::vector<std::byte> buffer_;
};

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
  // Eight budgets have left. The pages that were dirty in memory at the beginning are written once. Where a busy
  // machine has cut the writes into several streams, one of them may be taken up by the reads: its next windows come
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
  // Who only reads has nothing written again, after a while.
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
  // Nor do they bring back what was there before.
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
  // A pin brings what has left.
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
  store_.Lose(kLost);  // homes are given in the order of addresses
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
    // Three of sizes that never fit into what the last round's have left in one piece.
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

// Threads go up and down through pages of their own, whose words they read and write anew, while what they have not
// come to yet moves to and fro.
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

// Programs that are copies of one another: all have one store.
class RunEngineForkTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kBudget = RunOptions::kBudgetPagesMin;
  static constexpr uint64_t kPages = 2 * kBudget;

  struct Program {
    std::unique_ptr<PageViews::View> view;
    FakeSpace space;
    std::unique_ptr<RunEngine> engine;
    std::vector<std::byte> buffer;
  };

  std::unique_ptr<Program> Make(std::unique_ptr<PageViews::View> view) {
    auto program = std::make_unique<Program>();
    program->view = std::move(view);
    program->engine =
        std::make_unique<RunEngine>(options_, &program->space, program->view.get(), &counters_,
                                    [](const absl::Status& status) { ADD_FAILURE() << "an engine fails: " << status; });
    program->buffer.resize(options_.window_pages * kPageBytes);
    return program;
  }
  std::unique_ptr<Program> MakeFirst() {
    std::unique_ptr<Program> program = Make(views_.Make());
    program->engine->Attach(kBase, kPages);
    program->engine->Start();
    return program;
  }
  std::unique_ptr<Program> Fork(Program* parent) {
    EXPECT_TRUE(parent->engine->Freeze());
    const uint64_t works = parent->space.works();
    const RunEngine::Stored stored = parent->engine->stored();
    std::unique_ptr<Program> child = Make(parent->view->Copy(stored.all, stored.remote));
    parent->space.ForkTo(&child->space);
    child->engine->CopyFrom(*parent->engine);
    child->engine->Start();
    EXPECT_EQ(parent->space.works(), works) << "something is done to memory that is being copied";
    parent->engine->Thaw();
    return child;
  }
  void End(std::unique_ptr<Program> program) {
    program->engine->Stop();
    program->view->Release();
  }
  static void Put(Program* program, uint64_t page, uint64_t value) {
    Put(program, page, value, absl::MakeSpan(program->buffer), 0);
  }
  static void Put(Program* program, uint64_t page, uint64_t value, absl::Span<std::byte> buffer, uint64_t word) {
    ASSERT_TRUE(program->space.Access(program->engine.get(), kBase + page * kPageBytes + word * 8, true, buffer,
                                      [&](std::byte* at) { memcpy(at, &value, sizeof(value)); }));
  }
  static uint64_t Get(Program* program, uint64_t page, uint64_t word = 0) {
    uint64_t value = ~uint64_t{0};
    EXPECT_TRUE(program->space.Access(program->engine.get(), kBase + page * kPageBytes + word * 8, false,
                                      absl::MakeSpan(program->buffer),
                                      [&](std::byte* at) { memcpy(&value, at, sizeof(value)); }));
    return value;
  }
  static void Fill(Program* program, uint64_t salt) {
    for (uint64_t page = 0; page < kPages; ++page) Put(program, page, page + salt);
  }
  static void Verify(Program* program, uint64_t salt) {
    for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(Get(program, page), page + salt) << page;
  }

  const RunOptions options_{.budget_pages = kBudget};
  FakeStore store_;
  PageViews views_{&store_};
  RunCounters counters_;
};

TEST_F(RunEngineForkTest, EachHasItsOwnFromThenOn) {
  std::unique_ptr<Program> parent = MakeFirst();
  Fill(parent.get(), 1000);
  Verify(parent.get(), 1000);  // some are clean now
  std::unique_ptr<Program> child = Fork(parent.get());
  Fill(parent.get(), 2000);
  Verify(child.get(), 1000);
  std::unique_ptr<Program> grandchild = Fork(child.get());
  Fill(child.get(), 3000);
  Verify(grandchild.get(), 1000);
  End(std::move(child));
  Fill(grandchild.get(), 4000);
  Verify(parent.get(), 2000);
  Verify(grandchild.get(), 4000);
  for (Program* const program : {parent.get(), grandchild.get()}) {
    EXPECT_LE(program->space.peak(), kBudget);
    EXPECT_LE(program->engine->resident_pages(), kBudget);
  }
  End(std::move(parent));
  Verify(grandchild.get(), 4000);
  End(std::move(grandchild));
  EXPECT_EQ(store_.size(), 0u);
}

// Nothing but what both have in memory, and all of it clean: it does not leave before it is copied.
TEST_F(RunEngineForkTest, CleanPagesThatAreSharedLeave) {
  std::unique_ptr<Program> parent = MakeFirst();
  Fill(parent.get(), 1000);
  for (int round = 0; round < 3; ++round) Verify(parent.get(), 1000);
  std::unique_ptr<Program> child = Fork(parent.get());
  const uint64_t written = counters_.written_pages;
  Verify(parent.get(), 1000);
  EXPECT_GT(counters_.written_pages, written) << "nothing that was shared has left";
  Verify(child.get(), 1000);
  Verify(parent.get(), 1000);
  EXPECT_LE(parent->space.peak(), kBudget);
  End(std::move(child));
  End(std::move(parent));
}

// A copy that is not used costs nothing that stays: the child that executes something at once.
TEST_F(RunEngineForkTest, AChildThatEndsAtOnceLeavesNothing) {
  std::unique_ptr<Program> parent = MakeFirst();
  Fill(parent.get(), 1000);
  const size_t stored = store_.size();
  for (int round = 0; round < 20; ++round) End(Fork(parent.get()));
  EXPECT_LE(store_.size(), stored + kBudget);
  Verify(parent.get(), 1000);
  End(std::move(parent));
  EXPECT_EQ(store_.size(), 0u);
}

// Threads write to words of their own all the time. A child sees of each what was there when it was forked.
TEST_F(RunEngineForkTest, ThreadsAndForksAtOnce) {
  constexpr uint64_t kThreads = 2;
  std::unique_ptr<Program> parent = MakeFirst();
  std::vector<std::atomic<uint64_t>> written(kThreads * kPages);
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    threads.emplace_back([&, thread] {
      std::mt19937_64 random(TestSeed() + thread);
      std::vector<std::byte> buffer(options_.window_pages * kPageBytes);
      while (!stop) {
        const uint64_t page = random() % kPages;
        std::atomic<uint64_t>& last = written[thread * kPages + page];
        Put(parent.get(), page, last + 1, absl::MakeSpan(buffer), thread);
        ++last;
      }
    });
  }
  for (int round = 0; round < 4; ++round) {
    const std::vector<uint64_t> before(written.begin(), written.end());
    std::unique_ptr<Program> child = Fork(parent.get());
    for (uint64_t i = 0; i < before.size(); ++i) {
      const uint64_t seen = Get(child.get(), i % kPages, i / kPages);
      EXPECT_GE(seen, before[i]) << i;
      EXPECT_LE(seen, written[i] + 1) << i;
      Put(child.get(), i % kPages, seen, absl::MakeSpan(child->buffer), kThreads + i / kPages);
    }
    for (uint64_t i = 0; i < before.size(); ++i) {
      EXPECT_EQ(Get(child.get(), i % kPages, i / kPages), Get(child.get(), i % kPages, kThreads + i / kPages)) << i;
    }
    EXPECT_LE(child->space.peak(), kBudget);
    End(std::move(child));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  for (uint64_t i = 0; i < written.size(); ++i) EXPECT_EQ(Get(parent.get(), i % kPages, i / kPages), written[i]) << i;
  EXPECT_LE(parent->space.peak(), kBudget);
  End(std::move(parent));
}

}  // namespace
}  // namespace nram
