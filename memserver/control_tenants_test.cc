// Tenants over the control plane: no call waits for another one's reservation.

#include <memory>
#include <string>
#include <thread>

#include "base/clock.h"
#include "gtest/gtest.h"
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

  FakeClock clock_;
  std::unique_ptr<ServerCore> core_;
  ControlService service_;
  Caller first_, second_;
};

TEST_F(ControlTenantsTest, NoReserveWaitsForAnotherOfItsLease) {
  const auto lease = Grant(first_, 1);
  Grant(first_, 2);
  lease->reserve_mu.Lock();  // as one that waits for versions to yield
  std::thread other([&] {
    EXPECT_EQ(Reserve(first_, 1, 10, /*order=*/5).code(), absl::StatusCode::kUnavailable);
    EXPECT_TRUE(Reserve(first_, 2, 10).ok());
  });
  other.join();  // would never return if it waited
  lease->reserve_mu.Unlock();
  EXPECT_TRUE(Reserve(first_, 1, 10, /*order=*/5).ok()) << "the one that was refused has changed nothing";
}

}  // namespace
}  // namespace nram
