// The parts of the memory engine that need no pool and no faults: page states, streams, queues, the ghost filter,
// sums of chunks, budgets and their limits, lines for stderr, lanes of servers.

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/units.h"
#include "client/memory/budget.h"
#include "client/memory/chunk_sums.h"
#include "client/memory/eviction_queue.h"
#include "client/memory/ghost_filter.h"
#include "client/memory/page_state.h"
#include "client/memory/residency.h"
#include "client/memory/server_lanes.h"
#include "client/memory/stderr_lines.h"
#include "client/memory/streams.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

TEST(PageWordTest, StatesAndFlagsAreApart) {
  PageWord word{};
  EXPECT_EQ(word.state(), PageState::kEmpty);
  EXPECT_FALSE(word.Set(PageWord::kQueued));
  EXPECT_TRUE(word.Set(PageWord::kQueued));
  EXPECT_TRUE(word.Change(PageState::kEmpty, PageState::kBusy));
  EXPECT_FALSE(word.Change(PageState::kEmpty, PageState::kClean));
  EXPECT_TRUE(word.WaitFor(PageState::kBusy));
  EXPECT_FALSE(word.WaitFor(PageState::kWriting));
  EXPECT_TRUE(word.End(PageState::kDirty));
  EXPECT_EQ(word.state(), PageState::kDirty);
  EXPECT_FALSE(word.Has(PageWord::kWaiter));
  EXPECT_TRUE(word.Has(PageWord::kQueued));
  EXPECT_FALSE(word.End(PageState::kClean));
}

TEST(StderrLinesTest, NobodyWaitsForStderrThatIsStuck) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC | O_NONBLOCK), 0);
  const UniqueFd out(ends[0]), in(ends[1]), stderr_before(dup(STDERR_FILENO));
  while (write(in.get(), "x", 1) == 1) {
  }
  ASSERT_EQ(fcntl(in.get(), F_SETFL, 0), 0);
  ASSERT_EQ(fcntl(out.get(), F_SETFL, 0), 0);
  ASSERT_EQ(dup2(in.get(), STDERR_FILENO), STDERR_FILENO);
  for (int i = 0; i < 200; ++i) StderrLines::Get().Write(absl::StrCat("line ", i));
  std::string text;
  char some[4096];
  while (text.find("line 63\n") == std::string::npos) {
    text.append(some, static_cast<size_t>(read(out.get(), some, sizeof(some))));
  }
  StderrLines::Get().Write("one more");
  while (text.find("one more\n") == std::string::npos) {
    text.append(some, static_cast<size_t>(read(out.get(), some, sizeof(some))));
  }
  ASSERT_EQ(dup2(stderr_before.get(), STDERR_FILENO), STDERR_FILENO);
  EXPECT_NE(text.find("line 0\n"), std::string::npos);
  EXPECT_EQ(text.find("line 64\n"), std::string::npos) << "what is beyond the bound is dropped";
}

std::unique_ptr<Segment> NewSegment(uint64_t pages) {
  return std::make_unique<Segment>(*Mapping::Anonymous(pages * 4096), *Mapping::Anonymous(RoundUp(pages, 4096)), 4096,
                                   nullptr);
}

TEST(SegmentTest, UnmappingWaitsForTheLastUser) {
  const auto segment = NewSegment(1);
  SegmentRef first(segment.get());
  SegmentRef second = first.Share();
  std::atomic<bool> unused{false};
  std::thread unmapper([&] {
    segment->AwaitUnused();
    unused = true;
  });
  first.Reset();
  EXPECT_FALSE(unused);
  second.Reset();
  unmapper.join();
  EXPECT_TRUE(unused);
}

