#include "memserver/control_connections.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/sync.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

struct TestAnswer final : ControlConnections::Answer {
  void Send(int64_t now_ns) override { began_ns = now_ns; }
  bool sent() const { return began_ns != 0; }
  int64_t began_ns = 0;
};

// The test plays gRPC's part: it gets each connection's descriptor, and says when answers are taken.
class ControlConnectionsTest : public ::testing::Test {
 protected:
  ControlConnectionsTest() {
    EXPECT_TRUE(connections_.Listen().ok());
    connections_.Start([this](int fd) {
      MutexLock lock(&mu_);
      served_.emplace_back(fd);
      changed_.Signal();
    });
  }
  ~ControlConnectionsTest() override { connections_.Stop(); }

  // Connects, and returns gRPC's name for the connection.
  std::string Connect() {
    clients_.emplace_back(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    address.sin_port = htons(static_cast<uint16_t>(connections_.port()));
    EXPECT_EQ(connect(clients_.back().get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    MutexLock lock(&mu_);
    const int64_t deadline_ns = DeadlineAfterMs(20'000);
    while (served_.size() < clients_.size() && MonotonicNs() < deadline_ns) changed_.WaitUntil(&mu_, deadline_ns);
    return absl::StrCat("fd:", served_.back().get());
  }
  // Tells whether the server has cut the client off.
  bool IsCutOff(size_t client) const {
    pollfd look{clients_[client].get(), POLLRDHUP, 0};
    return poll(&look, 1, 0) == 1;
  }

  std::unique_ptr<FrameArena> arena_ = FrameArena::Create(64 * kMiB, kMiB).value();
  ControlConnections connections_{{}, arena_.get()};
  std::vector<UniqueFd> clients_;
  Mutex mu_;
  CondVar changed_;
  std::vector<UniqueFd> served_ ABSL_GUARDED_BY(mu_);
};

TEST_F(ControlConnectionsTest, NoMoreAnswersAreSentThanArePaidFor) {
  const std::string peer = Connect();
  TestAnswer answers[5];
  std::vector<ControlConnections::ConnectionPtr> calls;
  for (TestAnswer& answer : answers) {
    calls.push_back(connections_.BeginCall(peer));
    ASSERT_NE(calls.back(), nullptr);
    connections_.Send(calls.back(), &answer);
  }
  EXPECT_TRUE(answers[0].sent() && answers[1].sent());
  EXPECT_FALSE(answers[2].sent() || answers[3].sent() || answers[4].sent());
  // In order, one for each that was taken.
  for (int i = 0; i < 5; ++i) {
    connections_.EndCall(calls[i], answers[i].began_ns);
    for (int later = 2; later < 5; ++later) EXPECT_EQ(answers[later].sent(), later <= i + 2) << i << " " << later;
  }
  EXPECT_FALSE(IsCutOff(0));
}

// A client calls again and again, while gRPC reports late that its answers were taken.
TEST_F(ControlConnectionsTest, WhoCallsAgainAndAgainIsNotCutOff) {
  const std::string peer = Connect();
  TestAnswer lag[2];
  ControlConnections::ConnectionPtr lagging[2];
  for (int i = 0; i < 2; ++i) {
    lagging[i] = connections_.BeginCall(peer);
    connections_.Send(lagging[i], &lag[i]);
  }
  for (int i = 0; i < 1'000; ++i) {
    // Both have been taken, which is told after the next call has its answer.
    TestAnswer next;
    const auto call = connections_.BeginCall(peer);
    connections_.Send(call, &next);
    EXPECT_FALSE(next.sent());
    connections_.EndCall(lagging[i % 2], lag[i % 2].began_ns);
    ASSERT_TRUE(next.sent());
    lagging[i % 2] = call;
    lag[i % 2].began_ns = next.began_ns;
  }
  EXPECT_FALSE(IsCutOff(0));
  for (int i = 0; i < 2; ++i) connections_.EndCall(lagging[i], lag[i].began_ns);
}

TEST_F(ControlConnectionsTest, WhoHasMostAnswersWaitingIsCutOff) {
  const std::string good = Connect();
  const std::string bad = Connect();
  TestAnswer own;
  const auto own_call = connections_.BeginCall(good);
  connections_.Send(own_call, &own);
  const size_t most = 2 * ControlConnections::kUntakenPerConnection + ControlConnections::kUntakenSpare;
  std::vector<TestAnswer> answers(most);
  std::vector<ControlConnections::ConnectionPtr> calls;
  for (TestAnswer& answer : answers) {
    EXPECT_FALSE(IsCutOff(1)) << calls.size();
    calls.push_back(connections_.BeginCall(bad));
    connections_.Send(calls.back(), &answer);
  }
  EXPECT_TRUE(IsCutOff(1));
  EXPECT_FALSE(IsCutOff(0));
  connections_.EndCall(own_call, own.began_ns);
  for (size_t i = 0; i < most; ++i) connections_.EndCall(calls[i], answers[i].began_ns);
}

}  // namespace
}  // namespace nram
