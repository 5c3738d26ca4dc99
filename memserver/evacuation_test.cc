// How the arena empties extents. The test stands in for the code that names frames.

#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "memserver/frame_arena.h"

namespace nram {
namespace {

constexpr int64_t kNoDeadline = std::numeric_limits<int64_t>::max();
using Evacuation = FrameArena::Evacuation;

std::unique_ptr<FrameArena> Make(uint64_t ceiling = 64 * kMiB) { return FrameArena::Create(ceiling, kMiB).value(); }

std::vector<FrameLoc> Fill(FrameArena* arena, int chunks) {
  std::vector<FrameLoc> frames;
  for (FrameLoc frame; (frame = arena->Allocate(chunks)) != kNoFrame;) frames.push_back(frame);
  return frames;
}

// Frees all but one of `each` frames.
void Thin(FrameArena* arena, std::vector<FrameLoc>* frames, size_t each) {
  std::vector<FrameLoc> kept;
  for (size_t i = 0; i < frames->size(); ++i) {
    if (i % each == 0) {
      kept.push_back((*frames)[i]);
    } else {
      arena->Free((*frames)[i]);
    }
  }
  *frames = std::move(kept);
}

// Begins with the emptiest extents, as many as fit.
size_t BeginAll(FrameArena* arena) {
  size_t begun = 0;
  for (const uint32_t extent : arena->EmptiestExtents(1000)) {
    if (arena->BeginEvacuation(extent) == Evacuation::kBegun) ++begun;
  }
  return begun;
}

bool Move(FrameArena* arena, FrameLoc* frame) {
  const FrameLoc to = arena->AllocateElsewhere(*frame);
  if (to == kNoFrame) return false;
  EXPECT_EQ(arena->ChunksIn(to), arena->ChunksIn(*frame));
  EXPECT_FALSE(arena->IsEvacuating(to));
  memcpy(arena->Data(to), arena->Data(*frame), arena->ChunksIn(to) * kChunkBytes);
  arena->Free(std::exchange(*frame, to));
  return true;
}

TEST(EvacuationTest, NothingIsTakenFromEvacuatingExtents) {
  auto arena = Make();
  std::vector<FrameLoc> frames = Fill(arena.get(), 8);
  EXPECT_LT(arena->ScatteredBytes(), 2 * kMiB);
  EXPECT_TRUE(arena->EmptiestExtents(1000).empty()) << "full ones are left out";
  Thin(arena.get(), &frames, 4);
  const ArenaUsage before = arena->usage();
  EXPECT_GT(arena->ScatteredBytes(), before.extent_bytes * 7 / 10);
  const size_t begun = BeginAll(arena.get());
  EXPECT_GT(begun * 2 * kMiB, before.extent_bytes / 2);
  EXPECT_EQ(arena->evacuating_extents(), begun);
  EXPECT_LT(arena->usage().free_bytes, before.free_bytes);
  std::vector<FrameLoc> more = Fill(arena.get(), 8);
  for (const FrameLoc frame : more) EXPECT_FALSE(arena->IsEvacuating(frame));
  for (const FrameLoc frame : more) arena->Free(frame);
  // Frees into them work. These frames are free for all when the evacuation is given up.
  const auto lies_there = [&](FrameLoc frame) { return arena->IsEvacuating(frame); };
  const auto freed = std::find_if(frames.begin(), frames.end(), lies_there);
  ASSERT_NE(freed, frames.end());
  arena->Free(*freed);
  EXPECT_EQ(arena->EndEvacuation().left.size(), begun);
  EXPECT_EQ(arena->evacuating_extents(), 0);
  EXPECT_EQ(arena->usage().free_bytes, before.free_bytes + kPageBytes);
  EXPECT_EQ(Fill(arena.get(), 8).size(), before.free_bytes / kPageBytes + 1);
}

TEST(EvacuationTest, EmptyExtentsGoBackAtOnce) {
  for (const int chunks : {1, 3, 7, 8}) {
    auto arena = Make();
    std::vector<FrameLoc> frames = Fill(arena.get(), chunks);
    std::shuffle(frames.begin(), frames.end(), std::mt19937_64(TestSeed()));
    Thin(arena.get(), &frames, 5);
    const uint64_t all = arena->usage().extent_bytes;
    const size_t begun = BeginAll(arena.get());
    for (size_t i = 0; i < frames.size(); ++i) memset(arena->Data(frames[i]), static_cast<int>(i), kChunkBytes);
    for (FrameLoc& frame : frames) {
      if (arena->IsEvacuating(frame)) {
        ASSERT_TRUE(Move(arena.get(), &frame));
      }
    }
    EXPECT_EQ(arena->evacuating_extents(), 0);
    EXPECT_EQ(arena->SpareBytes(), begun * 2 * kMiB);
    EXPECT_EQ(arena->EndEvacuation().emptied, begun);
    EXPECT_EQ(arena->ReleaseSpare(3 * kMiB, kNoDeadline), 4 * kMiB);
    EXPECT_EQ(arena->ReleaseSpare(~uint64_t{0}, kNoDeadline), begun * 2 * kMiB - 4 * kMiB);
    EXPECT_EQ(arena->usage().extent_bytes, all - begun * 2 * kMiB);
    EXPECT_LT(arena->usage().extent_bytes, all * 3 / 10) << chunks;
    for (size_t i = 0; i < frames.size(); ++i) {
      ASSERT_EQ(arena->Data(frames[i])[kChunkBytes - 1], static_cast<std::byte>(i));
      arena->Free(frames[i]);
    }
    EXPECT_EQ(arena->usage().frame_bytes, 0);
  }
}

TEST(EvacuationTest, AReservationGetsWhatIsPutAside) {
  auto arena = Make();
  std::vector<FrameLoc> frames = Fill(arena.get(), 8);
  // Every second whole frame becomes room of a reservation, which is all the room there is.
  ArenaReservation reservation;
  Refund refund(&reservation);
  std::vector<FrameLoc> kept;
  for (size_t i = 0; i < frames.size(); ++i) {
    if (i % 2 == 0) {
      kept.push_back(frames[i]);
    } else {
      arena->Free(frames[i], &refund);
    }
  }
  EXPECT_EQ(refund.kept_bytes(), frames.size() / 2 * kPageBytes);
  EXPECT_EQ(BeginAll(arena.get()), 0) << "at the expense of the reservation";
  // Half of the reservation is given up: so many frames can be put aside, and no more.
  arena->Unreserve(frames.size() / 4, &reservation);
  const size_t begun = BeginAll(arena.get());
  EXPECT_GT(begun, 0);
  // Another client takes all other room. A whole frame that is freed there is kept for the reservation as ever.
  ArenaReservation other;
  while (arena->Reserve(1, &other)) {
  }
  std::set<uint32_t> pinned;  // one frame of each extent stays
  for (FrameLoc& frame : kept) {
    if (!arena->IsEvacuating(frame)) continue;
    if (pinned.insert(FrameArena::ExtentOf(frame)).second) continue;
    const uint64_t before = refund.kept_bytes();
    arena->Free(std::exchange(frame, kNoFrame), &refund);
    ASSERT_EQ(refund.kept_bytes(), before + kPageBytes);
  }
  Payment payment(&reservation);
  while (arena->left_bytes(reservation) >= kPageBytes) ASSERT_NE(arena->Allocate(8, &payment), kNoFrame);
  Payment others(&other);
  while (arena->left_bytes(other) >= kPageBytes) ASSERT_NE(arena->Allocate(8, &others), kNoFrame);
  arena->EndEvacuation();
}

TEST(EvacuationTest, ASlabThatIsPaidForInPartStays) {
  auto arena = Make();
  ArenaReservation reservation;
  ASSERT_TRUE(arena->Reserve(100, &reservation));
  Payment payment(&reservation);
  const FrameLoc first = arena->Allocate(4, &payment);
  std::vector<FrameLoc> frames = Fill(arena.get(), 8);
  Thin(arena.get(), &frames, 4);
  EXPECT_EQ(arena->BeginEvacuation(FrameArena::ExtentOf(first)), Evacuation::kPinned);
  // It is full, so all of it is paid for.
  for (int i = 1; i < 32; ++i) ASSERT_NE(arena->Allocate(4, &payment), kNoFrame);
  EXPECT_EQ(arena->BeginEvacuation(FrameArena::ExtentOf(first)), Evacuation::kBegun);
  EXPECT_EQ(arena->BeginEvacuation(FrameArena::ExtentOf(first)), Evacuation::kPinned) << "it is evacuating already";
  EXPECT_EQ(arena->EndEvacuation().left, std::vector<uint32_t>{FrameArena::ExtentOf(first)});
}

// An arena that takes random orders, and a model of it.
class RandomLoad {
 public:
  RandomLoad(std::mt19937_64* random, int classes) : random_(*random), classes_(classes), arena_(Make(24 * kMiB)) {}

