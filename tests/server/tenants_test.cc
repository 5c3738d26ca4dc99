// Tenants of one server, over both planes: a tenant does not find, change or pay for another one's regions.

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "base/clock.h"
#include "base/poll_until.h"
#include "client/pool/pool.h"
#include "client/transport/control_client.h"
#include "client/transport/socket_transport.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/pattern.h"
#include "tests/util/region_io.h"
#include "tests/util/tls_pool_fixture.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

constexpr char kRules[] =
    "cn:alice a user\ncn:ann a user\ncn:bob b user quota=16M leases=3 regions=5 calls=4\ncn:watch - monitor\n"
    "cn:boss ops operator\n";

class TenantsTest : public TlsPoolFixture {
 protected:
  void SetUp() override {
    WriteAccess(kRules);
    ASSERT_NO_FATAL_FAILURE(Serve(With::kCertificates, access_file_));
    BeClient("alice");
    alice_ = Open();
    BeClient("bob");
    bob_ = Open();
    ASSERT_TRUE(alice_ != nullptr && bob_ != nullptr);
  }
  Tenant* tenant(int number) { return server_->core().tenants().Of(number); }

  std::unique_ptr<Pool> alice_;
  std::unique_ptr<Pool> bob_;
};

TEST_F(TenantsTest, NamesAndIdsAreEachTenantsOwn) {
  auto hers = alice_->CreateRegion({.gc = false, .name = "array"}).value();
  auto his = bob_->CreateRegion({.gc = false, .name = "array"});
  ASSERT_TRUE(his.ok()) << his.status();
  const std::string data = Pattern(kMiB, 1), other = Pattern(kMiB, 2);
  ASSERT_TRUE(hers->Write(0, Bytes(data)).ok());
  ASSERT_TRUE((*his)->Write(0, Bytes(other)).ok());
  EXPECT_TRUE(*Read(hers.get(), 0, kMiB) == data);
  EXPECT_TRUE(*Read(his->get(), 0, kMiB) == other);

  // Bob does not find it by its id, nor can he destroy it, by force or not.
  const auto bob = Control();
  EXPECT_TRUE(absl::IsNotFound(bob->AttachRegion({.region = hers->id(), .read_only = true}, Soon()).status()));
  EXPECT_FALSE(*bob->DestroyRegion(LeaseId{0}, hers->id(), /*force=*/true, Soon()));
  EXPECT_TRUE(absl::IsNotFound(bob->ListSpans(hers->id(), Soon(), [](auto...) { return absl::OkStatus(); })));
  const auto seen = bob->ListRegions(false, false, Soon()).value();
  ASSERT_EQ(seen.size(), 1);
  EXPECT_EQ(seen[0].id, (*his)->id());
  EXPECT_TRUE(absl::IsPermissionDenied(bob->ListRegions(false, /*all_tenants=*/true, Soon()).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(bob->DestroyOf("a", hers->id(), true, Soon()).status()));
  EXPECT_TRUE(*Read(hers.get(), 0, kMiB) == data);
}

TEST_F(TenantsTest, OthersOfTheTenantSeeWhatIsTheTenants) {
  auto hers = alice_->CreateRegion({.gc = false, .name = "array"}).value();
  ASSERT_TRUE(hers->Write(0, Bytes(Pattern(kMiB, 1))).ok());
  BeClient("ann");
  const auto pool = Open();
  auto read_only = pool->AttachRegion("array", AttachMode::kReadOnly);
  ASSERT_TRUE(read_only.ok()) << read_only.status();
  EXPECT_TRUE(*Read(read_only->get(), 0, kMiB) == Pattern(kMiB, 1));
}

TEST_F(TenantsTest, ALeaseOfAnotherTenantIsWorthNothing) {
  const LeaseId hers = alice_->session(0)->lease();
  const auto bob = Control();
  EXPECT_TRUE(absl::IsNotFound(bob->RenewLease(hers, {}, Soon()).status()));
  EXPECT_TRUE(absl::IsNotFound(bob->Reserve(hers, 10, {}, Soon()).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(bob->GrantLease(hers, "bob", 0, Soon()).status()));
  (void)bob->EndLease(hers, Soon());
  EXPECT_NE(server_->leases().Find(hers), nullptr);
  EXPECT_TRUE(server_->leases().Find(hers)->live());
  // The data plane refuses the lease too, and Alice's lease is unchanged.
  const auto poller = std::make_unique<Poller>();
  SocketTransportOptions of{.lease = hers};
  of.tls = certificates_.Load(TlsRole::kClient);
  of.host = "127.0.0.1";
  SocketTransport data(*ResolveEndpoint({"127.0.0.1", server_->data_port(), ""}), of, poller.get());
  const absl::Status refused = data.Connect(Soon());
  EXPECT_FALSE(refused.ok());
  auto region = alice_->CreateRegion({.gc = true}).value();
  EXPECT_TRUE(region->Write(0, Bytes(Pattern(kMiB, 3))).ok());
}

TEST_F(TenantsTest, OperatorsSeeAndDestroyAllAndMonitorsSeeFiguresAlone) {
  auto hers = alice_->CreateRegion({.gc = false, .name = "array"}).value();
  auto his = bob_->CreateRegion({.gc = false, .name = "other"}).value();
  BeClient("boss");
  const auto boss = Control();
  EXPECT_EQ(boss->Hello(Soon())->role, "operator");
  EXPECT_EQ(boss->Hello(Soon())->tenant, "ops");
  EXPECT_EQ(boss->ListRegions(false, false, Soon())->size(), 0) << "its own";
  const auto all = boss->ListRegions(false, /*all_tenants=*/true, Soon());
  ASSERT_TRUE(all.ok()) << all.status();
  ASSERT_EQ(all->size(), 2);
  EXPECT_EQ((*all)[0].tenant, "a");
  EXPECT_EQ((*all)[1].tenant, "b");
  EXPECT_TRUE(*boss->DestroyOf("b", his->id(), /*force=*/true, Soon()));
  EXPECT_TRUE(absl::IsNotFound(boss->DestroyOf("nobody", hers->id(), true, Soon()).status()));
  BeClient("watch");
  const auto watch = Control();
  EXPECT_TRUE(watch->GetStatistics(Soon()).ok());
  EXPECT_TRUE(absl::IsPermissionDenied(watch->ListRegions(false, false, Soon()).status()));
  EXPECT_TRUE(absl::IsPermissionDenied(watch->GrantLease(LeaseId{5}, "watch", 0, Soon()).status()));
}

TEST_F(TenantsTest, AQuotaBoundsRoomLeasesAndRegions) {
  const Tenant* const b = tenant(1);
  ASSERT_EQ(b->name, "b");
  auto region = bob_->CreateRegion({.gc = true}).value();
  const std::string data = Pattern(kMiB, 1);
  absl::Status full;
  uint64_t at = 0;
  while (full.ok() && at < 64 * kMiB) {
    full = region->Write(at, Bytes(data), {.timeout_ms = 3'000});
    if (full.ok()) at += kMiB;
  }
  EXPECT_GE(at, 13 * kMiB);
  EXPECT_LT(at, 17 * kMiB);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_LE(b->account.bytes(), 16 * kMiB);
  // A mount's size is the quota, and df tells it; neither has anything to do with other tenants.
  const ServerCapacity told = Control()->Hello(Soon())->capacity;
  EXPECT_EQ(told.quota_bytes, 16 * kMiB);
  EXPECT_GE(told.quota_used_bytes, at);
  EXPECT_LE(told.quota_used_bytes, 16 * kMiB);
  EXPECT_EQ(Control()->GetStatistics(Soon())->capacity.quota_bytes, 16 * kMiB);
  EXPECT_EQ(bob_->Capacity().total_bytes, 16 * kMiB);
  EXPECT_GT(alice_->Capacity().total_bytes, 40 * kMiB);
  BeClient("alice");
  EXPECT_EQ(Control()->Hello(Soon())->capacity.quota_bytes, 0) << "she has none";
  BeClient("bob");
  // Alice has room, and Bob's freed bytes are his again.
  auto hers = alice_->CreateRegion({.gc = true}).value();
  for (uint64_t i = 0; i < 40; ++i) ASSERT_TRUE(hers->Write(i * kMiB, Bytes(data)).ok());
  ASSERT_TRUE(region->Trim(0, at).ok());
  EXPECT_TRUE(region->Write(0, Bytes(data)).ok());

  const auto bob = Control();
  const absl::Status asked = bob->Reserve(bob_->session(0)->lease(), 100'000, {}, Soon()).status();
  EXPECT_THAT(std::string(asked.message()), HasSubstr("in the quota of b"));
  // His pool has one of three leases.
  EXPECT_TRUE(bob->GrantLease(LeaseId{11}, "", 0, Soon()).ok());
  EXPECT_TRUE(bob->GrantLease(LeaseId{12}, "", 0, Soon()).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(bob->GrantLease(LeaseId{13}, "", 0, Soon()).status()));
  for (uint64_t id = 1; id <= 4; ++id) {
    ASSERT_TRUE(bob->CreateRegion({.lease = LeaseId{11}, .region = RegionId{id}, .epoch = Epoch{1}}, Soon()).ok());
  }
  EXPECT_TRUE(absl::IsResourceExhausted(
      bob->CreateRegion({.lease = LeaseId{11}, .region = RegionId{9}, .epoch = Epoch{1}}, Soon())));
  ASSERT_TRUE(bob->EndLease(LeaseId{11}, Soon()).ok());
  for (uint64_t id = 1; id <= 4; ++id) ASSERT_TRUE(*bob->DestroyRegion(LeaseId{0}, RegionId{id}, false, Soon()));
  EXPECT_TRUE(bob->CreateRegion({.lease = LeaseId{12}, .region = RegionId{9}, .epoch = Epoch{1}}, Soon()).ok());
}

// Both planes refuse a client that is removed from the file. Its data remains, in case of a mistake.
TEST_F(TenantsTest, AChangedFileShutsOutAndLetsInAgain) {
  auto region = bob_->CreateRegion({.gc = true}).value();
  const std::string data = Pattern(kMiB, 1);
  ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
  const auto bob = Control();
  WriteAccess("cn:alice a user\ncn:ann a user\ncn:boss ops operator\n");
  absl::Status refused;
  ASSERT_TRUE(PollUntil(Soon(), 50, [&] {
    refused = bob->Hello(Soon()).status();
    return absl::IsPermissionDenied(refused);
  })) << refused;
  // His connection ends as well, and a new one is refused before gRPC.
  ASSERT_TRUE(PollUntil(Soon(), 50, [&] {
    refused = bob->Hello(Soon()).status();
    return absl::StrContains(refused.message(), "rules do not admit this side's certificate");
  })) << refused;
  ASSERT_TRUE(PollUntil(Soon(), 50, [&] { return !Read(region.get(), 0, kPageBytes, {.timeout_ms = 500}).ok(); }))
      << "the data plane lets him go on";
  EXPECT_EQ(server_->core().tenants().Of(1)->regions.used(), 1) << "it stays";
  WriteAccess(kRules);
  absl::StatusOr<std::string> back;
  ASSERT_TRUE(PollUntil(Soon(), 50, [&] { return (back = Read(region.get(), 0, kMiB)).ok(); })) << back.status();
  EXPECT_TRUE(*back == data);
}

}  // namespace
}  // namespace nram
