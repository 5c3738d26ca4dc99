#include "client/pool/change_gate.h"

#include <algorithm>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using Kind = GatePlace::Kind;

// A place that knows whether it is in the gate.
struct Walker {
  GatePlace place;
  int number = 0;
  bool in = false;
  bool late = false;
  std::vector<int>* resumed = nullptr;

  Walker(Kind kind, uint64_t region, uint64_t first, uint64_t count) {
    place.kind = kind;
    place.region = RegionId{region};
    place.range = {first, count};
    place.deadline_ns = 1'000;
    place.context = this;
    place.resume = [](GatePlace* resumed_place) {
      auto* const walker = static_cast<Walker*>(resumed_place->context);
      walker->in = resumed_place->outcome == GatePlace::Outcome::kIn;
      walker->late = !walker->in;
      if (walker->resumed != nullptr) walker->resumed->push_back(walker->number);
    };
  }
  bool Overlaps(const Walker& other) const {
    return place.region == other.place.region && place.range.first < other.place.range.end() &&
           other.place.range.first < place.range.end() &&
           (place.kind == Kind::kChange || other.place.kind == Kind::kChange ||
            (place.kind == Kind::kSeal && other.place.kind == Kind::kSeal));
  }
};

TEST(ChangeGateTest, OverlappingChangesTakeTurnsAsTheyCame) {
  ChangeGate gate;
  Walker first(Kind::kChange, 1, 0, 8);
  Walker second(Kind::kChange, 1, 4, 8);
  Walker third(Kind::kChange, 1, 11, 1);  // meets the second one alone
  Walker apart(Kind::kChange, 1, 12, 8);
  Walker other(Kind::kChange, 2, 0, 8);
  EXPECT_TRUE(gate.Enter(&first.place));
  EXPECT_FALSE(gate.Enter(&second.place));
  EXPECT_FALSE(gate.Enter(&third.place)) << "it overtook one that waits";
  EXPECT_TRUE(gate.Enter(&apart.place));
  EXPECT_TRUE(gate.Enter(&other.place));
  gate.Leave(&first.place);
  EXPECT_TRUE(second.in);
  EXPECT_FALSE(third.in);
  gate.Leave(&second.place);
  EXPECT_TRUE(third.in);
  for (Walker* const walker : {&third, &apart, &other}) gate.Leave(&walker->place);
}

TEST(ChangeGateTest, LooksWaitForChangesOnly) {
  ChangeGate gate;
  Walker look(Kind::kLook, 1, 0, 8);
  Walker second_look(Kind::kLook, 1, 0, 8);
  Walker change(Kind::kChange, 1, 7, 1);
  Walker late_look(Kind::kLook, 1, 7, 1);
  EXPECT_TRUE(gate.Enter(&look.place));
  EXPECT_TRUE(gate.Enter(&second_look.place));
  EXPECT_FALSE(gate.IsChanging(RegionId{1}, {0, 8}));
  EXPECT_FALSE(gate.Enter(&change.place));
  EXPECT_TRUE(gate.IsChanging(RegionId{1}, {0, 8}));
  EXPECT_FALSE(gate.IsChanging(RegionId{1}, {0, 7}));
  EXPECT_FALSE(gate.IsChanging(RegionId{17}, {0, 8})) << "another region of the same shard";
  EXPECT_FALSE(gate.Enter(&late_look.place)) << "changes must not starve";
  gate.Leave(&look.place);
  EXPECT_FALSE(change.in);
  gate.Leave(&second_look.place);
  EXPECT_TRUE(change.in);
  gate.Leave(&change.place);
  EXPECT_TRUE(late_look.in);
  gate.Leave(&late_look.place);
}

