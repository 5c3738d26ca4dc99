#include "memserver/handshakes.h"

#include <glog/logging.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/http2/frame_scanner.h"
#include "base/http2/test_frames.h"
#include "base/poll_until.h"
#include "base/tls/channel.h"
#include "base/tls/test_certificates.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPatienceMs = 20'000;

class HandshakesTest : public ::testing::Test {
 protected:
  explicit HandshakesTest(HandshakesOptions options = {}) { MakeHandshakes(std::move(options)); }

  // The client's end of a connection that was accepted.
  UniqueFd Arrive(const std::string& source = "10.0.0.1") {
    int ends[2];
    PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    handshakes_->Add(
        UniqueFd(ends[1]), {source + ":1", source},
        [this](UniqueFd, const Peer& peer, const TlsSession& session) {
          MutexLock lock(&mu_);
          done_.push_back(peer.source + " " + session.peer.identity());
        },
        plain_);
    return UniqueFd(ends[0]);
  }
  // All bytes until the other end is closed.
  static std::string ReadAll(int fd) {
    std::string all;
    EXPECT_TRUE(Await([&] {
      std::array<char, 1'000> some;
      const ssize_t n = recv(fd, some.data(), some.size(), 0);
      if (n > 0) all.append(some.data(), static_cast<size_t>(n));
      return n == 0;
    }));
    return all;
  }
  static void Send(int fd, const std::string& bytes) {
    ASSERT_EQ(send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  void MakeHandshakes(HandshakesOptions options) {
    options.refused = [this](const Peer& peer, const absl::Status& why) {
      MutexLock lock(&mu_);
      refused_.push_back(peer.source + ": " + std::string(why.message()));
    };
    handshakes_ = std::make_unique<Handshakes>(certificates_.Load(TlsRole::kServer), std::move(options));
  }
  // The client's half, to its end. Sets *session if it ends well.
  absl::Status Shake(int fd, TlsSession* session = nullptr) {
    const auto context = certificates_.Load(TlsRole::kClient);
    TlsHandshake handshake(context.get(), fd, "localhost");
    while (true) {
      const auto step = handshake.Go();
      if (!step.ok()) return step.status();
      if (*step == TlsHandshake::Step::kDone) break;
      pollfd waits{fd, static_cast<short>(*step == TlsHandshake::Step::kWantsOutput ? POLLOUT : POLLIN), 0};
      if (poll(&waits, 1, kPatienceMs) <= 0) return absl::DeadlineExceededError("no answer");
    }
    const TlsSession ours = handshake.Take();
    if (session != nullptr) *session = ours;
    return absl::OkStatus();
  }
  std::vector<std::string> Done() {
    MutexLock lock(&mu_);
    return done_;
  }
  std::vector<std::string> Refused() {
    MutexLock lock(&mu_);
    return refused_;
  }
  static bool Await(const std::function<bool()>& what) { return PollUntil(DeadlineAfterMs(kPatienceMs), 1, what); }
  static bool IsClosed(int fd) {
    std::byte byte;
    return recv(fd, &byte, 1, MSG_PEEK) == 0;
  }

  TestCertificates certificates_{"handshakes"};
  absl::Status plain_;  // as of Add
  Mutex mu_;
  std::vector<std::string> done_ ABSL_GUARDED_BY(mu_);
  std::vector<std::string> refused_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Handshakes> handshakes_;
};

class FewHandshakesTest : public HandshakesTest {
 protected:
  FewHandshakesTest() : HandshakesTest({.most = 8}) {}
};

class ShortHandshakesTest : public HandshakesTest {
 protected:
  ShortHandshakesTest() : HandshakesTest({.limit_ms = 300}) {}
};

TEST_F(HandshakesTest, TellsWhoThePeerIs) {
  certificates_.Issue({.name = "alice"});
  const UniqueFd fd = Arrive();
  ASSERT_TRUE(Shake(fd.get()).ok());
  EXPECT_TRUE(Await([&] { return !Done().empty(); }));
  EXPECT_EQ(Done().at(0), "10.0.0.1 cn:alice");
  EXPECT_TRUE(Await([&] { return handshakes_->under_way() == 0; }));
}

TEST_F(HandshakesTest, ARefusedPeerHearsWhyAlthoughItHasSentMore) {
  const Authority other = Authority::Create("other").value();
  certificates_.Issue({.name = "eve"}, &other);
  const UniqueFd fd = Arrive();
  TlsSession session;
  ASSERT_TRUE(Shake(fd.get(), &session).ok()) << "the client is done first";
  Channel channel(fd.get(), &session);
  const std::string hello(3'000, 'h');
  const iovec piece{const_cast<char*>(hello.data()), hello.size()};
  (void)channel.Send({&piece, 1});
  absl::Status heard;
  std::byte byte;
  const iovec into{&byte, 1};
  EXPECT_TRUE(Await([&] {
    const auto received = channel.Receive({&into, 1});
    heard = received.status();
    return !received.ok() || received->ended;
  }));
  EXPECT_THAT(std::string(heard.message()), HasSubstr("does not know the authority"));
  EXPECT_TRUE(Await([&] { return handshakes_->under_way() == 0; }));
  EXPECT_TRUE(Done().empty());
  ASSERT_EQ(Refused().size(), 1u);
}

TEST_F(HandshakesTest, WhoSpeaksNoTlsIsRefusedAndWhoSaysNothingIsNotLogged) {
  UniqueFd plain = Arrive("10.0.0.2");
  ASSERT_EQ(send(plain.get(), "GET / HTTP/1.0\r\n\r\n", 18, 0), 18);
  EXPECT_TRUE(Await([&] { return Refused().size() == 1; }));
  EXPECT_THAT(Refused().at(0), HasSubstr("10.0.0.2: the client does not speak TLS"));
  UniqueFd probe = Arrive("10.0.0.3");
  probe.reset();
  plain.reset();
  EXPECT_TRUE(Await([&] { return handshakes_->under_way() == 0; }));
  EXPECT_EQ(Refused().size(), 1u);
}

const std::string kCall = TestFrame(FrameType::kHeaders, kFlagEndHeaders, 1, "hpack");

// gRPC has no part in it.
TEST_F(HandshakesTest, APlainGrpcClientHearsWhatItNeeds) {
  plain_ = absl::UnauthenticatedError("use TLS here");
  const UniqueFd fd = Arrive("10.0.0.2");
  Send(fd.get(), TestGreeting(FrameScanner::Sender::kClient));
  // It calls when the server has spoken.
  std::string greeting;
  EXPECT_TRUE(Await([&] {
    std::array<char, 100> some;
    const ssize_t n = recv(fd.get(), some.data(), some.size(), 0);
    if (n > 0) greeting.append(some.data(), static_cast<size_t>(n));
    return greeting.size() >= 2 * kFrameHeaderBytes;
  }));
  Send(fd.get(), kCall);
  EXPECT_THAT(ReadAll(fd.get()), HasSubstr("use TLS here"));
  ASSERT_EQ(Refused().size(), 1u);
  EXPECT_EQ(Refused().at(0), "10.0.0.2: use TLS here");
  EXPECT_TRUE(Await([&] { return handshakes_->under_way() == 0; }));
  EXPECT_TRUE(Done().empty());
}

TEST_F(HandshakesTest, OtherPlainPeersAreClosedWithoutAWord) {
  plain_ = absl::UnauthenticatedError("use TLS here");
  const UniqueFd web = Arrive("10.0.0.2");
  Send(web.get(), "GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(ReadAll(web.get()), "");
  EXPECT_TRUE(Await([&] { return Refused().size() == 1; }));
  EXPECT_THAT(Refused().at(0), HasSubstr("does not speak HTTP/2"));
  // Frames without end, and no call.
  const UniqueFd flood = Arrive("10.0.0.3");
  std::string some = TestGreeting(FrameScanner::Sender::kClient);
  for (int i = 0; i < 2'000; ++i) some += TestFrame(FrameType::kPing, 0, 0, "12345678");
  (void)!send(flood.get(), some.data(), some.size(), MSG_NOSIGNAL);
  EXPECT_TRUE(Await([&] { return Refused().size() == 2; }));
  EXPECT_TRUE(Await([&] { return handshakes_->under_way() == 0; }));
}

TEST_F(HandshakesTest, ACertificateWithoutARightIsToldAndComesNoFurther) {
  MakeHandshakes({.admit = [](const TlsPeer& peer) {
    return peer.name == "eve" ? absl::PermissionDeniedError("cn:eve may not") : absl::OkStatus();
  }});
  const UniqueFd good = Arrive();
  ASSERT_TRUE(Shake(good.get()).ok());
  EXPECT_TRUE(Await([&] { return Done().size() == 1; }));
  certificates_.Issue({.name = "eve"});
  const UniqueFd fd = Arrive("10.0.0.2");
  TlsSession session;
  ASSERT_TRUE(Shake(fd.get(), &session).ok()) << "the client is done first";
  Channel channel(fd.get(), &session);
  absl::Status heard;
  std::byte byte;
  const iovec into{&byte, 1};
  EXPECT_TRUE(Await([&] {
    const auto received = channel.Receive({&into, 1});
    heard = received.status();
    return !received.ok() || received->ended;
  }));
  EXPECT_TRUE(absl::IsPermissionDenied(heard)) << heard;
  EXPECT_THAT(std::string(heard.message()), HasSubstr("rules do not admit"));
  EXPECT_TRUE(Await([&] { return handshakes_->under_way() == 0; }));
  EXPECT_EQ(Done().size(), 1u);
  ASSERT_EQ(Refused().size(), 1u);
  EXPECT_EQ(Refused().at(0), "10.0.0.2: cn:eve may not");
}

TEST_F(HandshakesTest, SendsPlainClientsAway) {
  Handshakes without_tls(nullptr, {});
  int ends[2];
  PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
  const UniqueFd fd(ends[0]);
  without_tls.SendAway(UniqueFd(ends[1]), {"unix:pid=1", "unix:uid=7"}, absl::PermissionDeniedError("uid:7 may not"));
  Send(fd.get(), TestGreeting(FrameScanner::Sender::kClient) + kCall);
  EXPECT_THAT(ReadAll(fd.get()), HasSubstr("uid:7 may not"));
}

// Silent clients hold all places, each from a network of its own: a new client gets one all the same, though not at the
// first try perhaps.
TEST_F(FewHandshakesTest, SilentHoldersOfAllPlacesKeepNobodyOut) {
  std::vector<UniqueFd> held;
  for (int i = 0; i < 8; ++i) held.push_back(Arrive("10.6.6." + std::to_string(i)));
  for (int i = 0; i < 8; ++i) held.push_back(Arrive("2001:db8:0:1::" + std::to_string(i)));  // one network
  EXPECT_TRUE(Await([&] {
    const UniqueFd honest = Arrive("10.0.0.1");
    return Shake(honest.get()).ok() && Await([&] { return !Done().empty(); });
  }));
}

// One machine holds and opens connections without end; another one is served all the same.
TEST_F(FewHandshakesTest, WhoOpensManyDisplacesItsOwn) {
  std::vector<UniqueFd> held;
  for (int i = 0; i < 100; ++i) held.push_back(Arrive("10.6.6.6"));
  const UniqueFd honest = Arrive("10.0.0.1");
  for (int i = 0; i < 100; ++i) held.push_back(Arrive("10.6.6.6"));
  EXPECT_LE(handshakes_->under_way(), 8u);
  EXPECT_FALSE(IsClosed(honest.get()));
  ASSERT_TRUE(Shake(honest.get()).ok());
  EXPECT_TRUE(Await([&] { return Done().size() == 1; }));
  EXPECT_EQ(Done().at(0), "10.0.0.1 cn:client");
  EXPECT_EQ(handshakes_->displaced(), 193u);
}

TEST_F(ShortHandshakesTest, WhoTakesTooLongIsCutOff) {
  const UniqueFd silent = Arrive();
  const UniqueFd half = Arrive();
  ASSERT_EQ(send(half.get(), "\x16\x03", 2, 0), 2);
  EXPECT_TRUE(Await([&] { return handshakes_->under_way() == 0 && IsClosed(silent.get()) && IsClosed(half.get()); }));
}

TEST_F(HandshakesTest, EndsWithThoseThatAreUnderWay) {
  std::vector<UniqueFd> held;
  for (int i = 0; i < 20; ++i) held.push_back(Arrive());
  handshakes_.reset();
  for (const UniqueFd& fd : held) EXPECT_TRUE(IsClosed(fd.get()));
}

}  // namespace
}  // namespace nram
