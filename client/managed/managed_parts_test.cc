// The pure parts of managed memory.

#include <sys/mman.h>

#include <map>
#include <random>
#include <vector>

#include "base/test_seed.h"
#include "base/units.h"
#include "client/managed/extents.h"
#include "client/managed/local_memory.h"
#include "client/managed/order.h"
#include "client/managed/runs.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

TEST(ExtentsTest, NeighboursBecomeOneAndTheSmallestThatFitsIsTaken) {
  Extents extents;
  extents.Give(0, 100);
  extents.Give(200, 50);
  EXPECT_EQ(extents.Take(40), 200u);
  EXPECT_EQ(extents.Take(101), std::nullopt);
  extents.Give(100, 100);
  EXPECT_EQ(extents.count(), 2u);  // 0 to 200, 240 to 250
  extents.Give(200, 40);
  EXPECT_EQ(extents.count(), 1u);
  EXPECT_EQ(extents.Take(250), 0u);
  EXPECT_EQ(extents.free(), 0u);
}

TEST(ExtentsTest, OfTheShortestRangeTheEndIsTaken) {
  Extents extents;
  extents.Give(0, 100);
  extents.Give(200, 50);
  EXPECT_EQ(extents.longest(), 100u);
  EXPECT_EQ(extents.TakeOfShortest(20).begin, 230u);
  const Extents::Range rest = extents.TakeOfShortest(40);
  EXPECT_EQ(rest.begin, 200u);
  EXPECT_EQ(rest.length, 30u);
  EXPECT_EQ(extents.free(), 100u);
}

