#include "memserver/tenant.h"

#include <array>
#include <limits>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "memserver/page_store_fixture.h"

namespace nram {
namespace {

// Two tenants, with a lease each.
class TenantTest : public PageStoreTest {
 protected:
  TenantTest() : PageStoreTest(16 * kMiB) {
    other_lease_ = leases_.Grant({.tenant = &other_, .id = LeaseId{2}}).value();
  }

  // All that either has, by the arena's own figures.
  uint64_t Taken() const {
    const ArenaUsage usage = arena_->usage();
    return usage.frame_bytes + usage.index_bytes + usage.reserved_bytes;
  }
  std::shared_ptr<Lease> other_lease_;
};

TEST_F(TenantTest, OneIdIsTwoRegions) {
  absent_ = PageStore::IfAbsent::kCreate;
  ASSERT_EQ(Write({0, 8}, std::string(kPageBytes, 'a')), Reason::kOk);
  ASSERT_EQ(Write({0, 8}, std::string(kPageBytes, 'b'), {}, 1, other_lease_.get()), Reason::kOk);
  absent_ = PageStore::IfAbsent::kRefuse;
  const auto first = [&](TenantNumber tenant) {
    char seen = 0;
    EXPECT_EQ(store_.ReadInPlace({.region = {kRegion, tenant}, .range = {0, 8}},
                                 [&](const PageStore::Stored& stored) {
                                   seen = *static_cast<const char*>(stored.chunks.at(0).iov_base);
                                 }),
              Reason::kOk);
    return seen;
  };
  EXPECT_EQ(first(0), 'a');
  EXPECT_EQ(first(1), 'b');
  EXPECT_EQ(store_.ReadInPlace({.region = {kRegion, 2}, .range = {0, 8}}, [](const auto&) {}), Reason::kUnknownRegion);
  EXPECT_EQ(store_.Destroy(other_lease_.get(), kRegion, 1), Reason::kOk);
  EXPECT_EQ(first(0), 'a');
}

TEST_F(TenantTest, ALimitBoundsWhatIsNotReserved) {
  absent_ = PageStore::IfAbsent::kCreate;
  other_.account.SetLimit(other_.account.bytes() + 64 * kKiB);
  Reason reason = Reason::kOk;
  uint64_t pages = 0;
  while (reason == Reason::kOk && pages < 100) {
    reason = Write({pages * 8, 8}, std::string(kPageBytes, 'x'), {}, 1, other_lease_.get());
    if (reason == Reason::kOk) ++pages;
  }
  EXPECT_EQ(reason, Reason::kFull);
  EXPECT_GT(pages, 12);
  EXPECT_LT(pages, 17);
  EXPECT_FALSE(arena_->Reserve(16, &other_lease_->reservation));
  EXPECT_EQ(Write({0, 8}, std::string(kPageBytes, 'y')), Reason::kOk) << "the other tenant's";
  EXPECT_EQ(Write({0, 8}, std::string(kPageBytes, 'z'), {}, 1, other_lease_.get()), Reason::kOk)
      << "over what is there";
  // A limit below the taken bytes takes nothing away.
  other_.account.SetLimit(0);
  EXPECT_EQ(other_.account.left_bytes(), 0);
  EXPECT_EQ(Write({8, 8}, std::string(kPageBytes, 'z'), {}, 1, other_lease_.get()), Reason::kOk);
}

// Whatever happens, the accounts add up to the arena's taken bytes, and to nothing in the end.
TEST_F(TenantTest, AccountsAddUp) {
  std::mt19937_64 random(TestSeed());
  const uint64_t at_first = Taken() - tenant_.account.bytes() - other_.account.bytes();
  const std::array<Tenant*, 2> tenants = {&tenant_, &other_};
  std::array<std::shared_ptr<Lease>, 2> leases = {lease_, other_lease_};
  for (int step = 0; step < 20'000; ++step) {
    const int who = static_cast<int>(random() % 2);
    Lease* const lease = leases[who].get();
    const uint64_t id = 1 + random() % 3;
    const uint64_t page = random() % 600;
    const uint64_t first = page * kChunksPerPage + random() % kChunksPerPage;
    switch (random() % 12) {
      case 0:
        (void)arena_->Reserve(random() % 64, &lease->reservation);
        break;
      case 1:
        arena_->Unreserve(random() % 64, &lease->reservation);
        break;
      case 2: {
        PageStore::TrimArgs args{.region = RegionId{id}, .epoch = 1, .range = {first, 1 + random() % 4000}};
        if (random() % 2 == 0) args.reservation = &lease->reservation;
        if (random() % 2 == 0) args.frames = PageStore::Frames::kWhole;
        uint64_t kept = 0;
        (void)store_.Trim(lease, args, &kept);
        break;
      }
      case 3:
        if (random() % 50 == 0) (void)store_.Destroy(lease, RegionId{id}, 1);
        break;
      case 4:
        if (random() % 100 == 0) {
          (void)store_.CreateNamed(lease, RegionId{id}, 1, false, {"name" + std::to_string(id), {1, 2, 3}, 1});
        }
        break;
      case 5:
        if (random() % 200 == 0) {
          leases_.End(lease->id);
          store_.CollectLease(*lease);
          store_.FreeSome(std::numeric_limits<int64_t>::max());
          leases[who] = leases_.Grant({.tenant = tenants[who], .id = lease->id}).value();
        }
        break;
      default: {
        const uint64_t chunks = random() % 3 == 0 ? 8 : 1 + random() % 20;
        const ChunkRange range{random() % 3 == 0 ? page * kChunksPerPage : first, chunks};
        std::string data(range.bytes(), static_cast<char>(random() % 3));
        absent_ = random() % 2 == 0 ? PageStore::IfAbsent::kCreate : PageStore::IfAbsent::kCreateGc;
        frames_ = random() % 2 == 0 ? PageStore::Frames::kWhole : PageStore::Frames::kFitted;
        Payment paid(&lease->reservation);
        Payment nobody;
        (void)WriteAs(lease, RegionId{id}, range, data, random() % 2 == 0 ? &paid : &nobody);
      }
    }
    ASSERT_EQ(Taken() - at_first, tenant_.account.bytes() + other_.account.bytes()) << "step " << step;
  }
  for (int who = 0; who < 2; ++who) {
    for (uint64_t id = 1; id <= 3; ++id) {
      (void)store_.DestroyByControl(LeaseId{0}, {RegionId{id}, tenants[who]->number}, true);
    }
    leases_.End(leases[who]->id);
    leases[who] = nullptr;
  }
  lease_ = other_lease_ = nullptr;
  leases_.EndExpired();
  for (Tenant* const tenant : tenants) {
    EXPECT_EQ(tenant->account.bytes(), 0);
    EXPECT_EQ(tenant->regions.used(), 0);
    EXPECT_EQ(tenant->leases.used(), 0);
  }
}

TEST(TenantsTest, ShareIsGivenBackOnce) {
  Quota quota;
  quota.SetLimit(1);
  {
    QuotaShare share(quota.Take() ? &quota : nullptr);
    EXPECT_TRUE(share.taken());
    EXPECT_FALSE(quota.Take());
    QuotaShare moved = std::move(share);
    EXPECT_EQ(quota.used(), 1);
  }
  EXPECT_EQ(quota.used(), 0);
}

}  // namespace
}  // namespace nram
