#include <deque>
#include <map>
#include <memory>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/host/host_memory.h"
#include "base/test_seed.h"
#include "client/pool/bounded.h"
#include "client/pool/placement.h"
#include "client/pool/pool_spec.h"
#include "client/pool/repair_pace.h"
#include "client/pool/slow_waits.h"
#include "client/pool/span_table.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

std::vector<PlacementCandidate> Candidates(std::initializer_list<uint64_t> weights) {
  std::vector<PlacementCandidate> candidates;
  for (const uint64_t weight : weights) {
    const auto number = static_cast<uint16_t>(candidates.size());
    candidates.push_back({number, number, weight});
  }
  return candidates;
}

TEST(SlowWaitsTest, LongOnesAreLoggedNowAndThen) {
  using For = Waiter::For;
  using Outcome = Waiter::Outcome;
  constexpr int64_t kMs = kNsPerMs;
  SlowWaits waits;
  EXPECT_EQ(waits.Note(For::kConnection, Outcome::kUsable, 999 * kMs, 1'000 * kMs), "");
  EXPECT_EQ(waits.Note(For::kConnection, Outcome::kUsable, 1'500 * kMs, 2'000 * kMs),
            "an operation has waited 1.5 s for its connection, and got it");
  EXPECT_EQ(waits.Note(For::kRoom, Outcome::kRefused, 4'000 * kMs, 5'000 * kMs), "");
  EXPECT_EQ(waits.Note(For::kReservedRoom, Outcome::kLate, 10 * kMs, 20'000 * kMs), "");
  EXPECT_EQ(waits.Note(For::kRoom, Outcome::kLate, 2'000 * kMs, 21'000 * kMs),
            "an operation has waited 2.0 s for its room, and gave up at its deadline; 1 more since the last such line, "
            "the longest 4.0 s");
  EXPECT_EQ(waits.Note(For::kRoom, Outcome::kGranted, 1'000 * kMs, 31'000 * kMs),
            "an operation has waited 1.0 s for its room, and got it");
  const SlowWaits::Totals& totals = waits.totals();
  EXPECT_EQ(totals[0].count, 2u);
  EXPECT_EQ(totals[0].ns, 2'499 * kMs);
  EXPECT_EQ(totals[1].count, 3u);
  EXPECT_EQ(totals[1].ns, 7'000 * kMs);
  EXPECT_EQ(totals[2].count, 1u);
}

TEST(PlacementTest, StripesFollowTheWeights) {
  const auto candidates = Candidates({100, 300, 0, 600});
  std::map<uint16_t, int> count;
  for (uint64_t span = 0; span < 10'000; ++span) {
    ++count[PlaceSpan(PlacementPolicy::kStriped, RegionId{7}, span, 1, candidates).servers[0]];
  }
  EXPECT_NEAR(count[0], 1000, 20);
  EXPECT_NEAR(count[1], 3000, 20);
  EXPECT_EQ(count[2], 0);
  EXPECT_NEAR(count[3], 6000, 20);
}

TEST(PlacementTest, NeighboursOfAStripeAreApart) {
  const auto candidates = Candidates({5, 5});
  int same = 0;
  for (uint64_t span = 0; span < 1000; ++span) {
    same += PlaceSpan(PlacementPolicy::kStriped, RegionId{3}, span, 1, candidates) ==
            PlaceSpan(PlacementPolicy::kStriped, RegionId{3}, span + 1, 1, candidates);
  }
  EXPECT_LT(same, 300);
}

TEST(PlacementTest, SmallRegionsSpread) {
  const auto candidates = Candidates({5, 5, 5, 5});
  std::map<uint16_t, int> count;
  for (uint64_t region = 1; region <= 4000; ++region) {
    ++count[PlaceSpan(PlacementPolicy::kStriped, RegionId{region}, 0, 1, candidates).servers[0]];
  }
  for (const auto& [server, regions] : count) EXPECT_NEAR(regions, 1000, 150);
}

TEST(PlacementTest, BlocksStayTogether) {
  const auto candidates = Candidates({5, 5, 5});
  for (uint64_t span = 0; span < 640; ++span) {
    EXPECT_EQ(PlaceSpan(PlacementPolicy::kBlocked, RegionId{3}, span, 1, candidates),
              PlaceSpan(PlacementPolicy::kBlocked, RegionId{3}, span / 64 * 64, 1, candidates));
  }
}

TEST(PlacementTest, ReplicasAreOnDifferentHosts) {
  std::vector<PlacementCandidate> candidates = Candidates({5, 5, 5, 5});
  candidates[1].host = 0;  // servers 0 and 1 share a host
  for (uint64_t span = 0; span < 500; ++span) {
    const SpanPlacement placement = PlaceSpan(PlacementPolicy::kStriped, RegionId{3}, span, 4, candidates);
    std::set<uint32_t> hosts;
    for (int i = 0; i < 3; ++i) hosts.insert(candidates[placement.servers[i]].host);
    EXPECT_EQ(hosts.size(), 3);
    EXPECT_EQ(placement.servers[3], kNoServer);
  }
}

// The domains of a span's copies, which must be on as many hosts as there are copies.
std::set<uint32_t> DomainsOf(uint64_t span, int copies, const std::vector<PlacementCandidate>& candidates) {
  const SpanPlacement placement = PlaceSpan(PlacementPolicy::kStriped, RegionId{3}, span, copies, candidates);
  std::set<uint32_t> hosts, domains;
  for (int i = 0; i < copies; ++i) {
    EXPECT_NE(placement.servers[i], kNoServer);
    hosts.insert(candidates[placement.servers[i]].host);
    domains.insert(candidates[placement.servers[i]].domain);
  }
  EXPECT_EQ(hosts.size(), copies);
  return domains;
}

TEST(PlacementTest, ReplicasAreInDifferentDomainsWhereThereAreEnough) {
  std::vector<PlacementCandidate> candidates = Candidates({500, 500, 5, 5, 5});
  for (size_t i = 0; i < candidates.size(); ++i) candidates[i].domain = i < 3 ? 7 : 8;
  for (uint64_t span = 0; span < 500; ++span) {
    EXPECT_EQ(DomainsOf(span, 2, candidates).size(), 2);
    EXPECT_EQ(DomainsOf(span, 3, candidates).size(), 2);  // then other hosts suffice
    EXPECT_EQ(DomainsOf(span, 4, candidates).size(), 2);
  }
  candidates[3].weight = candidates[4].weight = 0;
  EXPECT_EQ(DomainsOf(0, 2, candidates), (std::set<uint32_t>{7}));
}

TEST(PlacementTest, AHostWithoutADomainIsOneOfItsOwn) {
  std::vector<PlacementCandidate> candidates = Candidates({5, 5, 5, 5});
  candidates[0].domain = candidates[1].domain = 7;
  for (uint64_t span = 0; span < 500; ++span) {
    const SpanPlacement placement = PlaceSpan(PlacementPolicy::kStriped, RegionId{3}, span, 3, candidates);
    const std::set<uint16_t> servers(placement.servers.begin(), placement.servers.begin() + 3);
    EXPECT_TRUE(servers.count(2) == 1 && servers.count(3) == 1);
  }
}

TEST(PlacementTest, ADomainDoesNotMakeTwoHostsOfOne) {
  std::vector<PlacementCandidate> candidates = Candidates({5, 5});
  candidates[1].host = candidates[0].host;
  candidates[0].domain = 7;
  candidates[1].domain = 8;
  EXPECT_EQ(PlaceSpan(PlacementPolicy::kStriped, RegionId{3}, 0, 2, candidates).servers[1], kNoServer);
}

TEST(PlacementTest, ASilentServerInAnotherDomainIsBetterThanTheSameDomain) {
  std::vector<PlacementCandidate> candidates = Candidates({5, 5, 5, 5});
  for (size_t i = 0; i < candidates.size(); ++i) candidates[i].domain = i < 3 ? 7 : 8;
  candidates[2].silent = candidates[3].silent = true;
  for (uint64_t span = 0; span < 500; ++span) {
    EXPECT_EQ(DomainsOf(span, 2, candidates).size(), 2);
    const SpanPlacement placement = PlaceSpan(PlacementPolicy::kStriped, RegionId{3}, span, 3, candidates);
    EXPECT_EQ(std::set<uint16_t>(placement.servers.begin(), placement.servers.begin() + 3),
              (std::set<uint16_t>{0, 1, 3}));
  }
}

TEST(PlacementTest, ANameHasANumberAndNoNameHasZero) {
  EXPECT_EQ(NumberOfName(""), 0);
  EXPECT_NE(NumberOfName("rack1"), 0);
  EXPECT_EQ(NumberOfName("rack1"), NumberOfName("rack1"));
  EXPECT_NE(NumberOfName("rack1"), NumberOfName("rack2"));
}

TEST(PlacementTest, SilentOnesAreTheLastChoice) {
  std::vector<PlacementCandidate> candidates = Candidates({100, 1, 0});
  candidates[0].silent = true;
  EXPECT_EQ(PlaceSpan(PlacementPolicy::kStriped, RegionId{3}, 0, 1, candidates).servers[0], candidates[1].server);
  candidates[1].weight = 0;
  EXPECT_EQ(PlaceSpan(PlacementPolicy::kStriped, RegionId{3}, 0, 1, candidates).servers[0], candidates[0].server);
}

TEST(PlacementTest, NowhereToGo) {
  EXPECT_FALSE(PlaceSpan(PlacementPolicy::kStriped, RegionId{3}, 0, 1, {}).placed());
  EXPECT_FALSE(PlaceSpan(PlacementPolicy::kStriped, RegionId{3}, 0, 1, Candidates({0, 0})).placed());
}

TEST(PlacementTest, AServersWeightIsItsRoomAsFarAsAnybodyKnows) {
  EXPECT_EQ(PlacementWeight({.room_bytes = 3 * kMiB, .free_bytes = kGiB}), kGiB + 3 * kMiB);
  EXPECT_EQ(PlacementWeight({.room_bytes = 3 * kMiB, .free_bytes = 1}), 4 * kMiB) << "its word may be old";
  EXPECT_EQ(PlacementWeight({.room_bytes = 3 * kMiB, .free_bytes = kGiB, .refused = true}), 3 * kMiB);
  EXPECT_EQ(PlacementWeight({.free_bytes = kGiB, .refused = true}), 0u);
  EXPECT_EQ(PlacementWeight({.room_bytes = 3 * kMiB, .free_bytes = kGiB, .takes_nothing = true}), 0u);
  EXPECT_EQ(PlacementWeight({.free_bytes = kGiB, .pressed = true}), kGiB / 16);
  EXPECT_EQ(PlacementWeight({.refused = true, .pressed = true}), 0u);
  EXPECT_EQ(PlacementWeight({.free_bytes = kMiB - 1, .pressed = true}), 0u) << "it has room for what stays alone";
  EXPECT_EQ(PlacementWeight({.room_bytes = kMiB, .pressed = true}), kMiB / 16);
}

TEST(PlacementTest, APressedServerReceivesIfThereIsNoOther) {
  for (uint64_t span = 0; span < 100; ++span) {
    std::vector<PlacementCandidate> candidates = Candidates({5'000, 1, 5'000, 5'000});
    for (const size_t number : {0, 2, 3}) candidates[number].pressed = true;
    const uint16_t calm = candidates[1].server;
    candidates[3].domain = candidates[0].domain = 7;
    EXPECT_EQ(ChooseReceiver(PlacementPolicy::kStriped, RegionId{3}, span, {}, &candidates), calm);
    candidates = Candidates({5'000, 1, 5'000, 5'000});
    for (PlacementCandidate& candidate : candidates) candidate.pressed = true;
    candidates[3].domain = candidates[0].domain = candidates[1].domain = 7;
    // Another domain comes first.
    const uint16_t other = candidates[2].server;
    EXPECT_EQ(ChooseReceiver(PlacementPolicy::kStriped, RegionId{3}, span, {7}, &candidates), other);
    EXPECT_EQ(candidates.size(), 1u);
    candidates.clear();
    EXPECT_EQ(ChooseReceiver(PlacementPolicy::kStriped, RegionId{3}, span, {7}, &candidates), kNoServer);
  }
}

TEST(SpanTableTest, AgreesWithAMapAndIsSmall) {
  std::mt19937_64 random(TestSeed());
  SpanTable table;
  std::map<uint64_t, SpanPlacement> model;
  for (int i = 0; i < 5000; ++i) {
    const uint64_t span = random() % 3 == 0 ? random() % (uint64_t{1} << 42) : random() % 1000;
    SpanPlacement placement;
    placement.servers[0] = random() % 100;
    table.Set(span, placement);
    model[span] = placement;
    ASSERT_EQ(table.Find(span + 1).placed(), model.count(span + 1) > 0);
  }
  for (const auto& [span, placement] : model) ASSERT_EQ(table.Find(span), placement);
}

TEST(SpanTableTest, TakesAtMost16BytesAMebibyte) {
  SpanTable table;
  SpanPlacement placement;
  placement.servers[0] = 1;
  table.Set(5, placement);
  EXPECT_EQ(table.memory_bytes(), 0);
  for (const uint64_t spans : {1024, 16 * 1024, 1024 * 1024}) {
    for (uint64_t span = 0; span < spans; ++span) table.Set(span, placement);
    EXPECT_LE(table.memory_bytes(), 16 * spans) << spans;
  }
}

TEST(PoolSpecTest, ReadsLists) {
  const auto servers = ParsePoolSpec("a:1, b,[::1]:3,unix:/run/x").value();
  ASSERT_EQ(servers.size(), 4);
  EXPECT_EQ(servers[0].ToString(), "a:1");
  EXPECT_EQ(servers[1].ToString(), "b:7070");
  EXPECT_EQ(servers[2].ToString(), "[::1]:3");
  EXPECT_EQ(servers[3].ToString(), "unix:/run/x");
}

TEST(PoolSpecTest, ReadsHostFiles) {
  const std::string path = ::testing::TempDir() + "/hosts";
  ASSERT_TRUE(WriteFileAtomically(path, "# nodes\nnode1:7070\n\n  node2 # the second\n").ok());
  EXPECT_EQ(ParsePoolSpec(path).value().size(), 2);
  EXPECT_EQ(ParsePoolSpec("@" + path).value()[1].ToString(), "node2:7070");
  EXPECT_EQ(ParsePoolSpec("/does/not/exist").status().code(), absl::StatusCode::kNotFound);
}

TEST(PoolSpecTest, NamesWhatIsWrong) {
  for (const char* bad : {"", "a:1,", "a:0", "a:70000", "a:x", "a:", ":1", "a b:1", "::1", "[::1", "[::1]x",
                          "unix:relative", "a:1,a:1", "a;b"}) {
    EXPECT_EQ(ParsePoolSpec(bad).status().code(), absl::StatusCode::kInvalidArgument) << bad;
  }
  EXPECT_THAT(std::string(ParseHostFile("ok:1\nbad:port\n", "hosts").status().message()), HasSubstr("hosts line 2"));
  EXPECT_THAT(std::string(ParseHostFile("# none\n", "hosts").status().message()), HasSubstr("names no server"));
}

TEST(BoundedQueueTest, IsADequeWithABound) {
  BoundedQueue<std::unique_ptr<int>> queue;
  EXPECT_TRUE(queue.full() && queue.empty());
  constexpr size_t kMost = 5;
  queue.Reserve(kMost);
  std::deque<int> model;
  std::mt19937_64 rng(TestSeed());
  for (int i = 0; i < 10'000; ++i) {
    ASSERT_EQ(queue.full(), model.size() == kMost);
    ASSERT_EQ(queue.size(), model.size());
    switch (rng() % 3) {
      case 0:
        if (queue.full()) break;
        queue.PushBack(std::make_unique<int>(i));
        model.push_back(i);
        break;
      case 1:
        if (queue.full()) break;
        queue.PushFront(std::make_unique<int>(i));
        model.push_front(i);
        break;
      default:
        if (queue.empty()) break;
        ASSERT_EQ(*queue.PopFront(), model.front());
        model.pop_front();
    }
  }
  queue.Clear();
  EXPECT_TRUE(queue.empty());
  queue.PushBack(std::make_unique<int>(1));  // is freed with the queue
}

TEST(BoundedHashSetTest, IsASetWithABound) {
  BoundedHashSet set;
  EXPECT_FALSE(set.Contains(7));
  EXPECT_FALSE(set.Insert(7));
  set.Erase(7);
  set.Clear();
  constexpr size_t kMost = 12;
  set.Reserve(kMost);
  std::set<uint64_t> model;
  std::mt19937_64 rng(TestSeed());
  for (int i = 0; i < 100'000; ++i) {
    // Runs of slots, which also go round the end of the table of 32.
    const uint64_t hash = 26 + rng() % 8 + (rng() % 4 << 32);
    if (rng() % 2 == 0) {
      ASSERT_EQ(set.Insert(hash), model.size() < kMost && model.count(hash) == 0) << i;
      if (model.size() < kMost) model.insert(hash);
    } else {
      set.Erase(hash);
      model.erase(hash);
    }
    ASSERT_EQ(set.full(), model.size() == kMost);
    const uint64_t other = 26 + rng() % 8 + (rng() % 4 << 32);
    ASSERT_EQ(set.Contains(other), model.count(other) == 1) << i;
    if (i % 10'000 == 0) {
      set.Clear();
      model.clear();
    }
  }
  set.Clear();
  EXPECT_TRUE(set.Insert(0));
  EXPECT_TRUE(set.Contains(0));
}

TEST(RepairPaceTest, FollowsThePaceOfTheLastSeconds) {
  RepairPace pace;
  int64_t now_ns = 1'000 * kNsPerSecond;
  uint64_t made = 40;
  const auto seconds = [&](int64_t count, uint64_t each, uint64_t* left) {
    for (int64_t i = 0; i < count; ++i) {
      now_ns += kNsPerSecond;
      made += each;
      *left -= each;
      pace.Note(made, *left, now_ns);
    }
  };
  uint64_t left = 1000;
  pace.Note(made, 0, now_ns);
  // A server is away, and repair waits.
  seconds(10, 0, &left);
  EXPECT_EQ(pace.done(), 0u);
  EXPECT_EQ(pace.left_ms(), 0u);
  // The time before the first copy says nothing.
  seconds(1, 10, &left);
  EXPECT_EQ(pace.done(), 10u);
  EXPECT_EQ(pace.left_ms(), 99'000u);
  seconds(19, 10, &left);
  EXPECT_EQ(pace.done(), 200u);
  EXPECT_NEAR(static_cast<double>(pace.left_ms()), 80'000, 1);
  // Ten times slower, which the figure soon follows; a moment without a copy does not make it unknown.
  seconds(30, 1, &left);
  EXPECT_NEAR(static_cast<double>(pace.left_ms()), 770'000, 50'000);
  seconds(1, 0, &left);
  EXPECT_GT(pace.left_ms(), 770'000u);
  // It makes no progress.
  seconds(30, 0, &left);
  EXPECT_EQ(pace.left_ms(), 0u);
  EXPECT_EQ(pace.done(), 230u);
  seconds(1, 5, &left);
  EXPECT_EQ(pace.left_ms(), 153'000u);
  // All is done, and the next repair begins anew.
  pace.Note(made, 0, now_ns += kNsPerSecond);
  EXPECT_EQ(pace.done(), 0u);
  EXPECT_EQ(pace.left_ms(), 0u);
  pace.Note(made + 2, 4, now_ns += kNsPerSecond);
  EXPECT_EQ(pace.done(), 2u);
  EXPECT_EQ(pace.left_ms(), 2'000u);
}

}  // namespace
}  // namespace nram