TEST(ChangeGateTest, SealsKeepChangesBackAndAreNotSeenByLooks) {
  ChangeGate gate;
  Walker look(Kind::kLook, 1, 0, 8);
  Walker change(Kind::kChange, 1, 7, 1);
  Walker seal(Kind::kSeal, 1, 0, kRegionChunksMax);
  Walker second_seal(Kind::kSeal, 1, 0, kRegionChunksMax);
  Walker late_look(Kind::kLook, 1, 20, 1);
  Walker late_change(Kind::kChange, 1, 100, 1);
  Walker of_other(Kind::kChange, 17, 100, 1);
  EXPECT_TRUE(gate.Enter(&look.place));
  EXPECT_FALSE(gate.Enter(&change.place));
  EXPECT_FALSE(gate.Enter(&seal.place));
  EXPECT_FALSE(gate.IsChanging(RegionId{1}, {0, 7})) << "it waits";
  EXPECT_TRUE(gate.Enter(&late_look.place)) << "readers would wait with it";
  gate.Leave(&look.place);
  EXPECT_TRUE(change.in);
  EXPECT_FALSE(seal.in);
  gate.Leave(&change.place);
  EXPECT_TRUE(seal.in);
  EXPECT_FALSE(gate.IsChanging(RegionId{1}, {0, kRegionChunksMax}));
  EXPECT_FALSE(gate.Enter(&late_change.place));
  EXPECT_FALSE(gate.Enter(&second_seal.place));
  EXPECT_TRUE(gate.Enter(&of_other.place));
  gate.Leave(&seal.place);
  EXPECT_TRUE(late_change.in);
  EXPECT_FALSE(second_seal.in);
  gate.Leave(&late_change.place);
  EXPECT_TRUE(second_seal.in);
  for (Walker* const walker : {&second_seal, &late_look, &of_other}) gate.Leave(&walker->place);
}

