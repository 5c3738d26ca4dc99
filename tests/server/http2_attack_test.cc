// Peers that abuse HTTP/2 on the control plane: against servers, plain and with certificates, and a donor against its
// clients (adr/0027). That little of a flood reaches gRPC is base/tls/tls_test.cc's to show.

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/endpoint.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/host/host_memory.h"
#include "base/http2/frame_scanner.h"
#include "base/http2/test_frames.h"
#include "base/sanitizers.h"
#include "base/tls/channel.h"
#include "base/units.h"
#include "client/transport/control_client.h"
#include "client/transport/shake_hands.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "memserver/listen.h"
#include "tests/util/tls_pool_fixture.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

std::string Field(absl::string_view name, absl::string_view value) {
  return absl::StrCat(std::string(1, '\0'), std::string(1, static_cast<char>(name.size())), name,
                      std::string(1, static_cast<char>(value.size())), value);
}

std::string HelloHeaders() {
  return Field(":method", "POST") + Field(":scheme", "http") + Field(":authority", "x") +
         Field(":path", "/nram.v1.Control/Hello") + Field("te", "trailers") + Field("content-type", "application/grpc");
}

// The n-th piece of an attack, which goes on for as long as it is sent.
using Attack = std::function<std::string(uint32_t n)>;

std::string RapidReset(uint32_t n) {
  return TestFrame(FrameType::kHeaders, kFlagEndHeaders, 2 * n + 1, HelloHeaders()) +
         TestFrame(FrameType::kData, kFlagEndStream, 2 * n + 1, std::string(5, '\0')) +
         TestFrame(FrameType::kReset, 0, 2 * n + 1, std::string("\0\0\0\x08", 4));
}

std::string EndlessHeaders(uint32_t n) {
  return n == 0 ? TestFrame(FrameType::kHeaders, 0, 1, HelloHeaders())
                : TestFrame(FrameType::kContinuation, 0, 1, Field("x", std::string(100, 'x')));
}

std::string Settings(uint32_t) { return TestFrame(FrameType::kSettings, 0, 0, ""); }

const std::vector<Attack> kAttacks = {&RapidReset, &EndlessHeaders, &Settings};

class Http2AttackTest : public TlsPoolFixture {
 protected:
  UniqueFd Connect() const {
    const Endpoint endpoint{"127.0.0.1", server_->control_port(), ""};
    auto fd = ConnectSocket(ResolveEndpoint(endpoint).value(), Soon());
    EXPECT_TRUE(fd.ok()) << fd.status();
    return fd.ok() ? *std::move(fd) : UniqueFd();
  }
  // Sends until the server ends the connection. `session`: null: plain. Returns the number of pieces; *heard: the
  // bytes that came meanwhile, of a plain one.
  static uint32_t Flood(int fd, const TlsSession* session, const Attack& attack, std::string* heard = nullptr) {
    Channel channel(fd, session);
    const int64_t deadline_ns = Soon();
    std::string out = TestGreeting(FrameScanner::Sender::kClient);
    for (uint32_t n = 0; MonotonicNs() < deadline_ns; ++n) {
      while (!out.empty() || channel.has_output()) {
        const iovec piece{out.data(), out.size()};
        const auto taken = channel.Send({&piece, out.empty() ? 0u : 1u});
        std::array<char, 4'000> some;
        const iovec into{some.data(), some.size()};
        const auto received = channel.Receive({&into, 1});
        if (received.ok() && heard != nullptr) heard->append(some.data(), received->bytes);
        if (!taken.ok() || !received.ok() || received->ended) return n;
        out.erase(0, *taken);
        if (MonotonicNs() >= deadline_ns) break;
      }
      out = attack(n);
    }
    ADD_FAILURE() << "it is never cut off";
    return 0;
  }
};

