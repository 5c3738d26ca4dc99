// A memory server that runs and answers nothing, on neither plane: a stopped process of its own.

#include <poll.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/poll_until.h"
#include "client/pool/pool.h"
#include "gtest/gtest.h"
#include "tests/util/server_process.h"

namespace nram {
namespace {

class FrozenServerTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    for (auto& server : servers_) server = std::make_unique<ServerProcess>();
  }
  static void TearDownTestSuite() {
    for (auto& server : servers_) server.reset();
  }
  static inline std::unique_ptr<ServerProcess> servers_[2];
};

// Answers may be small, and calls always under way: that is no silence of the connection.
TEST_F(FrozenServerTest, AServerThatAnswersIsNotTakenForAFrozenOne) {
  PoolOptions options;
  options.servers.push_back({"127.0.0.1", servers_[0]->port(), ""});
  options.open_timeout_ms = 60'000;
  options.silence_limit_ms = 1'000;
  auto pool = Pool::Open(options);
  ASSERT_TRUE(pool.ok()) << pool.status();
  auto region = (*pool)->CreateRegion({.gc = true}).value();
  const std::string data(kPageBytes, 'x');
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data.data()), data.size());
  ASSERT_TRUE(region->Write(0, bytes).ok());
  const uint32_t times_up = (*pool)->session(0)->times_up();
  const int64_t until_ns = DeadlineAfterMs(3 * options.silence_limit_ms);
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&] {
      std::string back(kChunkBytes, ' ');
      while (MonotonicNs() < until_ns) {
        const absl::Status status = region->Read(0, {reinterpret_cast<std::byte*>(back.data()), back.size()});
        ASSERT_TRUE(status.ok()) << status;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ((*pool)->session(0)->times_up(), times_up) << "a connection was broken, and made again";
}

TEST_F(FrozenServerTest, WritesThatNeedRoomFailAtOnceWhenItHasBeenAwayForLong) {
  ServerProcess& server = *servers_[0];
  ASSERT_NE(server.port(), 0);
  constexpr int64_t kTimeoutMs = 10'000;
  PoolOptions options;
  options.servers.push_back({"127.0.0.1", server.port(), ""});
  options.open_timeout_ms = 60'000;
  options.io_timeout_ms = kTimeoutMs;
  options.fail_fast_after_ms = 500;
  options.reserve_step_bytes = kMiB;
  auto pool = Pool::Open(options);
  ASSERT_TRUE(pool.ok()) << pool.status();
  auto region = (*pool)->CreateRegion({.gc = true}).value();
  const std::string data(kMiB, 'x');
  const absl::Span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data.data()), data.size());
  ASSERT_TRUE(region->Write(0, bytes).ok());

  // Operations that may not block at their start do not block, though there is no room and no server answers. They
  // complete later.
  server.Freeze();
  {
    std::vector<Io> ios(20);
    const int64_t deadline_ns = DeadlineAfterMs(20'000);  // each would wait for 2 s
    for (uint64_t i = 0; i < ios.size(); ++i) {
      region->StartWrite(&ios[i], (100 + i) * kMiB, bytes, {.timeout_ms = 30'000});
    }
    EXPECT_LT(MonotonicNs(), deadline_ns);
    server.Thaw();
    for (Io& io : ios) EXPECT_TRUE(io.Wait().ok());
  }

  server.Freeze();
  const int64_t patience_ns = DeadlineAfterMs(60'000);
  std::string back(kPageBytes, ' ');
  ASSERT_TRUE(PollUntil(patience_ns, 10, [&] {
    (void)region->Read(0, {reinterpret_cast<std::byte*>(back.data()), back.size()}, {.timeout_ms = 100});
    return (*pool)->session(0)->away_too_long();
  }));

  // The writes, some blocking and some not, need more than the room reserved ahead. All together take a fraction of the
  // time that one may take.
  const int64_t deadline_ns = DeadlineAfterMs(kTimeoutMs);
  for (uint64_t i = 1; i <= 20; ++i) {
    EXPECT_EQ(region->Write(i * kMiB, bytes).code(), absl::StatusCode::kUnavailable);
    Io io;
    region->StartWrite(&io, 0, bytes);
    EXPECT_EQ(io.Wait().code(), absl::StatusCode::kUnavailable);
  }
  EXPECT_LT(MonotonicNs(), deadline_ns);

  server.Thaw();
  absl::Status status;
  EXPECT_TRUE(PollUntil(patience_ns, 10, [&] { return (status = region->Write(0, bytes)).ok(); })) << status;
}

TEST_F(FrozenServerTest, ThePoolsOnlyServerMayBeSlow) {
  ServerProcess& server = *servers_[1];
  ASSERT_NE(server.port(), 0);
  PoolOptions options;
  options.servers.push_back({"127.0.0.1", server.port(), ""});
  options.open_timeout_ms = 100;
  options.io_timeout_ms = 60'000;
  server.Freeze();
  std::thread later([&] {
    poll(nullptr, 0, 500);
    server.Thaw();
  });
  const auto pool = Pool::Open(options);
  EXPECT_TRUE(pool.ok()) << pool.status();
  later.join();
}

}  // namespace
}  // namespace nram
