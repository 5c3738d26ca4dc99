#include "memserver/lease_table.h"

#include <malloc.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "memserver/page_store.h"

namespace nram {
namespace {

// Bytes that malloc has given out.
uint64_t Allocated() {
  const auto info = mallinfo2();
  return info.uordblks + info.hblkhd;
}

class LeaseTableTest : public ::testing::Test {
 protected:
  explicit LeaseTableTest(uint64_t ceiling_bytes = 512 * kMiB)
      : arena_(FrameArena::Create(ceiling_bytes, kMiB).value()) {}

  std::shared_ptr<Lease> Grant(uint64_t id, int64_t ttl_ms = 0) {
    auto lease =
        leases_.Grant({.tenant = &tenant_, .id = LeaseId{id}, .client_name = std::string(255, 'o'), .ttl_ms = ttl_ms});
    return lease.ok() ? *std::move(lease) : nullptr;
  }
  absl::Status CreateRegion(Lease* lease, uint64_t id, const RegionManifest& manifest = {}) {
    return store_.CreateNamed(lease, RegionId{id}, 1, /*gc=*/false, manifest);
  }
  uint64_t Charged() const { return arena_->usage().index_bytes; }

  FakeClock clock_;
  std::unique_ptr<FrameArena> arena_;
  Tenant tenant_{0, "local", arena_.get()};
  LeaseTable leases_{arena_.get(), &clock_, 10'000};
  PageStore store_{arena_.get(), &leases_};
};

// Each client that ends leaves a lease behind, which its region names.
TEST_F(LeaseTableTest, AllMemoryThatClientsMakeItHoldIsCharged) {
  const uint64_t charged_before = Charged();
  const uint64_t allocated_before = Allocated();
  for (uint64_t id = 1; id <= 120'000; ++id) {
    const auto lease = Grant(id);
    ASSERT_NE(lease, nullptr);
    RegionManifest manifest;
    if (id % 4 == 0) manifest = {absl::StrCat(id), std::vector<uint64_t>(id % 32), 0};
    ASSERT_TRUE(CreateRegion(lease.get(), id, manifest).ok());
    leases_.End(LeaseId{id});
    // It takes the most while a table grows. Looking is slow, so the test looks now and then.
    if (id % 512 == 0) {
      ASSERT_LE(Allocated() - allocated_before, Charged() - charged_before) << id;
    }
  }
  leases_.EndExpired();
  EXPECT_EQ(leases_.count(), 120'000) << "regions name them";
  for (uint64_t id = 1; id <= 120'000; ++id) ASSERT_TRUE(*store_.DestroyByControl(LeaseId{0}, {RegionId{id}, 0}, true));
  leases_.EndExpired();
  EXPECT_EQ(leases_.count(), 0);
  EXPECT_EQ(Charged(), charged_before);
}

TEST_F(LeaseTableTest, TheWalkLooksAtWhatHasExpiredAlone) {
  for (uint64_t id = 1; id <= 1'000; ++id) {
    const auto lease = Grant(id);
    ASSERT_TRUE(CreateRegion(lease.get(), id).ok());
    leases_.End(LeaseId{id});
  }
  for (uint64_t id = 2'001; id <= 2'100; ++id) Grant(id);
  leases_.EndExpired();  // finds that regions name the ended ones
  const uint64_t before = leases_.looked_at();
  for (int i = 0; i < 100; ++i) {
    clock_.AdvanceMs(1);
    EXPECT_TRUE(leases_.EndExpired().empty());
  }
  EXPECT_EQ(leases_.looked_at(), before);
  // A renewed lease is looked at once in its time, not with each renewal.
  for (int i = 0; i < 100; ++i) {
    clock_.AdvanceMs(1'000);
    for (uint64_t id = 2'001; id <= 2'100; ++id) ASSERT_TRUE(leases_.Renew(tenant_, LeaseId{id}).ok());
    EXPECT_TRUE(leases_.EndExpired().empty());
  }
  EXPECT_LE(leases_.looked_at() - before, 100 * 12);
  clock_.AdvanceMs(10'001);
  EXPECT_EQ(leases_.EndExpired().size(), 100);
  EXPECT_EQ(leases_.live_count(), 0);
  leases_.EndExpired();  // the last round's result held them
  EXPECT_EQ(leases_.count(), 1'000);
}

TEST_F(LeaseTableTest, EndsWhenItsTimeIsUpWhateverItsTimeWas) {
  Grant(1, 60'000);
  clock_.AdvanceMs(1'000);
  Grant(1, 5'000);  // a shorter one takes the longer one's place
  clock_.AdvanceMs(5'001);
  EXPECT_EQ(leases_.EndExpired().size(), 1);
  Grant(2, 5'000);
  Grant(2, 60'000);
  clock_.AdvanceMs(59'000);
  EXPECT_TRUE(leases_.EndExpired().empty());
  clock_.AdvanceMs(1'001);
  EXPECT_EQ(leases_.EndExpired().size(), 1);
  // Ended and granted anew.
  Grant(3, 60'000);
  leases_.End(LeaseId{3});
  const auto again = Grant(3, 1'000);
  clock_.AdvanceMs(1'001);
  const auto ended = leases_.EndExpired();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0], again);
}

TEST_F(LeaseTableTest, WhoHasLessThanHalfOfTheTimeLeftIsLate) {
  const auto usual = Grant(1);
  const auto longer = Grant(2, /*ttl_ms=*/40'000);
  EXPECT_EQ(leases_.CountLate(), 0u);
  clock_.AdvanceMs(5'000);
  EXPECT_EQ(leases_.CountLate(), 0u);
  clock_.AdvanceMs(1);
  EXPECT_EQ(leases_.CountLate(), 1u);
  ASSERT_TRUE(leases_.Renew(tenant_, LeaseId{1}).ok());
  EXPECT_EQ(leases_.CountLate(), 0u);
  clock_.AdvanceMs(9'000);
  EXPECT_EQ(leases_.CountLate(), 1u);
  clock_.AdvanceMs(9'000);
  // One is over, the other one has half of its time.
  EXPECT_EQ(leases_.EndExpired().size(), 1u);
  EXPECT_EQ(leases_.CountLate(), 1u);
}

TEST_F(LeaseTableTest, TheServersOwnStopsDoNotCount) {
  Grant(1);
  clock_.AdvanceMs(9'000);
  Grant(2);
  clock_.AdvanceMs(60'000);
  leases_.Extend(60'000 * kNsPerMs);
  EXPECT_TRUE(leases_.EndExpired().empty());
  clock_.AdvanceMs(1'001);
  EXPECT_EQ(leases_.EndExpired().size(), 1);
  clock_.AdvanceMs(9'000);
  EXPECT_EQ(leases_.EndExpired().size(), 1);
}

TEST_F(LeaseTableTest, WhoIsRenewedBetweenAStopAndItsNoticeGetsNoMoreThanATerm) {
  Grant(1);
  clock_.AdvanceMs(60'000);
  ASSERT_TRUE(leases_.Renew(tenant_, LeaseId{1}).ok());
  Grant(2);
  leases_.Extend(60'000 * kNsPerMs);
  clock_.AdvanceMs(9'999);
  EXPECT_TRUE(leases_.EndExpired().empty());
  clock_.AdvanceMs(2);
  EXPECT_EQ(leases_.EndExpired().size(), 2);
}

// A renewal, a ping or a hello of any client that comes while thousands of rules are compared.
TEST_F(LeaseTableTest, LeasesAreJudgedWithoutTheTablesLock) {
  const auto lease = Grant(1);
  ASSERT_TRUE(CreateRegion(lease.get(), 1).ok());
  int judged = 0;
  leases_.Hold(
      [&](const Lease&) {
        ++judged;
        std::thread other([&] {
          EXPECT_TRUE(leases_.Renew(tenant_, LeaseId{1}).ok());
          EXPECT_EQ(leases_.live_count(), 1);
        });
        other.join();  // would never return if the judgement held the lock
        return true;
      },
      3'600 * kNsPerSecond);
  EXPECT_EQ(judged, 1);
  clock_.AdvanceMs(3'599'000);
  EXPECT_TRUE(leases_.EndExpired().empty());
}

TEST_F(LeaseTableTest, WhatARefusedClientHasEndsWithItsLastRegion) {
  constexpr int64_t kHoldNs = 3'600 * kNsPerSecond;
  constexpr uint64_t kPages = 100;
  std::vector<std::shared_ptr<Lease>> leases;
  for (uint64_t id = 1; id <= 3; ++id) {
    leases.push_back(Grant(id));
    ASSERT_TRUE(arena_->Reserve(kPages, &leases.back()->reservation));
  }
  const uint64_t reserved_bytes = arena_->usage().reserved_bytes / 3;
  for (uint64_t region = 1; region <= 4; ++region) {
    ASSERT_TRUE(CreateRegion(leases[region <= 2 ? 0 : 1].get(), region).ok());
  }
  leases_.Hold([](const Lease&) { return true; }, kHoldNs);
  clock_.AdvanceMs(10'001);
  auto ended = leases_.EndExpired();
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0], leases[2]) << "it has no region";
  EXPECT_EQ(arena_->usage().reserved_bytes, 2 * reserved_bytes);
  // An operator destroys regions.
  const auto destroy = [&](uint64_t region) {
    ASSERT_TRUE(*store_.DestroyByControl(LeaseId{0}, {RegionId{region}, 0}, true));
    ended = leases_.EndExpired();
  };
  destroy(1);
  EXPECT_TRUE(ended.empty()) << "the lease has another region";
  destroy(2);
  ASSERT_EQ(ended.size(), 1);
  EXPECT_EQ(ended[0], leases[0]);
  EXPECT_EQ(arena_->usage().reserved_bytes, reserved_bytes);
  // A ping that was on its way does not shorten the time to mend the rules.
  ASSERT_TRUE(leases_.Renew(tenant_, LeaseId{2}).ok());
  clock_.AdvanceMs(10'001);
  EXPECT_TRUE(leases_.EndExpired().empty());
  // After that, the lease stays with regions or without.
  leases_.Hold([](const Lease&) { return false; }, kHoldNs);
  ASSERT_TRUE(leases_.Renew(tenant_, LeaseId{2}).ok());
  destroy(3);
  destroy(4);
  EXPECT_TRUE(ended.empty());
  EXPECT_EQ(arena_->usage().reserved_bytes, reserved_bytes);
}

TEST_F(LeaseTableTest, AnEndedLeaseIsForgottenWhenNobodyHoldsIt) {
  auto lease = Grant(1);
  ASSERT_TRUE(CreateRegion(lease.get(), 1).ok());
  leases_.End(LeaseId{1});
  leases_.EndExpired();
  EXPECT_EQ(leases_.count(), 1);
  ASSERT_TRUE(*store_.DestroyByControl(LeaseId{0}, {RegionId{1}, 0}, true));
  leases_.EndExpired();
  EXPECT_EQ(leases_.count(), 1) << "this test holds it";
  lease.reset();
  leases_.EndExpired();
  EXPECT_EQ(leases_.count(), 0);
}

TEST_F(LeaseTableTest, WhoTakesARegionOverLeavesNothingBehind) {
  ASSERT_TRUE(CreateRegion(Grant(1).get(), 1).ok());
  leases_.End(LeaseId{1});
  leases_.EndExpired();
  ASSERT_TRUE(store_.Attach(Grant(2).get(), {RegionId{1}, 0}, 2, false).ok());
  leases_.EndExpired();
  EXPECT_EQ(leases_.count(), 1);
}

TEST_F(LeaseTableTest, AConnectionMayFollowAfterYearsAndNoneComesAfterAllTime) {
  class Peer : public LeaseConnection {
    void Fence() override {}
  } first, second;
  const auto lease = Grant(1);
  EXPECT_FALSE(lease->Bind(0, ~uint64_t{0}, &first));
  const uint64_t uptime_ns = 3600 * uint64_t{kNsPerSecond};
  EXPECT_TRUE(lease->Bind(0, uptime_ns, &first));
  EXPECT_FALSE(lease->Bind(0, ~uint64_t{0}, &second));
  EXPECT_FALSE(lease->Bind(0, Lease::kGenerationMax + 1, &second));
  // Its predecessor was there all the time.
  EXPECT_TRUE(lease->Bind(0, uptime_ns + 3 * 365 * 24 * 3600 * uint64_t{kNsPerSecond}, &second));
  lease->Unbind(0, &second);
}

class FullServerTest : public LeaseTableTest {
 protected:
  FullServerTest() : LeaseTableTest(64 * kMiB) {
    owner_ = Grant(1);
    uint64_t id = 1;
    while (CreateRegion(owner_.get(), id).ok()) ++id;
  }
  std::shared_ptr<Lease> owner_;
};

TEST_F(FullServerTest, SomeMoreClientsCanConnectAndOwnNothing) {
  uint64_t id = 2;
  while (Grant(id) != nullptr) ASSERT_LT(++id, 10'000);
  EXPECT_GE(id - 2, LeaseTable::kUnchargedMax * 3 / 4);
  EXPECT_LE(id - 2, LeaseTable::kUnchargedMax * 3 / 4 + 8) << "a few that the last bytes paid for";
  const auto last = leases_.Find(LeaseId{id - 1});
  EXPECT_EQ(CreateRegion(last.get(), 1'000'000).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_FALSE(leases_.Charge(last.get()));
  // A lease that ends makes room for the next one.
  leases_.End(LeaseId{id - 2});
  leases_.EndExpired();
  EXPECT_NE(Grant(1'000'000), nullptr);
  // When the server has room again, leases can own regions.
  for (uint64_t region = 1; region <= 100; ++region) {
    ASSERT_TRUE(*store_.DestroyByControl(LeaseId{0}, {RegionId{region}, 0}, true));
  }
  EXPECT_TRUE(CreateRegion(last.get(), 1'000'000).ok());
}

TEST_F(FullServerTest, NoTenantTakesTheLastPlaces) {
  const auto grant = [this](Tenant* tenant, uint64_t id) {
    return leases_.Grant({.tenant = tenant, .id = LeaseId{id}, .client_name = std::string(255, 'o')}).ok();
  };
  uint64_t id = 2;
  const auto hoard = [&](Tenant* tenant) {
    const uint64_t before = id;
    while (grant(tenant, id)) ++id;
    return id - before;
  };
  EXPECT_GE(hoard(&tenant_), LeaseTable::kUnchargedMax / 2);
  Tenant second(1, "second", arena_.get()), third(2, "third", arena_.get());
  EXPECT_GE(hoard(&second), LeaseTable::kUnchargedMax / 8);
  ASSERT_TRUE(grant(&third, id));
  // Leases that end make room in the share of their tenant.
  ASSERT_FALSE(grant(&tenant_, 1'000'000));
  for (uint64_t ended = 2; ended < 2 + LeaseTable::kUnchargedMax / 4; ++ended) leases_.End(LeaseId{ended});
  leases_.EndExpired();
  EXPECT_TRUE(grant(&tenant_, 1'000'000));
  for (; id > 1; --id) leases_.End(LeaseId{id});
  leases_.End(LeaseId{1'000'000});
  leases_.EndExpired();
  EXPECT_EQ(second.uncharged_leases, 0u);
  EXPECT_EQ(third.uncharged_leases, 0u);
}

// The arena has room, but the tenant's quota has not.
TEST_F(LeaseTableTest, ATenantAtItsQuotaTakesNoOtherTenantsPlace) {
  Tenant greedy(1, "greedy", arena_.get()), other(2, "other", arena_.get());
  greedy.account.SetLimit(100'000);
  other.account.SetLimit(1);
  uint64_t id = 1;
  while (leases_.Grant({.tenant = &greedy, .id = LeaseId{id}}).ok()) ASSERT_LT(++id, 4'000);
  EXPECT_LE(greedy.uncharged_leases, LeaseTable::kUnchargedMax * 3 / 4);
  for (uint64_t next = 5'000; next < 5'010; ++next) {
    EXPECT_TRUE(leases_.Grant({.tenant = &other, .id = LeaseId{next}}).ok()) << next;
    leases_.End(LeaseId{next});
  }
  while (id > 0) leases_.End(LeaseId{id--});
  for (int i = 0; i < 2; ++i) leases_.EndExpired();
  EXPECT_EQ(leases_.count(), 0);
}

TEST_F(FullServerTest, WhatTheDeadHaveLeftCanBeTakenOver) {
  while (arena_->ChargeIndex(1)) {
  }
  const auto next = Grant(1'000'000);
  ASSERT_FALSE(leases_.Charge(next.get()));
  const StoredKey key{RegionId{1}, 0};
  EXPECT_TRUE(absl::IsResourceExhausted(store_.Attach(next.get(), key, 2, /*force=*/true).status()))
      << "its owner needs its own";
  leases_.End(LeaseId{1});
  const uint64_t charged = Charged();
  ASSERT_TRUE(store_.Attach(next.get(), key, 2, /*force=*/false).ok());
  EXPECT_TRUE(leases_.Charge(next.get()));
  EXPECT_EQ(Charged(), charged);
  EXPECT_FALSE(store_.Attach(Grant(1'000'001).get(), {RegionId{2}, 0}, 2, /*force=*/false).ok()) << "it paid once";
}

}  // namespace
}  // namespace nram
