// Peers are not trusted: bad input closes only their connection, with a logged reason, and disturbs no other client.

#include <glog/logging.h>
#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <random>
#include <string>
#include <thread>

#include "base/clock.h"
#include "base/test_seed.h"
#include "client/transport/socket_transport.h"
#include "gtest/gtest.h"
#include "memserver/connection.h"
#include "proto/any_request.h"
#include "proto/encode_message.h"
#include "tests/util/test_server.h"

namespace nram {
namespace {

class MalformedTest : public ::testing::Test {
 protected:
  MalformedTest() : MalformedTest(TestDataServer::Options{}) {}
  explicit MalformedTest(const TestDataServer::Options& options) : server_(options) {
    lease_ = server_.Grant(1);
    SocketTransportOptions transport{LeaseId{1}, false, 0, SpinOptions{0}};
    good_ = std::make_unique<SocketTransport>(ResolveEndpoint(server_.tcp()).value(), transport, &poller_);
    EXPECT_TRUE(good_->Connect(DeadlineAfterMs(5000)).ok());
    WriteGood();
  }

  void WriteGood() {
    Call call;
    std::string page(4096, 'g');
    call.request = AnyRequest(Op::kWrite, 5, 1, {0, 8}, kFlagCreate);
    call.out = reinterpret_cast<const std::byte*>(page.data());
    call.deadline_ns = DeadlineAfterMs(5000);
    good_->Start(&call);
    good_->Wait(&call);
    EXPECT_TRUE(CallStatus(call, "test").ok());
  }

  UniqueFd Connect() { return ConnectSocket(ResolveEndpoint(server_.tcp()).value(), DeadlineAfterMs(5000)).value(); }

  // The hello is another lease's, so that the good connection is not fenced.
  std::string Hello() {
    server_.Grant(2);
    MessageHeader header(HelloRequest{.lease = LeaseId{2}, .generation = ++generation_});
    header.request_id = 1;
    return EncodeMessage(header);
  }

  static MessageHeader Request(Op op, uint64_t id, ChunkRange range = {}) {
    MessageHeader header = AnyRequest(op, 6, 1, range);
    header.request_id = id;
    if (op == Op::kWrite) header.payload_bytes = range.bytes();
    return header;
  }

