// The range map against a plain map of pages.

#include "client/run/range_map.h"

#include <map>
#include <random>

#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

constexpr uint64_t kPages = 200;

class Model {
 public:
  RangeMap map;
  std::map<uint64_t, uint64_t> home_of;  // pages

  void Check() const {
    EXPECT_EQ(map.pages(), home_of.size());
    for (uint64_t page = 0; page < kPages; ++page) {
      const auto expected = home_of.find(page);
      const auto home = map.HomeOf(page * kPageBytes + page % kPageBytes);
      ASSERT_EQ(home.has_value(), expected != home_of.end()) << page;
      if (!home.has_value()) continue;
      ASSERT_EQ(*home, expected->second);
      ASSERT_EQ(map.AddressOf(*home), page * kPageBytes);
      uint64_t run = 1;
      while (home_of.contains(page + run) && home_of.at(page + run) == *home + run) ++run;
      // It may stop early: ranges that were added apart need not have become one.
      ASSERT_LE(map.RunFrom(*home), run);
      ASSERT_GE(map.RunFrom(*home), 1u);
      ASSERT_EQ(map.RunTo(*home + map.RunFrom(*home) - 1), map.RunTo(*home) + map.RunFrom(*home) - 1);
    }
  }
};

TEST(RangeMapTest, IsAsAMapOfPages) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 50; ++round) {
    Model model;
    uint64_t next_home = 1000;
    for (int step = 0; step < 60; ++step) {
      const uint64_t begin = random() % kPages;
      const uint64_t pages = 1 + random() % std::min<uint64_t>(40, kPages - begin);
      const bool taken = model.map.Overlaps(begin * kPageBytes, (begin + pages) * kPageBytes);
      bool expected_taken = false;
      for (uint64_t i = begin; i < begin + pages; ++i) expected_taken |= model.home_of.contains(i);
      ASSERT_EQ(taken, expected_taken);
      if (!taken) {
        model.map.Add({begin * kPageBytes, pages, next_home});
        for (uint64_t i = 0; i < pages; ++i) model.home_of[begin + i] = next_home + i;
        next_home += pages + random() % 2;
        continue;
      }
      const auto within = model.map.Within(begin * kPageBytes, (begin + pages) * kPageBytes);
      const auto removed = model.map.Remove(begin * kPageBytes, (begin + pages) * kPageBytes);
      ASSERT_EQ(within, removed);
      uint64_t count = 0;
      for (const HomeRange& range : removed) {
        for (uint64_t i = 0; i < range.pages; ++i, ++count) {
          const uint64_t page = range.begin / kPageBytes + i;
          ASSERT_EQ(model.home_of.at(page), range.home + i);
          model.home_of.erase(page);
        }
      }
      model.Check();
      // Half of the time they are mapped elsewhere again, as by mremap(2).
      for (const HomeRange& range : removed) {
        const uint64_t to = random() % kPages;
        if (random() % 2 == 0 || to + range.pages > kPages ||
            model.map.Overlaps(to * kPageBytes, (to + range.pages) * kPageBytes)) {
          continue;
        }
        model.map.Add({to * kPageBytes, range.pages, range.home});
        for (uint64_t i = 0; i < range.pages; ++i) model.home_of[to + i] = range.home + i;
      }
    }
    model.Check();
  }
}

TEST(RangeMapTest, NeighboursBecomeOne) {
  RangeMap map;
  map.Add({0, 1, 10});
  map.Add({2 * kPageBytes, 1, 12});
  map.Add({kPageBytes, 1, 11});
  EXPECT_EQ(map.RunFrom(10), 3u);
  EXPECT_EQ(map.Within(0, 3 * kPageBytes).size(), 1u);
  // Ranges that are neighbours only in addresses do not become one.
  map.Add({3 * kPageBytes, 1, 20});
  EXPECT_EQ(map.RunFrom(10), 3u);
  EXPECT_EQ(map.RunFrom(13), 0u);
  EXPECT_EQ(map.RunTo(10), 1u);
  EXPECT_EQ(map.RunTo(12), 3u);
  EXPECT_EQ(map.RunTo(13), 0u);
}

}  // namespace
}  // namespace nram
