// Servers as processes: killed, frozen, ended.

#include <signal.h>
#include <sys/wait.h>

#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/poll_until.h"
#include "base/poller.h"
#include "client/pool/pool.h"
#include "client/pool/pool_spec.h"
#include "client/transport/control_client.h"
#include "client/transport/socket_transport.h"
#include "gtest/gtest.h"
#include "tests/util/byte_relay.h"
#include "tests/util/freeze.h"
#include "tools/nram/local_pool.h"

namespace nram {
namespace {

class KillTest : public ::testing::Test {
 protected:
  static constexpr int64_t kLeaseMs = 2'000;

  KillTest() {
    local_.directory = ::testing::TempDir() + "/kill";
    local_.servers = 3;
    local_.server_flags = {"--donate=128M", absl::StrCat("--lease-ttl-ms=", kLeaseMs)};
    local_.die_with_parent = true;
    local_.tcp = true;
    auto servers = StartLocalPool(local_);
    EXPECT_TRUE(servers.ok()) << servers.status();
    servers_ = *servers;
    PoolOptions options;
    options.servers = ParsePoolSpec("@" + local_.directory + "/pool").value();
    options.fail_fast_after_ms = 500;
    pool_ = Pool::Open(options).value();
    region_ = pool_->CreateRegion({.gc = true}).value();
    for (uint64_t at = 0; at < 12; ++at) EXPECT_TRUE(region_->Write(at * kMiB, page_).ok());
  }
  ~KillTest() override {
    region_.reset();
    pool_.reset();
    for (const LocalServer& server : servers_) kill(server.pid, SIGCONT);
    EXPECT_TRUE(StopLocalPool(local_.directory, 5'000).ok());
  }

  // The number of spans at the server, of the twelve, each of which has one page. Each server has some.
  int SpansAt(size_t server) {
    const auto control = ControlClient::Create({"127.0.0.1", servers_[server].control_port, ""});
    const auto statistics = control->GetStatistics(DeadlineAfterMs(20'000));
    EXPECT_TRUE(statistics.ok()) << statistics.status();
    if (!statistics.ok()) return 0;
    const auto pages = absl::c_find_if(statistics->counters, [](const auto& at) { return at.first == "pages"; });
    EXPECT_TRUE(pages != statistics->counters.end() && pages->second > 0 && pages->second < 12);
    return pages == statistics->counters.end() ? 0 : static_cast<int>(pages->second);
  }
  // Reads every span once; returns how many reads succeed. None may be wrong.
  int ReadAll(int64_t timeout_ms) {
    int good = 0;
    for (uint64_t at = 0; at < 12; ++at) {
      std::vector<std::byte> back(4096);
      const absl::Status status = region_->Read(at * kMiB, absl::MakeSpan(back), {.timeout_ms = timeout_ms});
      if (status.ok()) {
        ++good;
        EXPECT_TRUE(back == page_);
      } else {
        last_error_ = status;
      }
    }
    return good;
  }
  // Expects that reads of the spans of a long absent server do not wait for their timeout: that would be
  // DEADLINE_EXCEEDED.
  void ExpectThatNobodyWaitsFor(size_t server, int spans) {
    ASSERT_TRUE(PollUntil(DeadlineAfterMs(60'000), 10, [&] { return pool_->session(server)->away_too_long(); }));
    EXPECT_EQ(ReadAll(60'000), 12 - spans);
    EXPECT_EQ(last_error_.code(), absl::StatusCode::kUnavailable) << last_error_;
  }

  LocalPoolOptions local_;
  std::vector<LocalServer> servers_;
  std::vector<std::byte> page_ = std::vector<std::byte>(4096, std::byte{9});
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Region> region_;
  absl::Status last_error_;
};

// If a client cannot reach the control plane for a while, its lease lives as long as the client can say hello.
TEST_F(KillTest, HelloRenewsTheLease) {
  const Endpoint control_at{"127.0.0.1", servers_[0].control_port, ""};
  const auto control = ControlClient::Create(control_at);
  constexpr LeaseId kLease{4711};
  const auto lease = control->GrantLease(kLease, "hello", 0, DeadlineAfterMs(10'000));
  ASSERT_TRUE(lease.ok()) << lease.status();
  const auto hello = control->Hello(DeadlineAfterMs(10'000)).value();
  const SocketAddress address = ResolveEndpoint({"127.0.0.1", hello.data_port, ""}, DeadlineAfterMs(10'000)).value();
  Poller poller;
  SocketTransport transport(address, {.lease = kLease}, &poller);
  const int64_t until_ns = DeadlineAfterMs(2 * lease->ttl_ms);
  while (MonotonicNs() < until_ns) {
    ASSERT_TRUE(transport.Connect(DeadlineAfterMs(10'000)).ok());
    transport.Disconnect();
    SleepMs(50);
  }
  const auto renewed = control->RenewLease(kLease, {}, DeadlineAfterMs(10'000));
  ASSERT_TRUE(renewed.ok()) << renewed.status();
  EXPECT_EQ(renewed->term, lease->term);
}

// While data flows, the lease lives, however long the control plane is unreachable.
TEST_F(KillTest, PingsRenewTheLease) {
  ByteRelay relay(servers_[0].control_port);
  PoolOptions options;
  options.servers.push_back({"127.0.0.1", relay.port(), ""});
  options.unix_sockets = false;
  auto pool = Pool::Open(options).value();
  auto region = pool->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(region->Write(0, page_).ok());
  relay.Hold(true);
  // The write is large enough that the client asks for more room, and no server answers that.
  const std::vector<std::byte> much(9 * kMiB, std::byte{7});
  ASSERT_TRUE(region->Write(kMiB, much).ok());
  const int64_t until_ns = DeadlineAfterMs(10'000);  // five times the lease's duration
  while (MonotonicNs() < until_ns) {
    std::vector<std::byte> back(4096);
    const absl::Status status = region->Read(0, absl::MakeSpan(back));
    ASSERT_TRUE(status.ok()) << status;
    ASSERT_EQ(back, page_);
    SleepMs(50);
  }
  relay.Hold(false);
  EXPECT_TRUE(region->Write(0, page_).ok());
}

TEST_F(KillTest, ATrimWaitsForNoServerThatHasNothingOfIt) {
  FreezeProcess(servers_[1].pid);
  std::vector<bool> readable;
  for (uint64_t at = 0; at < 12; ++at) {
    std::vector<std::byte> back(4096);
    readable.push_back(region_->Read(at * kMiB, absl::MakeSpan(back), {.timeout_ms = 1'000}).ok());
  }
  for (uint64_t at = 0; at < 12; ++at) {
    EXPECT_EQ(region_->Trim(at * kMiB, kMiB, {.timeout_ms = 1'000}).ok(), readable[at]) << at;
  }
  EXPECT_TRUE(absl::c_linear_search(readable, true));
  EXPECT_TRUE(absl::c_linear_search(readable, false));
}

TEST_F(KillTest, AKilledServerTakesItsSpansAndNothingElse) {
  EXPECT_EQ(ReadAll(20'000), 12) << last_error_;
  const int lost = SpansAt(1);
  kill(servers_[1].pid, SIGKILL);
  EXPECT_EQ(ReadAll(10'000), 12 - lost) << last_error_;
  EXPECT_EQ(last_error_.code(), absl::StatusCode::kUnavailable) << last_error_;
  ExpectThatNobodyWaitsFor(1, lost);
  // New writes are placed on the other servers.
  auto fresh = pool_->CreateRegion({.gc = true}).value();
  for (uint64_t at = 0; at < 12; ++at) ASSERT_TRUE(fresh->Write(at * kMiB, page_).ok());
}

TEST_F(KillTest, AFrozenServerIsAnErrorInTimeAndRecovers) {
  const int frozen = SpansAt(2);
  const int64_t began_ns = MonotonicNs();
  FreezeProcess(servers_[2].pid);
  EXPECT_EQ(ReadAll(3'000), 12 - frozen) << last_error_;
  EXPECT_TRUE(absl::IsUnavailable(last_error_) || absl::IsDeadlineExceeded(last_error_)) << last_error_;
  ExpectThatNobodyWaitsFor(2, frozen);
  // The server is frozen for longer than a lease lasts, and adds that time to all leases when it goes on.
  while (MonotonicNs() < began_ns + 3 * kLeaseMs * kNsPerMs) SleepMs(50);
  kill(servers_[2].pid, SIGCONT);
  ASSERT_TRUE(pool_->session(2)->AwaitUp(DeadlineAfterMs(60'000)).ok());
  // Nothing is lost, and no operation has to be tried again.
  EXPECT_EQ(ReadAll(20'000), 12) << last_error_;
}

TEST_F(KillTest, SigtermIsClean) {
  const int lost = SpansAt(0);
  kill(servers_[0].pid, SIGTERM);
  int how = 0;
  ASSERT_EQ(waitpid(servers_[0].pid, &how, 0), servers_[0].pid);
  EXPECT_TRUE(WIFEXITED(how) && WEXITSTATUS(how) == 0) << how;
  EXPECT_EQ(ReadAll(10'000), 12 - lost) << last_error_;
  EXPECT_EQ(last_error_.code(), absl::StatusCode::kUnavailable) << last_error_;
}

}  // namespace
}  // namespace nram
