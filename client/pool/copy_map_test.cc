// The questions of repair to a region's map, and its notes there; driven by hand, without servers.

#include "client/pool/copy_map.h"

#include <optional>
#include <set>
#include <vector>

#include "base/units.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::UnorderedElementsAre;
using Donor = CopyMap::Donor;
using Health = CopyMap::Health;
using Kind = CopiedChange::Kind;
using Life = CopyMap::Life;
using Need = CopyMap::Need;
using SpanState = CopyMap::SpanState;
using Standing = Donor::Standing;
using StepKind = CopiedChange::Step::Kind;

constexpr int kServers = 6;

Life LifeAt(uint16_t server) { return {server, 100u + server}; }
ChunkRange Page(uint64_t page) { return {page * kChunksPerPage, kChunksPerPage}; }

// A region of two copies on six servers. Each server stores every message, except the silent ones.
class CopyMapTest : public ::testing::Test {
 protected:
  void Place(uint64_t span, const std::vector<uint16_t>& servers) {
    std::vector<Life> lives;
    for (const uint16_t server : servers) lives.push_back(LifeAt(server));
    ASSERT_TRUE(map_.Place(span, lives));
  }
  StepKind Run(CopiedChange change, uint64_t span, const CopyMap::WholePages& whole = {}) {
    CopyMap::Legs legs;
    for (int steps = 0; steps < 20; ++steps) {
      const CopiedChange::Step step = map_.Next(span, &change, /*in_time=*/true, whole, &legs);
      if (step.kind != StepKind::kSend) return step.kind;
      sent_.assign(legs.begin(), legs.end());
      for (const CopyMap::Leg& leg : legs) {
        const bool answers = !silent_.contains(leg.life.server);
        if (answers) map_.NoteAnswered(span, leg);
        change.Ended(leg.replica_host, answers ? CopiedChange::End::kStored : CopiedChange::End::kMissed);
      }
    }
    ADD_FAILURE() << "a change without an end";
    return StepKind::kSend;
  }
  void Write(uint64_t span, const CopyMap::WholePages& whole = {}) {
    ASSERT_EQ(Run(CopiedChange(Kind::kData), span, whole), StepKind::kStored);
  }
  void PlaceAndWrite(uint64_t span, const std::vector<uint16_t>& servers) {
    ASSERT_NO_FATAL_FAILURE(Place(span, servers));
    ASSERT_NO_FATAL_FAILURE(Write(span));
  }
  // A write that those servers miss.
  void WriteWithout(uint64_t span, const std::set<uint16_t>& silent) {
    silent_ = silent;
    Write(span);
    silent_.clear();
  }
  uint16_t Join(uint64_t span, uint16_t server, std::optional<CopyMap::Leftover>* leftover) {
    const std::optional<uint16_t> replica_host = map_.Join(span, LifeAt(server), leftover);
    EXPECT_TRUE(replica_host.has_value());
    return replica_host.value_or(0);
  }
  uint16_t Join(uint64_t span, uint16_t server) {
    std::optional<CopyMap::Leftover> leftover;
    const uint16_t replica_host = Join(span, server, &leftover);
    EXPECT_FALSE(leftover.has_value());
    return replica_host;
  }
  StepKind Open(uint64_t span, uint16_t replica_host) {
    CopiedChange change(Kind::kOpen);
    change.SetCopy(replica_host);
    return Run(change, span);
  }
  StepKind Flip(uint64_t span, std::optional<uint16_t> replica_host, const std::vector<uint16_t>& leaves = {}) {
    CopiedChange change(Kind::kJoin);
    if (replica_host.has_value()) change.SetCopy(*replica_host);
    for (const uint16_t leaving : leaves) change.Leave(leaving);
    return Run(change, span);
  }
  CopyMap::Plan Plan(uint64_t span) const { return map_.PlanFor(span, donors_); }
  Health HealthOf(uint64_t span) {
    std::optional<Health> health;
    map_.Walk(0, SIZE_MAX, donors_, PresentLives(), [&](uint64_t at, Health now, const CopyMap::Plan&) {
      if (at == span) health = now;
    });
    EXPECT_TRUE(health.has_value()) << "the walk has passed the span over";
    return health.value_or(Health::kInSync);
  }
  // No server has restarted.
  static uint64_t (*PresentLives())(uint16_t) {
    return [](uint16_t server) -> uint64_t { return LifeAt(server).incarnation; };
  }
  uint32_t GenerationOf(uint64_t span) const {
    CopyMap::Legs legs;
    bool unsettled = false;
    EXPECT_EQ(map_.LookForRead({span * kChunksPerSpan, 1}, &legs, &unsettled), CopyMap::ReadState::kPlaced);
    return legs.empty() ? 0 : Raw(legs[0].generation);
  }
  std::vector<uint16_t> ServersOf(const std::vector<uint16_t>& replica_hosts) const {
    std::vector<uint16_t> servers;
    for (const uint16_t replica_host : replica_hosts) servers.push_back(map_.LifeOf(replica_host).server);
    return servers;
  }
  template <typename ReplicaHosts>
  std::vector<uint16_t> ServersOf(const ReplicaHosts& replica_hosts) const {
    return ServersOf(std::vector<uint16_t>(replica_hosts.begin(), replica_hosts.end()));
  }
  // The server's copies have been unreachable long enough to be replaced.
  void GoAway(uint16_t server) { donors_[server] = {Standing::kAway, false}; }