  // Sends the bytes and expects the server to close.
  void ExpectClosed(const std::string& bytes) {
    const uint64_t before = server_.counters().closed_for_error;
    UniqueFd fd = Connect();
    ASSERT_EQ(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    const int64_t deadline_ns = DeadlineAfterMs(10'000);
    char buffer[4096];
    while (true) {
      ASSERT_LT(MonotonicNs(), deadline_ns) << "the server did not close";
      pollfd waiting{fd.get(), POLLIN, 0};
      poll(&waiting, 1, 100);
      const ssize_t n = recv(fd.get(), buffer, sizeof buffer, MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno == ECONNRESET)) break;
    }
    EXPECT_EQ(server_.counters().closed_for_error, before + 1);
    WriteGood();
  }

  TestDataServer server_;
  std::shared_ptr<Lease> lease_;
  Poller poller_;
  std::unique_ptr<SocketTransport> good_;
  uint64_t generation_ = 0;
};

TEST_F(MalformedTest, EachKindClosesItsConnectionAlone) {
  ExpectClosed(std::string(64, 'x'));                            // no message at all
  ExpectClosed(EncodeMessage(Request(Op::kPing, 1)));            // before hello
  ExpectClosed(Hello() + Hello());                               // twice
  ExpectClosed(Hello() + EncodeMessage(Request(Op::kPing, 3)));  // a request is missing
  ExpectClosed(Hello() + EncodeMessage(Request(Op::kPing, 2)) + EncodeMessage(Request(Op::kPing, 2)));  // repeated
  MessageHeader reply = Request(Op::kPing, 2);
  reply.flags = kFlagReply;
  ExpectClosed(Hello() + EncodeMessage(reply));
  std::string corrupt = EncodeMessage(Request(Op::kWrite, 2, {0, 8}), std::string(4096, 'x'));
  corrupt[2000] ^= 1;
  ExpectClosed(Hello() + corrupt);
  std::string oversized = EncodeMessage(Request(Op::kRead, 2, {0, kChunksPerMessage}));
  oversized[40] ^= 1;  // 513 chunks
  ExpectClosed(Hello() + oversized);
  std::string version = EncodeMessage(Request(Op::kPing, 2));
  version[4] = 99;
  ExpectClosed(Hello() + version);
}

TEST_F(MalformedTest, RandomBytesAndRandomlySpoiledMessages) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 60; ++i) {
    std::string bytes;
    if (i % 3 == 0) {
      bytes.resize(64 + random() % 2000);
      for (char& c : bytes) c = static_cast<char>(random());
    } else {
      bytes = Hello() + EncodeMessage(Request(Op::kWrite, 2, {random() % 100, 1 + random() % 64}), "");
      bytes.resize(bytes.size() + 64 * 512 + 64, 'p');
      bytes[64 + random() % 64] ^= static_cast<char>(1 << random() % 8);
    }
    ExpectClosed(bytes);
  }
}

class StallTest : public MalformedTest {
 protected:
  static TestDataServer::Options Fast() {
    TestDataServer::Options options;
    options.data.stall_limit_ms = 200;
    return options;
  }
  StallTest() : MalformedTest(Fast()) {}
};

TEST_F(StallTest, HalfAMessageAndSilenceIsCutOff) {
  ExpectClosed(Hello() + EncodeMessage(Request(Op::kWrite, 2, {0, 64})) + std::string(1000, 'x'));
  ExpectClosed("N");
  const std::string nothing;
  ExpectClosed(nothing);
}

// A server that polls looks at the busy client; the other clients' deadlines still pass.
class PollingStallTest : public MalformedTest {
 protected:
  static TestDataServer::Options Polling() {
    TestDataServer::Options options;
    // Even a slowly scheduled busy client is never silent in the middle of a message for this time.
    options.data.stall_limit_ms = 2000;
    options.data.spin.limit_us = 5'000'000;
    return options;
  }
  PollingStallTest() : MalformedTest(Polling()) {}
};

TEST_F(PollingStallTest, SilenceIsCutOffBesideABusyClient) {
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) WriteGood();
  });
  ExpectClosed(Hello() + EncodeMessage(Request(Op::kWrite, 2, {0, 64})) + std::string(1000, 'x'));
  stop = true;
  busy.join();
}

