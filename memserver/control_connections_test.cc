#include "memserver/control_connections.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/endpoint.h"
#include "base/fd.h"
#include "base/http2/frame_scanner.h"
#include "base/http2/test_frames.h"
#include "base/poll_until.h"
#include "base/sync.h"
#include "base/tls/handshake.h"
#include "base/tls/test_certificates.h"
#include "gtest/gtest.h"
#include "memserver/access.h"
#include "memserver/handshakes.h"

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

TEST_F(ControlConnectionsTest, TheNewestAreCut) {
  for (int i = 0; i < 5; ++i) Connect();
  EXPECT_EQ(connections_.CutNewest(2), 2u);
  for (size_t i = 0; i < 5; ++i) EXPECT_EQ(IsCutOff(i), i >= 3) << i;
  EXPECT_EQ(connections_.CutNewest(1), 1u) << "those that are going are not counted again";
  EXPECT_TRUE(IsCutOff(2));
  EXPECT_EQ(connections_.CutAll(), 2u);
  EXPECT_TRUE(IsCutOff(0) && IsCutOff(1));
}

// gRPC would get 65 streams that are reset, and none of the others.
TEST_F(ControlConnectionsTest, AFloodOfResetsIsCutOff) {
  Connect();
  std::string some = TestGreeting(FrameScanner::Sender::kClient);
  const int64_t deadline_ns = DeadlineAfterMs(20'000);
  for (uint32_t stream = 1; !IsCutOff(0) && MonotonicNs() < deadline_ns; stream += 2) {
    (void)!send(clients_[0].get(), some.data(), some.size(), MSG_NOSIGNAL);
    some = TestFrame(FrameType::kHeaders, kFlagEndHeaders, stream, "hpack") +
           TestFrame(FrameType::kReset, 0, stream, "1234");
  }
  EXPECT_TRUE(IsCutOff(0));
}

// With rules.
class RuledConnectionsTest : public ::testing::Test {
 protected:
  RuledConnectionsTest() : path_(absl::StrCat("/tmp/nram-rules.", getpid())) {}
  ~RuledConnectionsTest() override {
    if (connections_ != nullptr) connections_->Stop();
    handshakes_.Stop();
    connections_.reset();
    unlink(path_.c_str());
    unlink((path_ + ".socket").c_str());
  }
  void Write(const std::string& text) { std::ofstream(path_, std::ios::trunc) << text; }
  // `handshakes`: of a server with certificates; null: it has none.
  void Start(const std::string& rules, size_t connections_max, Handshakes* handshakes = nullptr) {
    Write(rules);
    auto access = Access::Create({.file = path_, .uid = geteuid(), .lets_anyone_in = true});
    ASSERT_TRUE(access.ok()) << access.status();
    access_ = *std::move(access);
    ControlConnectionsOptions options;
    options.socket_path = path_ + ".socket";
    options.connections_max = connections_max;
    options.limit_ms = 600'000;
    options.has_tls = handshakes != nullptr;
    options.handshakes = handshakes != nullptr ? handshakes : &handshakes_;
    options.access = access_.get();
    connections_ = std::make_unique<ControlConnections>(options, arena_.get());
    ASSERT_TRUE(connections_->Listen().ok());
    connections_->Start([this](int fd) {
      MutexLock lock(&mu_);
      served_.emplace_back(fd);
    });
  }
  UniqueFd Connect(bool by_unix) {
    Endpoint endpoint{"127.0.0.1", connections_->port(), ""};
    if (by_unix) endpoint.path = path_ + ".socket";
    const int64_t deadline_ns = DeadlineAfterMs(20'000);
    auto fd = ConnectSocket(ResolveEndpoint(endpoint).value(), deadline_ns);
    EXPECT_TRUE(fd.ok()) << fd.status();
    return fd.ok() ? *std::move(fd) : UniqueFd();
  }
  bool Await(const std::function<bool()>& what) { return PollUntil(DeadlineAfterMs(20'000), 1, what); }
  size_t served() {
    MutexLock lock(&mu_);
    return served_.size();
  }
  // gRPC's name for the newest connection.
  std::string newest() {
    MutexLock lock(&mu_);
    return absl::StrCat("fd:", served_.back().get());
  }
  // Closes the newest connection as gRPC does.
  void Close() {
    MutexLock lock(&mu_);
    shutdown(served_.back().get(), SHUT_RDWR);
    served_.back().reset();
  }
  // Writes to the newest connection until its peer, which reads nothing, has no more room. Then closes it as gRPC does.
  void FillAndClose() {
    MutexLock lock(&mu_);
    const int fd = served_.back().get();
    const std::string some(4096, 'x');
    pollfd room{fd, POLLOUT, 0};
    while (poll(&room, 1, 200) == 1 && (room.revents & POLLHUP) == 0) {
      (void)!send(fd, some.data(), some.size(), MSG_NOSIGNAL);
    }
    shutdown(fd, SHUT_RDWR);
    served_.back().reset();
  }
  static bool IsCutOff(int fd) {
    pollfd look{fd, POLLRDHUP, 0};
    return poll(&look, 1, 0) == 1;
  }
  static bool IsCutOff(const UniqueFd& fd) { return IsCutOff(fd.get()); }

  const std::string path_;  // short, as paths of sockets are
  std::unique_ptr<FrameArena> arena_ = FrameArena::Create(64 * kMiB, kMiB).value();
  std::unique_ptr<Access> access_;
  Handshakes handshakes_{nullptr, {}};
  std::unique_ptr<ControlConnections> connections_;
  Mutex mu_;
  std::vector<UniqueFd> served_ ABSL_GUARDED_BY(mu_);
};

TEST_F(RuledConnectionsTest, APeerThatNoRuleAdmitsHearsWhyWithoutGrpc) {
  Start("cn:other a user\n", 8);
  for (const bool by_unix : {false, true}) {
    const UniqueFd fd = Connect(by_unix);
    const std::string call =
        TestGreeting(FrameScanner::Sender::kClient) + TestFrame(FrameType::kHeaders, kFlagEndHeaders, 1, "hpack");
    ASSERT_EQ(send(fd.get(), call.data(), call.size(), MSG_NOSIGNAL), static_cast<ssize_t>(call.size()));
    std::string heard;
    EXPECT_TRUE(Await([&] {
      char some[1'000];
      const ssize_t n = recv(fd.get(), some, sizeof some, 0);
      if (n > 0) heard.append(some, static_cast<size_t>(n));
      return n == 0;
    }));
    EXPECT_TRUE(absl::StrContains(heard, "may not use this server")) << heard;
  }
  EXPECT_EQ(served(), 0u);
}

TEST_F(RuledConnectionsTest, AChangedRuleEndsConnections) {
  const std::string own = absl::StrCat("uid:", geteuid(), " b user\n");
  Start("anyone a user\n" + own, 8);
  const UniqueFd out = Connect(/*by_unix=*/false), in = Connect(/*by_unix=*/true);
  EXPECT_TRUE(Await([&] { return served() == 2; }));
  EXPECT_FALSE(IsCutOff(out));
  Write("anyone - none\n" + own);
  access_->Reload();
  access_->Reload();
  EXPECT_TRUE(Await([&] { return IsCutOff(out); }));
  EXPECT_FALSE(IsCutOff(in));
}

// The pump has bytes for them, which keep a place there. (Over TCP the kernel ends such peers; a Unix socket has no
// such limit.) Newcomers would be refused when they have all places.
TEST_F(RuledConnectionsTest, PeersThatReadNothingKeepNoPlaceOnceGrpcHasClosed) {
  constexpr size_t kConnectionsMax = 2;
  Start(absl::StrCat("uid:", geteuid(), " b user\n"), kConnectionsMax);
  std::vector<UniqueFd> peers;
  while (peers.size() < 2 * kConnectionsMax) {
    peers.push_back(Connect(/*by_unix=*/true));
    ASSERT_TRUE(Await([&] { return served() == peers.size(); }));
    FillAndClose();
    // It has sent its end, too, as a client that leaves.
    shutdown(peers.back().get(), SHUT_WR);
  }
  for (const UniqueFd& peer : peers) EXPECT_TRUE(Await([&] { return IsCutOff(peer); }));
  // The pump needs a moment to let go of them.
  EXPECT_TRUE(Await([&] {
    const UniqueFd newcomer = Connect(/*by_unix=*/true);
    pollfd end{newcomer.get(), POLLRDHUP, 0};
    (void)poll(&end, 1, 100);
    return served() > peers.size();
  }));
}

// The handshake's thread has judged it by rules that the control plane's thread has left behind since.
TEST_F(RuledConnectionsTest, AConnectionThatARuleShutsOutMeanwhileDoesNotComeIn) {
  const TestCertificates certificates("ruled");
  const std::string own = absl::StrCat("uid:", geteuid(), " b user\n");
  std::atomic<int> witness_fd{-1};
  const auto admit = [&](const TlsPeer&) {
    Write("cn:other a user\n");
    access_->Reload();
    access_->Reload();
    EXPECT_TRUE(Await([&] { return IsCutOff(witness_fd); })) << "all connections are judged by the new rules";
    return absl::OkStatus();
  };
  Handshakes handshakes(certificates.Load(TlsRole::kServer), {.admit = admit});
  Start("cn:client a user\n" + own, 8, &handshakes);
  const UniqueFd witness = Connect(/*by_unix=*/true);
  EXPECT_TRUE(Await([&] { return served() == 1; }));
  witness_fd = witness.get();
  const UniqueFd fd = Connect(/*by_unix=*/false);
  const auto context = certificates.Load(TlsRole::kClient);
  TlsHandshake handshake(context.get(), fd.get(), "localhost");
  EXPECT_TRUE(Await([&] {
    const auto step = handshake.Go();
    return step.ok() && *step == TlsHandshake::Step::kDone;
  }));
  EXPECT_TRUE(Await([&] { return IsCutOff(fd); }));
  EXPECT_EQ(served(), 1u);
  connections_->Stop();
  handshakes.Stop();
}

TEST_F(RuledConnectionsTest, OneTenantHasHalfOfTheTable) {
  Start(absl::StrCat("anyone a user\nuid:", geteuid(), " b user\n"), 8);
  std::vector<UniqueFd> of_a;
  for (int i = 0; i < 20; ++i) {
    of_a.push_back(Connect(/*by_unix=*/false));
    EXPECT_TRUE(Await([&] { return served() == of_a.size(); }));
  }
  EXPECT_TRUE(Await(
      [&] { return std::count_if(of_a.begin(), of_a.end(), [](const UniqueFd& fd) { return !IsCutOff(fd); }) == 4; }));
  std::vector<UniqueFd> of_b;
  for (int i = 0; i < 4; ++i) of_b.push_back(Connect(/*by_unix=*/true));
  EXPECT_TRUE(Await([&] { return served() == 24; }));
  for (int i = 16; i < 20; ++i) EXPECT_FALSE(IsCutOff(of_a[i])) << i;
  for (const UniqueFd& fd : of_b) EXPECT_FALSE(IsCutOff(fd));
}

// gRPC keeps memory for a closed connection until its calls have ended, so it has its place until then.
TEST_F(RuledConnectionsTest, ClosedConnectionsWithCallsCountForTheirTenant) {
  Start(absl::StrCat("anyone a user\nuid:", geteuid(), " b user\n"), 8);
  std::vector<ControlConnections::ConnectionPtr> calls;
  for (size_t i = 0; i < 4; ++i) {
    const UniqueFd fd = Connect(/*by_unix=*/false);
    ASSERT_TRUE(Await([&] { return served() == i + 1; }));
    const std::string name = newest();
    calls.push_back(connections_->BeginCall(name));
    ASSERT_NE(calls.back(), nullptr);
    Close();
    ASSERT_TRUE(Await([&] {
      auto late = connections_->BeginCall(name);
      if (late == nullptr) return true;
      calls.push_back(std::move(late));
      return false;
    }));
  }
  EXPECT_EQ(connections_->open(), 4u);
  for (int i = 0; i < 4; ++i) {
    const UniqueFd fd = Connect(/*by_unix=*/false);
    EXPECT_TRUE(Await([&] { return IsCutOff(fd); })) << i;
  }
  EXPECT_EQ(served(), 4u);
  const UniqueFd of_b = Connect(/*by_unix=*/true);
  EXPECT_TRUE(Await([&] { return served() == 5; }));
  EXPECT_FALSE(IsCutOff(of_b));
  std::vector<TestAnswer> answers(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) connections_->Send(calls[i], &answers[i]);
  for (size_t i = 0; i < calls.size(); ++i) connections_->EndCall(calls[i], answers[i].began_ns);
  EXPECT_EQ(connections_->open(), 1u);
}

}  // namespace
}  // namespace nram
