// The cost of publishing: the length of runs of first writes to protected pages, and the bytes from before them in
// versions; the number of versions.

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "base/sync.h"
#include "base/test_seed.h"
#include "client/memory/memory.h"
#include "client/memory/streams.h"
#include "gtest/gtest.h"
#include "tests/util/faulty_relay.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

constexpr uint64_t kWordsPerPage = kPageBytes / sizeof(uint64_t);
constexpr int64_t kPatienceMs = 120'000;

std::unique_ptr<Segment> NewSegment(uint64_t pages) {
  return std::make_unique<Segment>(*Mapping::Anonymous(pages * kPageBytes), *Mapping::Anonymous(RoundUp(pages, 4096)),
                                   kPageBytes, nullptr);
}

TEST(PageStateTest, FindsWhatALookAtEachPageFinds) {
  constexpr uint64_t kPages = 1'003;
  std::mt19937_64 random(TestSeed());
  const auto segment = NewSegment(kPages);
  for (uint64_t page = 0; page < kPages; ++page) {
    PageWord& word = segment->word(page);
    if (random() % 4 == 0) word.Change(PageState::kEmpty, static_cast<PageState>(random() % 14));
    for (const uint8_t flag : {PageWord::kWaiter, PageWord::kReferenced, PageWord::kQueued, PageWord::kPinned}) {
      if (random() % 2 == 0) word.Set(flag);
    }
  }
  for (int first = 1; first < 14; ++first) {
    for (int last = first; last < 14; ++last) {
      uint64_t next = kPages;
      for (uint64_t page = kPages; page-- > 0;) {
        const int state = static_cast<int>(segment->word(page).state());
        if (state >= first && state <= last) next = page;
        ASSERT_EQ(segment->Find(page, static_cast<PageState>(first), static_cast<PageState>(last)), next) << page;
      }
    }
  }
}

