#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/host_memory.h"
#include "base/test_seed.h"
#include "client/pool/lost_pages.h"
#include "client/pool/placement.h"
#include "client/pool/pool_spec.h"
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

TEST(LostPagesTest, AgreesWithASet) {
  std::mt19937_64 random(TestSeed());
  LostPages lost;
  std::set<uint64_t> model;
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t span = random() % 4;
    // Within a span, as an operation's message is.
    const uint64_t first = span * kChunksPerSpan + random() % (kChunksPerSpan - 40);
    const ChunkRange range{first, 1 + random() % 40};
    std::vector<ChunkMask> masks;
    for (uint64_t at = 0; at < range.pages(); ++at) {
      const ChunkMask whole = MaskOfPage(range, range.first_page() + at);
      masks.push_back(random() % 2 == 0 ? whole : static_cast<ChunkMask>(whole & random()));
    }
    const ChunkMask* const chosen = random() % 2 == 0 ? masks.data() : nullptr;
    bool meets_read = false, meets_write = false;
    for (uint64_t at = 0; at < range.pages(); ++at) {
      const uint64_t page = range.first_page() + at;
      const ChunkMask written = chosen != nullptr ? masks[at] : MaskOfPage(range, page);
      if (!model.contains(page)) continue;
      meets_read = true;
      meets_write = meets_write || (written != 0 && written != kAllChunks);
    }
    ASSERT_EQ(lost.MeetsRead(range), meets_read);
    ASSERT_EQ(lost.MeetsWrite(range, chosen), meets_write);
    switch (random() % 20) {
      case 0:
        lost.AddSpan(span);
        for (uint64_t page = 0; page < kPagesPerSpan; ++page) model.insert(span * kPagesPerSpan + page);
        break;
      case 1: {
        const ChunkRange trimmed{first, random() % (2 * kChunksPerSpan)};
        lost.RemoveTrimmed(trimmed);
        std::erase_if(model, [&](uint64_t page) {
          return page * kChunksPerPage >= trimmed.first && (page + 1) * kChunksPerPage <= trimmed.end();
        });
        break;
      }
      default:
        lost.RemoveWritten(range, chosen);
        for (uint64_t at = 0; at < range.pages(); ++at) {
          const uint64_t page = range.first_page() + at;
          if ((chosen != nullptr ? masks[at] : MaskOfPage(range, page)) == kAllChunks) model.erase(page);
        }
    }
    ASSERT_EQ(lost.empty(), model.empty());
    for (uint64_t at = 0; at < 4; ++at) {
      const auto of_span = model.lower_bound(at * kPagesPerSpan);
      ASSERT_EQ(lost.HasSpan(at), of_span != model.end() && *of_span < (at + 1) * kPagesPerSpan);
    }
  }
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

}  // namespace
}  // namespace nram
