// A server that executes a reservation, or its return, late must not change the lease's reservation behind the client's
// back.

#include <poll.h>

#include <algorithm>
#include <atomic>
#include <memory>
#include <string>

#include "base/clock.h"
#include "gtest/gtest.h"
#include "tests/util/lying_server.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

TEST(ReserveOrderTest, TheServerExecutesNoneThatComesLate) {
  TestPool servers(1);
  const auto control = ControlClient::Create(servers.Options().servers[0]);
  const LeaseId lease{42};
  const auto soon = [] { return DeadlineAfterMs(20'000); };
  const uint64_t term = control->GrantLease(lease, "test", 0, soon())->term;
  const auto first = control->Reserve(lease, 100, {term, 1}, soon());
  ASSERT_TRUE(first.ok()) << first.status();
  ASSERT_TRUE(control->Reserve(lease, 0, {term, 3}, soon()).ok());
  EXPECT_TRUE(absl::IsAborted(control->Reserve(lease, -50, {term, 2}, soon()).status()));
  EXPECT_TRUE(absl::IsAborted(control->Reserve(lease, -50, {term, 3}, soon()).status()));
  EXPECT_TRUE(absl::IsAborted(control->Reserve(lease, -50, {term + 1, 4}, soon()).status()));
  EXPECT_EQ(control->RenewLease(lease, {}, soon())->reservation_bytes, first->reservation_bytes);
  // The server does not execute a reservation from before the lease ended either.
  ASSERT_TRUE(control->EndLease(lease, soon()).ok());
  const uint64_t next_term = control->GrantLease(lease, "test", 0, soon())->term;
  ASSERT_TRUE(control->Reserve(lease, 100, {next_term, 5}, soon()).ok());
  EXPECT_TRUE(absl::IsAborted(control->Reserve(lease, -50, {term, 6}, soon()).status()));
  EXPECT_EQ(control->RenewLease(lease, {}, soon())->reservation_bytes, first->reservation_bytes);
}

// The server reports room as reserved, although its return may still be executed. The client would set that room aside
// for a region, and a reserved write would fail for lack of it.
TEST(ReserveOrderTest, RoomWhoseReturnHasNoAnswerIsNotCountedUntilItIsKnown) {
  LyingServer server;
  std::atomic<int64_t> reservation_bytes{0};
  std::atomic<uint64_t> lost_order{0}, last_order{0};
  std::atomic<int> renewals_after_loss{0};
  std::atomic<bool> answers{false};
  server.Set({.lease = [&](const google::protobuf::Message& message, v1::LeaseReply* reply) {
    const auto* const reserve = dynamic_cast<const v1::ReserveRequest*>(&message);
    if (reserve != nullptr) {
      if (reserve->pages() < 0 && lost_order == 0) {
        lost_order = reserve->order();
        return grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost");
      }
      if (lost_order != 0 && !answers) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "lost too");
      last_order = reserve->order();
      reservation_bytes += reserve->pages() * static_cast<int64_t>(Room::kBytesPerPage);
    } else if (lost_order != 0) {
      ++renewals_after_loss;
    }
    reply->set_ttl_ms(600);
    reply->set_reservation_bytes(static_cast<uint64_t>(reservation_bytes));
    return grpc::Status::OK;
  }});
  PoolOptions options;
  options.servers = {server.endpoint()};
  options.open_timeout_ms = 60'000;
  options.reserve_step_bytes = kMiB;
  const auto pool = TestPool::Open(options);
  ASSERT_NE(pool, nullptr);
  auto region = pool->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(region->Reserve(0, 16 * kMiB).ok());
  region->Unreserve(0, 16 * kMiB);
  const int64_t deadline_ns = DeadlineAfterMs(60'000);
  const auto until = [&](const auto& what) {
    while (!what() && MonotonicNs() < deadline_ns) poll(nullptr, 0, 5);
    return what();
  };
  ASSERT_TRUE(until([&] { return lost_order != 0; }));
  int64_t most = 0;
  ASSERT_TRUE(until([&] {
    most = std::max(most, pool->session(0)->room()->free_bytes());
    return renewals_after_loss >= 12;
  }));
  EXPECT_LT(most, 4 * int64_t{kMiB}) << "the return may still be executed";
  // Once the server has answered a later reservation, it no longer executes the first, and the client owns the reserved
  // room.
  answers = true;
  EXPECT_TRUE(until([&] { return last_order > lost_order; }));
}

}  // namespace
}  // namespace nram
