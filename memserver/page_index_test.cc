#include "memserver/page_index.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <random>

#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

class PageIndexTest : public ::testing::TestWithParam<PageIndex::Pages> {
 protected:
  bool sealed() const { return GetParam() == PageIndex::Pages::kSealed; }
};

INSTANTIATE_TEST_SUITE_P(Pages, PageIndexTest, ::testing::Values(PageIndex::Pages::kPlain, PageIndex::Pages::kSealed),
                         [](const auto& info) { return info.param == PageIndex::Pages::kSealed ? "Sealed" : "Plain"; });

// A page keeps everything but its frame, and each page is asked for once, however short the steps are.
TEST_P(PageIndexTest, FramesMoveInSteps) {
  std::mt19937_64 random(TestSeed());
  auto arena = FrameArena::Create(64 * kMiB, kMiB).value();
  ArenaAccount account(arena.get());
  PageIndex index(&account, GetParam());
  std::map<uint64_t, PageEntry> model;
  const auto seal_of = [](uint64_t page) {
    PageSeal seal{};
    memcpy(seal.tag.data(), &page, sizeof page);
    return seal;
  };
  for (int i = 0; i < 5'000; ++i) {
    const uint64_t page = random() % 4 == 0 ? random() % (uint64_t{1} << 40) : random() % 5'000;
    const PageEntry entry{page, static_cast<ChunkMask>(1 + random() % 255), static_cast<uint32_t>(random())};
    const PageSeal seal = seal_of(page);
    ASSERT_TRUE(index.Prepare(page, 1));
    index.Set(page, entry, sealed() ? &seal : nullptr);
    model[page] = entry;
  }
  constexpr uint64_t kAdded = uint64_t{1} << 39;
  std::map<FrameLoc, int> asked;
  for (uint64_t page = 0; page != PageIndex::kNoPage;) {
    uint64_t looks_left = random() % 40;
    uint64_t moves_left = random() % 20;
    page = index.MoveFrames(page, &looks_left, [&](FrameLoc frame, ChunkMask mask) {
      if (moves_left == 0) return kNoFrame;
      --moves_left;
      EXPECT_EQ(mask, model.at(frame).mask);
      ++asked[frame];
      return frame % 3 == 0 ? frame : frame % kAdded + 1;
    });
  }
  EXPECT_EQ(asked.size(), model.size());
  for (const auto& [page, entry] : model) {
    const PageEntry now = index.Find(page);
    ASSERT_EQ(asked[page], 1);
    ASSERT_EQ(now.frame, page % 3 == 0 ? page : page % kAdded + 1);
    ASSERT_TRUE(now.mask == entry.mask && now.crc == entry.crc);
    ASSERT_TRUE(index.SealOf(page) == (sealed() ? seal_of(page) : PageSeal{}));
  }
}

TEST_P(PageIndexTest, AgreesWithAMap) {
  std::mt19937_64 random(TestSeed());
  auto arena = FrameArena::Create(64 * kMiB, kMiB).value();
  const uint64_t index_before = arena->usage().index_bytes;
  {
    ArenaAccount account(arena.get());
    PageIndex index(&account, GetParam());
    std::map<uint64_t, PageEntry> model;
    std::map<uint64_t, PageSeal> seals;
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
          PageSeal seal{};
          for (uint8_t& byte : seal.tag) byte = static_cast<uint8_t>(random());
          memcpy(seal.counter.data(), &i, sizeof i);
          index.Set(page, entry, sealed() ? &seal : nullptr);
          model[page] = entry;
          seals[page] = sealed() ? seal : PageSeal{};
        }
      }
      ASSERT_EQ(index.pages(), model.size());
    }
    for (const auto& [page, entry] : model) {
      ASSERT_EQ(index.Find(page).frame, entry.frame);
      ASSERT_EQ(index.Find(page).mask, entry.mask);
      ASSERT_EQ(index.Find(page).crc, entry.crc);
      ASSERT_TRUE(index.SealOf(page) == seals.at(page));
      ASSERT_TRUE(model.count(page + 1) > 0 || index.Find(page + 1).mask == 0);
    }
  }
  EXPECT_EQ(arena->usage().index_bytes, index_before);
}