  void Step() {
    ArenaReservation* const reservation = &reservations_[random_() % 3];
    switch (random_() % 10) {
      case 0:
        (void)arena_->Reserve(random_() % 300, reservation);
        break;
      case 1:
        arena_->Unreserve(random_() % 300, reservation);
        break;
      case 2:
      case 3:
      case 4:
        for (uint64_t burst = 1 + random_() % 16; burst > 0; --burst) Take(reservation);
        break;
      case 5:
        Charge(reservation);
        break;
      case 6:
        if (random_() % 16 == 0) emptied_ += arena_->EndEvacuation().emptied;
        if (random_() % 8 == 0) BeginAll(arena_.get());
        break;
      case 7:
        for (int tries = 0; tries < 100 && !held_.empty(); ++tries) {
          Held* const one = &held_[random_() % held_.size()];
          if (arena_->IsEvacuating(one->frame)) moved_ += Move(arena_.get(), &one->frame);
        }
        break;
      default:
        for (uint64_t burst = random_() % 256 == 0 ? held_.size() * 3 / 4 : 2; burst > 0; --burst) Drop(reservation);
    }
    const ArenaUsage usage = arena_->usage();
    ASSERT_LE(usage.extent_bytes + usage.index_bytes + usage.fixed_bytes, usage.ceiling_bytes);
  }

