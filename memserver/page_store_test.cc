#include "memserver/page_store.h"

#include <cstdlib>
#include <cstring>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/host/host_memory.h"
#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "memserver/page_store_fixture.h"

namespace nram {
namespace {

std::string PageWith(ChunkMask chunks, char what) {
  std::string page(kPageBytes, '\0');
  for (uint64_t chunk = 0; chunk < kChunksPerPage; ++chunk) {
    if ((chunks >> chunk & 1) != 0) memset(&page[chunk * kChunkBytes], what, kChunkBytes);
  }
  return page;
}

TEST_F(PageStoreTest, AgreesWithAMap) {
  std::mt19937_64 random(TestSeed());
  constexpr uint64_t kChunks = 3000;
  std::string model(kChunks * kChunkBytes, '\0');
  const uint64_t frames_before = arena_->usage().frame_bytes;
  EXPECT_EQ(store_.Trim(lease_.get(), {kRegion, 1, {0, 8}}), Reason::kUnknownRegion);
  ASSERT_EQ(Write({0, 1}, std::string(512, '\0')), Reason::kOk);
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t first = random() % kChunks;
    const ChunkRange range{first, std::min<uint64_t>(1 + random() % (random() % 8 == 0 ? 400 : 20), kChunks - first)};
    switch (random() % 4) {
      case 0:
        ASSERT_EQ(store_.Trim(lease_.get(), {kRegion, 1, range}), Reason::kOk);
        memset(&model[first * kChunkBytes], 0, range.bytes());
        break;
      case 1:
        ASSERT_TRUE(Read(range) == model.substr(first * kChunkBytes, range.bytes())) << i;
        break;
      default: {
        std::string data(range.bytes(), '\0');
        for (uint64_t chunk = 0; chunk < range.count; ++chunk) {
          if (random() % 4 != 0)
            memset(&data[chunk * kChunkBytes + random() % 500], static_cast<int>(random() | 1), 12);
        }
        std::vector<ChunkMask> masks;
        if (random() % 2 == 0) {
          for (uint64_t page = 0; page < range.pages(); ++page) {
            masks.push_back(MaskOfPage(range, range.first_page() + page) & random());
          }
        }
        ASSERT_EQ(Write(range, data, masks), Reason::kOk);
        for (uint64_t chunk = range.first; chunk < range.end(); ++chunk) {
          if (!masks.empty() && (masks[chunk / 8 - range.first_page()] >> chunk % 8 & 1) == 0) continue;
          model.replace(chunk * kChunkBytes, kChunkBytes, data, (chunk - range.first) * kChunkBytes, kChunkBytes);
        }
      }
    }
  }
  EXPECT_TRUE(Read({0, kChunksPerMessage}) == model.substr(0, kChunksPerMessage * kChunkBytes));
  ASSERT_EQ(store_.Destroy(lease_.get(), kRegion, 1), Reason::kOk);
  EXPECT_EQ(arena_->usage().frame_bytes, frames_before);
  EXPECT_EQ(store_.counters().chunks, 0);
  EXPECT_EQ(store_.counters().pages, 0);
}

TEST_F(PageStoreTest, MemoryThatChangesIsNoticedUntilThePageIsWrittenWhole) {
  std::string page(kPageBytes, 'a');
  for (size_t chunk = 0; chunk < kChunksPerPage; ++chunk) page[chunk * kChunkBytes] = static_cast<char>('0' + chunk);
  ASSERT_EQ(Write({0, 8}, page), Reason::kOk);
  ASSERT_EQ(Write({8, 8}, page), Reason::kOk);
  DamageFirstPage();
  EXPECT_EQ(Read({0, 8}), "damaged");
  EXPECT_EQ(Read({0, 16}), "damaged");
  EXPECT_EQ(Read({1, 2}), "damaged") << "nobody knows which part it is";
  EXPECT_EQ(Read({8, 8}), page);
  const std::string chunk(kChunkBytes, 'b');
  EXPECT_EQ(Write({3, 1}, chunk), Reason::kDamaged) << "a new checksum of old bytes would hide it";
  EXPECT_EQ(Read({0, 8}), "damaged");
  EXPECT_EQ(Write({4, 1}, std::string(kChunkBytes, '\0')), Reason::kDamaged);
  EXPECT_EQ(Read({0, 8}), "damaged");
  ASSERT_EQ(store_.Trim(lease_.get(), {kRegion, 1, {0, 2}}), Reason::kOk);
  EXPECT_EQ(Read({0, 8}), "damaged");
  ASSERT_EQ(Write({0, 8}, page), Reason::kOk);
  EXPECT_EQ(Read({0, 8}), page);
}

// The page keeps a chunk of zeros with its frame. That one was never damaged.
TEST_F(PageStoreTest, DamageGoesWithTheLastChunk) {
  for (const auto frames : {PageStore::Frames::kFitted, PageStore::Frames::kWhole}) {
    frames_ = frames;
    ASSERT_EQ(Write({0, 8}, std::string(kPageBytes, 'a')), Reason::kOk);
    DamageFirstPage();
    ASSERT_EQ(store_.Trim(lease_.get(), {kRegion, 1, {0, 4}, frames}), Reason::kOk);
    EXPECT_EQ(Read({0, 8}), "damaged") << "the damaged chunk may be one of the rest";
    ASSERT_EQ(store_.Trim(lease_.get(), {kRegion, 1, {4, 4}, frames}), Reason::kOk);
    EXPECT_EQ(Read({0, 8}), std::string(kPageBytes, '\0'));
    EXPECT_EQ(Write({1, 1}, std::string(kChunkBytes, 'b')), Reason::kOk);
    EXPECT_EQ(Read({1, 1}), std::string(kChunkBytes, 'b'));
    ASSERT_EQ(store_.Trim(lease_.get(), {kRegion, 1, {0, 8}, frames}), Reason::kOk);
  }
}

TEST_F(PageStoreTest, ZerosTakeNoFrameAndOneChunkTakesOne) {
  const uint64_t before = arena_->usage().frame_bytes;
  ASSERT_EQ(Write({0, 64}, std::string(64 * 512, '\0')), Reason::kOk);
  EXPECT_EQ(arena_->usage().frame_bytes, before);
  std::string data(4096, '\0');
  data[3 * 512 + 7] = 'x';
  ASSERT_EQ(Write({80, 8}, data), Reason::kOk);
  EXPECT_EQ(arena_->usage().frame_bytes, before + 512);
  EXPECT_EQ(Read({80, 8}), data);
  ASSERT_EQ(Write({83, 1}, std::string(512, '\0')), Reason::kOk);
  EXPECT_EQ(arena_->usage().frame_bytes, before);
}

TEST_F(PageStoreTest, FullIsSaidAndLosesNothingAndOverwritingGoesOn) {
  const std::string page(4096, 'a');
  uint64_t pages = 0;
  while (Write({pages * 8, 8}, page) == Reason::kOk) ++pages;
  EXPECT_GT(pages, 10'000);
  EXPECT_GT(store_.counters().refused_full, 0);
  for (uint64_t i = 0; i < pages; i += 97) ASSERT_EQ(Read({i * 8, 8}), page);
  const std::string other(4096, 'b');
  for (uint64_t i = 0; i < pages; ++i) ASSERT_EQ(Write({i * 8, 8}, other), Reason::kOk) << i;
  ASSERT_EQ(store_.Trim(lease_.get(), {kRegion, 1, {0, 8 * 1024}}), Reason::kOk);
  EXPECT_EQ(Write({pages * 8, 8}, page), Reason::kOk);
}

TEST_F(PageStoreTest, OverwritingAFullServerNeedsNoRoomWhateverItHolds) {
  uint64_t pages = 0;
  while (Write({pages * 8, 8}, PageWith(0xFF, 'a')) == Reason::kOk) ++pages;
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 30'000; ++i) {
    const uint64_t page = random() % pages;
    const auto chunks = static_cast<ChunkMask>(random() | 1);  // never all zeros, which would free the page
    // Pages only become smaller: a page that has shrunk has given room away.
    const std::string before = Read({page * 8, 8});
    ChunkMask there = 0;
    for (int chunk = 0; chunk < 8; ++chunk) there |= before[chunk * 512] != 0 ? 1 << chunk : 0;
    const auto fewer = static_cast<ChunkMask>(chunks & there);
    if (fewer == 0) continue;
    ASSERT_EQ(Write({page * 8, 8}, PageWith(fewer, 'b')), Reason::kOk) << i;
    ASSERT_EQ(Read({page * 8, 8}), PageWith(fewer, 'b')) << i;
  }
}

TEST_F(PageStoreTest, ATrimTellsWhatAllBeforeItHaveKept) {
  ASSERT_TRUE(arena_->Reserve(3, &lease_->reservation));
  frames_ = PageStore::Frames::kWhole;
  ASSERT_EQ(store_.Create(lease_.get(), kRegion, 1, /*gc=*/false), Reason::kOk);
  for (const uint64_t page : {0, 1, 2}) ASSERT_EQ(Write({page * 8, 8}, PageWith(0xFF, 'k')), Reason::kOk);
  const auto kept_after = [&](uint64_t page, ArenaReservation* reservation, uint32_t epoch = 1) {
    uint64_t kept = 1;
    EXPECT_EQ(store_.Trim(lease_.get(), {kRegion, epoch, {page * 8, 8}, frames_, reservation}, &kept), Reason::kOk);
    return kept;
  };
  const uint64_t one = kept_after(0, &lease_->reservation);
  EXPECT_GE(one, kPageBytes);
  EXPECT_EQ(kept_after(0, &lease_->reservation), one);
  EXPECT_EQ(kept_after(1, nullptr), 1) << "one that keeps nothing says nothing";
  EXPECT_GE(kept_after(2, &lease_->reservation), 2 * one);
  ASSERT_TRUE(store_.Attach(lease_.get(), {kRegion, 0}, 2, /*force=*/true).ok());
  EXPECT_EQ(kept_after(2, &lease_->reservation, 2), 0) << "a new owner has kept nothing yet";
}

// Swap, mmap and fallocate depend on this.
TEST_F(PageStoreTest, ReservedPagesMayHoldWhateverTheyLikeBesideSomebodyGreedy) {
  constexpr uint64_t kPages = 2000;
  ASSERT_TRUE(arena_->Reserve(kPages, &lease_->reservation));
  const auto other = Grant(2);
  ASSERT_EQ(store_.Create(lease_.get(), kRegion, 1, /*gc=*/false), Reason::kOk);
  uint64_t taken = 0;
  std::mt19937_64 random(TestSeed());
  std::map<uint64_t, std::string> model;
  for (int i = 0; i < 60'000; ++i) {
    frames_ = PageStore::Frames::kFitted;
    if (i % 500 == 0) {
      while (Write({taken * 8, 8}, PageWith(0xFF, 'g'), {}, 1, other.get(), RegionId{9}) == Reason::kOk) ++taken;
    }
    frames_ = PageStore::Frames::kWhole;
    const uint64_t page = random() % kPages;
    std::string& held = model.try_emplace(page, std::string(kPageBytes, '\0')).first->second;
    switch (random() % 8) {
      case 0: {
        uint64_t kept = 0;
        ASSERT_EQ(store_.Trim(lease_.get(), {kRegion, 1, {page * 8, 8}, frames_, &lease_->reservation}, &kept),
                  Reason::kOk);
        held.assign(kPageBytes, '\0');
        break;
      }
      case 1: {
        const uint64_t first = random() % 8, count = 1 + random() % (8 - first);
        uint64_t kept = 0;
        (void)store_.Trim(lease_.get(), {kRegion, 1, {page * 8 + first, count}, frames_, &lease_->reservation}, &kept);
        held.replace(first * 512, count * 512, count * 512, '\0');
        break;
      }
      case 2: {
        const uint64_t first = random() % 8, count = 1 + random() % (8 - first);
        const std::string part(count * 512, random() % 3 == 0 ? '\0' : 'p');
        ASSERT_EQ(Write({page * 8 + first, count}, part), Reason::kOk) << i;
        held.replace(first * 512, part.size(), part);
        break;
      }
      default:
        held = PageWith(random() % 4 == 0 ? 0 : static_cast<ChunkMask>(random()), 'r');
        ASSERT_EQ(Write({page * 8, 8}, held), Reason::kOk) << i;
    }
    ASSERT_EQ(Read({page * 8, 8}), held) << i;
  }
  EXPECT_GT(taken, 8'000);
}

TEST_F(PageStoreTest, WhatStoresNothingTakesNothingOfWhatIsReserved) {
  frames_ = PageStore::Frames::kWhole;
  ASSERT_EQ(store_.Create(lease_.get(), kRegion, 1, /*gc=*/false), Reason::kOk);
  ASSERT_TRUE(arena_->Reserve(64, &lease_->reservation));
  const uint64_t left_bytes = arena_->left_bytes(lease_->reservation);
  for (const uint64_t page : {0, 1000, 2000}) {
    ASSERT_EQ(Write({page * 8, 64 * 8}, std::string(64 * kPageBytes, '\0')), Reason::kOk);
    EXPECT_EQ(arena_->left_bytes(lease_->reservation), left_bytes);
    EXPECT_EQ(paid_, 0);
  }
}

TEST_F(PageStoreTest, WholeReservedSpansComeAndGoForEverOnAFullServer) {
  constexpr uint64_t kPages = 4096;
  frames_ = PageStore::Frames::kWhole;
  ASSERT_EQ(store_.Create(lease_.get(), kRegion, 1, /*gc=*/false), Reason::kOk);
  ASSERT_TRUE(arena_->Reserve(kPages, &lease_->reservation));
  const uint64_t left_bytes = arena_->left_bytes(lease_->reservation);
  const auto other = Grant(2);
  uint64_t taken = 0;
  for (int round = 0; round < 30; ++round) {
    while (Write({taken * 8, 8}, PageWith(0xFF, 'g'), {}, 1, other.get(), RegionId{9}) == Reason::kOk) ++taken;
    for (uint64_t page = 0; page < kPages; page += 64) {
      ASSERT_EQ(Write({page * 8, 64 * 8}, std::string(64 * kPageBytes, 'r')), Reason::kOk) << round << ", " << page;
    }
    uint64_t kept = 0;
    ASSERT_EQ(store_.Trim(lease_.get(), {kRegion, 1, {0, kPages * 8}, frames_, &lease_->reservation}, &kept),
              Reason::kOk);
    ASSERT_EQ(arena_->left_bytes(lease_->reservation), left_bytes) << "round " << round;
  }
}

// A client's reservation for pages suffices for them, wherever they are.
TEST_F(PageStoreTest, AWriteMayUseAllTheRoomThatItBrings) {
  frames_ = PageStore::Frames::kWhole;
  ASSERT_EQ(Write({0, 8}, PageWith(0xFF, 'a')), Reason::kOk);
  ASSERT_TRUE(arena_->Reserve(1000, &lease_->reservation));
  const auto other = Grant(2);
  for (uint64_t i = 0; Write({i * 8, 8}, PageWith(0xFF, 'g'), {}, 1, other.get(), RegionId{9}) == Reason::kOk; ++i) {
  }
  const auto write = [&](ChunkRange range, uint64_t limit_bytes) {
    limit_bytes_ = limit_bytes;
    return Write(range, std::string(range.bytes(), 'b'));
  };
  EXPECT_EQ(write({kChunksPerSpan, 16}, 2 * kReservationBytesPerPage), Reason::kOk) << "a second span";
  for (uint64_t pages = 1; pages < kPagesPerSpan; ++pages) {
    EXPECT_EQ(write({0, std::min<uint64_t>(pages, 63) * 8}, 0), Reason::kOk) << "there";
    EXPECT_EQ(write({pages * 8, 8}, kReservationBytesPerPage), Reason::kOk) << pages;
  }
  EXPECT_EQ(write({5 * kChunksPerSpan, 16}, kReservationBytesPerPage), Reason::kFull) << "more than it brings";
}

TEST_F(PageStoreTest, WhatWasSentInAnEarlierTermIsRefused) {
  ASSERT_EQ(Write({0, 8}, PageWith(0xFF, 'a')), Reason::kOk);
  term_ = lease_->term();
  EXPECT_EQ(Write({0, 8}, PageWith(0xFF, 'b')), Reason::kOk);
  ASSERT_NE(leases_.End(LeaseId{1}), nullptr);
  ASSERT_TRUE(TryGrant(1).ok());
  EXPECT_EQ(Write({0, 8}, PageWith(0xFF, 'c')), Reason::kLeaseEnded);
  EXPECT_EQ(Read({0, 8}), PageWith(0xFF, 'b'));
}

TEST_F(PageStoreTest, ADrainingServerTakesNothingNewThatNoReservationPaysFor) {
  ASSERT_EQ(Write({0, 8}, PageWith(0xFF, 'a')), Reason::kOk);
  const auto other = Grant(2);
  ASSERT_EQ(Write({0, 8}, PageWith(0xFF, 'a'), {}, 1, other.get(), RegionId{9}), Reason::kOk);
  ASSERT_TRUE(arena_->Reserve(8, &lease_->reservation));
  store_.SetDraining(true);
  EXPECT_EQ(Write({8, 8}, PageWith(0xFF, 'b')), Reason::kOk) << "reserved";
  EXPECT_EQ(Write({0, 8}, PageWith(0xFF, 'b'), {}, 1, other.get(), RegionId{9}), Reason::kOk) << "there";
  EXPECT_EQ(Write({8, 8}, PageWith(0xFF, 'b'), {}, 1, other.get(), RegionId{9}), Reason::kDraining);
  EXPECT_EQ(Write({0, 8}, PageWith(0xFF, 'b'), {}, 1, other.get(), RegionId{10}), Reason::kDraining);
  EXPECT_EQ(store_.Create(other.get(), RegionId{11}, 1, false), Reason::kDraining);
}

TEST_F(PageStoreTest, RefusedRequestsMovedNothing) {
  ASSERT_EQ(Write({0, 8}, PageWith(0x0F, 'a')), Reason::kOk);
  EXPECT_EQ(Write({0, 8}, PageWith(0x0F, 'a'), {}, 7), Reason::kStaleEpoch);
  EXPECT_EQ(store_.counters().writes, 1);
  EXPECT_EQ(store_.counters().bytes_written, kPageBytes);
  EXPECT_EQ(store_.counters().zero_chunks_elided, 4);
}

TEST_F(PageStoreTest, AReservationEndsWithItsLease) {
  ASSERT_TRUE(arena_->Reserve(100, &lease_->reservation));
  ASSERT_NE(leases_.End(LeaseId{1}), nullptr);
  EXPECT_EQ(arena_->usage().reserved_bytes, 0);
  EXPECT_FALSE(arena_->Reserve(100, &lease_->reservation)) << "a reservation that was under way";
  ASSERT_TRUE(arena_->ChargeIndex(4096));
  Refund refund(&lease_->reservation);
  arena_->ReleaseIndex(4096, &refund);
  EXPECT_EQ(refund.kept_bytes(), 0) << "a trim that was under way";
  ASSERT_TRUE(TryGrant(1).ok());
  EXPECT_TRUE(arena_->Reserve(100, &lease_->reservation));
}

TEST_F(PageStoreTest, ALeaseIsAsLongAsAskedUpToSixTimesTheUsual) {
  ASSERT_TRUE(TryGrant(2, 15'000).ok());
  ASSERT_TRUE(TryGrant(3, 1'000'000).ok());
  clock_.AdvanceMs(10'001);
  EXPECT_EQ(leases_.EndExpired().size(), 1);
  clock_.AdvanceMs(4'998);
  leases_.Extend(5 * kNsPerMs);
  clock_.AdvanceMs(3);
  EXPECT_EQ(leases_.EndExpired().size(), 0) << "this server was stopped for a while";
  clock_.AdvanceMs(10);
  EXPECT_EQ(leases_.EndExpired().size(), 1);
  clock_.AdvanceMs(45'000);
  EXPECT_EQ(leases_.EndExpired().size(), 1);
}

TEST_F(PageStoreTest, EndedLeasesTakeNobodysPlace) {
  for (uint64_t id = 10; id < 10 + 2 * LeaseTable::kLeasesMax; ++id) {
    const auto lease = TryGrant(id);
    ASSERT_TRUE(lease.ok()) << id << ": " << lease.status();
    ASSERT_EQ(store_.Create(lease->get(), RegionId{id}, 1, /*gc=*/false), Reason::kOk);
    ASSERT_NE(leases_.End(LeaseId{id}), nullptr);
  }
  EXPECT_EQ(store_.CountOrphans(), 2 * LeaseTable::kLeasesMax);
  EXPECT_EQ(leases_.live_count(), 1);
  for (uint64_t id = 10'000'000; id < 10'000'000 + LeaseTable::kLeasesMax - 1; ++id) {
    ASSERT_TRUE(TryGrant(id).ok());
  }
  EXPECT_EQ(TryGrant(9).status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(PageStoreTest, AReservationIsKeptToTheLastPage) {
  const auto other = Grant(2);
  constexpr uint64_t kPages = 5000;
  ASSERT_TRUE(arena_->Reserve(kPages, &lease_->reservation));
  ASSERT_EQ(store_.Create(other.get(), RegionId{9}, 1, false), Reason::kOk);
  // Another client takes all that it can.
  FrameLoc frame;
  ASSERT_TRUE(landing_.Take(1, &frame));
  memset(arena_->Data(frame), 1, kPageBytes);
  for (uint64_t page = 0;; ++page) {
    memset(arena_->Data(frame), 1, kPageBytes);
    Payment payment;
    const ChunkRange range{page * 8, 8};
    if (store_.Write(other.get(), {RegionId{9}, 1, range, {}, Crcs(range, {}, {&frame, 1}), &frame}, &payment) !=
        Reason::kOk) {
      break;
    }
  }
  landing_.Give(&frame, 1);
  // The pages are scattered, so that the index costs the most.
  for (uint64_t page = 0; page < kPages; ++page)
    ASSERT_EQ(Write({page * kChunksPerSpan, 8}, std::string(4096, 'x')), Reason::kOk) << page;
}

TEST_F(PageStoreTest, EpochsAndOwnersAreMinded) {
  ASSERT_EQ(Write({0, 8}, std::string(4096, 'a')), Reason::kOk);
  const auto other = Grant(2);
  EXPECT_EQ(Write({0, 8}, std::string(4096, 'b'), {}, 1, other.get()), Reason::kNotOwner);
  EXPECT_EQ(store_.Attach(other.get(), {kRegion, 0}, 2, false).status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(store_.Attach(other.get(), {kRegion, 0}, 1, true).status().code(), absl::StatusCode::kAborted);
  ASSERT_TRUE(store_.Attach(other.get(), {kRegion, 0}, 2, true).ok());
  EXPECT_EQ(Write({0, 8}, std::string(4096, 'c')), Reason::kStaleEpoch);
  EXPECT_EQ(store_.Destroy(lease_.get(), kRegion, 1), Reason::kStaleEpoch);
  EXPECT_EQ(Write({0, 8}, std::string(4096, 'd'), {}, 2, other.get()), Reason::kOk);
  EXPECT_EQ(Read({0, 8}), std::string(4096, 'd'));
}

TEST_F(PageStoreTest, AnEndedLeaseLeavesOrphansAndCollectsGcRegions) {
  ASSERT_EQ(store_.Create(lease_.get(), RegionId{7}, 1, /*gc=*/true), Reason::kOk);
  ASSERT_EQ(Write({0, 8}, std::string(4096, 'a')), Reason::kOk);
  ASSERT_TRUE(arena_->Reserve(100, &lease_->reservation));
  clock_.AdvanceMs(9'000);
  EXPECT_TRUE(leases_.EndExpired().empty());
  clock_.AdvanceMs(1'001);
  const auto ended = leases_.EndExpired();
  ASSERT_EQ(ended.size(), 1);
  store_.CollectLease(*ended[0]);
  EXPECT_EQ(arena_->usage().reserved_bytes, 0);
  // The region is gone. Its memory is freed in steps, by a thread that has the time.
  EXPECT_EQ(store_.List(0, 0, 10, /*orphans_only=*/false, false).size(), 1);
  EXPECT_EQ(store_.counters().regions, 2);
  EXPECT_TRUE(store_.FreeSome(DeadlineAfterMs(60'000)));
  EXPECT_EQ(store_.counters().regions, 1);
  const auto orphans = store_.List(0, 0, 10, /*orphans_only=*/true, false);
  ASSERT_EQ(orphans.size(), 1);
  EXPECT_EQ(orphans[0].id, kRegion);
  EXPECT_EQ(orphans[0].owner_name, "test");
  EXPECT_EQ(Write({0, 8}, std::string(4096, 'b')), Reason::kLeaseEnded);
  // When the lease is taken up again, it owns the region again, and the region is whole.
  ASSERT_TRUE(TryGrant(1).ok());
  EXPECT_EQ(Read({0, 8}), std::string(4096, 'a'));
  EXPECT_EQ(Write({0, 8}, std::string(4096, 'b')), Reason::kOk);
  EXPECT_TRUE(store_.DestroyByControl(LeaseId{0}, {kRegion, 0}, true).value());
}

TEST_F(PageStoreTest, NamesAreUniqueAndForgottenWithTheirRegion) {
  ASSERT_TRUE(store_.CreateNamed(lease_.get(), RegionId{1}, 1, false, {"heap", {1, 2}, 4096}).ok());
  EXPECT_EQ(store_.CreateNamed(lease_.get(), RegionId{2}, 1, false, {"heap", {}, 0}).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store_.FindByName(0, "heap"), RegionId{1});
  const uint64_t index_bytes = arena_->usage().index_bytes;
  EXPECT_EQ(store_.CreateNamed(lease_.get(), RegionId{1}, 1, false, {"other", {3}, 8192}).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(store_.FindByName(0, "other"), RegionId{0});
  EXPECT_EQ(store_.Attach(nullptr, {RegionId{1}, 0}, 0, false)->manifest.incarnations.size(), 2) << "another's";
  EXPECT_EQ(store_.List(0, 0, 1, false, true)[0].manifest.name, "heap");
  EXPECT_EQ(arena_->usage().index_bytes, index_bytes);
  EXPECT_EQ(store_.Destroy(lease_.get(), RegionId{1}, 1), Reason::kOk);
  EXPECT_EQ(store_.FindByName(0, "heap"), RegionId{0});
  EXPECT_TRUE(store_.CreateNamed(lease_.get(), RegionId{2}, 1, false, {"heap", {}, 0}).ok());
}

TEST_F(PageStoreTest, AListGoesOnAlthoughRegionsGoAwayMeanwhile) {
  constexpr uint64_t kStays = 1'000'000;
  for (uint64_t id = kStays; id < kStays + 50; ++id)
    ASSERT_EQ(store_.Create(lease_.get(), RegionId{id}, 1, false), Reason::kOk);
  std::atomic<bool> stop{false};
  std::thread comes_and_goes([&] {
    for (uint64_t i = 0; !stop; ++i) {
      const RegionId id{500'000 + i % 40};
      (void)store_.Create(lease_.get(), id, 1, false);
      (void)store_.Destroy(lease_.get(), id, 1);
    }
  });
  for (int round = 0; round < 3'000; ++round) {
    uint64_t from = 0;
    uint64_t stay = 0;
    do {
      uint64_t next = 0;
      const auto part = store_.List(0, from, 10, false, false, &next);
      ASSERT_TRUE(!part.empty() || next == 0);
      ASSERT_TRUE(next == 0 || next > Raw(part.back().id));
      for (const RegionDescription& region : part) stay += Raw(region.id) >= kStays ? 1 : 0;
      from = next;
    } while (from != 0);
    ASSERT_EQ(stay, 50) << round;
  }
  stop = true;
  comes_and_goes.join();
}

TEST_F(PageStoreTest, ListsSpansAndRegionsInPages) {
  for (uint64_t i = 1; i <= 30; ++i) ASSERT_EQ(store_.Create(lease_.get(), RegionId{i * 1000}, 1, false), Reason::kOk);
  EXPECT_EQ(store_.List(0, 0, 7, false, false).size(), 7);
  EXPECT_EQ(store_.List(0, 7'001, 100, false, false).front().id, RegionId{8'000});
  for (uint64_t span : {3, 1, 70'000}) ASSERT_EQ(Write({span * kChunksPerSpan, 1}, std::string(512, 'x')), Reason::kOk);
  const auto list = [&](uint64_t from, size_t limit) {
    const auto listed = store_.ListSpans({kRegion, 0}, from, limit).value();
    std::vector<uint64_t> spans;
    for (const auto& one : listed) spans.push_back(one.span);
    return spans;
  };
  EXPECT_EQ(list(0, 10), (std::vector<uint64_t>{1, 3, 70'000}));
  EXPECT_EQ(list(2, 1), (std::vector<uint64_t>{3}));
}

// As many regions as $NRAM_REGIONS says. The figures of docs/performance.md are for a million.
uint64_t RegionCount() {
  const char* given = std::getenv("NRAM_REGIONS");
  return given != nullptr ? std::strtoull(given, nullptr, 10) : 100'000;
}

class SmallRegionsTest : public PageStoreTest {
 protected:
  SmallRegionsTest() : PageStoreTest(64 * kMiB + RegionCount() * 1024) {}
};

TEST_F(SmallRegionsTest, AOnePageRegionCostsLessThan320BytesBesideItsPage) {
  const uint64_t regions = RegionCount();
  const uint64_t index_before = arena_->usage().index_bytes;
  const uint64_t extents_before = arena_->usage().extent_bytes;
  const uint64_t resident_before = ReadProcessMemory().anonymous_bytes;
  FrameLoc frame;
  ASSERT_TRUE(landing_.Take(1, &frame));
  std::mt19937_64 random(TestSeed());
  for (uint64_t i = 0; i < regions; ++i) {
    memset(arena_->Data(frame), 1, kChunkBytes);
    Payment payment;
    ASSERT_EQ(
        store_.Write(lease_.get(), {RegionId{random() | 1}, 1, {0, 1}, {}, {0u}, &frame, PageStore::IfAbsent::kCreate},
                     &payment),
        Reason::kOk);
  }
  landing_.Give(&frame, 1);
  const double resident = static_cast<double>(ReadProcessMemory().anonymous_bytes - resident_before) -
                          static_cast<double>(arena_->usage().extent_bytes - extents_before);
  std::cerr << regions << " regions: " << double(arena_->usage().index_bytes - index_before) / regions
            << " B each by the account, " << resident / regions << " B of resident memory beside the frames\n";
  EXPECT_LT((arena_->usage().index_bytes - index_before) / regions, 320);
}

TEST_F(PageStoreTest, ManyThreadsOnOneRegion) {
  // Each page holds one value in all its bytes; readers must never see two.
  std::atomic<bool> stop{false};
  ASSERT_EQ(Write({0, 512}, std::string(512 * 512, 'a')), Reason::kOk);
  std::vector<std::thread> threads;
  for (int t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(TestSeed() + t);
      for (int i = 0; i < 3000; ++i) {
        FrameLoc frame;
        ASSERT_TRUE(landing_.Take(1, &frame));
        memset(arena_->Data(frame), 'a' + random() % 26, kPageBytes);
        Payment payment;
        ASSERT_EQ(store_.Write(lease_.get(), {kRegion, 1, {random() % 64 * 8, 8}, {}, {0u}, &frame}, &payment),
                  Reason::kOk);
        landing_.Give(&frame, 1);
      }
      stop = true;
    });
    threads.emplace_back([&] {
      std::vector<ChunkMask> masks(64);
      std::vector<uint32_t> crcs(64);
      std::string data(64 * 4096, '?');
      while (!stop) {
        size_t bytes = 0;
        ASSERT_EQ(store_.Read({.region = {kRegion, 0}, .epoch = 1, .range = {0, 512}}, masks.data(), crcs.data(),
                              reinterpret_cast<std::byte*>(data.data()), &bytes),
                  Reason::kOk);
        ASSERT_EQ(bytes, data.size());
        for (int page = 0; page < 64; ++page) {
          ASSERT_EQ(data.find_first_not_of(data[page * 4096], page * 4096) >= size_t(page + 1) * 4096, true) << page;
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

}  // namespace
}  // namespace nram
