// Sets of pages, and the pages of files whose write-back has failed, against models.

#include "fsd/failed_pages.h"

#include <map>
#include <random>
#include <utility>
#include <vector>

#include "base/test_seed.h"
#include "base/units.h"
#include "fsd/page_set.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

TEST(PageSetTest, RandomChangesAgainstAModel) {
  std::mt19937_64 random(TestSeed());
  PageSet set;
  constexpr uint64_t kPages = 2'000;
  std::vector<bool> model(kPages, false);
  for (int step = 0; step < 4'000; ++step) {
    const uint64_t first = random() % kPages;
    const uint64_t end = first + random() % std::min<uint64_t>(kPages - first + 1, random() % 4 == 0 ? 1'000 : 20);
    uint64_t in = 0;
    for (uint64_t i = first; i < end; ++i) in += model[i];
    ASSERT_EQ(set.Count(first, end), in);
    if (random() % 2 == 0) {
      ASSERT_EQ(set.Add(first, end), end - first - in);
      std::fill(model.begin() + first, model.begin() + end, true);
    } else {
      ASSERT_EQ(set.Remove(first, end), in);
      std::fill(model.begin() + first, model.begin() + end, false);
    }
    const uint64_t at = random() % kPages;
    uint64_t next_in = at, next_out = at;
    while (next_in < kPages && !model[next_in]) ++next_in;
    while (next_out < kPages && model[next_out]) ++next_out;
    ASSERT_EQ(set.NextIn(at), next_in == kPages ? PageSet::kNone : next_in);
    ASSERT_EQ(set.NextOut(at), next_out);
    ASSERT_EQ(set.size(), static_cast<uint64_t>(std::count(model.begin(), model.end(), true)));
  }
}

TEST(PageSetTest, FarPagesAreFoundWithoutWalkingThere) {
  PageSet set;
  const uint64_t far = (uint64_t{1} << 62) / kPageBytes - 1;
  set.Add(far, far + 1);
  set.Add(70, 71);
  EXPECT_EQ(set.NextIn(71), far);
  EXPECT_EQ(set.Count(0, PageSet::kNone), 2u);
  EXPECT_EQ(set.Remove(0, PageSet::kNone), 2u);
  EXPECT_EQ(set.NextIn(0), PageSet::kNone);
}

TEST(FailedPagesTest, RandomChangesAgainstAModel) {
  std::mt19937_64 random(TestSeed());
  FailedPages failed;
  FailedPages::Mark marks[3];
  constexpr uint64_t kPages = 300;
  std::vector<std::vector<bool>> models(3, std::vector<bool>(kPages, false));
  for (int step = 0; step < 20'000; ++step) {
    const uint64_t file = random() % 3;
    std::vector<bool>& model = models[file];
    const uint64_t offset = random() % (kPages * kPageBytes);
    const uint64_t end = std::min(offset + random() % (6 * kPageBytes), kPages * kPageBytes);
    const uint64_t first_whole = RoundUp(offset, kPageBytes) / kPageBytes;
    switch (random() % 8) {
      case 0: {
        const uint64_t size = random() % (kPages * kPageBytes);
        failed.CutOff(&marks[file], size);
        std::fill(model.begin() + static_cast<ptrdiff_t>(RoundUp(size, kPageBytes) / kPageBytes), model.end(), false);
        break;
      }
      case 1:
      case 2:
      case 3: {
        const uint64_t file_end = random() % 2 == 0 ? end : kPages * kPageBytes;
        failed.Renew(&marks[file], offset, end, file_end);
        const uint64_t end_page = (end >= file_end ? RoundUp(end, kPageBytes) : end) / kPageBytes;
        for (uint64_t page = first_whole; page < end_page; ++page) model[page] = false;
        break;
      }
      default:
        failed.Add(&marks[file], offset, end);
        for (uint64_t page = offset / kPageBytes; page * kPageBytes < end && offset < end; ++page) model[page] = true;
    }
    const uint64_t at = random() % kPages;
    uint64_t next_in = at, next_out = at;
    while (next_in < kPages && !model[next_in]) ++next_in;
    while (next_out < kPages && model[next_out]) ++next_out;
    ASSERT_EQ(failed.NextIn(marks[file], at), next_in == kPages ? FailedPages::kNone : next_in) << step;
    ASSERT_EQ(failed.NextOut(marks[file], at), next_out) << step;
    ASSERT_EQ(marks[file].any(), std::count(model.begin(), model.end(), true) > 0) << step;
    bool any = false;
    for (uint64_t page = offset / kPageBytes; page * kPageBytes < end && offset < end; ++page) any = any || model[page];
    ASSERT_EQ(failed.Any(marks[file], offset, end), any) << step;
  }
  for (FailedPages::Mark& mark : marks) failed.CutOff(&mark, 0);
  EXPECT_EQ(failed.runs(), 0u);
}

// A good write of a page's first half, and beside it a failed write-back of the second half, behind the file's end: the
// first one must not take the page for whole.
TEST(FailedPagesTest, AFileGrowsTogetherWithItsFailedPages) {
  FailedPages failed;
  FailedPages::Mark mark;
  std::atomic<uint64_t> size{512};
  std::thread renew;
  failed.Add(&mark, 512, 1'024, [&] {
    EXPECT_TRUE(mark.any()) << "a reader that sees the new size sees the error too";
    renew = std::thread([&] { failed.Renew(&mark, 0, 512, size); });
    size = 1'024;
  });
  renew.join();
  EXPECT_EQ(failed.NextIn(mark, 0), 0u);
  failed.Renew(&mark, 0, 1'024, size);
  EXPECT_EQ(failed.runs(), 0u);
}

// A program can make as many failed pages as it likes, far from each other; not so the daemon's memory.
TEST(FailedPagesTest, BeyondTheBoundNoFailedPageIsForgotten) {
  std::mt19937_64 random(TestSeed());
  FailedPages failed;
  std::vector<FailedPages::Mark> marks(80);
  for (FailedPages::Mark& mark : marks) {
    std::vector<uint64_t> pages;
    for (size_t i = 0; i < 2 * FailedPages::kRunsMax; ++i) {
      pages.push_back(random() % (uint64_t{1} << 50));
      failed.Add(&mark, pages.back() * kPageBytes, (pages.back() + 1) * kPageBytes);
    }
    for (const uint64_t page : pages) ASSERT_EQ(failed.NextIn(mark, page), page);
    // One run more for each file that comes when all have as many as they may.
    ASSERT_LE(failed.runs(), FailedPages::kAllRunsMax + marks.size());
  }
  for (FailedPages::Mark& mark : marks) failed.CutOff(&mark, 0);
  EXPECT_EQ(failed.runs(), 0u);
}

// The same holds for one long run, of which every other page becomes good.
TEST(FailedPagesTest, GoodPagesInALongRunTakeNoMoreMemory) {
  constexpr uint64_t kPages = 2 * FailedPages::kAllRunsMax + 1'000;
  FailedPages failed;
  FailedPages::Mark mark;
  const auto renew = [&](uint64_t page) {
    failed.Renew(&mark, page * kPageBytes, (page + 1) * kPageBytes, kPages * kPageBytes);
  };
  failed.Add(&mark, 0, kPages * kPageBytes);
  for (uint64_t page = 1; page < kPages; page += 2) renew(page);
  EXPECT_EQ(failed.runs(), FailedPages::kAllRunsMax);
  EXPECT_EQ(failed.NextIn(mark, 1), 2u) << "the first ones had room";
  for (uint64_t page = 0; page < kPages; page += 2) ASSERT_EQ(failed.NextIn(mark, page), page);
  // In order, all become good.
  for (uint64_t page = 0; page < kPages; ++page) renew(page);
  EXPECT_EQ(failed.NextIn(mark, 0), FailedPages::kNone);
  EXPECT_EQ(failed.runs(), 0u);
}

}  // namespace
}  // namespace nram