TEST_P(PageIndexTest, AFullRegionCostsLittleMoreThanItsEntries) {
  auto arena = FrameArena::Create(64 * kMiB, kMiB).value();
  const uint64_t before = arena->usage().index_bytes;
  ArenaAccount account(arena.get());
  PageIndex index(&account, GetParam());
  const PageSeal seal{};
  constexpr uint64_t kPages = 100 * kPagesPerSpan;
  for (uint64_t page = 0; page < kPages; ++page) {
    ASSERT_TRUE(index.Prepare(page, 1));
    index.Set(page, {page * 8, kAllChunks}, sealed() ? &seal : nullptr);
  }
  EXPECT_LT(arena->usage().index_bytes - before, (sealed() ? 37 : 13) * kPages);
}

// Entries and leaves keep their births through all other changes; births change in steps.
TEST_P(PageIndexTest, BirthsStayUntilTheyAreChanged) {
  std::mt19937_64 random(TestSeed());
  auto arena = FrameArena::Create(64 * kMiB, kMiB).value();
  const uint64_t index_before = arena->usage().index_bytes;
  {
    ArenaAccount account(arena.get());
    PageIndex index(&account, GetParam());
    std::map<uint64_t, PageEntry> model;
    std::map<uint64_t, uint16_t> leaves;
    for (int i = 0; i < 20'000; ++i) {
      const uint64_t page = random() % 20'000;
      if (random() % 4 == 0) {
        index.Erase(page);
        index.DropIfEmpty(page);
        model.erase(page);
        continue;
      }
      const auto birth = static_cast<uint16_t>(random());
      index.SetBirth(birth);
      const PageSeal seal{};
      const PageEntry entry{(uint64_t{1} << 40) - 1 - page, static_cast<ChunkMask>(1 + random() % 255),
                            static_cast<uint32_t>(random()), static_cast<uint16_t>(random())};
      ASSERT_TRUE(index.PrepareSome(page, 1));
      index.SetGeneration(page, SpanGeneration{1});  // leaves stay
      leaves.emplace(page / kPagesPerSpan, birth);
      index.Set(page, entry, sealed() ? &seal : nullptr);
      model[page] = entry;
    }
    constexpr uint16_t kAdded = 77;
    for (uint64_t page = 0; page != PageIndex::kNoPage;) {
      page = index.ChangeBirths(page, random() % 3, [](uint16_t born) -> uint16_t { return born + kAdded; });
    }
    for (const auto& [span, birth] : leaves) {
      ASSERT_EQ(index.BirthOf(span * kPagesPerSpan), static_cast<uint16_t>(birth + kAdded));
    }
    for (uint64_t page = 0; page < 20'000; page += 64) {
      const uint64_t asked = random();
      uint64_t wanted = asked;
      PageEntry entries[64];
      index.FindSome(page, &wanted, entries, nullptr);
      for (int i = 0; i < 64; ++i) {
        const auto it = model.find(page + i);
        ASSERT_EQ((wanted >> i & 1) != 0, (asked >> i & 1) != 0 && it == model.end());
        ASSERT_EQ(entries[i].mask != 0, (asked >> i & 1) != 0 && it != model.end());
        if (entries[i].mask == 0) continue;
        ASSERT_EQ(entries[i].frame, it->second.frame);
        ASSERT_EQ(entries[i].crc, it->second.crc);
        ASSERT_EQ(entries[i].born, static_cast<uint16_t>(it->second.born + kAdded));
      }
    }
  }
  EXPECT_EQ(arena->usage().index_bytes, index_before);
}

// No page takes more than its price, wherever it lies: a reservation of that price is never short.
TEST_P(PageIndexTest, NoPageTakesMoreThanItsPrice) {
  std::mt19937_64 random(TestSeed());
  auto arena = FrameArena::Create(64 * kMiB, kMiB).value();
  ArenaAccount account(arena.get());
  PageIndex index(&account, GetParam());
  const PageSeal seal{};
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t page = random() % 3 == 0 ? random() % (uint64_t{1} << 40) : random() % 3000;
    const uint64_t before = account.bytes();
    ASSERT_TRUE(index.Prepare(page, 1));
    index.Set(page, {page, kAllChunks}, sealed() ? &seal : nullptr);
    ASSERT_LE(account.bytes(), before + kIndexBytesPerPageMax);
  }
}

}  // namespace
}  // namespace nram