TEST_F(Http2AttackTest, APlainPeerOfAServerWithCertificates) {
  ASSERT_NO_FATAL_FAILURE(Serve(With::kCertificates));
  for (size_t i = 0; i < kAttacks.size(); ++i) {
    SCOPED_TRACE(i);
    for (int again = 0; again < 10; ++again) {
      const UniqueFd fd = Connect();
      std::string heard;
      Flood(fd.get(), nullptr, kAttacks[i], &heard);
      // Never more than the fixed answer, whatever was sent.
      EXPECT_LE(heard.size(), 1'000u);
    }
    EXPECT_TRUE(Control()->Hello(Soon()).ok());
  }
}

TEST_F(Http2AttackTest, AHolderOfACertificate) {
  ASSERT_NO_FATAL_FAILURE(Serve(With::kCertificates));
  const auto context = certificates_.Load(TlsRole::kClient);
  for (size_t i = 0; i < kAttacks.size(); ++i) {
    SCOPED_TRACE(i);
    for (int again = 0; again < 5; ++again) {
      const UniqueFd fd = Connect();
      const auto session = ShakeHands(fd.get(), context.get(), "127.0.0.1", Soon());
      ASSERT_TRUE(session.ok()) << session.status();
      Flood(fd.get(), &*session, kAttacks[i]);
    }
    EXPECT_TRUE(Control()->Hello(Soon()).ok());
  }
}

TEST_F(Http2AttackTest, APeerOfAPlainServer) {
  ASSERT_NO_FATAL_FAILURE(Serve(With::kNothing));
  for (size_t i = 0; i < kAttacks.size(); ++i) {
    SCOPED_TRACE(i);
    for (int again = 0; again < 5; ++again) Flood(Connect().get(), nullptr, kAttacks[i]);
    const auto control = ControlClient::Create({"127.0.0.1", server_->control_port(), ""});
    EXPECT_TRUE(control->Hello(Soon()).ok());
  }
}

// A certificate that a rule shuts out gets no answer of gRPC's, however often it comes.
TEST_F(Http2AttackTest, ACertificateThatIsShutOut) {
  WriteAccess("cn:client a user\ncn:stolen - none\n");
  ASSERT_NO_FATAL_FAILURE(Serve(With::kCertificates, access_file_));
  BeClient("stolen");
  EXPECT_THAT(std::string(Control()->Hello(Soon()).status().message()), HasSubstr("rules do not admit"));
  const auto context = certificates_.Load(TlsRole::kClient);
  for (int again = 0; again < 5; ++again) {
    const UniqueFd fd = Connect();
    const auto session = ShakeHands(fd.get(), context.get(), "127.0.0.1", Soon());
    if (session.ok()) Flood(fd.get(), &*session, &RapidReset);
  }
  BeClient("client");
  EXPECT_TRUE(Control()->Hello(Soon()).ok());
}

// The most that this process has had resident since BeginPeak.
void BeginPeak() { std::ofstream("/proc/self/clear_refs") << 5; }
uint64_t PeakBytes() {
  const std::string status = ReadFile("/proc/self/status").value_or("");
  const size_t at = status.find("VmHWM:");
  return at == std::string::npos ? ~uint64_t{0} : std::strtoull(&status[at + 6], nullptr, 10) * kKiB;
}

// A lying donor. The client's call ends soon, and the connection with it. The client's memory hardly grows.
TEST_F(Http2AttackTest, ADonorThatFloodsItsClient) {
  const std::string bad = Field("grpc-status", "\x1b[31mX\nforged line by a donor");
  const std::vector<Attack> attacks = {
      [&](uint32_t n) {
        return n == 0 ? TestFrame(FrameType::kHeaders, 0, 1, bad) : TestFrame(FrameType::kContinuation, 0, 1, bad);
      },
      [](uint32_t) { return TestFrame(FrameType::kReset, 0, 1, std::string(4, '\0')); },
      [](uint32_t) { return TestFrame(FrameType::kPing, 0, 0, "12345678"); },
      [](uint32_t) { return TestFrame(static_cast<FrameType>(99), 0, 0, ""); },
      [&](uint32_t) { return TestFrame(FrameType::kHeaders, kFlagEndHeaders, 1, bad); },
      [&](uint32_t n) { return TestFrame(FrameType::kHeaders, kFlagEndHeaders, 2 * n + 1, bad); },
  };
  constexpr uint64_t kGrowthMax = 32 * kMiB;
  const UniqueFd listener = ListenTcp("127.0.0.1", 0).value();
  const int port = BoundPort(listener.get()).value();
  for (size_t i = 0; i < attacks.size(); ++i) {
    SCOPED_TRACE(i);
    const uint64_t before = ReadProcessMemory().resident_bytes;
    BeginPeak();
    std::thread donor([&] {
      pollfd waits{listener.get(), POLLIN, 0};
      if (poll(&waits, 1, static_cast<int>(kPatienceMs)) <= 0) return;
      const UniqueFd fd(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      std::string out = TestGreeting(FrameScanner::Sender::kServer);
      for (uint32_t n = 0; n < 100'000 && send(fd.get(), out.data(), out.size(), MSG_NOSIGNAL) > 0; ++n) {
        out = attacks[i](n);
      }
    });
    const auto control = ControlClient::Create({"127.0.0.1", port, ""});
    const absl::Status status = control->Hello(DeadlineAfterMs(kPatienceMs)).status();
    donor.join();
    if (!kHasAddressSanitizer) {
      EXPECT_LT(PeakBytes(), before + kGrowthMax);
    }
    EXPECT_FALSE(status.ok());
    EXPECT_FALSE(absl::StrContains(status.message(), "\x1b"));
  }
}

}  // namespace
}  // namespace nram
