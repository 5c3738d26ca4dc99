// Copies to shed, their ranks, and their number: by hand, and in a closed loop with a server that asks.

#include "client/pool/shedding.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/test_seed.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

constexpr uint32_t kMillion = 1'000'000;
constexpr int64_t kPauseMinNs = 300 * kNsPerMs;
constexpr int64_t kPauseMaxNs = 2'400 * kNsPerMs;
constexpr int kSearches = 64;
constexpr int kSearchesAgain = 4;

using Ranks = std::array<int, Shedding::kRanks>;

class SheddingTest : public ::testing::Test {
 protected:
  SheddingTest() { shedding_.Prepare(3); }

  // A walk over the given number of copies of each rank at a server. Returns the number of each that is taken.
  Ranks Walk(const Ranks& here, uint16_t server = 0) {
    Ranks taken{};
    shedding_.BeginPass();
    // In turn, as they come in a region.
    const int most = *std::max_element(here.begin(), here.end());
    for (int i = 0; i < most; ++i) {
      for (int rank = 0; rank < Shedding::kRanks; ++rank) {
        if (i >= here[rank]) continue;
        shedding_.Count(server, rank);
        taken[rank] += shedding_.Takes(server, rank, now_ns_) ? 1 : 0;
      }
    }
    shedding_.EndPass();
    return taken;
  }
  void Say(uint32_t share, uint16_t server = 0) { shedding_.Hear(server, ++word_, share); }
  void Leave(int copies, uint16_t server = 0) {
    for (int i = 0; i < copies; ++i) {
      shedding_.NoteLeftover(server);
      shedding_.Left(server);
    }
  }
  void Free(int copies, uint16_t server = 0) {
    for (int i = 0; i < copies; ++i) shedding_.NoteFreed(server);
  }

  Shedding shedding_;
  uint64_t word_ = 0;
  int64_t now_ns_ = kNsPerSecond;
};

