// Tenants over the control plane: no call waits for another one's reservation, and a client's report of copies changes
// no other client's.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "gtest/gtest.h"
#include "memserver/answer_room.h"
#include "memserver/control_service.h"
#include "memserver/server_core.h"

namespace nram {
namespace {

class ControlTenantsTest : public ::testing::Test {
 protected:
  ControlTenantsTest()
      : core_(ServerCore::Create({.incarnation = 7, .ceiling_bytes = 64 * kMiB, .fixed_bytes = kMiB}, &clock_).value()),
        service_(core_.get(), [] { return Surroundings(); }) {
    first_ = {core_->tenants().Set(0, "first", {}), "cn:one", "user"};
    second_ = {core_->tenants().Set(1, "second", {}), "cn:two", "user"};
  }

  std::shared_ptr<Lease> Grant(const Caller& caller, uint64_t id) {
    return core_->leases().Grant({.tenant = caller.tenant, .id = LeaseId{id}, .client_name = "test"}).value();
  }
  absl::Status Reserve(const Caller& caller, uint64_t lease, int64_t pages, uint64_t order = 0) {
    v1::ReserveRequest request;
    request.set_lease_id(lease);
    request.set_pages(pages);
    request.set_order(order);
    request.set_term(core_->leases().Find(LeaseId{lease})->term());
    v1::LeaseReply reply;
    return service_.Reserve(caller, request, &reply);
  }

  void Tell(const Caller& caller, uint64_t lease, const CopiesReport& report) {
    v1::RenewLeaseRequest request;
    request.set_lease_id(lease);
    ToMessage(report, request.mutable_copies());
    v1::LeaseReply reply;
    ASSERT_TRUE(service_.RenewLease(caller, request, &reply).ok());
  }
  std::vector<CopiesReport> Told(ControlService* service, const Caller& caller) {
    v1::Statistics statistics;
    EXPECT_TRUE(service->GetStatistics(caller, {}, &statistics).ok());
    std::vector<CopiesReport> told;
    for (const v1::Copies& copies : statistics.copies()) told.push_back(CopiesFromMessage(copies));
    return told;
  }

