// Pages with seals: a server keeps the seals beside them, and refuses others (adr/0016).

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "memserver/page_store_fixture.h"

namespace nram {
namespace {

using SealedStoreTest = PageStoreTest;

// Seals that are told from each other.
PageSeal SealNumber(uint8_t number) {
  PageSeal seal{};
  seal.counter[0] = number;
  seal.tag[15] = static_cast<uint8_t>(~number);
  return seal;
}

TEST_F(SealedStoreTest, SealsAreKeptBesideTheirPages) {
  absent_ = PageStore::IfAbsent::kCreate;
  seals_ = {SealNumber(1), SealNumber(2), SealNumber(3)};
  const std::string data = std::string(kPageBytes, 'a') + std::string(kPageBytes, '\0') + std::string(kPageBytes, 'c');
  ASSERT_EQ(Write({0, 24}, data), Reason::kOk);
  const auto check = [&](const std::vector<PageSeal>& seals, const std::vector<ChunkMask>& masks) {
    std::vector<ChunkMask> got_masks;
    std::vector<PageSeal> got;
    ASSERT_EQ(store_.ReadInPlace({.region = {kRegion, 0}, .range = {0, 8 * seals.size()}},
                                 [&](const PageStore::Stored& stored) {
                                   got.assign(stored.seals.begin(), stored.seals.end());
                                   got_masks.assign(stored.masks.begin(), stored.masks.end());
                                 }),
              Reason::kOk);
    EXPECT_TRUE(got == seals);
    EXPECT_TRUE(got_masks == masks);
    std::vector<uint32_t> crcs(seals.size());
    std::vector<PageSeal> copied(seals.size());
    std::string bytes(seals.size() * kPageBytes, '?');
    size_t count = 0;
    bool sealed = false;
    ASSERT_EQ(store_.Read({.region = {kRegion, 0}, .range = {0, 8 * seals.size()}}, got_masks.data(), crcs.data(),
                          reinterpret_cast<std::byte*>(bytes.data()), &count, copied.data(), &sealed),
              Reason::kOk);
    EXPECT_TRUE(sealed && copied == seals && got_masks == masks);
  };
  // Zeros are not left out: they are sealed bytes.
  check({SealNumber(1), SealNumber(2), SealNumber(3), PageSeal{}}, {kAllChunks, kAllChunks, kAllChunks, 0});
  seals_ = {SealNumber(4)};
  ASSERT_EQ(Write({8, 8}, std::string(kPageBytes, 'd')), Reason::kOk);
  check({SealNumber(1), SealNumber(4), SealNumber(3)}, {kAllChunks, kAllChunks, kAllChunks});
  ASSERT_EQ(store_.Trim(lease_.get(), {.region = kRegion, .epoch = 1, .range = {0, 8}}), Reason::kOk);
  check({PageSeal{}, SealNumber(4), SealNumber(3)}, {0, kAllChunks, kAllChunks});
  EXPECT_EQ(store_.Destroy(lease_.get(), kRegion, 1), Reason::kOk);
}

TEST_F(SealedStoreTest, ASealWithoutAPageMakesAHole) {
  absent_ = PageStore::IfAbsent::kCreate;
  seals_ = {SealNumber(1), SealNumber(2), SealNumber(3)};
  ASSERT_EQ(Write({0, 24}, std::string(3 * kPageBytes, 'a')), Reason::kOk);
  seals_ = {SealNumber(9), PageSeal{}, SealNumber(4)};
  const ChunkMask masks[] = {0, 0, kAllChunks};
  ASSERT_EQ(Write({0, 24}, std::string(3 * kPageBytes, 'b'), masks), Reason::kOk);
  std::vector<PageSeal> got;
  const auto look = [&](const PageStore::Stored& stored) { got.assign(stored.seals.begin(), stored.seals.end()); };
  ASSERT_EQ(store_.ReadInPlace({.region = {kRegion, 0}, .range = {0, 24}}, look), Reason::kOk);
  EXPECT_TRUE(got == (std::vector<PageSeal>{PageSeal{}, SealNumber(2), SealNumber(4)}));
  EXPECT_EQ(store_.counters().pages, 2);
  // A page that is to keep its frame cannot be a hole.
  frames_ = PageStore::Frames::kWhole;
  EXPECT_EQ(Write({0, 24}, std::string(3 * kPageBytes, 'b'), masks), Reason::kNoSeals);
}

TEST_F(SealedStoreTest, SealedAndPlainDoNotMeet) {
  absent_ = PageStore::IfAbsent::kCreate;
  ASSERT_EQ(store_.Create(lease_.get(), kRegion, 1, /*gc=*/false, /*sealed=*/true), Reason::kOk);
  EXPECT_EQ(Write({0, 8}, std::string(kPageBytes, 'a')), Reason::kNoSeals);
  ASSERT_EQ(store_.Create(lease_.get(), RegionId{7}, 1, /*gc=*/false), Reason::kOk);
  seals_ = {SealNumber(1)};
  Payment payment;
  EXPECT_EQ(WriteAs(lease_.get(), RegionId{7}, {0, 8}, std::string(kPageBytes, 'a'), &payment), Reason::kNoSeals);
  ASSERT_EQ(Write({0, 8}, std::string(kPageBytes, 'a')), Reason::kOk);
  // Parts of pages.
  const auto nothing = [](const PageStore::Stored&) {};
  EXPECT_EQ(store_.ReadInPlace({.region = {kRegion, 0}, .range = {0, 4}}, nothing), Reason::kNoSeals);
  EXPECT_EQ(store_.ReadInPlace({.region = {kRegion, 0}, .range = {4, 12}}, nothing), Reason::kNoSeals);
  EXPECT_EQ(store_.Trim(lease_.get(), {.region = kRegion, .epoch = 1, .range = {0, 9}}), Reason::kNoSeals);
}

}  // namespace
}  // namespace nram
