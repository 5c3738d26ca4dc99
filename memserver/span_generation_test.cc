// Generations of spans: a copy that has missed a change refuses by itself (adr/0014).

#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "memserver/page_store_fixture.h"

namespace nram {
namespace {

using IfAbsent = PageStore::IfAbsent;

class SpanGenerationTest : public PageStoreTest {
 protected:
  Reason WriteAt(uint32_t generation, ChunkRange range, char fill, IfAbsent absent = IfAbsent::kRefuse) {
    generation_ = SpanGeneration{generation};
    absent_ = absent;
    return Write(range, std::string(range.bytes(), fill));
  }
  Reason RaiseTo(uint32_t generation, uint64_t page = 0) {
    generation_ = SpanGeneration{generation};
    absent_ = IfAbsent::kRefuse;
    const ChunkMask none = 0;
    return Write({page * kChunksPerPage, 8}, std::string(kPageBytes, 'x'), {&none, 1});
  }
  Reason TrimAt(uint32_t generation, ChunkRange range) {
    return store_.Trim(lease_.get(),
                       {.region = kRegion, .epoch = 1, .range = range, .generation = SpanGeneration{generation}});
  }
  // Empty: refused.
  std::string ReadAt(uint32_t generation, ChunkRange range) {
    generation_ = SpanGeneration{generation};
    return Read(range);
  }
  static std::string Page(char fill) { return std::string(kPageBytes, fill); }
};

TEST_F(SpanGenerationTest, OnlyItsOwnIsReadAndALowerOneIsRefused) {
  ASSERT_EQ(WriteAt(4, {0, 8}, 'a', IfAbsent::kCreate), Reason::kOk);
  EXPECT_EQ(ReadAt(4, {0, 8}), Page('a'));
  for (const uint32_t other : {0, 2, 3, 5, 6}) EXPECT_EQ(ReadAt(other, {0, 8}), "") << other;
  for (const uint32_t lower : {0, 2, 3}) {
    EXPECT_EQ(WriteAt(lower, {0, 8}, 'b'), Reason::kOtherGeneration) << lower;
    EXPECT_EQ(WriteAt(lower, {8, 8}, 'b', IfAbsent::kCreate), Reason::kOtherGeneration) << lower;
    EXPECT_EQ(TrimAt(lower, {0, 8}), Reason::kOtherGeneration) << lower;
  }
  EXPECT_EQ(ReadAt(4, {0, 16}), Page('a') + Page('\0'));
}

TEST_F(SpanGenerationTest, AHigherOneRaises) {
  ASSERT_EQ(WriteAt(2, {0, 8}, 'a', IfAbsent::kCreate), Reason::kOk);
  EXPECT_EQ(RaiseTo(4), Reason::kOk);
  EXPECT_EQ(ReadAt(2, {0, 8}), "");
  EXPECT_EQ(ReadAt(4, {0, 8}), Page('a'));
  EXPECT_EQ(WriteAt(6, {8, 8}, 'b'), Reason::kOk);
  EXPECT_EQ(TrimAt(8, {8, 8}), Reason::kOk);
  EXPECT_EQ(ReadAt(8, {0, 16}), Page('a') + Page('\0'));
}

TEST_F(SpanGenerationTest, NothingIsThereUntilItIsCreated) {
  EXPECT_EQ(WriteAt(2, {0, 8}, 'a'), Reason::kUnknownRegion);
  ASSERT_EQ(WriteAt(2, {0, 8}, 'a', IfAbsent::kCreate), Reason::kOk);
  const ChunkRange other{kChunksPerSpan, 8};
  EXPECT_EQ(WriteAt(2, other, 'a'), Reason::kOtherGeneration) << "another span of the region";
  EXPECT_EQ(RaiseTo(4, kPagesPerSpan), Reason::kOtherGeneration);
  EXPECT_EQ(ReadAt(2, other), "") << "zeros would be wrong";
  EXPECT_EQ(WriteAt(2, other, '\0', IfAbsent::kCreate), Reason::kOk);
  EXPECT_EQ(ReadAt(2, other), Page('\0')) << "a span of zeros is a copy too";
}

TEST_F(SpanGenerationTest, CreatingAnewEmptiesAFormerCopy) {
  ASSERT_EQ(WriteAt(2, {0, 16}, 'a', IfAbsent::kCreate), Reason::kOk);
  ASSERT_EQ(WriteAt(3, {8, 8}, 'b', IfAbsent::kCreate), Reason::kOk);
  EXPECT_EQ(ReadAt(3, {0, 16}), Page('\0') + Page('b'));
  EXPECT_EQ(store_.counters().pages.load(), 1);
  EXPECT_EQ(WriteAt(3, {0, 8}, 'c', IfAbsent::kCreate), Reason::kOk);
  EXPECT_EQ(ReadAt(3, {0, 16}), Page('c') + Page('b')) << "of its own generation it empties nothing";
}

TEST_F(SpanGenerationTest, ItOutlivesTheLastPage) {
  ASSERT_EQ(WriteAt(2, {0, kChunksPerMessage}, 'a', IfAbsent::kCreate), Reason::kOk);
  const uint64_t with_pages = arena_->usage().index_bytes;
  EXPECT_EQ(TrimAt(4, {0, kChunksPerSpan}), Reason::kOk);
  EXPECT_LT(arena_->usage().index_bytes, with_pages - 700) << "of its 64 entries nothing is kept";
  EXPECT_EQ(ReadAt(2, {0, 8}), "");
  EXPECT_EQ(ReadAt(0, {0, 8}), "");
  EXPECT_EQ(ReadAt(4, {0, 8}), Page('\0'));
  EXPECT_EQ(WriteAt(4, {0, 8}, '\0'), Reason::kOk);
  EXPECT_EQ(ReadAt(4, {0, 8}), Page('\0'));
  EXPECT_EQ(WriteAt(2, {0, 8}, 'a', IfAbsent::kCreate), Reason::kOtherGeneration);
  EXPECT_EQ(store_.List(0, 0, 10, false, false).at(0).spans, 0u) << "nobody shows an empty span";
}

TEST_F(SpanGenerationTest, ADestroyedRegionLeavesNothing) {
  const uint64_t before = arena_->usage().index_bytes;
  // More empty spans than are freed in a step, and then one with pages.
  for (uint64_t span = 0; span < 300; ++span) {
    ASSERT_EQ(WriteAt(2, {span * kChunksPerSpan, 8}, 'a', IfAbsent::kCreate), Reason::kOk);
  }
  ASSERT_EQ(TrimAt(2, {0, 299 * kChunksPerSpan}), Reason::kOk);
  ASSERT_EQ(store_.Destroy(lease_.get(), kRegion, 1), Reason::kOk);
  EXPECT_EQ(arena_->usage().index_bytes, before);
  EXPECT_EQ(store_.counters().pages.load(), 0);
}

TEST_F(SpanGenerationTest, ATrimOfManySpansRaisesAllOrStops) {
  for (uint64_t span = 0; span < 100; ++span) {
    const uint32_t generation = span == 90 ? 8 : 2;
    ASSERT_EQ(WriteAt(generation, {span * kChunksPerSpan, 8}, 'a', IfAbsent::kCreate), Reason::kOk);
  }
  EXPECT_EQ(TrimAt(4, {0, 100 * kChunksPerSpan}), Reason::kOtherGeneration);
  EXPECT_EQ(ReadAt(4, {0, 8}), Page('\0')) << "a former step";
  EXPECT_EQ(ReadAt(2, {80 * kChunksPerSpan, 8}), Page('a')) << "the refused step has done nothing";
  EXPECT_EQ(TrimAt(8, {0, 100 * kChunksPerSpan}), Reason::kOk);
  for (const uint64_t span : {0, 80, 90, 99}) EXPECT_EQ(ReadAt(8, {span * kChunksPerSpan, 8}), Page('\0')) << span;
}

TEST_F(SpanGenerationTest, ARefusedWriteSaysHowManyPagesItStored) {
  ASSERT_EQ(WriteAt(2, {0, 8}, 'a', IfAbsent::kCreate), Reason::kOk);
  // An empty span beside it.
  ASSERT_EQ(WriteAt(2, {kChunksPerSpan, 8}, '\0', IfAbsent::kCreate), Reason::kOk);
  uint64_t index_bytes = 0;
  std::vector<FrameLoc> taken;
  for (FrameLoc frame = arena_->Allocate(kChunksPerPage); frame != kNoFrame; frame = arena_->Allocate(kChunksPerPage)) {
    taken.push_back(frame);
  }
  for (int i = 0; i < 3; ++i) {
    arena_->Free(taken.back());
    taken.pop_back();
  }
  EXPECT_EQ(WriteAt(2, {0, 64}, 'b'), Reason::kFull);
  for (uint64_t page = 0; page < 8; ++page) {
    const char expected = page < stored_pages_ ? 'b' : page == 0 ? 'a' : '\0';
    EXPECT_EQ(ReadAt(2, {page * 8, 8}), Page(expected)) << page << " of " << stored_pages_;
  }
  for (const uint64_t step : {4096, 1}) {
    while (arena_->ChargeIndex(step)) index_bytes += step;
  }
  EXPECT_EQ(WriteAt(2, {kChunksPerSpan, 8}, 'b'), Reason::kFull);
  for (const uint64_t page : {uint64_t{0}, kPagesPerSpan}) {
    EXPECT_EQ(RaiseTo(4, page), Reason::kOk) << "it needs no memory";
  }
  // Even if there is no memory for the new pages, the rest must not be taken for a copy.
  EXPECT_EQ(WriteAt(6, {kChunksPerSpan, 8}, 'b', IfAbsent::kCreate), Reason::kFull);
  EXPECT_EQ(stored_pages_, 0u);
  EXPECT_EQ(ReadAt(4, {kChunksPerSpan, 8}), "");
  arena_->ReleaseIndex(index_bytes);
  for (const FrameLoc frame : taken) arena_->Free(frame);
  EXPECT_EQ(WriteAt(4, {0, 64}, 'b'), Reason::kOk);
  EXPECT_EQ(stored_pages_, 8u);
}

// The rule of adr/0014, in plain code.
TEST_F(SpanGenerationTest, AgreesWithAModel) {
  struct Span {
    uint32_t generation = 0;
    std::map<uint64_t, char> pages;
  };
  std::mt19937_64 random(TestSeed());
  std::map<uint64_t, Span> model;
  bool region_is_there = false;
  for (int i = 0; i < 30'000; ++i) {
    const uint64_t span = random() % 4;
    const uint64_t page = span * kPagesPerSpan + random() % 5;
    const ChunkRange range{page * kChunksPerPage, 8};
    Span& at = model[span];
    const auto generation = static_cast<uint32_t>(std::max<int64_t>(0, int64_t{at.generation} - 2 + random() % 5));
    switch (random() % 4) {
      case 0: {
        const bool creates = random() % 3 == 0;
        const bool refused = generation < at.generation || (generation != 0 && at.generation == 0 && !creates);
        const char fill = static_cast<char>(random() % 4 == 0 ? 0 : 'a' + random() % 26);
        const Reason reason = WriteAt(generation, range, fill, creates ? IfAbsent::kCreate : IfAbsent::kRefuse);
        if (!region_is_there && !creates) {
          ASSERT_EQ(reason, Reason::kUnknownRegion) << i;
          break;
        }
        region_is_there = true;
        ASSERT_EQ(reason, refused ? Reason::kOtherGeneration : Reason::kOk) << i;
        if (refused) break;
        if (creates && generation > at.generation) at.pages.clear();
        at.generation = generation;
        at.pages[page] = fill;
        break;
      }
      case 1: {
        const Reason reason = TrimAt(generation, range);
        if (!region_is_there) break;
        const bool refused = generation < at.generation;
        ASSERT_EQ(reason, refused ? Reason::kOtherGeneration : Reason::kOk) << i;
        if (refused) break;
        if (at.generation != 0) at.generation = generation;
        at.pages[page] = 0;
        break;
      }
      case 2: {
        const std::string data = ReadAt(generation, range);
        const bool readable = region_is_there && generation == at.generation;
        ASSERT_EQ(data, readable ? Page(at.pages[page]) : "") << i;
        break;
      }
      case 3:
        if (random() % 500 != 0 || !region_is_there) break;
        ASSERT_EQ(store_.Destroy(lease_.get(), kRegion, 1), Reason::kOk);
        model.clear();
        region_is_there = false;
        break;
    }
  }
}

}  // namespace
}  // namespace nram