  void End() {
    while (!held_.empty()) Drop(nullptr);
    arena_->EndEvacuation();
    EXPECT_EQ(arena_->usage().frame_bytes, 0);
    EXPECT_EQ(arena_->SpareBytes(), arena_->usage().extent_bytes);
  }

  uint64_t moved() const { return moved_; }
  uint64_t emptied() const { return emptied_; }

 private:
  struct Held {
    FrameLoc frame;
    std::byte mark;
  };

  void Take(ArenaReservation* reservation) {
    const bool pays = random_() % 2 == 0;
    const bool must = pays && arena_->left_bytes(*reservation) >= kReservationBytesPerPage;
    Payment payment(pays ? reservation : nullptr);
    const FrameLoc frame = arena_->Allocate(9 - classes_ + random_() % classes_, &payment);
    ASSERT_TRUE(frame != kNoFrame || !must);
    if (frame == kNoFrame) return;
    ASSERT_FALSE(arena_->IsEvacuating(frame));
    held_.push_back({frame, static_cast<std::byte>(random_())});
    memset(arena_->Data(frame), static_cast<int>(held_.back().mark), arena_->ChunksIn(frame) * kChunkBytes);
  }

  void Drop(ArenaReservation* reservation) {
    if (held_.empty()) return;
    std::swap(held_[random_() % held_.size()], held_.back());
    const Held freed = held_.back();
    held_.pop_back();
    ASSERT_EQ(arena_->Data(freed.frame)[arena_->ChunksIn(freed.frame) * kChunkBytes - 1], freed.mark);
    Refund refund(random_() % 4 == 0 ? reservation : nullptr);
    arena_->Free(freed.frame, &refund);
  }

  void Charge(ArenaReservation* reservation) {
    switch (random_() % 64) {
      case 0:
        arena_->ReleaseIdle(true);
        break;
      case 1:
        arena_->SetCeiling((16 + random_() % 16) * kMiB);
        break;
      case 2:
        arena_->ReleaseSpare(random_() % (4 * kMiB), kNoDeadline);
        break;
      default:
        const uint64_t bytes = random_() % kIndexBytesPerPageMax;
        Payment payment(random_() % 2 == 0 ? reservation : nullptr);
        if (arena_->ChargeIndex(bytes, &payment)) {
          index_bytes_ += bytes;
        } else {
          arena_->ReleaseIndex(std::exchange(index_bytes_, 0));
        }
    }
  }

  std::mt19937_64& random_;
  const int classes_;
  const std::unique_ptr<FrameArena> arena_;
  ArenaReservation reservations_[3];
  std::vector<Held> held_;
  uint64_t index_bytes_ = 0;
  uint64_t moved_ = 0;
  uint64_t emptied_ = 0;
};

// As ReservationsHoldUnderRandomLoad of frame_arena_test, while extents are evacuated.
TEST(EvacuationTest, ReservationsHoldWhileExtentsAreEvacuated) {
  std::mt19937_64 random(TestSeed());
  uint64_t moved = 0;
  uint64_t emptied = 0;
  for (int round = 0; round < 30; ++round) {
    RandomLoad load(&random, /*classes=*/round % 3 == 0 ? 1 : 8);
    for (int i = 0; i < 20'000 && !::testing::Test::HasFatalFailure(); ++i) load.Step();
    load.End();
    moved += load.moved();
    emptied += load.emptied();
  }
  EXPECT_GT(moved, 1000);
  EXPECT_GT(emptied, 10);
}

TEST(EvacuationDeathTest, FreeingTwiceIsCaught) {
  auto arena = Make();
  std::vector<FrameLoc> frames = Fill(arena.get(), 8);
  Thin(arena.get(), &frames, 4);
  BeginAll(arena.get());
  const auto lies_there = [&](FrameLoc frame) { return arena->IsEvacuating(frame); };
  const FrameLoc freed = *std::find_if(frames.begin(), frames.end(), lies_there);
  arena->Free(freed);
  EXPECT_DEATH(arena->Free(freed), "freed twice");
}

}  // namespace
}  // namespace nram