TEST(WriteStreamsTest, GrowUpAndDown) {
  const auto segment = NewSegment(20'000);
  for (const int step : {1, -1}) {
    Streams streams(256);
    uint64_t page = step > 0 ? 100 : 19'000;
    std::vector<uint64_t> counts;
    bool sure = false;
    for (int i = 0; i < 30; ++i) {
      const WritePlan plan = streams.OnFirstWrite(*segment, page);
      EXPECT_EQ(plan.run.first, page);
      counts.push_back(plan.run.count);
      sure = plan.sure;
      EXPECT_EQ(sure, i >= 20) << i;
      page += step * plan.run.count;
    }
    EXPECT_EQ(std::vector<uint64_t>(counts.begin(), counts.begin() + 8),
              (std::vector<uint64_t>{1, 2, 4, 8, 16, 32, 64, 64}));
    EXPECT_EQ(counts.back(), 256u);
    // Pages of the last run that were not unprotected are not begun anew.
    EXPECT_EQ(streams.OnFirstWrite(*segment, page - step * 6).run.count, 6u);
  }
  Streams streams(256);
  for (uint64_t page = 5; page != UINT64_MAX;) {
    const WritePlan plan = streams.OnFirstWrite(*segment, page);
    ASSERT_LE(plan.run.count, page + 1);
    page -= plan.run.count;
  }
}

TEST(WriteStreamsTest, ScatteredWritesAreOnePageEach) {
  const auto segment = NewSegment(1'000'000);
  Streams streams(256);
  for (uint64_t page = 0; page < 100'000; page += 11) EXPECT_EQ(streams.OnFirstWrite(*segment, page).run.count, 1u);
  segment->read_ahead = ReadAhead::kNever;
  for (uint64_t page = 0; page < 100; ++page) EXPECT_EQ(streams.OnFirstWrite(*segment, page).run.count, 1u);
}

// A share of all pages, in order.
TEST(WriteStreamsTest, LeaveOutPagesAndGoOn) {
  constexpr uint64_t kPages = 100'000;
  std::mt19937_64 random(TestSeed());
  const auto segment = NewSegment(kPages);
  for (const uint64_t percent : {10, 72}) {
    Streams streams(256);
    uint64_t written = 0, faults = 0, opened = 0, taken_for_sure = 0;
    for (uint64_t page = 0, open = 0; page < kPages; ++page) {
      if (random() % 100 >= percent) continue;
      ++written;
      if (page < open) continue;
      const WritePlan plan = streams.OnFirstWrite(*segment, page);
      ++faults;
      opened += plan.run.count;
      taken_for_sure += plan.sure ? plan.run.count : 0;
      open = page + plan.run.count;
    }
    if (percent == 72) {
      EXPECT_LT(faults, written / 20);
      EXPECT_LT(taken_for_sure, kPages / 4);
    } else {
      EXPECT_LT(opened, written * 2);
      EXPECT_LT(taken_for_sure, written / 20);
    }
  }
}

class FirstWritesTest : public ::testing::Test {
 protected:
  std::unique_ptr<Memory> Open(uint64_t budget) {
    MemoryOptions options;
    options.pool = servers_.Options();
    options.budget_bytes = budget;
    // A slow machine is no reason to give a version up.
    options.publish_patience_ms = kPatienceMs;
    options.pool.reroute_data_for_test = [this](size_t, const Endpoint& target) {
      MutexLock lock(&mu_);
      relays_.push_back(std::make_unique<FaultyRelay>(target, 1));
      return relays_.back()->endpoint();
    };
    auto memory = Memory::Open(options);
    EXPECT_TRUE(memory.ok()) << memory.status();
    return *std::move(memory);
  }
  uint64_t* Map(Memory* memory, uint64_t pages) {
    auto base = memory->Map({.length = pages * kPageBytes, .name = "field"});
    EXPECT_TRUE(base.ok()) << base.status();
    return reinterpret_cast<uint64_t*>(*base);
  }
  void Publish(Memory* memory, const void* base, bool await = true) {
    const auto version = memory->Publish({.bases = {base}, .header_json = ""});
    ASSERT_TRUE(version.ok()) << version.status();
    if (!await) return;
    const absl::Status published = memory->AwaitPublished(base, 0, DeadlineAfterMs(kPatienceMs));
    ASSERT_TRUE(published.ok()) << published;
  }
  const uint64_t* Observe(Memory* memory) {
    auto observed = memory->Observe("field", 0, /*all=*/false);
    EXPECT_TRUE(observed.ok()) << observed.status();
    return observed.ok() ? reinterpret_cast<const uint64_t*>(observed->bases[0]) : nullptr;
  }
  void Hold(bool held) {
    MutexLock lock(&mu_);
    for (auto& relay : relays_) relay->Hold(held);
  }

  TestPool servers_{2, 256 * kMiB};

 private:
  Mutex mu_;
  std::vector<std::unique_ptr<FaultyRelay>> relays_ ABSL_GUARDED_BY(mu_);
};

TEST_F(FirstWritesTest, RunsTakeFewFaultsAndOnlyWhatWasChangedTravels) {
  constexpr uint64_t kPages = 4'096;
  std::mt19937_64 random(TestSeed());
  auto producer = Open(64 * kMiB);
  uint64_t* const words = Map(producer.get(), kPages);
  std::vector<uint64_t> model(kPages);
  uint64_t changed = kPages;
  for (uint64_t page = 0; page < kPages; ++page) words[page * kWordsPerPage] = model[page] = random();
  for (const uint64_t percent : {72, 10, 72}) {
    Publish(producer.get(), words);
    const uint64_t faults = producer->counters().write_faults;
    const uint64_t sent = producer->counters().written_bytes;
    changed = 0;
    // The first writes of all were a stream too: its end counts as written.
    for (uint64_t page = 0; page < kPages - 600; ++page) {
      // The pages in order: the runs without a gap are never long enough to be sure.
      if (percent == 72 ? page % 7 == 2 || page % 7 == 5 : random() % 10 != 0) continue;
      ++changed;
      // Each chunk, so that the page is sent whole.
      for (uint64_t at = 0; at < kWordsPerPage; at += kChunkBytes / 8) words[page * kWordsPerPage + at] = random();
      model[page] = words[page * kWordsPerPage];
    }
    if (percent == 72) {
      EXPECT_LT(producer->counters().write_faults - faults, changed / 10);
    }
    Publish(producer.get(), words);
    // The sums have no place for some pages.
    EXPECT_LE(producer->counters().written_bytes - sent, changed * kPageBytes * 11 / 10) << percent << " %";
    EXPECT_GE(producer->counters().written_bytes - sent, changed * kPageBytes) << percent << " %";
  }
  auto observer = Open(64 * kMiB);
  const uint64_t* const seen = Observe(observer.get());
  ASSERT_NE(seen, nullptr);
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(seen[page * kWordsPerPage], model[page]) << page;
}

// A run meets bound pages that no server has yet. With a small budget there is no memory for all of their copies.
TEST_F(FirstWritesTest, ARunLeavesBoundPagesAsTheyAre) {
  constexpr uint64_t kPages = 4'096, kFrom = 1'024, kEvery = 7;
  for (const uint64_t budget : {64 * kMiB, 24 * kMiB}) {
    auto producer = Open(budget);
    auto observer = Open(64 * kMiB);
    uint64_t* const words = Map(producer.get(), kPages);
    const auto at = [&](uint64_t page) -> uint64_t& { return words[page * kWordsPerPage + page % kWordsPerPage]; };
    for (uint64_t page = 0; page < kPages; ++page) at(page) = 1'000'000 + page;
    Publish(producer.get(), words);
    for (uint64_t page = 3; page < kPages; page += kEvery) at(page) = 2'000'000 + page;
    Hold(true);
    Publish(producer.get(), words, /*await=*/false);
    const uint64_t faults = producer->counters().write_faults;
    // Not the first ones: they are on their way.
    std::thread writer([&] {
      for (uint64_t page = kFrom; page < kPages; ++page) at(page) = 3'000'000 + page;
    });
    if (budget == 64 * kMiB) {
      writer.join();  // there is memory for all copies
      EXPECT_LT(producer->counters().write_faults - faults, (kPages - kFrom) / 8);
    }
    Hold(false);
    if (writer.joinable()) writer.join();
    ASSERT_TRUE(producer->AwaitPublished(words, 0, DeadlineAfterMs(kPatienceMs)).ok());
    const uint64_t* const seen = Observe(observer.get());
    ASSERT_NE(seen, nullptr);
    const auto is = [&](uint64_t page) { return seen[page * kWordsPerPage + page % kWordsPerPage]; };
    for (uint64_t page = 0; page < kPages; ++page) {
      ASSERT_EQ(is(page), (page % kEvery == 3 ? 2'000'000 : 1'000'000) + page);
    }
    Publish(producer.get(), words);
    ASSERT_TRUE(observer->Next(seen, DeadlineAfterMs(kPatienceMs)).ok());
    for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(is(page), at(page)) << page;
    ASSERT_TRUE(observer->Unmap(seen).ok());
    ASSERT_TRUE(producer->Unmap(words).ok());
  }
}

// All threads write to all pages, two upwards and two downwards, so that runs meet. A version has the words that each
// thread had written up to some moment.
TEST_F(FirstWritesTest, RunsOfSeveralThreadsAreCutAtOneMoment) {
  constexpr uint64_t kThreads = 4, kPages = 512;
  auto producer = Open(8 * kMiB);
  auto observer = Open(8 * kMiB);
  uint64_t* const words = Map(producer.get(), kPages);
  const auto place = [](uint64_t thread, uint64_t i) {
    return (thread % 2 == 0 ? i : kPages - 1 - i) * kWordsPerPage + thread * 100;
  };
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (uint64_t thread = 0; thread < kThreads; ++thread) {
    writers.emplace_back([&, thread] {
      for (uint64_t round = 1; !stop; ++round) {
        for (uint64_t i = 0; i < kPages; ++i) words[place(thread, i)] = round;
      }
    });
  }
  const uint64_t* seen = nullptr;
  for (int version = 0; version < 8; ++version) {
    Publish(producer.get(), words);
    if (seen == nullptr) {
      seen = Observe(observer.get());
    } else {
      EXPECT_TRUE(observer->Next(seen, DeadlineAfterMs(kPatienceMs)).ok());
    }
    if (seen == nullptr) break;
    for (uint64_t thread = 0; thread < kThreads; ++thread) {
      uint64_t steps = 0;
      for (uint64_t i = 1; i < kPages; ++i) {
        if (seen[place(thread, i)] == seen[place(thread, i - 1)]) continue;
        ++steps;
        EXPECT_EQ(seen[place(thread, i)] + 1, seen[place(thread, i - 1)]) << "thread " << thread << ", " << i;
      }
      EXPECT_LE(steps, 1u) << "thread " << thread;
    }
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
}

// The versions of a field of one page: version N has N in it.
class VersionsTest : public FirstWritesTest {
 protected:
  VersionsTest() : producer_(Open(8 * kMiB)), word_(Map(producer_.get(), 1)) {}

  absl::StatusOr<uint64_t> PublishNext(WhenFull when_full, int64_t wait_ms = 0) {
    NRAM_ASSIGN_OR_RETURN(
        const uint64_t version,
        producer_->Publish(
            {.bases = {word_}, .header_json = "", .most = 3, .when_full = when_full, .wait_ms = wait_ms}));
    NRAM_RETURN_IF_ERROR(producer_->AwaitPublished(word_, version, DeadlineAfterMs(kPatienceMs)));
    return version;
  }
  // The observers of versions 1 and 2: with the newest one, 3, the limit is reached.
  void ObserveTwo() {
    for (int i = 0; i < 3; ++i) {
      if (i > 0) {
        observers_.push_back(Open(8 * kMiB));
        seen_.push_back(Observe(observers_.back().get()));
        ASSERT_NE(seen_.back(), nullptr);
      }
      word_[0] = i + 1;
      const auto version = PublishNext(WhenFull::kFail);
      ASSERT_TRUE(version.ok()) << version.status();
      ASSERT_EQ(*version, i + 1u);
    }
    word_[0] = 4;
  }

  const std::unique_ptr<Memory> producer_;
  uint64_t* const word_;
  std::vector<std::unique_ptr<Memory>> observers_;
  std::vector<const uint64_t*> seen_;
};

TEST_F(VersionsTest, OneTooManyIsRefusedUntilAnObserverLetsGo) {
  ObserveTwo();
  EXPECT_TRUE(absl::IsOutOfRange(PublishNext(WhenFull::kFail).status()));
  EXPECT_TRUE(absl::IsOutOfRange(PublishNext(WhenFull::kWait, 1).status()));
  EXPECT_EQ(seen_[0][0], 1u);
  EXPECT_EQ(seen_[1][0], 2u);
  const auto newest = observers_[0]->Next(seen_[0], DeadlineAfterMs(kPatienceMs));
  ASSERT_TRUE(newest.ok()) << newest.status();
  EXPECT_EQ(*newest, 3u) << "what was refused has no number";
  const auto version = PublishNext(WhenFull::kFail);
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(*version, 4u);
  EXPECT_EQ(seen_[1][0], 2u);
}

TEST_F(VersionsTest, TheProducerWaitsForAnObserver) {
  ObserveTwo();
  std::thread waits([&] {
    const auto version = PublishNext(WhenFull::kWait, kPatienceMs);
    EXPECT_TRUE(version.ok()) << version.status();
  });
  ASSERT_TRUE(observers_[1]->Unmap(seen_[1]).ok());
  waits.join();
  EXPECT_EQ(seen_[0][0], 1u);
  ASSERT_TRUE(observers_[0]->Next(seen_[0], DeadlineAfterMs(kPatienceMs)).ok());
  EXPECT_EQ(seen_[0][0], 4u);
}

TEST_F(VersionsTest, TheOldestGoesThoughItIsObserved) {
  ObserveTwo();
  const auto version = PublishNext(WhenFull::kDropOldest);
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_EQ(seen_[1][0], 2u) << "it is not the oldest";
  ASSERT_TRUE(observers_[0]->Next(seen_[0], DeadlineAfterMs(kPatienceMs)).ok());
  EXPECT_EQ(seen_[0][0], 4u);
  EXPECT_TRUE(absl::IsInvalidArgument(producer_->Publish({.bases = {word_}, .header_json = "", .most = 1}).status()));
}

}  // namespace
}  // namespace nram
