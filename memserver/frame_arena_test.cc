#include "memserver/frame_arena.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <random>
#include <utility>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

std::unique_ptr<FrameArena> Make(uint64_t ceiling = 32 * kMiB) { return FrameArena::Create(ceiling, kMiB).value(); }

TEST(FrameArenaTest, RefusesACeilingThatLeavesNothing) {
  EXPECT_EQ(FrameArena::Create(2 * kMiB, kMiB).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(FrameArenaTest, FramesDoNotOverlap) {
  auto arena = Make();
  std::map<FrameLoc, int> frames;
  std::mt19937_64 random(TestSeed());
  while (true) {
    const int chunks = 1 + random() % 8;
    const FrameLoc frame = arena->Allocate(chunks);
    if (frame == kNoFrame) break;
    const auto [it, inserted] = frames.emplace(frame, chunks);
    ASSERT_TRUE(inserted);
    if (it != frames.begin()) {
      ASSERT_LE(std::prev(it)->first + std::prev(it)->second, frame);
    }
    if (std::next(it) != frames.end()) {
      ASSERT_LE(frame + chunks, std::next(it)->first);
    }
    memset(arena->Data(frame), chunks, chunks * kChunkBytes);
  }
  EXPECT_GT(frames.size(), 5000);
  for (const auto& [frame, chunks] : frames) {
    ASSERT_EQ(arena->Data(frame)[chunks * kChunkBytes - 1], static_cast<std::byte>(chunks));
    arena->Free(frame);
  }
  EXPECT_EQ(arena->usage().frame_bytes, 0);
}

TEST(FrameArenaTest, FreedMemoryGoesBackToTheHostAndIsFreeForAnySize) {
  auto arena = Make();
  const uint64_t free_before = arena->usage().free_bytes;
  for (const int chunks : {1, 8, 3, 8, 1}) {
    std::vector<FrameLoc> frames;
    for (FrameLoc frame; (frame = arena->Allocate(chunks)) != kNoFrame;) frames.push_back(frame);
    EXPECT_GT(frames.size() * chunks * kChunkBytes, free_before * 9 / 10) << chunks;
    for (const FrameLoc frame : frames) arena->Free(frame);
    // Extents remain spare until they were not needed for a whole period.
    const uint64_t spare = arena->usage().extent_bytes;
    EXPECT_GT(spare, free_before * 9 / 10);
    arena->ReleaseIdle(true);
    EXPECT_EQ(arena->usage().extent_bytes, spare);
    arena->Free(arena->Allocate(8));
    arena->ReleaseIdle(true);
    EXPECT_EQ(arena->usage().extent_bytes, 2 * kMiB) << "one was used meanwhile";
    arena->ReleaseIdle(true);
    EXPECT_EQ(arena->usage().extent_bytes, 0);
    EXPECT_EQ(arena->usage().free_bytes, free_before);
  }
}

TEST(FrameArenaTest, ALittleNewDataDoesNotPinWhatWasFreed) {
  auto arena = Make(256 * kMiB);
  std::vector<FrameLoc> frames;
  for (FrameLoc frame; (frame = arena->Allocate(8)) != kNoFrame;) frames.push_back(frame);
  std::shuffle(frames.begin(), frames.end(), std::mt19937_64(TestSeed()));
  for (const FrameLoc frame : frames) arena->Free(frame);
  for (uint64_t i = 0; i < 2 * kMiB / kPageBytes + 1; ++i) ASSERT_NE(arena->Allocate(8), kNoFrame);
  arena->ReleaseIdle(true);
  arena->ReleaseIdle(true);
  EXPECT_EQ(arena->usage().extent_bytes, 4 * kMiB);
}

TEST(FrameArenaTest, MuchGoesBackInManyCalls) {
  constexpr uint64_t kCallBytes = kGiB;
  auto arena = Make(kCallBytes + 200 * kMiB);
  std::vector<FrameLoc> frames;
  for (FrameLoc frame; (frame = arena->Allocate(8)) != kNoFrame;) frames.push_back(frame);
  const uint64_t all = arena->usage().extent_bytes;
  ASSERT_GT(all, kCallBytes);
  for (const FrameLoc frame : frames) arena->Free(frame);
  arena->ReleaseIdle(true);
  EXPECT_EQ(arena->usage().extent_bytes, all);
  arena->ReleaseIdle(true);
  EXPECT_EQ(arena->usage().extent_bytes, all - kCallBytes);
  arena->ReleaseIdle(false);
  EXPECT_EQ(arena->usage().extent_bytes, 0);
}

TEST(FrameArenaTest, SpareMemoryStandsInNobodysWay) {
  auto arena = Make();
  std::vector<FrameLoc> frames;
  for (FrameLoc frame; (frame = arena->Allocate(8)) != kNoFrame;) frames.push_back(frame);
  const uint64_t full = arena->usage().extent_bytes;
  for (const FrameLoc frame : frames) arena->Free(frame);
  // The index gets the memory that frames had.
  uint64_t charged = 0;
  while (arena->ChargeIndex(kMiB)) charged += kMiB;
  EXPECT_GT(charged, full * 8 / 10);
  EXPECT_EQ(arena->usage().extent_bytes, 0);
  arena->ReleaseIndex(charged);
  // The host gets it when the ceiling goes down.
  for (FrameLoc& frame : frames) ASSERT_NE(frame = arena->Allocate(8), kNoFrame);
  arena->SetCeiling(16 * kMiB);
  EXPECT_EQ(arena->usage().extent_bytes, full) << "it is in use";
  for (const FrameLoc frame : frames) arena->Free(frame);
  arena->SetCeiling(16 * kMiB);
  EXPECT_LE(arena->usage().extent_bytes, 16 * kMiB);
  EXPECT_EQ(arena->usage().ceiling_bytes, 16 * kMiB);
}

TEST(FrameArenaTest, NothingTakesWhatIsReserved) {
  auto arena = Make();
  ArenaReservation reservation;
  ASSERT_TRUE(arena->Reserve(3000, &reservation));
  while (arena->Allocate(8) != kNoFrame) {
  }
  while (arena->Allocate(1) != kNoFrame) {
  }
  while (arena->ChargeIndex(1000)) {
  }
  Payment payment(&reservation);
  for (int i = 0; i < 3000; ++i) {
    ASSERT_NE(arena->Allocate(8, &payment), kNoFrame) << i;
    ASSERT_TRUE(arena->ChargeIndex(kIndexBytesPerPageMax, &payment));
  }
  EXPECT_EQ(payment.paid_bytes(), 3000 * kReservationBytesPerPage);
  EXPECT_EQ(arena->left_bytes(reservation), 0);
  EXPECT_EQ(arena->Allocate(8, &payment), kNoFrame);
}

// A reservation pays for a slab frame by frame. Others must not use up the slabs that it has opened and not paid.
TEST(FrameArenaTest, NobodyTakesTheSlabsThatReservationsOpen) {
  for (const int chunks : {1, 4}) {
    auto arena = Make();
    ArenaReservation reservation;
    while (arena->Reserve(1, &reservation)) {
    }
    Payment payment(&reservation);
    while (arena->left_bytes(reservation) >= kPageBytes) {
      ASSERT_NE(arena->Allocate(chunks, &payment), kNoFrame);
      for (int i = 0; i < 128; ++i) (void)arena->Allocate(chunks);
    }
  }
}

TEST(FrameArenaTest, APaymentStaysWithinItsLimitAtEachStep) {
  auto arena = Make();
  ArenaReservation reservation;
  ASSERT_TRUE(arena->Reserve(100, &reservation));
  const uint64_t left_bytes = arena->left_bytes(reservation);
  Payment payment(&reservation, kReservationBytesPerPage);
  payment.BeginStep(kPageBytes);
  ASSERT_NE(arena->Allocate(8, &payment), kNoFrame);
  EXPECT_EQ(payment.paid_bytes(), kPageBytes);
  payment.BeginStep(kPageBytes);
  EXPECT_FALSE(payment.pays()) << "there is not so much left of the limit";
  ASSERT_NE(arena->Allocate(8, &payment), kNoFrame) << "what is free pays";
  EXPECT_EQ(payment.paid_bytes(), kPageBytes);
  payment.BeginStep(kIndexBytesPerPageMax);
  EXPECT_TRUE(payment.pays());
  ASSERT_TRUE(arena->ChargeIndex(kIndexBytesPerPageMax, &payment));
  EXPECT_EQ(arena->left_bytes(reservation), left_bytes - kReservationBytesPerPage);
  // Bytes that it does not need go back to the reservation, but no more than it has paid.
  arena->ReturnIndex(kIndexBytesPerPageMax, &payment);
  EXPECT_EQ(payment.paid_bytes(), kPageBytes);
  Payment nobody;
  nobody.BeginStep(0);
  EXPECT_FALSE(nobody.pays());
  ASSERT_TRUE(arena->ChargeIndex(1000, &nobody));
  arena->ReturnIndex(1000, &nobody);
  EXPECT_EQ(arena->left_bytes(reservation), left_bytes - kPageBytes);
}

TEST(FrameArenaTest, UnreservingFreesIt) {
  auto arena = Make();
  ArenaReservation reservation;
  const uint64_t free_before = arena->usage().free_bytes;
  ASSERT_TRUE(arena->Reserve(2000, &reservation));
  EXPECT_LE(arena->usage().free_bytes, free_before - 2000 * kPageBytes);
  EXPECT_FALSE(arena->Reserve(100'000, &reservation));
  EXPECT_EQ(arena->left_bytes(reservation), 2000 * kReservationBytesPerPage);
  arena->Unreserve(500, &reservation);
  EXPECT_EQ(arena->left_bytes(reservation), 1500 * kReservationBytesPerPage);
  arena->Unreserve(~uint64_t{0}, &reservation);
  EXPECT_EQ(arena->usage().free_bytes, free_before);
}

// While threads allocate, free and reserve at random, every reservation is kept and the ceiling holds.
TEST(FrameArenaTest, ReservationsHoldUnderRandomLoad) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 20; ++round) {
    auto arena = Make(24 * kMiB);
    std::vector<FrameLoc> frames;
    uint64_t index = 0;
    ArenaReservation reservations[3];
    for (int i = 0; i < 20'000; ++i) {
      ArenaReservation* reservation = &reservations[random() % 3];
      switch (random() % 8) {
        case 0:
          (void)arena->Reserve(random() % 300, reservation);
          break;
        case 1:
          arena->Unreserve(random() % 300, reservation);
          break;
        case 2:
        case 3:
        case 4: {
          const bool pays = random() % 2 == 0;
          const bool must = pays && arena->left_bytes(*reservation) >= kReservationBytesPerPage;
          Payment payment(pays ? reservation : nullptr);
          const FrameLoc frame = arena->Allocate(1 + random() % 8, &payment);
          ASSERT_TRUE(frame != kNoFrame || !must);
          if (frame != kNoFrame) frames.push_back(frame);
          break;
        }
        case 5:
          switch (random() % 64) {
            case 0:
              arena->ReleaseIdle(true);
              break;
            case 1:
              arena->SetCeiling((16 + random() % 16) * kMiB);
              break;
            default: {
              const uint64_t bytes = random() % kIndexBytesPerPageMax;
              Payment payment(random() % 2 == 0 ? reservation : nullptr);
              if (arena->ChargeIndex(bytes, &payment)) {
                index += bytes;
              } else {
                arena->ReleaseIndex(std::exchange(index, 0));
              }
            }
          }
          break;
        default:
          if (!frames.empty()) {
            std::swap(frames[random() % frames.size()], frames.back());
            arena->Free(frames.back());
            frames.pop_back();
          }
      }
      const ArenaUsage usage = arena->usage();
      ASSERT_LE(usage.extent_bytes + usage.index_bytes + usage.fixed_bytes, usage.ceiling_bytes);
    }
  }
}

TEST(FrameArenaDeathTest, FreeingTwiceIsCaught) {
  auto arena = Make();
  const FrameLoc frame = arena->Allocate(8);
  const FrameLoc other = arena->Allocate(8);
  (void)other;
  arena->Free(frame);
  EXPECT_DEATH(arena->Free(frame), "freed twice");
}

}  // namespace
}  // namespace nram