  CopyMap map_{2};
  std::vector<Donor> donors_ = std::vector<Donor>(kServers);
  std::set<uint16_t> silent_;
  std::vector<CopyMap::Leg> sent_;  // the last messages
};

TEST_F(CopyMapTest, AWalkSeesWhatIsPlacedInParts) {
  std::vector<uint64_t> seen;
  const auto see = [&](uint64_t span, Health health, const CopyMap::Plan&) {
    EXPECT_EQ(health, Health::kInSync);
    seen.push_back(span);
  };
  EXPECT_EQ(map_.Walk(0, 10, donors_, PresentLives(), see), UINT64_MAX);
  EXPECT_THAT(seen, IsEmpty());
  PlaceAndWrite(70, {0, 1});
  EXPECT_EQ(map_.Walk(0, 10, donors_, PresentLives(), see), UINT64_MAX);
  EXPECT_THAT(seen, ElementsAre(70));
  seen.clear();
  EXPECT_EQ(map_.Walk(71, 10, donors_, PresentLives(), see), UINT64_MAX);
  EXPECT_THAT(seen, IsEmpty());
  PlaceAndWrite(3, {1, 2});
  PlaceAndWrite(5, {1, 2});
  Place(1'000, {0, 2});  // holds nothing, and has a place all the same
  const uint64_t next = map_.Walk(0, 1, donors_, PresentLives(), see);
  EXPECT_THAT(seen, ElementsAre(3, 5));
  ASSERT_NE(next, UINT64_MAX);
  EXPECT_EQ(map_.Walk(next, 1'000, donors_, PresentLives(), see), UINT64_MAX);
  EXPECT_THAT(seen, ElementsAre(3, 5, 70, 1'000));
  EXPECT_EQ(map_.NextSpan(0), 3u);
  EXPECT_EQ(map_.NextSpan(6), 70u);
  EXPECT_EQ(map_.NextSpan(1'001), UINT64_MAX);
}

TEST_F(CopyMapTest, AWalkBuriesFormerLives) {
  PlaceAndWrite(0, {0, 1});
  PlaceAndWrite(1, {1, 2});
  Place(2, {0, 1});
  std::vector<Health> seen;
  const auto see = [&](uint64_t, Health health, const CopyMap::Plan&) { seen.push_back(health); };
  const auto unknown = [](uint16_t) -> uint64_t { return 0; };
  map_.Walk(0, SIZE_MAX, donors_, unknown, see);
  EXPECT_THAT(seen, ElementsAre(Health::kInSync, Health::kInSync, Health::kInSync));
  seen.clear();
  const auto restarted = [](uint16_t server) -> uint64_t { return server == 1 ? 7 : LifeAt(server).incarnation; };
  map_.Walk(0, SIZE_MAX, donors_, restarted, see);
  EXPECT_THAT(seen, ElementsAre(Health::kDegraded, Health::kDegraded, Health::kDegraded));
  EXPECT_THAT(map_.ServersOf(0), ElementsAre(0));
  EXPECT_FALSE(map_.IsUsed(1));
  EXPECT_TRUE(map_.IsUsed(0));
  EXPECT_EQ(Plan(0).need, Need::kJoin);
  seen.clear();
  const auto both = [](uint16_t server) -> uint64_t { return server < 2 ? 7 : LifeAt(server).incarnation; };
  map_.Walk(0, SIZE_MAX, donors_, both, see);
  EXPECT_THAT(seen, ElementsAre(Health::kLost, Health::kDegraded)) << "a span that held nothing is a hole again";
  EXPECT_EQ(Plan(0).need, Need::kNothing) << "nobody is left to copy from";
  bool lost = false;
  EXPECT_EQ(map_.Look(Page(0), &lost), SpanState::kLost);
  EXPECT_TRUE(lost);
  EXPECT_EQ(map_.Look(Page(2 * kPagesPerSpan), &lost), SpanState::kHole);
  EXPECT_FALSE(lost);
}

TEST_F(CopyMapTest, AServerThatIsAwayForAMomentNeedsNothing) {
  PlaceAndWrite(0, {0, 1});
  EXPECT_EQ(HealthOf(0), Health::kInSync);
  CopyMap::Plan plan = Plan(0);
  EXPECT_EQ(plan.need, Need::kNothing);
  EXPECT_THAT(plan.stay, UnorderedElementsAre(LifeAt(0), LifeAt(1)));
  EXPECT_THAT(plan.leave, IsEmpty());
  donors_[1].is_there = false;
  EXPECT_EQ(HealthOf(0), Health::kDegraded);
  EXPECT_EQ(Plan(0).need, Need::kNothing);
  GoAway(1);
  EXPECT_EQ(HealthOf(0), Health::kDegraded);
  plan = Plan(0);
  EXPECT_EQ(plan.need, Need::kJoin);
  EXPECT_FALSE(plan.moves);
  EXPECT_THAT(plan.stay, ElementsAre(LifeAt(0)));
  EXPECT_THAT(ServersOf(plan.leave), ElementsAre(1));
  GoAway(0);
  EXPECT_EQ(HealthOf(0), Health::kDegraded) << "both may come back";
  EXPECT_EQ(Plan(0).need, Need::kNothing) << "nobody can be copied from";
  EXPECT_EQ(Plan(77).need, Need::kNothing) << "a hole";
}

TEST_F(CopyMapTest, ACopyMovesFromAServerThatLeaves) {
  PlaceAndWrite(0, {0, 1});
  donors_[1].standing = Standing::kLeaves;
  EXPECT_EQ(HealthOf(0), Health::kInSync);
  CopyMap::Plan plan = Plan(0);
  EXPECT_EQ(plan.need, Need::kJoin);
  EXPECT_TRUE(plan.moves);
  const uint16_t leaving = plan.leave.at(0);
  EXPECT_EQ(map_.LeftoverOf(0, leaving), std::nullopt) << "it has a copy there";
  const uint16_t joining = Join(0, 2);
  ASSERT_EQ(Open(0, joining), StepKind::kStored);
  EXPECT_EQ(Plan(0).need, Need::kNothing) << "one is catching up";
  ASSERT_EQ(Flip(0, joining, {leaving}), StepKind::kStored);
  EXPECT_THAT(map_.ServersOf(0), UnorderedElementsAre(0, 2));
  EXPECT_THAT(sent_, ::testing::SizeIs(2)) << "those that stay are settled";
  EXPECT_EQ(Plan(0).need, Need::kNothing);
  EXPECT_EQ(HealthOf(0), Health::kInSync);
  const std::optional<CopyMap::Leftover> leftover = map_.LeftoverOf(0, leaving);
  ASSERT_TRUE(leftover.has_value());
  EXPECT_EQ(leftover->life, LifeAt(1));
  EXPECT_EQ(Raw(leftover->generation), GenerationOf(0) - 1);
  EXPECT_FALSE(map_.IsUsed(1));
  map_.Bury(leaving);
  EXPECT_EQ(map_.LeftoverOf(0, leaving), std::nullopt) << "nothing is left in another life";
}

TEST_F(CopyMapTest, CopiesLeaveWhenEnoughOthersStay) {
  PlaceAndWrite(0, {0, 1, 2});
  GoAway(1);
  CopyMap::Plan plan = Plan(0);
  EXPECT_EQ(plan.need, Need::kLeave);
  EXPECT_THAT(ServersOf(plan.leave), ElementsAre(1));
  EXPECT_EQ(HealthOf(0), Health::kInSync);
  donors_[1] = {};
  EXPECT_EQ(Plan(0).need, Need::kNothing);
  // A stale copy that is not needed.
  WriteWithout(0, {1});
  EXPECT_THAT(map_.ServersOf(0), UnorderedElementsAre(0, 2));
  plan = Plan(0);
  EXPECT_EQ(plan.need, Need::kLeave);
  EXPECT_THAT(plan.stale, ElementsAre(LifeAt(1)));
  EXPECT_THAT(ServersOf(plan.leave), ElementsAre(1));
  ASSERT_EQ(Flip(0, std::nullopt, {plan.leave[0]}), StepKind::kStored);
  EXPECT_EQ(Plan(0).need, Need::kNothing);
  EXPECT_THAT(Plan(0).stale, IsEmpty());
  EXPECT_TRUE(map_.LeftoverOf(0, plan.leave[0]).has_value());
}

TEST_F(CopyMapTest, ACopyJoins) {
  PlaceAndWrite(0, {0, 1});
  GoAway(1);
  const uint16_t joining = Join(0, 2);
  EXPECT_EQ(map_.LifeOf(joining), LifeAt(2));
  EXPECT_FALSE(map_.IsJoining(0, joining)) << "what is there is to go first";
  EXPECT_FALSE(map_.IsInSync(0, joining));
  EXPECT_THAT(map_.ChangedServersOf(0), UnorderedElementsAre(0, 1));
  const uint32_t former = GenerationOf(0);
  ASSERT_EQ(Open(0, joining), StepKind::kStored);
  EXPECT_EQ(GenerationOf(0), former + 2) << "the odd one between is new to the server";
  EXPECT_EQ(sent_.size(), 2u) << "at last, those in sync learn the new one";
  EXPECT_TRUE(map_.IsJoining(0, joining));
  EXPECT_FALSE(map_.IsInSync(0, joining));
  EXPECT_EQ(HealthOf(0), Health::kRepairing);
  EXPECT_EQ(Plan(0).need, Need::kNothing);
  EXPECT_THAT(map_.ServersOf(0), UnorderedElementsAre(0, 1));
  EXPECT_THAT(map_.ChangedServersOf(0), UnorderedElementsAre(0, 1, 2));
  Write(0);
  ASSERT_EQ(sent_.size(), 3u);
  EXPECT_EQ(sent_[2].life, LifeAt(2));
  EXPECT_EQ(Raw(sent_[2].generation), GenerationOf(0) - 1);
  EXPECT_FALSE(sent_[2].creates);
  std::optional<CopyMap::Leftover> leftover;
  EXPECT_EQ(map_.Join(0, LifeAt(2), &leftover), std::nullopt) << "it is joining";
  EXPECT_EQ(map_.Join(0, LifeAt(0), &leftover), std::nullopt) << "it is in sync";
  ASSERT_EQ(Run(CopiedChange(Kind::kCopy), 0), StepKind::kStored);
  ASSERT_EQ(sent_.size(), 1u);
  EXPECT_EQ(sent_[0].life, LifeAt(2));
  ASSERT_EQ(Flip(0, joining), StepKind::kStored);
  EXPECT_TRUE(map_.IsInSync(0, joining));
  EXPECT_FALSE(map_.IsJoining(0, joining));
  EXPECT_EQ(HealthOf(0), Health::kInSync);
}

TEST_F(CopyMapTest, NothingJoinsWhereNothingIs) {
  std::optional<CopyMap::Leftover> leftover;
  EXPECT_EQ(map_.Join(0, LifeAt(2), &leftover), std::nullopt) << "a hole";
  PlaceAndWrite(0, {0});
  CopyMap::Legs legs;
  bool unsettled = false;
  ASSERT_EQ(map_.LookForRead(Page(0), &legs, &unsettled), CopyMap::ReadState::kPlaced);
  map_.Bury(legs[0].replica_host);
  EXPECT_EQ(map_.Join(0, LifeAt(2), &leftover), std::nullopt) << "a span that is lost";
  EXPECT_EQ(leftover, std::nullopt);
}

TEST_F(CopyMapTest, ACopyThatMissesAChangeDoesNotCatchUpAnyMore) {
  PlaceAndWrite(0, {0, 1});
  GoAway(1);
  const uint16_t joining = Join(0, 2);
  silent_ = {2};
  EXPECT_EQ(Open(0, joining), StepKind::kUnanswered);
  silent_.clear();
  EXPECT_FALSE(map_.IsJoining(0, joining));
  ASSERT_EQ(Open(0, joining), StepKind::kStored);
  WriteWithout(0, {2});
  EXPECT_FALSE(map_.IsJoining(0, joining));
  EXPECT_EQ(Flip(0, joining), StepKind::kUnanswered);
  EXPECT_FALSE(map_.IsInSync(0, joining));
  EXPECT_THAT(Plan(0).stale, ElementsAre(LifeAt(2)));
  // It joins again, in another generation: its pages of this one must be removed.
  const uint32_t former = GenerationOf(0);
  EXPECT_EQ(Join(0, 2), joining);
  EXPECT_EQ(GenerationOf(0), former) << "not outside of the gate";
  ASSERT_EQ(Open(0, joining), StepKind::kStored);
  EXPECT_EQ(GenerationOf(0), former + 2);
  EXPECT_TRUE(map_.IsJoining(0, joining));
  map_.EndJoining(0, joining);
  EXPECT_FALSE(map_.IsJoining(0, joining));
  EXPECT_THAT(map_.ChangedServersOf(0), UnorderedElementsAre(0, 1));
  EXPECT_EQ(HealthOf(0), Health::kDegraded);
  // One in sync does not stop.
  EXPECT_EQ(Join(0, 2), joining);
  ASSERT_EQ(Open(0, joining), StepKind::kStored);
  ASSERT_EQ(Flip(0, joining), StepKind::kStored);
  map_.EndJoining(0, joining);
  EXPECT_TRUE(map_.IsInSync(0, joining));
}

TEST_F(CopyMapTest, AFlipWithoutAnAnswerLeavesItStaleInAFormerGeneration) {
  PlaceAndWrite(0, {0, 1});
  donors_[1].standing = Standing::kLeaves;
  const uint16_t leaving = Plan(0).leave.at(0);
  const uint16_t joining = Join(0, 2);
  ASSERT_EQ(Open(0, joining), StepKind::kStored);
  const uint32_t sent = GenerationOf(0);
  silent_ = {2};
  EXPECT_EQ(Flip(0, joining, {leaving}), StepKind::kUnanswered);
  EXPECT_THAT(map_.ServersOf(0), UnorderedElementsAre(0, 1)) << "the one that leaves is needed still";
  EXPECT_GT(GenerationOf(0), sent) << "it may have got that one, and must refuse";
}

TEST_F(CopyMapTest, AStaleCopyMakesPlaceForAnotherServers) {
  PlaceAndWrite(0, {0, 1, 2, 3});
  std::optional<CopyMap::Leftover> leftover;
  EXPECT_EQ(map_.Join(0, LifeAt(4), &leftover), std::nullopt) << "all four places are taken";
  WriteWithout(0, {3});
  Join(0, 4, &leftover);
  ASSERT_TRUE(leftover.has_value());
  EXPECT_EQ(leftover->life, LifeAt(3));
  EXPECT_EQ(Raw(leftover->generation), GenerationOf(0) - 1);
  EXPECT_THAT(Plan(0).stale, ElementsAre(LifeAt(4)));
  EXPECT_FALSE(map_.IsUsed(3));
}

TEST_F(CopyMapTest, OneLeavesBeforeAnotherJoinsWhereAllPlacesAreTaken) {
  PlaceAndWrite(0, {0, 1, 2, 3});
  for (const uint16_t server : {1, 2, 3}) donors_[server].standing = Standing::kLeaves;
  CopyMap::Plan plan = Plan(0);
  EXPECT_EQ(plan.need, Need::kLeave);
  ASSERT_EQ(plan.leave.size(), 1u);
  EXPECT_TRUE(plan.moves);
  ASSERT_EQ(Flip(0, std::nullopt, {plan.leave[0]}), StepKind::kStored);
  EXPECT_EQ(map_.ServersOf(0).size(), 3u);
  plan = Plan(0);
  EXPECT_EQ(plan.need, Need::kJoin);
  EXPECT_EQ(plan.leave.size(), 2u);
  const uint16_t joining = Join(0, 4);
  ASSERT_EQ(Open(0, joining), StepKind::kStored);
  ASSERT_EQ(Flip(0, joining, {plan.leave[0], plan.leave[1]}), StepKind::kStored);
  EXPECT_THAT(map_.ServersOf(0), UnorderedElementsAre(0, 4));
}

TEST_F(CopyMapTest, TheLastCopyDoesNotLeave) {
  PlaceAndWrite(0, {0, 1});
  const CopyMap::Servers before = map_.ServersOf(0);
  for (const uint16_t server : {0, 1}) donors_[server].standing = Standing::kLeaves;
  const CopyMap::Plan plan = Plan(0);
  ASSERT_EQ(plan.leave.size(), 2u);
  EXPECT_THAT(plan.stay, IsEmpty());
  ASSERT_EQ(Flip(0, std::nullopt, {plan.leave[0], plan.leave[1]}), StepKind::kStored);
  ASSERT_EQ(map_.ServersOf(0).size(), 1u);
  EXPECT_EQ(map_.ServersOf(0)[0], before[1]);
}

TEST_F(CopyMapTest, RoomThatIsReserved) {
  Place(70, {0, 1});
  map_.NoteReserved(70, 100);
  EXPECT_EQ(map_.ReservedPages(70), 100u);
  map_.NoteReserved(3, 5);
  EXPECT_EQ(map_.ReservedPages(3), 0u) << "it was never placed";
  Place(3, {0, 2});  // from now on there is a table
  EXPECT_EQ(map_.ReservedPages(70), 100u);
  EXPECT_EQ(map_.ReservedPages(3), 0u);
  map_.NoteReserved(3, 7);
  map_.NoteReserved(70, 100);
  EXPECT_EQ(map_.ReservedPages(70), 200u);
  EXPECT_EQ(map_.ReservedPages(3), 7u);
  map_.NoteReserved(70, 100);
  EXPECT_EQ(map_.ReservedPages(70), kPagesPerSpan) << "a span has no more";
  map_.NoteReserved(3, kPagesPerSpan);
  EXPECT_EQ(map_.ReservedPages(3), kPagesPerSpan);
  map_.ClearReserved();
  EXPECT_EQ(map_.ReservedPages(70), 0u);
  EXPECT_EQ(map_.ReservedPages(3), 0u);
}

TEST_F(CopyMapTest, ASpanThatHoldsNothingKeepsItsPlaceForReservedRoom) {
  Place(0, {0, 1});
  Place(1, {0, 1});
  map_.NoteReserved(1, 10);
  EXPECT_FALSE(map_.UnplacesReserved(0));
  EXPECT_TRUE(map_.UnplacesReserved(1));
  EXPECT_TRUE(map_.Unplace(0));
  EXPECT_TRUE(map_.Unplace(1));
  bool lost = false;
  EXPECT_EQ(map_.Look(Page(0), &lost), SpanState::kHole);
  EXPECT_EQ(map_.Look(Page(kPagesPerSpan), &lost), SpanState::kPlaced);
  EXPECT_THAT(map_.ServersOf(1), UnorderedElementsAre(0, 1));
  EXPECT_EQ(map_.ReservedPages(1), 10u);
  CopyMap::Legs legs;
  bool unsettled = false;
  EXPECT_EQ(map_.LookForRead({kChunksPerSpan, 8}, &legs, &unsettled), CopyMap::ReadState::kHole);
  EXPECT_EQ(Plan(1).need, Need::kNothing);
  GoAway(1);
  EXPECT_EQ(Plan(1).need, Need::kJoin) << "the room is to be moved";
  // A span that holds something stays.
  Write(1);
  EXPECT_FALSE(map_.UnplacesReserved(1));
  EXPECT_FALSE(map_.Unplace(1));
  EXPECT_FALSE(map_.Unplace(0)) << "it is a hole already";
}

// The answer is lost. A value that the server may have stored must not be read later, so a trim is sent there.
TEST_F(CopyMapTest, AWriteThatIsRefusedByOneAndMayBeDoneByAnotherLeavesADoubt) {
  for (const bool may_hold : {false, true}) {
    const uint64_t span = may_hold ? 1 : 0;
    Place(span, {0, 1});
    CopiedChange change(Kind::kData);
    CopyMap::Legs legs;
    ASSERT_EQ(map_.Next(span, &change, /*in_time=*/true, {}, &legs).kind, StepKind::kSend);
    if (may_hold) change.NoteMayHold();
    for (const CopyMap::Leg& leg : legs) {
      change.Ended(leg.replica_host, leg.life.server == 0 ? CopiedChange::End::kRefused : CopiedChange::End::kMissed);
    }
    EXPECT_EQ(map_.Next(span, &change, /*in_time=*/true, {}, &legs).kind, StepKind::kRefused);
    bool lost = false;
    EXPECT_EQ(map_.Look(Page(span * kPagesPerSpan), &lost), may_hold ? SpanState::kPlaced : SpanState::kHole);
    bool unsettled = false;
    EXPECT_EQ(map_.LookForRead({span * kChunksPerSpan, 8}, &legs, &unsettled), CopyMap::ReadState::kHole);
  }
  EXPECT_FALSE(map_.Unplace(1));
  EXPECT_EQ(map_.NextToSettle(0), 1u);
  Write(1);
  EXPECT_THAT(sent_.size(), 2u);
  ASSERT_EQ(Run(CopiedChange(Kind::kSettle), 1), StepKind::kStored);
  EXPECT_EQ(map_.NextToSettle(0), UINT64_MAX);
}

// A trim creates a span that may be at the servers. Where they have no room for it, nothing of it is there.
TEST_F(CopyMapTest, ATrimOfADoubtfulSpanNeedsNoRoom) {
  using End = CopiedChange::End;
  enum class Then { kBothAbsent, kOneAway, kOneStores, kCreatedMeanwhile, kTimesUp };
  for (const Then then :
       {Then::kBothAbsent, Then::kOneAway, Then::kOneStores, Then::kCreatedMeanwhile, Then::kTimesUp}) {
    const auto span = static_cast<uint64_t>(then);
    Place(span, {0, 1});
    CopyMap::Legs legs;
    CopiedChange write(Kind::kData);
    ASSERT_EQ(map_.Next(span, &write, /*in_time=*/true, {}, &legs).kind, StepKind::kSend);
    write.NoteMayHold();
    for (const CopyMap::Leg& leg : legs) write.Ended(leg.replica_host, End::kRefused);
    ASSERT_EQ(map_.Next(span, &write, /*in_time=*/true, {}, &legs).kind, StepKind::kRefused);
    ASSERT_FALSE(map_.Unplace(span)) << "it is in doubt";
    CopiedChange trim(Kind::kData);
    ASSERT_EQ(map_.Next(span, &trim, /*in_time=*/true, {}, &legs).kind, StepKind::kSend);
    const bool is_created = then == Then::kCreatedMeanwhile || then == Then::kTimesUp;
    for (const CopyMap::Leg& leg : legs) {
      const bool is_first = leg.life.server == 0;
      if (is_created || (is_first && then == Then::kOneStores)) map_.NoteAnswered(span, leg);
      const End other = then == Then::kOneAway ? End::kMissed : then == Then::kOneStores ? End::kStored : End::kAbsent;
      trim.Ended(leg.replica_host, is_first ? other : End::kAbsent);
    }
    bool lost = false;
    const StepKind next = map_.Next(span, &trim, /*in_time=*/then != Then::kTimesUp, {}, &legs).kind;
    switch (then) {
      case Then::kBothAbsent:
        EXPECT_EQ(next, StepKind::kStored);
        EXPECT_EQ(map_.Look(Page(span * kPagesPerSpan), &lost), SpanState::kHole);
        break;
      case Then::kOneAway:
        EXPECT_EQ(next, StepKind::kRefused);
        EXPECT_EQ(map_.Look(Page(span * kPagesPerSpan), &lost), SpanState::kPlaced) << "the other may have it";
        break;
      case Then::kOneStores:
        EXPECT_EQ(next, StepKind::kSend) << "it is settled without the other";
        EXPECT_EQ(legs.size(), 1u);
        break;
      case Then::kCreatedMeanwhile:
        EXPECT_EQ(next, StepKind::kSend);
        EXPECT_EQ(legs.size(), 2u);
        break;
      case Then::kTimesUp:
        EXPECT_EQ(next, StepKind::kUnanswered);
        break;
    }
  }
}

// A write that was under way while a trim made the span a hole, and another one placed it again on the same servers.
TEST_F(CopyMapTest, ALateAnswerSaysNothingOfAnotherPlace) {
  Place(0, {0, 1});
  CopiedChange late(Kind::kData);
  CopyMap::Legs legs;
  ASSERT_EQ(map_.Next(0, &late, /*in_time=*/true, {}, &legs).kind, StepKind::kSend);
  ASSERT_TRUE(map_.Unplace(0));
  Place(0, {0, 1});
  map_.NoteAnswered(0, legs[0]);
  // The server's data of the former place must be removed before it counts: the next change creates the span anew.
  CopiedChange next(Kind::kData);
  CopyMap::Legs now;
  ASSERT_EQ(map_.Next(0, &next, /*in_time=*/true, {}, &now).kind, StepKind::kSend);
  for (const CopyMap::Leg& leg : now) EXPECT_TRUE(leg.creates);
  map_.Refresh(0, &legs[0]);
  EXPECT_TRUE(legs[0].creates);
  map_.NoteAnswered(0, now[0]);
  map_.Refresh(0, &now[0]);
  EXPECT_FALSE(now[0].creates);
}

TEST_F(CopyMapTest, APageThatIsLostIsLostAlone) {
  PlaceAndWrite(2, {0, 1});
  const uint64_t first = 2 * kPagesPerSpan;
  map_.NoteLostPage(first + 3);
  map_.NoteLostPage(first + 4);
  bool lost = true;
  EXPECT_EQ(map_.Look(Page(first + 2), &lost), SpanState::kPlaced);
  EXPECT_FALSE(lost);
  EXPECT_EQ(map_.Look({(first + 2) * kChunksPerPage, kChunksPerPage + 1}, &lost), SpanState::kPlaced);
  EXPECT_TRUE(lost) << "the range ends in it";
  CopyMap::Legs legs;
  bool unsettled = false;
  EXPECT_EQ(map_.LookForRead(Page(first + 3), &legs, &unsettled), CopyMap::ReadState::kLost);
  EXPECT_EQ(map_.LookForRead(Page(first + 5), &legs, &unsettled), CopyMap::ReadState::kPlaced);
  // Neither a change that does not cover the page nor a failed one makes it readable again.
  Write(2, {first, first + 3});
  CopiedChange late(Kind::kData);
  EXPECT_EQ(map_.Next(2, &late, /*in_time=*/false, {first + 3, first + 4}, &legs).kind, StepKind::kSend);
  for (const CopyMap::Leg& leg : legs) late.Ended(leg.replica_host, CopiedChange::End::kRefused);
  EXPECT_NE(map_.Next(2, &late, /*in_time=*/false, {first + 3, first + 4}, &legs).kind, StepKind::kStored);
  map_.Look(Page(first + 3), &lost);
  EXPECT_TRUE(lost);
  Write(2, {first + 3, first + 4});
  map_.Look(Page(first + 3), &lost);
  EXPECT_FALSE(lost);
  map_.Look(Page(first + 4), &lost);
  EXPECT_TRUE(lost);
  map_.NoteTrimmed({first + 4, first + 5});
  map_.Look(Page(first + 4), &lost);
  EXPECT_FALSE(lost);
}

TEST_F(CopyMapTest, ALostSpanComesBackPageByPage) {
  PlaceAndWrite(0, {0, 1});
  const auto restarted = [](uint16_t) -> uint64_t { return 7; };
  map_.Walk(0, SIZE_MAX, donors_, restarted, [](uint64_t, Health, const CopyMap::Plan&) {});
  bool lost = false;
  ASSERT_EQ(map_.Look(Page(0), &lost), SpanState::kLost);
  EXPECT_EQ(HealthOf(0), Health::kLost);
  ASSERT_TRUE(map_.Place(0, {Life{2, 102}, Life{3, 103}}));
  EXPECT_FALSE(map_.Place(0, {Life{4, 104}})) << "it is placed";
  Write(0, {9, 10});
  EXPECT_EQ(HealthOf(0), Health::kInSync);
  for (uint64_t page = 0; page < kPagesPerSpan; ++page) {
    EXPECT_EQ(map_.Look(Page(page), &lost), SpanState::kPlaced);
    EXPECT_EQ(lost, page != 9) << page;
  }
  Write(0, {0, kPagesPerSpan});
  map_.Look({0, kChunksPerSpan}, &lost);
  EXPECT_FALSE(lost);
}

TEST_F(CopyMapTest, ALostSpanThatWasTrimmedWholeIsNoLoss) {
  PlaceAndWrite(0, {0, 1});
  const auto restarted = [](uint16_t) -> uint64_t { return 7; };
  map_.Walk(0, SIZE_MAX, donors_, restarted, [](uint64_t, Health, const CopyMap::Plan&) {});
  bool lost = false;
  map_.NoteTrimmed({0, 9});
  map_.NoteTrimmed({10, kPagesPerSpan});
  ASSERT_EQ(map_.Look(Page(0), &lost), SpanState::kLost);
  EXPECT_TRUE(map_.HasLoss());
  map_.NoteTrimmed({9, 10});
  EXPECT_EQ(map_.Look(Page(9), &lost), SpanState::kHole);
  EXPECT_FALSE(map_.HasLoss());
}

// The next owner would take the copy for the span.
TEST_F(CopyMapTest, ALostSpanWithACopyThatHasMissedSomethingStaysLost) {
  PlaceAndWrite(0, {0, 1});
  WriteWithout(0, {1});
  const auto restarted = [](uint16_t server) -> uint64_t { return server == 0 ? 7 : 100u + server; };
  map_.Walk(0, SIZE_MAX, donors_, restarted, [](uint64_t, Health, const CopyMap::Plan&) {});
  bool lost = false;
  ASSERT_EQ(map_.Look(Page(0), &lost), SpanState::kLost);
  map_.NoteTrimmed({0, kPagesPerSpan});
  EXPECT_TRUE(map_.HasLoss());
}

TEST_F(CopyMapTest, BlocksThatAreDamagedAreRememberedOnceAndNotWithoutEnd) {
  uint64_t block = 0;
  EXPECT_FALSE(map_.TakeDamaged(&block));
  map_.NoteDamaged(7);
  map_.NoteDamaged(7);
  EXPECT_TRUE(map_.TakeDamaged(&block));
  EXPECT_EQ(block, 7u);
  EXPECT_FALSE(map_.TakeDamaged(&block));
  for (uint64_t i = 0; i < 10'000; ++i) map_.NoteDamaged(i);
  std::set<uint64_t> taken;
  while (map_.TakeDamaged(&block)) EXPECT_TRUE(taken.insert(block).second) << block;
  EXPECT_GE(taken.size(), 64u);
  EXPECT_LE(taken.size(), 1'000u);
}

TEST_F(CopyMapTest, WhereTheRegionIs) {
  EXPECT_FALSE(map_.IsCreated(LifeAt(0)));
  Place(0, {0, 1});
  EXPECT_THAT(map_.Whereabouts(), IsEmpty()) << "nothing was sent";
  WriteWithout(0, {1});
  EXPECT_TRUE(map_.IsCreated(LifeAt(0)));
  EXPECT_FALSE(map_.IsCreated(LifeAt(1)));
  ASSERT_EQ(map_.Whereabouts().size(), 1u);
  map_.NotePerhaps(1);
  ASSERT_EQ(map_.Whereabouts().size(), 2u);
  EXPECT_EQ(map_.Whereabouts()[1].life, LifeAt(1));
  EXPECT_EQ(map_.Whereabouts()[1].known, CopyMap::Known::kPerhaps);
  EXPECT_TRUE(map_.IsUsed(1)) << "a stale copy is one";
  map_.Bury(0);
  EXPECT_FALSE(map_.IsCreated(LifeAt(0)));
  EXPECT_EQ(map_.Whereabouts().size(), 2u) << "it may have come again";
}

}  // namespace
}  // namespace nram