// The test is alone with a connection, so it controls the time.
class LoneConnectionTest : public MalformedTest {
 protected:
  LoneConnectionTest() {
    int ends[2];
    PCHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    peer_.reset(ends[0]);
    connection_.emplace(UniqueFd(ends[1]), /*tls=*/nullptr, "test", server_.context(), &buffers_, 0);
  }
  Connection::State Pump(const std::string& bytes, int64_t now_ns) {
    EXPECT_EQ(send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    return *connection_->Pump(now_ns);
  }
  static std::string WriteOf8Chunks(uint64_t id) {
    return EncodeMessage(Request(Op::kWrite, id, {0, 8}), std::string(4096, 'x'));
  }
  bool IsStalled(int64_t now_ns) const { return !connection_->CheckStall(now_ns, /*limit_ns=*/kNsPerSecond).ok(); }

  UniqueFd peer_;
  ReplyBuffers buffers_{1};
  std::optional<Connection> connection_;
};

TEST_F(LoneConnectionTest, WhoWaitsForTheServerIsNotStalledHoweverLongHeWasIdle) {
  EXPECT_EQ(Pump(Hello(), kNsPerSecond), Connection::State::kIdle);
  EXPECT_FALSE(IsStalled(60 * kNsPerSecond)) << "idle";
  std::vector<FrameLoc> taken(server_.landing().size());
  ASSERT_TRUE(server_.landing().Take(taken.size(), taken.data()));
  EXPECT_EQ(Pump(WriteOf8Chunks(2), 60 * kNsPerSecond), Connection::State::kStarved);
  EXPECT_FALSE(IsStalled(60 * kNsPerSecond)) << "the server is short of frames";
  server_.landing().Give(taken.data(), taken.size());
  EXPECT_EQ(Pump(WriteOf8Chunks(3).substr(0, 100), 61 * kNsPerSecond), Connection::State::kIdle);
  EXPECT_FALSE(IsStalled(62 * kNsPerSecond));
  EXPECT_TRUE(IsStalled(63 * kNsPerSecond)) << "in the middle of a message";
}

TEST_F(LoneConnectionTest, WhatWasSentBeforeTheLeaseEndedIsNotExecutedAfterIt) {
  ASSERT_EQ(Pump(Hello(), kNsPerSecond), Connection::State::kIdle);
  ASSERT_NE(server_.leases().End(LeaseId{2}), nullptr);
  server_.Grant(2);
  MessageHeader write = Request(Op::kWrite, 2, {0, 8});
  write.flags = kFlagCreate;
  const std::string bytes = EncodeMessage(write, std::string(4096, 'x'));
  ASSERT_EQ(send(peer_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  EXPECT_FALSE(connection_->Pump(kNsPerSecond).ok());
  EXPECT_EQ(server_.store().counters().regions, 1) << "the good client's";
}

TEST_F(LoneConnectionTest, WhoHoldsBuffersThatOthersWaitForIsFound) {
  EXPECT_EQ(Pump(Hello(), kNsPerSecond), Connection::State::kIdle);
  EXPECT_FALSE(connection_->HoldsIdly(60 * kNsPerSecond, 2 * kNsPerSecond)) << "idle";
  Pump(WriteOf8Chunks(2).substr(0, 1000), 60 * kNsPerSecond);
  EXPECT_FALSE(connection_->HoldsIdly(62 * kNsPerSecond, 2 * kNsPerSecond));
  EXPECT_TRUE(connection_->HoldsIdly(63 * kNsPerSecond, 2 * kNsPerSecond));
}

// The peer moves a byte now and then. The message is found when others of its tenant wait for frames, and not before.
TEST_F(LoneConnectionTest, AMessageThatTricklesWhileItsTenantWaitsForFramesIsFound) {
  constexpr int64_t kLimitNs = 2 * kNsPerSecond;
  int64_t now_ns = 60 * kNsPerSecond;
  const auto is_found = [&] { return connection_->KeepsOthersWaiting(now_ns, kLimitNs); };
  Pump(Hello(), now_ns);
  const std::string write = WriteOf8Chunks(2);
  Pump(write.substr(0, 1000), now_ns);
  size_t at = 1000;
  for (int i = 0; i < 4; ++i) {
    now_ns += kNsPerSecond;
    Pump(write.substr(at++, 1), now_ns);
    EXPECT_FALSE(is_found()) << "no connection waits";
  }
  EXPECT_FALSE(connection_->HoldsIdly(now_ns, kLimitNs)) << "a byte has come";
  Tenant stranger(1, "stranger", &server_.arena());
  stranger.landing_waited_ns = now_ns;
  EXPECT_FALSE(is_found()) << "another tenant has its own room";
  server_.context().tenant->landing_waited_ns = now_ns;
  EXPECT_TRUE(is_found());
  now_ns += kLimitNs + 1;
  EXPECT_FALSE(is_found()) << "no connection waits any more";
  server_.context().tenant->landing_waited_ns = now_ns;
  Pump(write.substr(at), now_ns);
  EXPECT_FALSE(is_found()) << "the message is done";
  Pump(WriteOf8Chunks(3).substr(0, 1000), now_ns);
  EXPECT_FALSE(is_found()) << "the next one has just begun";
}

TEST_F(LoneConnectionTest, AReplacedConnectionInTheMiddleOfAMessageIsFoundAtOnce) {
  const int64_t now_ns = 60 * kNsPerSecond;
  Pump(Hello(), now_ns);
  Pump(WriteOf8Chunks(2).substr(0, 1000), now_ns);
  server_.context().tenant->landing_waited_ns = now_ns;
  EXPECT_FALSE(connection_->KeepsOthersWaiting(now_ns, 2 * kNsPerSecond));
  class Successor : public LeaseConnection {
    void Fence() override {}
  } successor;
  const auto lease = server_.leases().Find(LeaseId{2});
  ASSERT_TRUE(lease->Bind(0, Lease::kGenerationMax, &successor));
  EXPECT_TRUE(connection_->KeepsOthersWaiting(now_ns, 2 * kNsPerSecond));
  lease->Unbind(0, &successor);
}

TEST_F(LoneConnectionTest, WhoWaitsForFramesTellsItsTenant) {
  Pump(Hello(), 60 * kNsPerSecond);
  EXPECT_EQ(server_.context().tenant->landing_waited_ns, 0);
  std::vector<FrameLoc> taken(server_.landing().size());
  ASSERT_TRUE(server_.landing().Take(taken.size(), taken.data()));
  EXPECT_EQ(Pump(WriteOf8Chunks(2), 61 * kNsPerSecond), Connection::State::kStarved);
  EXPECT_EQ(server_.context().tenant->landing_waited_ns, 61 * kNsPerSecond);
  server_.landing().Give(taken.data(), taken.size());
}

TEST_F(LoneConnectionTest, AMessageThatTricklesIsCutOffAndManyThatFlowAreNot) {
  int64_t now_ns = kNsPerSecond;
  const auto pump = [&](const std::string& bytes) { Pump(bytes, now_ns += kNsPerSecond); };
  pump(Hello());
  // The connection is never at rest, because each piece ends in the middle of the next message.
  std::string flow;
  for (uint64_t id = 2; id < 30; ++id) flow += WriteOf8Chunks(id);
  size_t at = 0;
  for (; at + 4000 < flow.size(); at += 4000) {
    pump(flow.substr(at, 4000));
    EXPECT_FALSE(IsStalled(now_ns));
  }
  pump(flow.substr(at));
  now_ns += 3600 * kNsPerSecond;
  const std::string last = WriteOf8Chunks(30);
  for (at = 0; at < 7; ++at) {
    pump(last.substr(at, 1));
    EXPECT_FALSE(IsStalled(now_ns)) << at;
  }
  pump(last.substr(at, 1));
  EXPECT_TRUE(IsStalled(now_ns));
}

TEST_F(StallTest, BytesInsteadOfAHelloAreCutOff) {
  UniqueFd fd = Connect();
  const int64_t deadline_ns = DeadlineAfterMs(10'000);
  // A byte now and then of a hello that never ends.
  while (server_.counters().closed_for_error == 0 && MonotonicNs() < deadline_ns) {
    (void)!send(fd.get(), "N", 1, MSG_NOSIGNAL);
    poll(nullptr, 0, 190);
  }
  EXPECT_EQ(server_.counters().closed_for_error, 1);
}

TEST_F(StallTest, WhoseLeaseHasEndedIsCutOff) {
  lease_.reset();
  server_.clock().AdvanceMs(20'000);
  server_.leases().EndExpired();
  const int64_t deadline_ns = DeadlineAfterMs(10'000);
  while (server_.counters().open > 0 && MonotonicNs() < deadline_ns) poll(nullptr, 0, 10);
  EXPECT_EQ(server_.counters().open, 0);
}

TEST_F(StallTest, WhoDoesNotReadHisRepliesIsCutOff) {
  std::string bytes = Hello();
  std::string page = EncodeMessage(
      [] {
        MessageHeader header = Request(Op::kWrite, 2, {0, kChunksPerMessage});
        header.flags = kFlagCreate;
        return header;
      }(),
      std::string(kChunksPerMessage * 512, 'x'));
  bytes += page;
  for (uint64_t id = 3; id < 200; ++id) bytes += EncodeMessage(Request(Op::kRead, id, {0, kChunksPerMessage}));
  const uint64_t before = server_.counters().closed_for_error;
  UniqueFd fd = Connect();
  size_t sent = 0;
  const int64_t deadline_ns = DeadlineAfterMs(20'000);
  while (server_.counters().closed_for_error == before && MonotonicNs() < deadline_ns) {
    if (sent < bytes.size()) {
      const ssize_t n = send(fd.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n > 0) sent += n;
    }
    poll(nullptr, 0, 5);
  }
  EXPECT_EQ(server_.counters().closed_for_error, before + 1);
  WriteGood();
}

}  // namespace
}  // namespace nram