  const Caller monitor_{nullptr, "cn:watch", "monitor", /*sees_others=*/true};
  FakeClock clock_;
  std::unique_ptr<ServerCore> core_;
  ControlService service_;
  Caller first_, second_;
};

TEST_F(ControlTenantsTest, ATenantThatTakesNoAnswersLeavesRoomForThoseOfOthers) {
  AnswerRoom room(2 * kMiB);
  EXPECT_TRUE(room.Take(first_.tenant, kMiB, /*has_several_tenants=*/true));
  EXPECT_FALSE(room.Take(first_.tenant, 1, true));
  EXPECT_TRUE(room.Take(second_.tenant, kMiB, true));
  EXPECT_FALSE(room.Take(second_.tenant, 1, true));
  // A refused answer takes nothing.
  room.Give(second_.tenant, kMiB);
  EXPECT_TRUE(room.Take(second_.tenant, kMiB, true));
  room.Give(second_.tenant, kMiB);
  // One that is alone may have all.
  EXPECT_TRUE(room.Take(first_.tenant, kMiB, false));
  EXPECT_FALSE(room.Take(first_.tenant, 1, false));
}

TEST_F(ControlTenantsTest, NoReserveWaitsForAnotherOfItsLease) {
  const auto lease = Grant(first_, 1);
  Grant(first_, 2);
  lease->reserve_mu.Lock();  // as one that waits for versions to yield
  std::thread other([&] {
    EXPECT_EQ(Reserve(first_, 1, 10, /*order=*/5).code(), absl::StatusCode::kAborted);
    EXPECT_TRUE(Reserve(first_, 2, 10).ok());
  });
  other.join();  // would never return if it waited
  lease->reserve_mu.Unlock();
  EXPECT_TRUE(Reserve(first_, 1, 10, /*order=*/5).ok()) << "the one that was refused has changed nothing";
}

TEST_F(ControlTenantsTest, ReportsOfTwoTenantsWithOneNumberStayTwo) {
  Grant(first_, 1);
  Grant(second_, 2);
  Tell(first_, 1, {.client = 42, .degraded = 5, .made = 1});
  Tell(second_, 2, {.client = 42, .in_sync = 1, .made = ~uint64_t{0}, .reserved_bytes = kGiB});
  ASSERT_TRUE(Reserve(first_, 1, 10).ok());
  const auto all = Told(&service_, monitor_);
  ASSERT_EQ(all.size(), 2u);
  EXPECT_NE(all[0].client, all[1].client);
  const CopiesReport& honest = all[0].degraded == 5 ? all[0] : all[1];
  const CopiesReport& liar = all[0].degraded == 5 ? all[1] : all[0];
  EXPECT_EQ(honest.degraded, 5u);
  EXPECT_GE(honest.reserved_bytes, 10 * kPageBytes);
  EXPECT_EQ(liar.reserved_bytes, 0u) << "the server's own figure";
  EXPECT_EQ(liar.made, CopiesReport::kMost) << "sums do not overflow";
  // A number that was seen cannot be told.
  Tell(second_, 2, {.client = honest.client, .in_sync = 1});
  for (const CopiesReport& told : Told(&service_, monitor_)) {
    EXPECT_EQ(told.client == honest.client, told.degraded == 5);
  }
  Tell(second_, 2, {});
  Grant(first_, 3);
  Tell(first_, 3, {.client = honest.client, .in_sync = 1});
  for (const CopiesReport& told : Told(&service_, monitor_)) {
    EXPECT_EQ(told.client == honest.client, told.degraded == 5);
  }
}

TEST_F(ControlTenantsTest, AllServersShowAClientByOneNumber) {
  // The other server has met the tenants in another order.
  const auto other_core =
      ServerCore::Create({.incarnation = 8, .ceiling_bytes = 64 * kMiB, .fixed_bytes = kMiB}, &clock_).value();
  ControlService other(other_core.get(), [] { return Surroundings(); });
  other_core->tenants().Set(0, "second", {});
  const Caller first{other_core->tenants().Set(1, "first", {}), "cn:one", "user"};
  const auto lease = other_core->leases().Grant({.tenant = first.tenant, .id = LeaseId{9}}).value();
  lease->SetCopies({.client = 42, .in_sync = 3});
  Grant(first_, 1);
  Tell(first_, 1, {.client = 42, .in_sync = 3});
  EXPECT_EQ(Told(&service_, monitor_), Told(&other, monitor_));
}

TEST_F(ControlTenantsTest, AUserSeesItsTenantsReports) {
  Grant(first_, 1);
  Grant(second_, 2);
  Tell(first_, 1, {.client = 42, .degraded = 5});
  Tell(second_, 2, {.client = 43, .lost = 7});
  ASSERT_EQ(Told(&service_, first_).size(), 1u);
  EXPECT_EQ(Told(&service_, first_)[0].degraded, 5u);
  EXPECT_EQ(Told(&service_, Caller()).size(), 2u) << "the server's own figures";
}

TEST_F(ControlTenantsTest, ManyReportsOfATenantLeaveOthersTheirs) {
  for (uint64_t id = 1; id <= 1'500; ++id) {
    Grant(first_, id);
    Tell(first_, id, {.client = id, .in_sync = 1});
  }
  clock_.AdvanceMs(1'000);  // they end first
  Grant(second_, 2'000);
  Tell(second_, 2'000, {.client = 1, .degraded = 5});
  int degraded = 0;
  for (const CopiesReport& told : Told(&service_, monitor_)) degraded += told.degraded == 5 ? 1 : 0;
  EXPECT_EQ(degraded, 1);
}

}  // namespace
}  // namespace nram
