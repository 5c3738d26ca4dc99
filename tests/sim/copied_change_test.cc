// The protocol of copies (adr/0014) as a whole, in worlds of one span (copies_world.h).

#include <iostream>
#include <string>

#include "base/plant.h"
#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "tests/sim/copies_world.h"

namespace nram::sim {
namespace {

TEST(CopiedChangeTest, CopiesAreOneRegister) {
  CopiesTotals totals;
  const uint64_t seed = TestSeed();
  for (uint64_t round = 0; round < 5'000; ++round) {
    CopiesWorld world(seed + round, &totals);
    const std::string failure = world.Run(400);
    ASSERT_EQ(failure, "") << "NRAM_SEED=" << seed + round;
  }
  std::cerr << totals.writes << " writes, " << totals.failures << " that failed, " << totals.reads << " reads, "
            << totals.repairs << " repairs, " << totals.deaths << " deaths, " << totals.silent_deaths
            << " of which were silent, " << totals.left << " copies that left, " << totals.refused
            << " readers refused, " << totals.losses << " losses\n";
  EXPECT_GT(totals.writes, 10'000);
  EXPECT_GT(totals.failures, 100);
  EXPECT_GT(totals.reads, 10'000);
  EXPECT_GT(totals.repairs, 100);
  EXPECT_GT(totals.deaths, 100);
  EXPECT_GT(totals.silent_deaths, 100);
  EXPECT_GT(totals.left, 1'000);
  EXPECT_GT(totals.refused, 500);
  EXPECT_LT(totals.losses, 250);
}

#ifdef NRAM_PLANT
TEST(CopiedChangeTest, FindsACopyThatLeavesWithoutProof) {
  ASSERT_TRUE(SetPlanted("leaves_without_proof"));
  CopiesTotals totals;
  std::string failure;
  uint64_t rounds = 0;
  for (; rounds < 30'000 && failure.empty(); ++rounds) failure = CopiesWorld(rounds, &totals).Run(400);
  planted = Plant::none;
  EXPECT_NE(failure.find("no other that counts is alive"), std::string::npos) << failure;
  std::cerr << "found after " << rounds << " worlds\n";
}
#endif  // NRAM_PLANT

}  // namespace
}  // namespace nram::sim
