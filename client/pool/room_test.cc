#include "client/pool/room.h"

#include <map>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/test_seed.h"
#include "client/pool/region_room.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

constexpr uint64_t kPage = Room::kBytesPerPage;

TEST(RoomTest, WhatIsGrantedIsNotGrantedTwice) {
  Room room;
  ASSERT_TRUE(room.Enter(1, 1));
  EXPECT_FALSE(room.Enter(1, 1));
  EXPECT_FALSE(room.TryTake(1)) << "nothing was reserved";
  ASSERT_TRUE(room.AddReservation(10 * kPage, 1, 1));
  EXPECT_FALSE(room.AddReservation(10 * kPage, 1, 2)) << "to another term";
  Room::Grant most = room.TryTake(7 * kPage);
  ASSERT_TRUE(most);
  EXPECT_FALSE(room.TryTake(4 * kPage));
  Room::Grant rest = room.TryTake(3 * kPage);
  ASSERT_TRUE(rest);
  room.Used(std::move(most), 2 * kPage);
  EXPECT_EQ(room.free_bytes(), 5 * kPage);
  room.Unused(std::move(rest));
  EXPECT_EQ(room.free_bytes(), 8 * kPage);
}

TEST(RoomTest, ATermThatIsOverGivesNothingBack) {
  Room room;
  room.Enter(1, 1);
  room.AddReservation(10 * kPage, 1, 1);
  Room::Grant unused = room.TryTake(kPage);
  Room::Grant used = room.TryTake(2 * kPage);
  Room::Grant reserved = room.TryTake(kPage);
  ASSERT_TRUE(room.Enter(1, 2));
  EXPECT_EQ(room.free_bytes(), 0);
  room.AddReservation(5 * kPage, 1, 2);
  room.Unused(std::move(unused));
  EXPECT_EQ(room.free_bytes(), 5 * kPage);
  // Perhaps it was executed in the present term.
  room.Used(std::move(used), kPage);
  EXPECT_EQ(room.free_bytes(), 4 * kPage);
  EXPECT_EQ(room.Reserve(std::move(reserved)), 0);
  const uint64_t look = room.Look();
  EXPECT_TRUE(room.Hear(5 * kPage, look)) << "all of it has ended";
  EXPECT_EQ(room.free_bytes(), 5 * kPage);
}

TEST(RoomTest, OnlyAnExactWordCounts) {
  Room room;
  room.Enter(1, 1);
  room.AddReservation(10 * kPage, 1, 1);
  uint64_t look = room.Look();
  Room::Grant grant = room.TryTake(kPage);
  EXPECT_FALSE(room.Hear(20 * kPage, look)) << "a write is under way";
  room.Unused(std::move(grant));
  EXPECT_FALSE(room.Hear(20 * kPage, look)) << "one was";
  EXPECT_TRUE(room.Hear(20 * kPage, room.Look()));
  EXPECT_EQ(room.free_bytes(), 20 * kPage);
  room.SetUnsettled(true);
  EXPECT_FALSE(room.Hear(10 * kPage, room.Look()));
  room.SetUnsettled(false);
  const uint32_t term = room.Hold();
  EXPECT_FALSE(room.Hear(10 * kPage, room.Look()));
  room.Unhold(0, term);
  EXPECT_TRUE(room.Hear(10 * kPage, room.Look()));
}

TEST(RoomTest, WhatIsGrantedOrReservedIsNotGivenBack) {
  Room room;
  room.Enter(1, 1);
  room.AddReservation(100 * kPage, 1, 1);
  Room::Grant grant = room.TryTake(20 * kPage);
  RegionRoom own;
  ASSERT_TRUE(own.Add(&room, room.TryTake(30 * kPage)));
  EXPECT_EQ(room.TakeSurplus(100 * kPage, 10 * kPage), 40);
  EXPECT_EQ(room.free_bytes(), 10 * kPage);
  EXPECT_EQ(room.TakeSurplus(60 * kPage, 10 * kPage), 0);
  // The server has reserved less than the client believes: the free bytes are not all there.
  room.AddReservation(40 * kPage, 1, 1);
  EXPECT_EQ(room.TakeSurplus(75 * kPage, 10 * kPage), 15);
  room.Unused(std::move(grant));
  own.Close(&room);
}

TEST(RoomTest, AForgottenGrantIsABug) {
  Room room;
  room.Enter(1, 1);
  room.AddReservation(10 * kPage, 1, 1);
  EXPECT_DEATH({ Room::Grant grant = room.TryTake(kPage); }, "forgotten");
  EXPECT_DEATH(
      {
        Room::Grant grant = room.TryTake(kPage);
        grant = room.TryTake(kPage);
      },
      "forgotten");
}