TEST(ExtentsTest, TakenRangesNeverOverlap) {
  std::mt19937_64 random(TestSeed());
  Extents extents;
  extents.Give(1'000, 100'000);
  std::map<uint64_t, uint64_t> taken;
  uint64_t sum = 0;
  for (int step = 0; step < 20'000; ++step) {
    if (!taken.empty() && random() % 2 == 0) {
      auto at = taken.lower_bound(random() % 101'000);
      if (at == taken.end()) at = taken.begin();
      extents.Give(at->first, at->second);
      sum -= at->second;
      taken.erase(at);
      continue;
    }
    const uint64_t length = 1 + random() % 5'000;
    const std::optional<uint64_t> begin = extents.Take(length);
    if (!begin.has_value()) continue;
    const auto after = taken.lower_bound(*begin);
    ASSERT_TRUE(after == taken.end() || *begin + length <= after->first);
    if (after != taken.begin()) {
      ASSERT_LE(std::prev(after)->first + std::prev(after)->second, *begin);
    }
    taken.emplace(*begin, length);
    sum += length;
    ASSERT_EQ(extents.free(), 100'000 - sum);
  }
  for (const auto& [begin, length] : taken) extents.Give(begin, length);
  EXPECT_EQ(extents.count(), 1u);
}

TEST(OrderTest, ARoundIsLearntInOneAndACycleIsRecognised) {
  Block blocks[20];
  OrderScore score;
  const auto round = [&](int stride) {
    int expected = 0;
    for (int i = 0, at = 0; i < 20; ++i) {
      const int to = (at + stride) % 20;
      expected += blocks[at].next.load() == static_cast<uint32_t>(to + 1);
      LearnOrder(&blocks[at], to + 1, &score);
      at = to;
    }
    return expected;
  };
  EXPECT_EQ(round(1), 0);
  EXPECT_FALSE(score.cycles());
  EXPECT_EQ(round(1), 20);
  EXPECT_TRUE(score.cycles());
  // Another order: the former one is abandoned soon.
  round(3);
  EXPECT_FALSE(score.cycles());
  round(3);
  EXPECT_EQ(round(3), 20);
}

TEST(OrderTest, OneExceptionDoesNotChangeATrustedOrder) {
  Block block;
  OrderScore score;
  for (int i = 0; i < 3; ++i) LearnOrder(&block, 7, &score);
  LearnOrder(&block, 9, &score);
  EXPECT_EQ(block.next.load(), 7u);
}

TEST(OrderTest, RandomAccessStopsFetchingAhead) {
  std::mt19937_64 random(TestSeed());
  Block blocks[1'000];
  OrderScore score;
  for (int i = 0, at = 0; i < 5'000; ++i) {
    const int to = static_cast<int>(random() % 1'000);
    LearnOrder(&blocks[at], to + 1, &score);
    at = to;
  }
  EXPECT_FALSE(score.predicts());
}

// A tenth of local memory may be fetched ahead, and as much memory again is remote: the chance is a twentieth.
TEST(OrderTest, DecayBeginsWhenTouchesAreNoAccident) {
  EXPECT_EQ(BytesToDecay(100, 1'000, 1'000, 0, 60), 0u);
  EXPECT_EQ(BytesToDecay(100, 1'000, 1'000, 1, 60), 0u);
  EXPECT_EQ(BytesToDecay(100, 1'000, 1'000, 2, 60), 80u);
  EXPECT_EQ(BytesToDecay(100, 1'000, 1'000, 2, 100), 1u);
  EXPECT_EQ(BytesToDecay(0, 1'000, 0, 0, 0), 0u);
}

TEST(LocalMemoryTest, BuffersAreUsedAgainAndPagesOfFixedOnesAreZerosAfterwards) {
  LocalMemory memory;
  std::byte* const a = memory.TakeBuffer(64 * kKiB);
  a[5] = std::byte{7};
  memory.GiveBuffer(a, 64 * kKiB, kMiB);
  EXPECT_EQ(memory.kept_bytes(), 64 * kKiB);
  EXPECT_EQ(memory.TakeBuffer(64 * kKiB), a);
  EXPECT_EQ(a[5], std::byte{7});
  memory.GiveBuffer(a, 64 * kKiB, 0);
  EXPECT_EQ(memory.kept_bytes(), 0u);
  std::byte* const b = memory.TakeFixed(64 * kKiB);
  EXPECT_EQ(b[5], std::byte{0});
  b[5] = std::byte{8};
  LocalMemory::DropPages(b, 64 * kKiB);
  EXPECT_EQ(b[5], std::byte{0});
}

TEST(LocalMemoryTest, PartsOfBuffersAreKeptAndNeighboursBecomeOne) {
  LocalMemory memory;
  std::byte* const a = memory.TakeBuffer(64 * kKiB);
  memory.GiveBuffer(a + 16 * kKiB, 16 * kKiB, kMiB);
  memory.GiveBuffer(a, 16 * kKiB, kMiB);
  EXPECT_EQ(memory.TakeBuffer(32 * kKiB), a);
  // Not a page alone, which would leave a piece of no use.
  std::byte* const b = memory.TakeBuffer(256 * kKiB);
  memory.GiveBuffer(b, 256 * kKiB, 256 * kKiB);
  memory.Shrink(256 * kKiB - 1);
  EXPECT_EQ(memory.longest_kept_bytes(), 192 * kKiB);
  EXPECT_EQ(memory.TakeBuffer(192 * kKiB), b);
}

TEST(RunsTest, NeighboursAreOneRunUpToARequest) {
  Block blocks[6];
  std::byte* const data = reinterpret_cast<std::byte*>(uint64_t{1} << 30);
  std::vector<Block*> all;
  for (int i : {3, 0, 5, 1, 4, 2}) {
    blocks[i].bytes = 100 * kKiB;
    blocks[i].offset = i * 100 * kKiB;
    blocks[i].data = data + blocks[i].offset;
    all.push_back(&blocks[i]);
  }
  const auto lengths = [&] {
    std::vector<size_t> found;
    ForEachRun(&all, [&](BlockRun run) { found.push_back(run.size()); });
    return found;
  };
  EXPECT_EQ(lengths(), std::vector<size_t>({2, 2, 2}));
  blocks[1].data = nullptr;  // elsewhere
  EXPECT_EQ(lengths(), std::vector<size_t>({1, 1, 2, 2}));
  blocks[4].offset = kGiB;
  EXPECT_EQ(lengths(), std::vector<size_t>({1, 1, 2, 1, 1}));
  blocks[2].bytes = kMiB;  // more than a request, alone
  EXPECT_EQ(lengths(), std::vector<size_t>({1, 1, 1, 1, 1, 1}));
}

// The program may lock its memory by mlockall(2).
TEST(LocalMemoryTest, PagesThatAreLockedGoToo) {
  LocalMemory memory;
  std::byte* const data = memory.TakeFixed(16 * kKiB);
  ASSERT_EQ(mlock(data, 16 * kKiB), 0);
  data[5] = std::byte{7};
  LocalMemory::DropPages(data, 16 * kKiB);
  EXPECT_EQ(data[5], std::byte{0});
}

}  // namespace
}  // namespace nram
