#include "memserver/page_index.h"

#include <cstdint>
#include <map>
#include <random>

#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

TEST(PageIndexTest, AgreesWithAMap) {
  std::mt19937_64 random(TestSeed());
  auto arena = FrameArena::Create(64 * kMiB, kMiB).value();
  const uint64_t index_before = arena->usage().index_bytes;
  {
    ArenaAccount account(arena.get());
    PageIndex index(&account);
    std::map<uint64_t, PageEntry> model;
    for (int i = 0; i < 60'000; ++i) {
      // Some pages are dense, some sparse, a few very far.
      const uint64_t page = random() % 4 == 0 ? random() % (uint64_t{1} << 50) : random() % 1500;
      switch (random() % 8) {
        case 0: {
          const uint64_t end = page + random() % 600;
          uint64_t at = page;
          while (at < end) {
            at = index.Visit(at, end, 1 + random() % 3, [&](uint64_t visited, PageEntry* entry) {
              ASSERT_EQ(model.at(visited).frame, entry->frame);
              if (random() % 2 == 0) {
                entry->mask = 0;
                model.erase(visited);
              }
            });
          }
          break;
        }
        case 1:
          index.Erase(page);
          index.DropIfEmpty(page);
          model.erase(page);
          break;
        default: {
          const PageEntry entry{random() % (uint64_t{1} << 40), static_cast<ChunkMask>(1 + random() % 255),
                                static_cast<uint32_t>(random())};
          const uint64_t ahead = 1 + random() % (kPagesPerSpan - page % kPagesPerSpan);
          ASSERT_TRUE(index.Prepare(page, ahead));
          index.Set(page, entry);
          model[page] = entry;
        }
      }
      ASSERT_EQ(index.pages(), model.size());
    }
    for (const auto& [page, entry] : model) {
      ASSERT_EQ(index.Find(page).frame, entry.frame);
      ASSERT_EQ(index.Find(page).mask, entry.mask);
      ASSERT_EQ(index.Find(page).crc, entry.crc);
      ASSERT_TRUE(model.count(page + 1) > 0 || index.Find(page + 1).mask == 0);
    }
  }
  EXPECT_EQ(arena->usage().index_bytes, index_before);
}

TEST(PageIndexTest, AFullRegionCostsLessThanThirteenBytesAPage) {
  auto arena = FrameArena::Create(64 * kMiB, kMiB).value();
  const uint64_t before = arena->usage().index_bytes;
  ArenaAccount account(arena.get());
  PageIndex index(&account);
  constexpr uint64_t kPages = 100 * kPagesPerSpan;
  for (uint64_t page = 0; page < kPages; ++page) {
    ASSERT_TRUE(index.Prepare(page, 1));
    index.Set(page, {page * 8, kAllChunks});
  }
  EXPECT_LT(arena->usage().index_bytes - before, 13 * kPages);
}

}  // namespace
}  // namespace nram
