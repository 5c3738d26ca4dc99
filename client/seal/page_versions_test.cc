#include "client/seal/page_versions.h"

#include <map>
#include <random>
#include <set>
#include <thread>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using Verdict = PageVersions::Verdict;

TEST(PageVersionsTest, CountersNeverComeTwiceAndTheirLowWordsAreVersions) {
  PageVersions versions;
  std::vector<std::vector<uint64_t>> taken(4);
  std::vector<std::thread> threads;
  for (auto& mine : taken) {
    threads.emplace_back([&] {
      for (int i = 0; i < 20'000; ++i) {
        const uint64_t count = 1 + i % kPagesPerMessage;
        const uint64_t first = versions.TakeCounters(count);
        for (uint64_t j = 0; j < count; ++j) mine.push_back(first + j);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<uint64_t> all;
  size_t count = 0;
  for (const auto& mine : taken) {
    count += mine.size();
    for (const uint64_t counter : mine) {
      all.insert(counter);
      ASSERT_GE(static_cast<uint32_t>(counter), kFirstVersion);
    }
  }
  EXPECT_EQ(all.size(), count);
}

TEST(PageVersionsTest, WhatWasStoredFitsAndWhatWasBeforeDoesNot) {
  PageVersions versions;
  EXPECT_EQ(versions.Check(7, 0, true), Verdict::kFits) << "a hole from the beginning";
  EXPECT_EQ(versions.Check(7, 5, true), Verdict::kOther);
  versions.Stored(7, 0b101, 10);
  EXPECT_EQ(versions.Check(7, 10, true), Verdict::kFits);
  EXPECT_EQ(versions.Check(7, 0, true), Verdict::kOther) << "a hole that is pretended";
  EXPECT_EQ(versions.Check(8, 0, true), Verdict::kFits);
  EXPECT_EQ(versions.Check(9, 12, true), Verdict::kFits);
  versions.Stored(7, 1, 20);
  EXPECT_EQ(versions.Check(7, 10, true), Verdict::kOther) << "an old version";
  EXPECT_EQ(versions.Check(7, 20, true), Verdict::kFits);
  versions.Trimmed(0, 2000);
  EXPECT_EQ(versions.Check(7, 20, true), Verdict::kOther);
  EXPECT_EQ(versions.Check(7, 0, true), Verdict::kFits);
}

TEST(PageVersionsTest, AChangeInDoubtMayHaveHappenedOrNot) {
  PageVersions versions;
  versions.Stored(0, ~PageBits{0}, 100);
  versions.Doubted(0, 0b111, 200);
  EXPECT_EQ(versions.Check(0, 100, false), Verdict::kOther) << "it may be old, or have been read before the change";
  EXPECT_EQ(versions.Check(0, 201, true), Verdict::kOther) << "the other page's";
  EXPECT_EQ(versions.Check(0, 200, false), Verdict::kFits);
  EXPECT_EQ(versions.Check(0, 100, true), Verdict::kOther) << "the newest has been seen";
  EXPECT_EQ(versions.Check(1, 101, true), Verdict::kFits) << "each page has a doubt of its own";
  EXPECT_EQ(versions.Check(1, 201, true), Verdict::kOther) << "it was settled otherwise";
  versions.TrimDoubted(2, 3);
  EXPECT_EQ(versions.Check(2, 202, false), Verdict::kOther);
  EXPECT_EQ(versions.Check(2, 0, false), Verdict::kFits);
  EXPECT_EQ(versions.Check(2, 202, true), Verdict::kOther);
  versions.Doubted(3, 1, 300);
  versions.Stored(3, 1, 400);
  EXPECT_EQ(versions.Check(3, 300, true), Verdict::kOther) << "a write that was answered ends doubts";
}

TEST(PageVersionsTest, WhereDoubtsHaveNoRoomThePageIsLostUntilItIsWritten) {
  PageVersions versions;
  uint64_t page = 0;
  for (; page < 100'000; ++page) {
    versions.Doubted(page, 1, 1'000'000 + page);
    if (versions.Check(page, 1, true) == Verdict::kLost) break;
  }
  ASSERT_LT(page, 100'000u);
  EXPECT_EQ(versions.Check(page, 0, true), Verdict::kLost);
  EXPECT_EQ(versions.Check(page, 1'000'000 + page, true), Verdict::kLost);
  EXPECT_EQ(versions.Check(0, 1'000'000, true), Verdict::kFits) << "none is forgotten";
  versions.Stored(page, 1, 2'000'000);
  EXPECT_EQ(versions.Check(page, 2'000'000, true), Verdict::kFits);
}

TEST(PageVersionsTest, HolesInDoubtTakeNoRoomOfWrites) {
  constexpr uint64_t kPages = 256 * kMiB / kPageBytes;
  PageVersions versions;
  for (uint64_t page = 0; page < kPages; page += kPagesPerMessage) versions.Stored(page, ~PageBits{0}, 1'000 + page);
  versions.TrimDoubted(0, kPages);
  for (int i = 0; i < 1'024; ++i) versions.TrimDoubted(7, 8);
  const size_t bytes = versions.memory_bytes();
  versions.TrimDoubted(kPages, 2 * kPages);  // holes already
  EXPECT_EQ(versions.memory_bytes(), bytes);
  versions.Doubted(kPages, 1, 2'000'000);
  EXPECT_EQ(versions.Check(kPages, 2'000'000, true), Verdict::kFits);
  // Each page is in doubt for itself.
  EXPECT_EQ(versions.Check(9, 1'009, false), Verdict::kOther);
  EXPECT_EQ(versions.Check(9, 1'009, true), Verdict::kFits);
  EXPECT_EQ(versions.Check(9, 0, true), Verdict::kOther);
  EXPECT_EQ(versions.Check(7, 0, false), Verdict::kFits);
  EXPECT_EQ(versions.Check(7, 1'007, true), Verdict::kOther);
  // A hole that comes after a write in doubt is the newest.
  versions.Doubted(70, 1, 3'000'000);
  versions.TrimDoubted(70, 71);
  EXPECT_EQ(versions.Check(70, 3'000'000, false), Verdict::kOther);
  EXPECT_EQ(versions.Check(70, 0, false), Verdict::kFits);
}

// A large region is trimmed while servers do not answer: the cost of a page then depends on its own doubts alone. Looks
// at all of them would take much longer than the whole test.
TEST(PageVersionsTest, HolesInDoubtCostNothingForOtherPages) {
  constexpr uint64_t kMessages = 30'000, kPages = kMessages * kPagesPerMessage;
  PageVersions versions;
  for (uint64_t page = 0; page < kPages; page += kPagesPerMessage) versions.Stored(page, 1, 1'000 + page);
  versions.TrimDoubted(0, kPages);
  // Both may be there, in either order.
  for (uint64_t page = 0; page < kPages; page += kPagesPerMessage) {
    ASSERT_EQ(versions.Check(page, 1'000 + page, false), Verdict::kOther);
    const bool is_hole = page % (2 * kPagesPerMessage) == 0;
    ASSERT_EQ(versions.Check(page, is_hole ? 0 : 1'000 + page, true), Verdict::kFits);
    ASSERT_EQ(versions.Check(page, is_hole ? 1'000 + page : 0, true), Verdict::kOther);
  }
  EXPECT_EQ(versions.NextTold(kPages / kPagesPerSpan), UINT64_MAX);
}

// Of doubts of one page the newest counts, be it a hole or not.
TEST(PageVersionsTest, TheOrderOfDoubtsIsThatOfTheirChanges) {
  PageVersions versions;
  versions.Stored(100, 0b111, 1'000);
  versions.Doubted(90, PageBits{1} << 10 | PageBits{1} << 11, 2'000);  // 100 and 101
  versions.Doubted(64, PageBits{1} << 36 | PageBits{1} << 38, 0);      // 100 and 102, as holes
  versions.Doubted(100, 0b1, 3'000);
  EXPECT_EQ(versions.Check(100, 0, false), Verdict::kOther);
  EXPECT_EQ(versions.Check(100, 3'000, false), Verdict::kFits);
  EXPECT_EQ(versions.Check(101, 0, true), Verdict::kOther);
  EXPECT_EQ(versions.Check(101, 2'011, true), Verdict::kFits);
  EXPECT_EQ(versions.Check(102, 1'002, true), Verdict::kFits);
  // A mark ends those before it.
  versions.Doubted(100, 0b110, 0);
  const uint64_t mark = versions.mark();
  versions.Doubted(102, 0b1, 0);
  versions.EndDoubts(90, 110, mark);
  EXPECT_EQ(versions.Check(101, 0, true), Verdict::kOther);
  EXPECT_EQ(versions.Check(102, 0, false), Verdict::kFits);
  EXPECT_EQ(versions.NextTold(0), 0u);
}

TEST(PageVersionsTest, WhatNoServerHasIsNoLongerInDoubt) {
  PageVersions versions;
  EXPECT_EQ(versions.NextTold(0), UINT64_MAX);
  versions.Doubted(300, 0b11, 50);
  EXPECT_EQ(versions.NextTold(0), 1u);
  EXPECT_EQ(versions.NextTold(2), UINT64_MAX);
  const uint64_t mark = versions.mark();
  versions.Doubted(301, 1, 60);  // after the mark: it may still come
  versions.EndDoubts(256, 512, mark);
  EXPECT_EQ(versions.Check(300, 50, true), Verdict::kOther);
  EXPECT_EQ(versions.Check(300, 0, true), Verdict::kFits);
  EXPECT_EQ(versions.Check(301, 51, true), Verdict::kOther);
  EXPECT_EQ(versions.Check(301, 60, true), Verdict::kFits);
  versions.Stored(5 * kPagesPerSpan, 1, 70);
  EXPECT_EQ(versions.NextTold(2), 5u);
}

TEST(PageVersionsTest, OfAnAttachedRegionAnythingGoesUntilItIsWritten) {
  PageVersions versions(kUnknownVersion);
  EXPECT_EQ(versions.Check(3, 0, true), Verdict::kFits);
  EXPECT_EQ(versions.Check(3, 77, true), Verdict::kFits);
  versions.Stored(3, 1, 10);
  EXPECT_EQ(versions.Check(3, 77, true), Verdict::kOther);
  EXPECT_EQ(versions.Check(4, 77, true), Verdict::kFits);
  versions.Trimmed(0, 512);
  EXPECT_EQ(versions.Check(4, 77, true), Verdict::kOther);
  EXPECT_EQ(versions.Check(4, 0, true), Verdict::kFits);
}

// Compares with a map of the versions that each page may have.
TEST(PageVersionsTest, RandomChangesAgainstAModel) {
  std::mt19937_64 random(TestSeed());
  PageVersions versions;
  std::map<uint64_t, std::vector<uint64_t>> model;  // the sure one, and doubts in their order
  const auto of = [&](uint64_t page) -> std::vector<uint64_t>& {
    return model.try_emplace(page, std::vector<uint64_t>{0}).first->second;
  };
  for (int i = 0; i < 40'000; ++i) {
    const uint64_t first = (random() % 3) * 700 + random() % 300;
    const uint64_t count = 1 + random() % (random() % 8 == 0 ? kPagesPerMessage : 4);
    const PageBits bits = (count == 64 ? ~PageBits{0} : (PageBits{1} << count) - 1) & random();
    const uint64_t counter = versions.TakeCounters(count);
    switch (random() % 8) {
      case 0:
      case 1:
        versions.Stored(first, bits, counter);
        for (uint64_t p = 0; p < count; ++p) {
          if ((bits >> p & 1) != 0) of(first + p) = {counter + p};
        }
        break;
      case 2:
        if (random() % 4 != 0) break;
        versions.Doubted(first, bits, counter);
        for (uint64_t p = 0; p < count; ++p) {
          if ((bits >> p & 1) != 0) of(first + p).push_back(counter + p);
        }
        break;
      case 3:
        versions.Trimmed(first, first + 5 * count);
        for (uint64_t p = 0; p < 5 * count; ++p) of(first + p) = {0};
        break;
      case 4:
        if (random() % 4 != 0) break;
        versions.TrimDoubted(first, first + count);
        for (uint64_t p = 0; p < count; ++p) of(first + p).push_back(0);
        break;
      default: {
        std::vector<uint64_t>& may = of(first);
        // A possible version, or another one.
        const uint64_t asked = random() % 2 == 0 ? may[random() % may.size()] : random() % (counter + 1);
        const bool settles = random() % 2 == 0;
        const bool is_newest = may.back() == asked;
        const bool fits = is_newest || (settles && std::find(may.begin(), may.end(), asked) != may.end());
        ASSERT_EQ(versions.Check(first, asked, settles), fits ? Verdict::kFits : Verdict::kOther)
            << "page " << first << ", counter " << asked;
        if (fits) may = {asked};
        break;
      }
    }
  }
}

TEST(PageVersionsTest, ADensePageTakesFourBytes) {
  PageVersions versions;
  constexpr uint64_t kPages = 64 * kPagesPerSpan;
  for (uint64_t page = 0; page < kPages; page += kPagesPerMessage) {
    versions.Stored(page, ~PageBits{0}, versions.TakeCounters(kPagesPerMessage));
  }
  EXPECT_LT(versions.memory_bytes(), kPages * 9 / 2);
  PageVersions small;
  small.Stored(0, 1, 3);
  EXPECT_LE(small.memory_bytes(), 64u);
}

}  // namespace
}  // namespace nram