TEST(RoomTest, ManyThreadsLoseNothing) {
  Room room;
  room.Enter(1, 1);
  room.AddReservation(1'000 * kPage, 1, 1);
  std::vector<std::thread> threads;
  std::atomic<uint64_t> used{0};
  std::atomic<bool> over{false};
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(TestSeed() + static_cast<uint64_t>(t));
      RegionRoom own;
      for (int i = 0; i < 50'000; ++i) {
        Room::Grant grant = room.TryTake((1 + random() % 8) * kPage);
        if (!grant) continue;
        if (random() % 4 == 0) {
          EXPECT_TRUE(own.Add(&room, std::move(grant)));
          own.Release(&room, random() % (8 * kPage));
          continue;
        }
        const uint64_t bytes = i % 1'000 == 0 ? 64 : 0;
        used += bytes;
        room.Used(std::move(grant), bytes);
      }
      own.Close(&room);
    });
  }
  // A value that is not exact is not taken. An exact one repeats the known value, or is wrong here.
  std::thread hears([&] {
    while (!over) {
      const uint64_t look = room.Look();
      const uint64_t reservation_bytes = 1'000 * kPage - used;
      room.Hear(reservation_bytes, look);
    }
  });
  for (std::thread& thread : threads) thread.join();
  over = true;
  hears.join();
  EXPECT_EQ(room.free_bytes(), static_cast<int64_t>(1'000 * kPage - used));
}

// A client with three regions at one server. Each call may be executed or not, and answered or not, in any order that
// the server's rules allow. The server's truth is a number; the client must never count on more, and must learn it.
class RoomModel {
 public:
  explicit RoomModel(uint64_t seed) : random_(seed) { NewTerm(); }

  void Run(int steps) {
    for (int i = 0; i < steps && !::testing::Test::HasFailure(); ++i) {
      Step();
      Check();
    }
    Quiesce();
  }

 private:
  struct Write {
    Room::Grant grant;
    int region = -1;  // whose quota pays; none: the client's
    bool executed = false;
    uint64_t used = 0;
    uint64_t term = 0;  // in which it was granted
    uint64_t executed_term = 0;
  };
  struct Trim {
    int region = 0;
    RegionRoom::Trim trim;
    bool executed = false;
    uint32_t kept_after = 0;
  };
  static constexpr int kRegions = 3;

  uint64_t Random(uint64_t below) { return random_() % below; }

  void NewTerm() {
    ++term_;
    reservation_bytes_ = 0;
    for (uint32_t& kept : kept_chunks_) kept = 0;
    room_.Enter(7, term_);
  }

  void Step() {
    switch (Random(20)) {
      case 0:
      case 1:
        AskForRoom();
        break;
      case 2:
      case 3:
      case 4:
      case 5:
        StartClientWrite();
        break;
      case 6:
      case 7:
      case 8:
        StartRegionWrite();
        break;
      case 9:
      case 10:
      case 11:
      case 12:
        if (!writes_.empty()) EndWrite();
        break;
      case 13:
        FillPurse();
        break;
      case 14:
        regions_[Random(kRegions)].Release(&room_, Random(16) * kPage);
        break;
      case 15:
        StartTrim();
        break;
      case 16:
        if (!trims_.empty()) EndTrim();
        break;
      case 17:
        Hear();
        break;
      case 18:
        GiveBackSurplus();
        break;
      case 19:
        if (Random(40) == 0) NewTerm();
        break;
    }
  }

  // The server adds it or not, and its answer arrives or not.
  void AskForRoom() {
    const uint64_t bytes = (1 + Random(64)) * kPage;
    const uint32_t hold = room_.Hold();
    room_.SetUnsettled(true);
    const bool executed = Random(8) != 0;
    if (executed) reservation_bytes_ += bytes;
    if (executed && Random(8) != 0) {
      room_.SetUnsettled(false);
      EXPECT_TRUE(room_.AddReservation(bytes, 7, term_));
    }
    room_.Unhold(0, hold);
  }

  void GiveBackSurplus() {
    const uint64_t pages = room_.TakeSurplus(reservation_bytes_, 16 * kPage);
    room_.SetUnsettled(true);
    ASSERT_GE(reservation_bytes_, pages * kPage);
    if (Random(8) != 0) reservation_bytes_ -= pages * kPage;
    if (Random(8) != 0) room_.SetUnsettled(false);
    // If it is not executed, the server has more than the client knows, until the next exact value.
  }

  void FillPurse() {
    Room::Grant grant = room_.TryTake((1 + Random(32)) * kPage);
    if (grant) {
      EXPECT_TRUE(regions_[Random(kRegions)].Add(&room_, std::move(grant)));
    }
  }

  void StartClientWrite() {
    Write write;
    write.grant = room_.TryTake((1 + Random(16)) * kPage);
    if (write.grant) Begin(std::move(write));
  }

  void StartRegionWrite() {
    Write write;
    write.region = static_cast<int>(Random(kRegions));
    const uint64_t bytes = (1 + Random(16)) * kPage;
    write.grant = regions_[write.region].TryTake(&room_, Random(4) == 0 ? 1 : bytes, bytes);
    if (write.grant) Begin(std::move(write));
  }

  void Begin(Write write) {
    write.term = term_;
    if (Random(8) != 0) Execute(&write);
    writes_.push_back(std::move(write));
  }

  void Execute(Write* write) {
    write->executed = true;
    write->executed_term = term_;
    write->used = std::min(Random(write->grant.bytes() + 1), reservation_bytes_);
    reservation_bytes_ -= write->used;
  }

  void EndWrite() {
    const size_t at = Random(writes_.size());
    Write write = std::move(writes_[at]);
    writes_.erase(writes_.begin() + static_cast<ptrdiff_t>(at));
    // Late, perhaps after its term was over.
    if (!write.executed && Random(2) == 0) Execute(&write);
    const bool answered = write.executed && Random(6) != 0;
    if (write.region >= 0 && answered) {
      regions_[write.region].Used(&room_, std::move(write.grant), write.used);
    } else if (write.region >= 0) {
      regions_[write.region].Unknown(&room_, std::move(write.grant));
    } else if (answered) {
      room_.Used(std::move(write.grant), write.used);
    } else if (write.executed || Random(2) == 0) {
      room_.Unknown(std::move(write.grant));
    } else {
      room_.Unused(std::move(write.grant));
    }
  }

  void StartTrim() {
    Trim trim;
    trim.region = static_cast<int>(Random(kRegions));
    trim.trim = regions_[trim.region].BeginTrim(&room_);
    if (Random(8) != 0) {
      const uint64_t chunks = Random(64);
      trim.executed = true;
      reservation_bytes_ += chunks * kChunkBytes;
      kept_chunks_[trim.region] += static_cast<uint32_t>(chunks);
      trim.kept_after = kept_chunks_[trim.region];
    }
    trims_.push_back(trim);
  }

  void EndTrim() {
    const size_t at = Random(trims_.size());
    const Trim trim = trims_[at];
    trims_.erase(trims_.begin() + static_cast<ptrdiff_t>(at));
    RegionRoom::TrimEnd end;
    end.sent = trim.executed || Random(2) == 0;
    end.answered = trim.executed && Random(4) != 0;
    if (end.answered) end.kept_chunks = trim.kept_after;
    regions_[trim.region].EndTrim(&room_, trim.trim, end);
  }

  void Hear() {
    const uint64_t look = room_.Look();
    room_.Hear(reservation_bytes_, look);
  }

  // The client counts on no more than the server has.
  void Check() {
    int64_t counted = room_.free_bytes() + room_.reserved_bytes();
    auto there = static_cast<int64_t>(reservation_bytes_);
    for (const Write& write : writes_) {
      if (write.term == term_) counted += static_cast<int64_t>(write.grant.bytes());
      if (write.executed_term == term_) there += static_cast<int64_t>(write.used);
    }
    EXPECT_LE(counted, there);
  }

  void Quiesce() {
    while (!writes_.empty()) EndWrite();
    while (!trims_.empty()) EndTrim();
    // A trim that is answered ends all doubt of its region.
    for (int i = 0; i < kRegions; ++i) {
      const RegionRoom::Trim trim = regions_[i].BeginTrim(&room_);
      regions_[i].EndTrim(&room_, trim, {true, true, kept_chunks_[i]});
    }
    Check();
    room_.SetUnsettled(false);
    ASSERT_TRUE(room_.Hear(reservation_bytes_, room_.Look())) << "something is still under way";
    int64_t reserved = 0;
    for (const RegionRoom& region : regions_) {
      EXPECT_GE(region.bytes(), 0) << "a debt that is nobody's";
      reserved += region.bytes();
    }
    EXPECT_EQ(reserved, room_.reserved_bytes());
    EXPECT_EQ(room_.free_bytes(), static_cast<int64_t>(reservation_bytes_) - reserved);
    for (RegionRoom& region : regions_) region.Close(&room_);
    EXPECT_EQ(room_.free_bytes(), static_cast<int64_t>(reservation_bytes_));
  }

  std::mt19937_64 random_;
  Room room_;
  RegionRoom regions_[kRegions];
  std::vector<Write> writes_;
  std::vector<Trim> trims_;
  uint64_t term_ = 0;
  uint64_t reservation_bytes_ = 0;  // the server's truth
  uint32_t kept_chunks_[kRegions] = {};
};

TEST(RoomTest, RandomEventsEndInTheServersTruth) {
  const uint64_t seed = TestSeed();
  for (uint64_t i = 0; i < 20'000 && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE(seed + i);
    RoomModel(seed + i).Run(static_cast<int>(10 + i % 500));
  }
}

}  // namespace
}  // namespace nram