TEST(StreamsTest, GoesUpInGrowingWindows) {
  const auto segment = NewSegment(10'000);
  Streams streams(256);
  uint64_t page = 100;
  std::vector<uint64_t> counts;
  for (int i = 0; i < 6; ++i) {
    const StreamPlan plan = streams.OnFault(*segment, page, false);
    EXPECT_EQ(plan.demand.first, page);
    EXPECT_FALSE(plan.writable);
    counts.push_back(plan.demand.count);
    page += plan.demand.count;
    if (plan.ahead.count > 0) {
      EXPECT_EQ(plan.ahead.first, page);
    }
  }
  EXPECT_EQ(counts, (std::vector<uint64_t>{1, 4, 16, 64, 256, 256}));
}

TEST(StreamsTest, GoesOnThoughOthersGoHereAndThere) {
  const auto segment = NewSegment(100'000);
  Streams streams(64);
  uint64_t page = 0;
  for (int i = 0; i < 4; ++i) page += streams.OnFault(*segment, page, false).demand.count;
  for (uint64_t i = 0; i < 100; ++i) streams.OnFault(*segment, 1'000 + 1'000 * (i * 37 % 97), false);
  EXPECT_EQ(streams.OnFault(*segment, page, false).demand.count, 64u);
  // A stream does not live for ever: other streams need the places.
  for (uint64_t i = 0; i < 1'000; ++i) streams.OnFault(*segment, 1'000 + 1'000 * (i * 37 % 97), false);
  EXPECT_EQ(streams.OnFault(*segment, page + 64, false).demand.count, 1u);
}

TEST(StreamsTest, GoesDownAndStopsAtTheBeginning) {
  const auto segment = NewSegment(1'000);
  Streams streams(256);
  uint64_t page = 30;
  uint64_t brought = 0;
  while (true) {
    const StreamPlan plan = streams.OnFault(*segment, page, false);
    EXPECT_EQ(plan.demand.at(0), page);
    brought += plan.demand.count;
    EXPECT_LE(plan.demand.count, page + 1);
    if (plan.demand.lowest() == 0) break;
    page -= plan.demand.count;
  }
  EXPECT_EQ(brought, 31u);
}

TEST(StreamsTest, WindowsThatWereReadAheadLeadOn) {
  const auto segment = NewSegment(10'000);
  Streams streams(64);
  StreamPlan plan = streams.OnFault(*segment, 0, false);
  plan = streams.OnFault(*segment, 1, false);
  plan = streams.OnFault(*segment, 5, false);
  ASSERT_GT(plan.ahead.count, 0u);
  for (int i = 0; i < 10; ++i) {
    const nram::Run used = plan.ahead;
    plan = streams.OnAheadUsed(*segment, used);
    ASSERT_EQ(plan.ahead.first, used.first + used.count);
  }
  // Not twice for the same window.
  EXPECT_EQ(streams.OnAheadUsed(*segment, {21, 32, 1}).ahead.count, 0u);
}

TEST(StreamsTest, TheWindowMayChange) {
  const auto segment = NewSegment(100'000);
  Streams streams(64);
  uint64_t page = 0;
  const auto widest = [&] {
    uint64_t most = 0;
    for (int i = 0; i < 8; ++i) {
      const StreamPlan plan = streams.OnFault(*segment, page, false);
      EXPECT_LE(plan.ahead.count, 256u);
      most = std::max(most, plan.demand.count);
      page += plan.demand.count;
    }
    return most;
  };
  EXPECT_EQ(widest(), 64u);
  streams.SetWindow(256);
  EXPECT_EQ(widest(), 256u);
  streams.SetWindow(4);
  EXPECT_EQ(widest(), 4u);
}

TEST(StreamsTest, RandomFaultsBringOnePageEach) {
  const auto segment = NewSegment(1'000'000);
  Streams streams(256);
  for (uint64_t i = 1; i < 1'000; ++i) {
    EXPECT_EQ(streams.OnFault(*segment, i * 7'919 * 31 % 1'000'000, i % 2 == 0).demand.count, 1u) << i;
  }
  segment->read_ahead = ReadAhead::kNever;
  for (uint64_t i = 0; i < 100; ++i) EXPECT_EQ(streams.OnFault(*segment, i, false).demand.count, 1u);
  segment->read_ahead = ReadAhead::kSequential;
  EXPECT_EQ(streams.OnFault(*segment, 500'000, false).demand.count, 256u);
}

TEST(StreamsTest, WritersGetWritableWindowsAndAreAskedAgain) {
  const auto segment = NewSegment(100'000);
  Streams streams(16);
  uint64_t page = 0;
  int writable = 0;
  for (int i = 0; i < 200; ++i) {
    const StreamPlan plan = streams.OnFault(*segment, page, false);
    writable += plan.writable;
    if (!plan.writable) {
      const nram::Run run = streams.OnFirstWrite(*segment, page).run;
      EXPECT_EQ(run.first, page);
      EXPECT_LE(run.count, 2 * 16u);
    }
    page += plan.demand.count;
  }
  EXPECT_GT(writable, 170);
  EXPECT_LT(writable, 200);
  // The stream stops writing, which is noticed.
  writable = 0;
  for (int i = 0; i < 200; ++i) {
    const StreamPlan plan = streams.OnFault(*segment, page, false);
    writable += plan.writable;
    page += plan.demand.count;
  }
  EXPECT_LT(writable, 17);
}

TEST(StreamsTest, SeveralAtATimeDoNotMix) {
  const auto a = NewSegment(10'000), b = NewSegment(10'000);
  Streams streams(64);
  uint64_t at[2] = {0, 0};
  for (int i = 0; i < 20; ++i) {
    for (int k = 0; k < 2; ++k) {
      const StreamPlan plan = streams.OnFault(k == 0 ? *a : *b, at[k], k == 1);
      EXPECT_EQ(plan.writable, k == 1 && (plan.writable || i > 0));
      at[k] += plan.demand.count;
    }
  }
  EXPECT_GT(at[0], 1'000u);
  EXPECT_EQ(at[0], at[1]);
}

class EvictionQueueTest : public ::testing::TestWithParam<Policy> {};

TEST_P(EvictionQueueTest, GivesEachPageOnce) {
  auto queue = EvictionQueue::New(GetParam(), 1'000).value();
  std::multiset<uintptr_t> in, out;
  uintptr_t next = 1, taken[64];
  for (int round = 0; round < 500; ++round) {
    for (int i = 0; i < 60 && queue->size() < queue->capacity(); ++i) {
      in.insert(next);
      queue->Add(next++);
    }
    if (round % 50 == 7) {
      queue->RemoveIf([&](uintptr_t page) {
        if (page % 10 != 0) return false;
        in.erase(in.find(page));
        return true;
      });
    }
    const size_t count = queue->Take(taken, 64);
    for (size_t i = 0; i < count; ++i) {
      if (GetParam() != Policy::kRandom && i > 0) {
        EXPECT_GT(taken[i], taken[i - 1]);
      }
      out.insert(taken[i]);
    }
  }
  while (const size_t count = queue->Take(taken, 64)) out.insert(taken, taken + count);
  EXPECT_EQ(in, out);
}

TEST_P(EvictionQueueTest, TakesAsMuchMemoryAsItHoldsEntries) {
  constexpr size_t kMost = 10'000'000, kSome = 100'000;
  auto queue = EvictionQueue::New(GetParam(), kMost).value();
  EXPECT_EQ(queue->capacity(), kMost);
  std::vector<uintptr_t> taken(kSome);
  // Five million entries pass through the queue.
  for (uintptr_t page = 1; page < 5'000'000; ++page) {
    queue->Add(page);
    if (queue->size() == kSome) {
      ASSERT_EQ(queue->Take(taken.data(), kSome / 2), kSome / 2);
    }
  }
  EXPECT_LE(queue->memory_bytes(), 2 * kSome * sizeof(uintptr_t));
  EXPECT_GE(queue->memory_bytes(), queue->size() * sizeof(uintptr_t));
  while (queue->Take(taken.data(), kSome) > 0) {
  }
  queue->Trim();
  EXPECT_EQ(queue->memory_bytes(), 0u);
  queue->Add(5);
  queue->Add(6);
  EXPECT_EQ(queue->Take(taken.data(), kSome), 2u);
  EXPECT_EQ(taken[0] + taken[1], 11u);
}

INSTANTIATE_TEST_SUITE_P(Policies, EvictionQueueTest,
                         ::testing::Values(Policy::kSecondChance, Policy::kFifo, Policy::kRandom));

TEST(GhostFilterTest, KnowsTheLastGenerationAndForgets) {
  constexpr uint64_t kGeneration = 10'000;
  GhostFilter filter(kGeneration, kGeneration);
  for (uintptr_t page = 0; page < 10 * kGeneration; ++page) {
    filter.Note(page * 4096);
    if (page >= kGeneration) {
      ASSERT_TRUE(filter.Knows((page - kGeneration / 2) * 4096));
    }
  }
  int wrong = 0;
  for (uintptr_t page = 0; page < 7 * kGeneration; ++page) wrong += filter.Knows(page * 4096);
  EXPECT_LT(wrong, static_cast<int>(7 * kGeneration / 4));
  EXPECT_LE(filter.memory_bytes(), kGeneration * 2.1);
}

TEST(GhostFilterTest, FollowsItsSize) {
  constexpr uint64_t kMost = 1'000'000;
  GhostFilter filter(1'000, kMost);
  for (const uint64_t generation : {uint64_t{10'000}, kMost, uint64_t{100}, uint64_t{50'000}}) {
    filter.Resize(generation);
    EXPECT_LE(filter.memory_bytes(), generation * 2.1 + 64);
    for (uintptr_t page = 0; page < generation; ++page) filter.Note(page * 4096);
    for (uintptr_t page = 0; page < generation; ++page) ASSERT_TRUE(filter.Knows(page * 4096)) << generation;
  }
}

// The memory of forgotten sums must serve nothing else: a stale sum would lose a change.
TEST(ChunkSumsResizeTest, ForgetsAllAndKnowsNothingStale) {
  auto sums = ChunkSums::New(4096, 1024);
  ASSERT_TRUE(sums.ok());
  std::vector<std::byte> data(4096, std::byte{7});
  ChunkMask mask = 0;
  for (const uint64_t pages : {2048u, 1024u, 16u, 4096u, 1024u}) {
    for (uintptr_t page = 1; page <= 16; ++page) (*sums)->Note(page * 4096, data.data());
    ASSERT_TRUE((*sums)->Resize(pages).ok());
    EXPECT_EQ((*sums)->pages(), pages);
    for (uintptr_t page = 1; page <= 16; ++page) {
      (*sums)->Take(page * 4096, data.data(), absl::MakeSpan(&mask, 1));
      ASSERT_EQ(mask, kAllChunks);
    }
  }
}

TEST(ChunkSumsResizeTest, MayChangeWhileOthersUseThem) {
  auto sums = ChunkSums::New(4096, 1024);
  ASSERT_TRUE(sums.ok());
  std::atomic<bool> stop{false};
  std::vector<std::thread> users;
  for (uintptr_t user = 1; user <= 2; ++user) {
    users.emplace_back([&, user] {
      std::vector<std::byte> data(4096);
      ChunkMask mask = 0;
      for (uintptr_t page = 0; !stop; page = (page + 1) % 2000) {
        data[0] = static_cast<std::byte>(page);
        (*sums)->Note((user << 32) + page * 4096, data.data());
        (*sums)->Take((user << 32) + page * 4096, data.data(), absl::MakeSpan(&mask, 1));
        EXPECT_TRUE(mask == kAllChunks || mask == 0);
      }
    });
  }
  for (uint64_t i = 0; i < 300; ++i) EXPECT_TRUE((*sums)->Resize(16 + i * 37 % 4000).ok());
  stop = true;
  for (std::thread& user : users) user.join();
}

TEST(BudgetShapeTest, AllPartsTogetherAreTheBudget) {
  for (const uint64_t page_bytes : {4096u, 65536u, 1u << 20}) {
    const BudgetShape shape{page_bytes, 4};
    const uint64_t sum = ChunkSums::BytesPerPage(page_bytes);
    EXPECT_GE(shape.LimitPages(shape.LeastBytes()), BudgetShape::kPagesMin / 2);
    for (uint64_t bytes = shape.LeastBytes(); bytes < 64 * kGiB; bytes += bytes / 3) {
      const uint64_t pages = shape.LimitPages(bytes);
      const uint64_t rest = (BudgetShape::kBuffers * shape.WindowPages(bytes) + 4) * page_bytes;
      EXPECT_LE(pages * (page_bytes + sum) + rest, bytes);
      EXPECT_GE((pages + 1) * (page_bytes + sum) + rest, bytes);
      EXPECT_LE(shape.LimitPages(bytes, 2 * pages), pages);
      EXPECT_LE(shape.LimitPages(bytes, 2 * pages) * page_bytes + 2 * pages * sum + rest, bytes);
      EXPECT_GE(shape.LimitPages(shape.BytesFor(pages)), pages);
      EXPECT_GE(shape.LimitPages(shape.BytesFor(pages), 2 * pages), pages);
    }
  }
}

class ResidencyTest : public ::testing::Test {
 protected:
  static constexpr uint64_t kLimit = 10'000, kMost = 100'000, kWindow = 16;
  std::unique_ptr<Residency> residency_ = Residency::New(Policy::kFifo, kLimit, kWindow, kMost, nullptr).value();
  bool CanTake(uint64_t pages) { return residency_->TakeBudget(pages, MonotonicNs()).ok(); }
};

TEST_F(ResidencyTest, ALargerLimitIsThereAtOnce) {
  ASSERT_TRUE(CanTake(kLimit));
  EXPECT_FALSE(CanTake(1));
  std::thread waiter([&] { EXPECT_TRUE(residency_->TakeBudget(500, DeadlineAfterMs(60'000)).ok()); });
  residency_->SetLimit(kLimit + 1'000, kWindow);
  waiter.join();
  EXPECT_TRUE(CanTake(500));
  EXPECT_FALSE(CanTake(1));
}

TEST_F(ResidencyTest, WhileTooManyAreHereFaultsHaveAnEighthOfWhatLeaves) {
  ASSERT_TRUE(CanTake(kLimit));
  constexpr uint64_t kGoal = kLimit / 4;
  residency_->SetLimit(kGoal, kWindow);
  EXPECT_EQ(residency_->limit_pages(), kGoal);
  EXPECT_GE(residency_->Wanted(), kLimit - kGoal);
  EXPECT_FALSE(CanTake(1)) << "nothing has left yet";
  uint64_t left = 0, taken = 0;
  while (residency_->Wanted() > 0) {
    residency_->ReturnBudget(1);
    ++left;
    while (CanTake(1)) ++taken;
    ASSERT_LT(left, 2 * kLimit) << "faults hold up what has to leave";
    if (residency_->resident_pages() <= kGoal) break;
  }
  EXPECT_GE(taken, left / 9);
  EXPECT_LE(taken, left / 7);
  // The limit has its right value now.
  while (residency_->resident_pages() > kGoal / 2) residency_->ReturnBudget(1);
  while (CanTake(1)) {
  }
  EXPECT_EQ(residency_->resident_pages(), kGoal);
}

TEST_F(ResidencyTest, PartsThatFaultsDoNotUseAreNotKeptForThem) {
  ASSERT_TRUE(CanTake(kLimit));
  residency_->SetLimit(kLimit / 4, kWindow);
  while (residency_->Wanted() > 0) residency_->ReturnBudget(64);
  while (CanTake(1)) {
  }
  EXPECT_EQ(residency_->resident_pages(), kLimit / 4);
}

TEST_F(ResidencyTest, TheQueueHoldsMoreThanTheLimitWhileItFalls) {
  SegmentIndex index;
  const auto residency = Residency::New(Policy::kFifo, kLimit, kWindow, kMost, &index).value();
  index.Add(NewSegment(kLimit));
  const SegmentRef segment = index.Find(reinterpret_cast<uintptr_t>(index.First()));
  ASSERT_TRUE(residency->TakeBudget(kLimit, MonotonicNs()).ok());
  for (uint64_t page = 0; page < kLimit; ++page) segment->word(page).Change(PageState::kEmpty, PageState::kClean);
  residency->SetLimit(kLimit / 10, kWindow);
  residency->Enter(*segment.get(), 0, kLimit);
  std::vector<uintptr_t> keys(kLimit);
  EXPECT_EQ(residency->Take(keys.data(), kLimit), kLimit);
  for (uint64_t page = 0; page < kLimit; ++page) EXPECT_EQ(keys[page], segment->key(page));
  residency->Trim();
  EXPECT_LT(residency->metadata_bytes(), kLimit * 8);
}

class ChunkSumsTest : public ::testing::TestWithParam<size_t> {};

TEST_P(ChunkSumsTest, KnowWhichChunksDiffer) {
  const size_t page_bytes = GetParam();
  auto sums = ChunkSums::New(page_bytes, 1024);
  ASSERT_TRUE(sums.ok());
  std::vector<std::byte> data(page_bytes, std::byte{7});
  std::vector<ChunkMask> masks(page_bytes / kPageBytes);
  const auto take = [&](uintptr_t page) {
    (*sums)->Take(page, data.data(), absl::MakeSpan(masks));
    return masks;
  };
  const std::vector<ChunkMask> all(masks.size(), kAllChunks), none(masks.size(), 0);
  const uintptr_t page = 1000 * page_bytes;
  EXPECT_EQ(take(page), all);
  (*sums)->Note(page, data.data());
  EXPECT_EQ(take(page), none);
  EXPECT_EQ(take(page), all) << "forgotten once it is taken";
  for (size_t chunk = 0; chunk < page_bytes / kChunkBytes; ++chunk) {
    (*sums)->Note(page, data.data());
    data[chunk * kChunkBytes + chunk % kChunkBytes] ^= std::byte{1};
    std::vector<ChunkMask> one = none;
    one[chunk / kChunksPerPage] = static_cast<ChunkMask>(1 << chunk % kChunksPerPage);
    ASSERT_EQ(take(page), one);
  }
  // The last note counts.
  (*sums)->Note(page, data.data());
  data[0] ^= std::byte{1};
  (*sums)->Note(page, data.data());
  EXPECT_EQ(take(page), none);
}

TEST_P(ChunkSumsTest, KnowMostOfAsManyPagesAsTheyWereMadeFor) {
  const size_t page_bytes = GetParam();
  constexpr uint64_t kPages = 1024;
  auto sums = ChunkSums::New(page_bytes, kPages);
  ASSERT_TRUE(sums.ok());
  EXPECT_LE((*sums)->memory_bytes(), kPages * ChunkSums::BytesPerPage(page_bytes));
  std::vector<std::byte> data(page_bytes);
  std::vector<ChunkMask> masks(page_bytes / kPageBytes);
  for (int round = 0; round < 3; ++round) {
    uint64_t known = 0;
    for (uintptr_t page = 1; page <= kPages; ++page) {
      data[0] = static_cast<std::byte>(page);
      (*sums)->Note(page * page_bytes, data.data());
    }
    for (uintptr_t page = 1; page <= kPages; ++page) {
      data[0] = static_cast<std::byte>(page);
      (*sums)->Take(page * page_bytes, data.data(), absl::MakeSpan(masks));
      known += masks[0] == 0;
    }
    EXPECT_GE(known, kPages * 3 / 4);
  }
}

INSTANTIATE_TEST_SUITE_P(PageSizes, ChunkSumsTest, ::testing::Values(4096, 65536, 1 << 20));

class ServerLanesTest : public ::testing::Test {
 protected:
  using Servers = ServerLanes::Servers;
  static constexpr size_t kLanes = 12;
  static constexpr int64_t kPatience = 100;

  // Runs of these servers, until they have their share. Returns how many.
  size_t Fill(const Servers& servers, int64_t now) {
    size_t count = 0;
    for (size_t free; (free = lanes_.FindFree(servers, /*beyond=*/false)) < kLanes; ++count) {
      lanes_.Begin(free, servers, now);
    }
    return count;
  }
  void End(size_t lane, int64_t now) {
    lanes_.NoteEnded(lane, now);
    lanes_.Free(lane);
  }

  ServerLanes lanes_{kLanes, kPatience};
};

TEST_F(ServerLanesTest, AServerOfOneCopyHasHalf) {
  EXPECT_EQ(Fill({7}, 0), kLanes / 2);
  EXPECT_LT(lanes_.FindFree({7}, /*beyond=*/true), kLanes);
  EXPECT_FALSE(lanes_.IsBehind({7}, kPatience - 1));
  EXPECT_TRUE(lanes_.IsBehind({7}, kPatience));
  EXPECT_FALSE(lanes_.IsBehind({3}, kPatience));
  EXPECT_EQ(Fill({3}, 0), kLanes / 2);
  EXPECT_EQ(lanes_.FindFree({}, /*beyond=*/true), kLanes);
}

TEST_F(ServerLanesTest, APlacelessPageIsOfAServerOfItsOwn) {
  EXPECT_EQ(Fill({}, 0), kLanes / 2);
  EXPECT_TRUE(lanes_.IsBehind({}, kPatience));
  EXPECT_FALSE(lanes_.IsBehind({0}, kPatience));
}

// The slow server is not the first one, and many servers are before it.
TEST_F(ServerLanesTest, ALaneCountsForTheServersOfAllCopies) {
  const uint16_t frozen = 9;
  size_t lane = 0;
  for (uint16_t first = 0; first < 4; ++first) {
    for (int i = 0; i < 2; ++i) {
      ASSERT_FALSE(lanes_.IsBehind({first, frozen}, 0));
      lane = lanes_.FindFree({first, frozen}, /*beyond=*/false);
      ASSERT_LT(lane, kLanes);
      lanes_.Begin(lane, {first, frozen}, 0);
    }
  }
  // It has two thirds, although no other has more than a sixth.
  EXPECT_EQ(lanes_.FindFree({4, frozen}, /*beyond=*/false), kLanes);
  EXPECT_TRUE(lanes_.IsBehind({4, frozen}, kPatience));
  EXPECT_TRUE(lanes_.IsBehind({frozen, 4}, kPatience));
  // Pages that have no copy there go on, also those of the servers that have lanes with it.
  EXPECT_FALSE(lanes_.IsBehind({0, 1}, kPatience));
  const size_t free = lanes_.FindFree({0, 1}, /*beyond=*/false);
  ASSERT_LT(free, kLanes);
  lanes_.Begin(free, {0, 1}, kPatience);
  EXPECT_FALSE(lanes_.IsStuck(free, kPatience));
  End(free, kPatience + 1);
  // The first copy's server is well. The run is stuck all the same.
  EXPECT_TRUE(lanes_.IsStuck(0, kPatience + 1));
  // It goes on.
  End(lane, kPatience + 2);
  EXPECT_FALSE(lanes_.IsBehind({4, frozen}, kPatience + 2));
  EXPECT_FALSE(lanes_.IsStuck(0, kPatience + 2));
  EXPECT_LT(lanes_.FindFree({4, frozen}, /*beyond=*/false), kLanes);
}

TEST_F(ServerLanesTest, ServersThatShareAllPagesHaveMoreThanHalf) {
  EXPECT_EQ(Fill({0, 1}, 0), 8u);
  EXPECT_EQ(Fill({2, 3}, 0), 4u);
}

}  // namespace
}  // namespace nram