TEST_F(SheddingTest, NothingIsTakenBeforeAServerAsksAndAWholeWalkHasCounted) {
  EXPECT_FALSE(shedding_.asks());
  EXPECT_EQ(Walk({100}), Ranks{});
  Say(500'000);
  EXPECT_TRUE(shedding_.asks());
  EXPECT_EQ(Walk({100}), Ranks{});
  EXPECT_EQ(Walk({100}), (Ranks{50}));
  EXPECT_EQ(Walk({100}), Ranks{}) << "the word has been followed";
  Say(0);
  EXPECT_FALSE(shedding_.asks());
}

TEST_F(SheddingTest, AWordBringsABudgetAndTheSameWordNoOther) {
  Say(250'000);
  Walk({100});
  EXPECT_EQ(Walk({100}), (Ranks{25}));
  shedding_.Hear(0, word_, 250'000);
  EXPECT_EQ(Walk({100}), Ranks{});
  // Copies under way count: the same amount is asked, and is on its way.
  Say(250'000);
  EXPECT_EQ(Walk({100}), Ranks{});
  Say(300'000);
  EXPECT_EQ(Walk({100}), (Ranks{5}));
}

TEST_F(SheddingTest, WhatHasLeftAndIsNotFreedYetIsPartOfWhatTheServerCounts) {
  Say(250'000);
  Walk({100});
  EXPECT_EQ(Walk({100}), (Ranks{25}));
  Leave(25);
  Say(250'000);  // nothing is freed: the server says the same
  EXPECT_EQ(Walk({75}), Ranks{});
  Free(20);
  Say(125'000);  // ten of the eighty that are left; five of them will be freed
  EXPECT_EQ(Walk({75}), (Ranks{5}));
}

TEST_F(SheddingTest, WhatStaysIsTakenAgainByTheNextWord) {
  Say(100'000);
  Walk({50});
  EXPECT_EQ(Walk({50}), (Ranks{5}));
  for (int i = 0; i < 3; ++i) shedding_.Stayed(0);
  EXPECT_EQ(Walk({50}), Ranks{});
  Say(100'000);
  EXPECT_EQ(Walk({50}), (Ranks{3}));
}

TEST_F(SheddingTest, SiblingsGoFirstThenTheColdOnes) {
  EXPECT_EQ(Shedding::RankOf(/*has_sibling=*/true, 3), 0);
  EXPECT_EQ(Shedding::RankOf(false, 0), 1);
  EXPECT_EQ(Shedding::RankOf(false, 3), Shedding::kRanks - 1);
  const Ranks here = {10, 10, 10, 10, 10};
  Say(200'000);
  Walk(here);
  EXPECT_EQ(Walk(here), (Ranks{10}));
  Leave(10);
  Free(10);
  const Ranks left = {0, 10, 10, 10, 10};
  Walk(left);
  Say(300'000);
  const Ranks taken = Walk(left);
  EXPECT_EQ(taken[1] + taken[2], 12);
  EXPECT_GE(taken[1], 6);
  EXPECT_EQ(taken[3] + taken[4], 0);
}

TEST_F(SheddingTest, AllOfItIfAllIsAsked) {
  const Ranks here = {3, 1, 4, 1, 5};
  Say(kMillion);
  Walk(here);
  EXPECT_EQ(Walk(here), here);
}

TEST_F(SheddingTest, TheLeastShareAsksNothingOfAFewSpans) {
  Say(1);
  Walk({100});
  EXPECT_TRUE(shedding_.asks());
  EXPECT_EQ(Walk({100}), Ranks{});
}

TEST_F(SheddingTest, WhereThereIsNowhereToGoOnlySiblingsLeaveForAWhile) {
  const Ranks here = {2, 200, 0, 0, 0};
  Say(500'000);
  Walk(here);
  const Ranks taken = Walk(here);
  EXPECT_EQ(taken[0], 2);
  EXPECT_EQ(taken[1], 99);
  // Some spans find no place; others may, so the search goes on. It stops after many failures.
  for (int i = 0; i < kSearches; ++i) {
    EXPECT_TRUE(shedding_.MaySearch(0, now_ns_)) << i;
    shedding_.NoteNowhere(0, now_ns_);
  }
  EXPECT_FALSE(shedding_.MaySearch(0, now_ns_));
  EXPECT_FALSE(shedding_.WantsWalk(now_ns_));
  for (int i = 0; i < 101; ++i) shedding_.Stayed(0);
  int64_t pause_ns = kPauseMinNs;
  for (int pause = 0; pause < 8; ++pause) {
    SCOPED_TRACE(pause);
    Say(500'000);
    EXPECT_EQ(Walk(here), (Ranks{2})) << "siblings need no place";
    for (int i = 0; i < 2; ++i) shedding_.Stayed(0);
    now_ns_ += pause_ns - 1;
    EXPECT_EQ(Walk({0, 200}), Ranks{});
    now_ns_ += 1;
    EXPECT_TRUE(shedding_.WantsWalk(now_ns_));
    ASSERT_EQ(Walk({0, 200}), (Ranks{0, kSearchesAgain})) << "a few are tried";
    for (int i = 0; i < kSearchesAgain; ++i) {
      shedding_.NoteNowhere(0, now_ns_);
      shedding_.Stayed(0);
    }
    pause_ns = std::min(2 * pause_ns, kPauseMaxNs);
  }
  // One span finds a place: others may, too.
  now_ns_ += pause_ns;
  Say(500'000);
  EXPECT_EQ(Walk({0, 200}), (Ranks{0, kSearchesAgain}));
  shedding_.NoteSomewhere(0);
  EXPECT_EQ(Walk({0, 200})[1], 100 - kSearchesAgain);
}

TEST_F(SheddingTest, WhereRoomComesAPauseBecomesAShortOne) {
  Say(kMillion);
  Walk({0, 20});
  shedding_.HearRoom(1, false);
  for (int i = 0; i < kSearches; ++i) shedding_.NoteNowhere(0, now_ns_);
  now_ns_ += kPauseMinNs;
  for (int i = 0; i < kSearchesAgain; ++i) shedding_.NoteNowhere(0, now_ns_);
  now_ns_ += kPauseMinNs;
  EXPECT_FALSE(shedding_.MaySearch(0, now_ns_)) << "twice as long";
  shedding_.HearRoom(1, true);
  EXPECT_TRUE(shedding_.MaySearch(0, now_ns_));
  // Room that has been there all the time is no news.
  for (int i = 0; i < kSearchesAgain; ++i) shedding_.NoteNowhere(0, now_ns_);
  now_ns_ += kPauseMinNs;
  shedding_.HearRoom(1, true);
  EXPECT_FALSE(shedding_.MaySearch(0, now_ns_));
  shedding_.HearRoom(1, false);
  shedding_.HearRoom(2, true);
  EXPECT_TRUE(shedding_.MaySearch(0, now_ns_));
  // Not at once: where room changes quickly, others take it.
  for (int i = 0; i < kSearchesAgain; ++i) shedding_.NoteNowhere(0, now_ns_);
  shedding_.HearRoom(1, true);
  EXPECT_FALSE(shedding_.MaySearch(0, now_ns_));
}

TEST_F(SheddingTest, WhatCannotMoveDoesNotKeepTheRest) {
  constexpr int kSpans = 300;
  for (const int movable : {0, 1, 63, 64, 200, kSpans - 1}) {
    Say(0);
    Say(kMillion);
    Walk({0, kSpans});
    bool found = false;
    int searches = 0;
    for (int walk = 0; walk < 1'000 && !found; ++walk) {
      shedding_.BeginPass();
      std::vector<int> taken;
      for (int span = 0; span < kSpans; ++span) {
        shedding_.Count(0, 1);
        if (shedding_.Takes(0, 1, now_ns_)) taken.push_back(span);
      }
      shedding_.EndPass();
      for (const int span : taken) {
        if (shedding_.MaySearch(0, now_ns_)) {
          ++searches;
          found = found || span == movable;
          if (span != movable) shedding_.NoteNowhere(0, now_ns_);
        }
        shedding_.Stayed(0);
      }
      now_ns_ += kPauseMaxNs;
      Say(kMillion);
    }
    EXPECT_TRUE(found) << movable;
    EXPECT_LE(searches, 2 * kSpans) << movable;
  }
}

TEST_F(SheddingTest, CountsAreOfAWholeWalkSinceTheServerBeganToAsk) {
  // It begins in the middle of a walk.
  shedding_.BeginPass();
  for (int i = 0; i < 50; ++i) shedding_.Count(0, 0);
  Say(500'000);
  for (int i = 0; i < 50; ++i) shedding_.Count(0, 0);
  shedding_.EndPass();
  EXPECT_EQ(Walk({100}), Ranks{});
  EXPECT_EQ(Walk({100}), (Ranks{50}));
  Leave(50);
  Free(50);
  // It ends, and begins again: the former walk's copies are not here now.
  Say(0);
  Walk({10});
  Say(500'000);
  EXPECT_EQ(Walk({10}), Ranks{});
  EXPECT_EQ(Walk({10}), (Ranks{5}));
  // A report between the same two walks.
  Say(0);
  shedding_.BeginPass();
  Say(500'000);
  shedding_.EndPass();
  Walk({10});
  EXPECT_EQ(Walk({10}), Ranks{}) << "five are under way";
}

TEST_F(SheddingTest, LeftoversAreBounded) {
  constexpr int kMany = 100'000;
  Say(kMillion);
  Walk({kMany});
  for (int i = 0; i < 4'096; ++i) shedding_.NoteLeftover(0);
  Say(kMillion);
  EXPECT_EQ(Walk({1'000}), Ranks{}) << "they are freed first";
  Free(1);
  Say(kMillion);
  EXPECT_EQ(Walk({1'000}), (Ranks{1'000}));
}

TEST_F(SheddingTest, EachServerHasAnAccountOfItsOwn) {
  Say(500'000, 0);
  Say(kMillion, 2);
  for (int round = 0; round < 2; ++round) {
    std::array<int, 3> taken{};
    shedding_.BeginPass();
    for (int i = 0; i < 10; ++i) {
      for (uint16_t server = 0; server < 3; ++server) {
        if (server != 1) shedding_.Count(server, 0);
        taken[server] += shedding_.Takes(server, 0, now_ns_) ? 1 : 0;
      }
    }
    shedding_.EndPass();
    EXPECT_EQ(taken, round == 0 ? (std::array<int, 3>{}) : (std::array<int, 3>{5, 0, 10}));
  }
  Say(0, 0);
  EXPECT_TRUE(shedding_.asks());
  Say(0, 2);
  EXPECT_FALSE(shedding_.asks());
}

// --- A closed loop: a server that asks as GiveBack does, and clients that shed as the repairer does.

class ModelServer {
 public:
  // Everything is in spans.
  void Tick(int64_t now_ns) {
    const int64_t asked = std::max<int64_t>(stored - goal, 0);
    if (asked == 0) {
      asking_ = false;
      urge_ = 1;
      return;
    }
    if (!asking_) {
      asking_ = true;
      urged_ = asked;
      urged_ns_ = now_ns;
    }
    const bool gives = 10 * asked <= 9 * urged_;
    if (!gives && now_ns - urged_ns_ < 1'500 * kNsPerMs) return;
    urge_ = gives ? std::max(urge_ / 1.5, 1.0) : urge_ * 1.5;
    urged_ = asked;
    urged_ns_ = now_ns;
  }
  bool asks() const { return asking_; }
  uint32_t share() const {
    if (!asking_) return 0;
    if (stored <= goal) return 1;
    const double share = urge_ * static_cast<double>(stored - goal) / static_cast<double>(stored);
    return static_cast<uint32_t>(std::clamp(share * kMillion, 1.0, 1.0 * kMillion));
  }

  int64_t stored = 0;
  int64_t goal = INT64_MAX;

 private:
  bool asking_ = false;
  double urge_ = 1;
  int64_t urged_ = 0;
  int64_t urged_ns_ = 0;
};

struct ModelOptions {
  int64_t spans = 100;
  int siblings_percent = 0;
  int immovable_percent = 0;  // of those without a sibling: no server has room for them
  int64_t span_ns = 20 * kNsPerMs;
};

class ModelClient {
 public:
  ModelClient(ModelServer* server, std::mt19937_64* random, const ModelOptions& options)
      : server_(server), random_(random), options_(options) {
    shedding_.Prepare(1);
    for (int64_t i = 0; i < options.spans; ++i) {
      const bool has_sibling = Random(100) < static_cast<uint64_t>(options.siblings_percent);
      const bool moves = has_sibling || Random(100) >= static_cast<uint64_t>(options.immovable_percent);
      spans_.push_back({Shedding::RankOf(has_sibling, static_cast<int>(Random(4))), moves});
    }
    server_->stored += options.spans;
  }

  void Tick(int64_t now_ns) {
    if (now_ns < frozen_until_ns) return;
    for (int left = 64; left > 0 && leftovers_ > 0; --left) {
      --leftovers_;
      --server_->stored;
      shedding_.NoteFreed(0);
    }
    for (Slot& slot : slots_) {
      if (slot.span < 0 || now_ns < slot.until_ns) continue;
      Span& span = spans_[std::exchange(slot.span, -1)];
      span.listed = false;
      if (!span.moves) {
        if (shedding_.MaySearch(0, now_ns)) shedding_.NoteNowhere(0, now_ns);
        shedding_.Stayed(0);
        continue;
      }
      if (span.rank > 0) shedding_.NoteSomewhere(0);
      span.here = false;
      ++shed;
      ++leftovers_;
      shedding_.NoteLeftover(0);
      shedding_.Left(0);
    }
    if (now_ns >= next_word_ns_) {
      next_word_ns_ = now_ns + 100 * kNsPerMs;
      share_ = server_->share();
      shedding_.Hear(0, ++word_, share_);
    }
    shedding_.BeginPass();
    for (size_t i = 0; i < spans_.size() && shedding_.asks(); ++i) {
      Span& span = spans_[i];
      if (!span.here) continue;
      shedding_.Count(0, span.rank);
      if (!shedding_.Takes(0, span.rank, now_ns)) continue;
      if (span.listed || todo_.size() >= 1024) {
        shedding_.Stayed(0);
      } else {
        span.listed = true;
        todo_.push_back(static_cast<int64_t>(i));
      }
    }
    shedding_.EndPass();
    for (Slot& slot : slots_) {
      while (slot.span < 0 && !todo_.empty()) {
        const int64_t next = todo_.front();
        todo_.pop_front();
        if (share_ == 0) {
          spans_[next].listed = false;
          shedding_.Stayed(0);
          continue;
        }
        slot.span = next;
        const int64_t takes_ns = spans_[next].rank == 0 ? options_.span_ns / 8 : options_.span_ns;
        slot.until_ns = now_ns + takes_ns / 2 + static_cast<int64_t>(Random(takes_ns));
      }
    }
  }
  bool idle() const {
    return todo_.empty() && leftovers_ == 0 &&
           std::all_of(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.span < 0; });
  }
  int64_t movable() const {
    return std::count_if(spans_.begin(), spans_.end(), [](const Span& span) { return span.here && span.moves; });
  }

  int64_t frozen_until_ns = 0;
  int64_t shed = 0;

 private:
  struct Span {
    int rank = 0;
    bool moves = true;
    bool here = true;
    bool listed = false;
  };
  struct Slot {
    int64_t span = -1;
    int64_t until_ns = 0;
  };
  uint64_t Random(uint64_t bound) { return (*random_)() % bound; }

  ModelServer* const server_;
  std::mt19937_64* const random_;
  const ModelOptions options_;
  Shedding shedding_;
  std::vector<Span> spans_;
  std::deque<int64_t> todo_;
  std::array<Slot, 6> slots_;
  int64_t leftovers_ = 0;
  int64_t next_word_ns_ = 0;
  uint64_t word_ = 0;
  uint32_t share_ = 0;
};

TEST(SheddingLoopTest, GivesWhatIsAskedAndLittleMoreWhoeverCannot) {
  constexpr int64_t kTickNs = 10 * kNsPerMs;
  const uint64_t seed = TestSeed();
  double worst = 0;
  for (uint64_t round = 0; round < 200; ++round) {
    SCOPED_TRACE(::testing::Message() << "NRAM_SEED=" << seed + round);
    std::mt19937_64 random(seed + round);
    const auto below = [&](uint64_t bound) { return static_cast<int64_t>(random() % bound); };
    ModelServer server;
    std::vector<std::unique_ptr<ModelClient>> clients;
    const int64_t count = 1 + below(5);
    for (int64_t i = 0; i < count; ++i) {
      ModelOptions options;
      options.spans = 20 + below(uint64_t{20} << below(7));
      options.siblings_percent = below(2) == 0 ? 0 : static_cast<int>(below(101));
      // At least the first client can give.
      options.immovable_percent = i == 0 || below(3) != 0 ? 0 : static_cast<int>(below(101));
      options.span_ns = (2 + below(30)) * kNsPerMs;
      clients.push_back(std::make_unique<ModelClient>(&server, &random, options));
      if (i > 0 && below(4) == 0) clients.back()->frozen_until_ns = (1 + below(20)) * kNsPerSecond;
    }
    const int64_t before = server.stored;
    int64_t awake = 0;
    for (const auto& client : clients) {
      if (client->frozen_until_ns == 0) awake += client->movable();
    }
    // A part of the movable spans of the clients that answer.
    const int64_t asked = 1 + below(static_cast<uint64_t>(std::max<int64_t>(awake * 4 / 5, 1)));
    server.goal = before - asked;
    int64_t now_ns = kNsPerSecond;
    int64_t given_ns = 0;
    int episodes = 0;
    bool asked_before = false;
    for (; now_ns < 120 * kNsPerSecond; now_ns += kTickNs) {
      if (now_ns % (100 * kNsPerMs) == 0) server.Tick(now_ns);
      episodes += server.asks() && !std::exchange(asked_before, server.asks()) ? 1 : 0;
      asked_before = server.asks();
      for (const auto& client : clients) client->Tick(now_ns);
      if (given_ns == 0 && server.stored <= server.goal) given_ns = now_ns;
    }
    ASSERT_NE(given_ns, 0) << "it does not converge: " << server.stored - server.goal << " of " << asked << " are left";
    EXPECT_EQ(episodes, 1) << "nothing comes back, so it asks once";
    int64_t shed = 0;
    for (const auto& client : clients) {
      EXPECT_TRUE(client->idle());
      shed += client->shed;
    }
    EXPECT_EQ(server.stored, before - shed);
    const double ratio = static_cast<double>(shed) / static_cast<double>(asked);
    // Each client may have a few in its slots when the server has enough.
    const auto grace = static_cast<int64_t>(8 * clients.size());
    if (asked > 100) worst = std::max(worst, ratio);
    EXPECT_LE(shed, asked * 16 / 10 + grace) << shed << " of " << before << " were shed, " << asked << " were asked";
  }
  std::cerr << "at most " << worst << " times what was asked was shed\n";
}

TEST(SheddingLoopTest, EndsWhenNothingIsAskedAnyMore) {
  constexpr int64_t kTickNs = 10 * kNsPerMs;
  std::mt19937_64 random(TestSeed());
  ModelServer server;
  ModelClient client(&server, &random, {.spans = 4'000});
  server.goal = 100;
  int64_t now_ns = kNsPerSecond;
  const auto run_until = [&](int64_t end_ns) {
    for (; now_ns < end_ns; now_ns += kTickNs) {
      if (now_ns % (100 * kNsPerMs) == 0) server.Tick(now_ns);
      client.Tick(now_ns);
    }
  };
  run_until(3 * kNsPerSecond);
  EXPECT_GT(client.shed, 100);
  EXPECT_GT(client.movable(), 2'000);
  server.goal = INT64_MAX;
  const int64_t shed = client.shed;
  run_until(10 * kNsPerSecond);
  // Until the client hears of it; then those in its slots.
  EXPECT_LT(client.shed, shed + 150);
  EXPECT_TRUE(client.idle());
}

}  // namespace
}  // namespace nram