TEST(ChangeGateTest, WhoIsLateOrCancelledHoldsNobodyUp) {
  ChangeGate gate;
  Walker first(Kind::kChange, 1, 0, 1);
  Walker late(Kind::kChange, 1, 0, 2);
  Walker behind(Kind::kChange, 1, 1, 1);
  Walker cancelled(Kind::kChange, 1, 0, 3);
  Walker last(Kind::kChange, 1, 2, 1);
  behind.place.deadline_ns = cancelled.place.deadline_ns = last.place.deadline_ns = 5'000;
  EXPECT_TRUE(gate.Enter(&first.place));
  for (Walker* const walker : {&late, &behind, &cancelled, &last}) EXPECT_FALSE(gate.Enter(&walker->place));
  gate.Tick(999);
  EXPECT_FALSE(late.late);
  gate.Tick(1'000);
  EXPECT_TRUE(late.late);
  EXPECT_TRUE(behind.in);
  EXPECT_FALSE(gate.Cancel(&late.place));
  EXPECT_TRUE(gate.Cancel(&cancelled.place));
  EXPECT_FALSE(cancelled.in || cancelled.late);
  EXPECT_TRUE(last.in);
  EXPECT_FALSE(gate.Cancel(&last.place)) << "it is in the gate";
  for (Walker* const walker : {&first, &behind, &last}) gate.Leave(&walker->place);
}

// Each resumed place leaves at once, which resumes the next one.
TEST(ChangeGateTest, AChainOfResumesIsNoDeepStack) {
  static ChangeGate gate;
  static size_t left;
  left = 0;
  std::vector<std::unique_ptr<GatePlace>> places;
  constexpr size_t kCount = 50'000;
  // The chain: each place waits only for the one before it.
  for (size_t i = 0; i < kCount; ++i) {
    places.push_back(std::make_unique<GatePlace>());
    places.back()->region = RegionId{1};
    places.back()->range = {0, 1};
    places.back()->resume = [](GatePlace* place) {
      ++left;
      gate.Leave(place);
    };
  }
  // A few at a time, or entering would be quadratic.
  for (size_t begin = 0; begin < kCount; begin += 500) {
    for (size_t i = begin; i < begin + 500; ++i) EXPECT_EQ(gate.Enter(places[i].get()), i == begin);
    gate.Leave(places[begin].get());
    EXPECT_EQ(left + begin / 500 + 1, begin + 500);
  }
}

// The rule in plain code: a place is in the gate when no earlier one that it meets is still there.
TEST(ChangeGateTest, AgreesWithTheRule) {
  constexpr Kind kKinds[] = {Kind::kChange, Kind::kChange, Kind::kChange, Kind::kLook, Kind::kLook, Kind::kSeal};
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 200; ++round) {
    ChangeGate gate;
    std::vector<std::unique_ptr<Walker>> walkers;  // in the order of their arrival
    int64_t now_ns = 0;
    for (int step = 0; step < 300; ++step) {
      const auto some = [&](auto wanted) -> Walker* {
        std::vector<Walker*> fitting;
        for (const auto& walker : walkers) {
          if (wanted(*walker)) fitting.push_back(walker.get());
        }
        return fitting.empty() ? nullptr : fitting[random() % fitting.size()];
      };
      const auto remove = [&](const Walker* gone) {
        std::erase_if(walkers, [&](const auto& walker) { return walker.get() == gone; });
      };
      const uint64_t choice = random() % 100;
      if (choice < 50) {
        walkers.push_back(
            std::make_unique<Walker>(kKinds[random() % 6], 1 + 16 * (random() % 2), random() % 20, 1 + random() % 6));
        walkers.back()->place.deadline_ns = now_ns + static_cast<int64_t>(random() % 100);
        walkers.back()->in = gate.Enter(&walkers.back()->place);
      } else if (choice < 85) {
        if (Walker* const walker = some([](const Walker& w) { return w.in; })) {
          gate.Leave(&walker->place);
          remove(walker);
        }
      } else if (choice < 95) {
        if (Walker* const walker = some([](const Walker& w) { return !w.in; })) {
          EXPECT_TRUE(gate.Cancel(&walker->place));
          remove(walker);
        }
      } else {
        now_ns += 20;
        gate.Tick(now_ns);
        std::erase_if(walkers, [&](const auto& walker) {
          EXPECT_TRUE(!walker->late || walker->place.deadline_ns <= now_ns);
          return walker->late;
        });
      }
      for (size_t i = 0; i < walkers.size(); ++i) {
        const bool waits = std::any_of(walkers.begin(), walkers.begin() + static_cast<int>(i),
                                       [&](const auto& earlier) { return earlier->Overlaps(*walkers[i]); });
        ASSERT_EQ(walkers[i]->in, !waits) << "round " << round << ", step " << step << ", place " << i;
      }
    }
    while (!walkers.empty()) {
      const auto walker = std::find_if(walkers.begin(), walkers.end(), [](const auto& w) { return w->in; });
      ASSERT_NE(walker, walkers.end()) << "nobody is in the gate, and some wait";
      gate.Leave(&(*walker)->place);
      walkers.erase(walker);
    }
  }
}

// Threads change the same few words, without another lock.
TEST(ChangeGateTest, ThreadsExcludeEachOther) {
  ChangeGate gate;
  constexpr size_t kWords = 8;
  std::array<uint64_t, kWords> words{};
  std::atomic<uint64_t> added{0};
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(TestSeed() + t);
      struct Turn {
        GatePlace place;
        std::atomic<uint32_t> in{0};
      };
      for (int i = 0; i < 5'000; ++i) {
        Turn turn;
        turn.place.region = RegionId{1};
        turn.place.range.first = random() % kWords;
        turn.place.range.count = 1 + random() % (kWords - turn.place.range.first);
        turn.place.context = &turn;
        turn.place.resume = [](GatePlace* place) {
          auto* const in = &static_cast<Turn*>(place->context)->in;
          *in = 1;
          FutexWakeAll(in);
        };
        if (!gate.Enter(&turn.place)) {
          while (turn.in == 0) FutexWaitUntil(&turn.in, 0, INT64_MAX);
        }
        for (uint64_t word = turn.place.range.first; word < turn.place.range.end(); ++word) ++words[word];
        added += turn.place.range.count;
        gate.Leave(&turn.place);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  uint64_t sum = 0;
  for (const uint64_t word : words) sum += word;
  EXPECT_EQ(sum, added);
}

}  // namespace
}  // namespace nram
