// Many data connections, or one that makes large requests, are held. Another client still connects, writes and reads.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstring>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "client/transport/socket_transport.h"
#include "gtest/gtest.h"
#include "proto/any_request.h"
#include "proto/encode_message.h"
#include "tests/util/test_server.h"

namespace nram {
namespace {

constexpr int kConnectionsMax = 32;

TestDataServer::Options FewConnections() {
  TestDataServer::Options options;
  options.data.connections_max = kConnectionsMax;
  return options;
}

class CrowdTest : public ::testing::Test {
 protected:
  CrowdTest() : CrowdTest(FewConnections()) {}
  explicit CrowdTest(const TestDataServer::Options& options) : server_(options) {}

  // A connection from an address of this host.
  UniqueFd ConnectFrom(const char* from) {
    UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    EXPECT_EQ(inet_pton(AF_INET, from, &address.sin_addr), 1);
    EXPECT_EQ(bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(inet_pton(AF_INET, "127.0.0.1", &address.sin_addr), 1);
    address.sin_port = htons(static_cast<uint16_t>(server_.tcp().port));
    EXPECT_EQ(connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    return fd;
  }

  // False: the connection has ended.
  static bool Send(int fd, MessageHeader header, uint64_t id) {
    header.request_id = id;
    const std::string bytes = EncodeMessage(header);
    return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  static bool Receive(int fd, MessageHeader* reply) {
    std::byte bytes[kMessageHeaderBytes];
    size_t have = 0;
    for (const int64_t deadline_ns = DeadlineAfterMs(20'000); have < sizeof bytes;) {
      if (MonotonicNs() >= deadline_ns) {
        ADD_FAILURE() << "no reply";
        return false;
      }
      pollfd waiting{fd, POLLIN, 0};
      poll(&waiting, 1, 100);
      const ssize_t n = recv(fd, bytes + have, sizeof bytes - have, MSG_DONTWAIT);
      if (n == 0 || (n < 0 && errno != EAGAIN)) return false;
      if (n > 0) have += static_cast<size_t>(n);
    }
    return DecodeHeader(bytes, reply).ok();
  }
  static bool Ask(int fd, const MessageHeader& header, uint64_t id) {
    MessageHeader reply;
    return Send(fd, header, id) && Receive(fd, &reply);
  }
  bool Hello(int fd, uint64_t lease, bool urgent = false) {
    const MessageHeader hello(HelloRequest{.lease = LeaseId{lease}, .generation = ++generation_},
                              urgent ? kFlagUrgent : 0);
    MessageHeader reply;
    return Send(fd, hello, 1) && Receive(fd, &reply) && reply.reason == Reason::kOk;
  }
  static MessageHeader Request(Op op) { return AnyRequest(op, 6, 1, {0, 8}); }

  // An ordinary client: lease, connection, a write, and a read of it.
  std::unique_ptr<SocketTransport> ConnectGood(uint64_t lease) {
    server_.Grant(lease);
    SocketTransportOptions options{LeaseId{lease}, false, 0, SpinOptions{0}};
    auto good = std::make_unique<SocketTransport>(ResolveEndpoint(server_.tcp()).value(), options, &poller_);
    const absl::Status status = good->Connect(DeadlineAfterMs(20'000));
    EXPECT_TRUE(status.ok()) << status;
    return good;
  }
  static absl::Status WriteAndRead(SocketTransport* good, uint64_t region) {
    const std::string page(4096, 'g');
    std::string back(4096, '?');
    for (const Op op : {Op::kWrite, Op::kRead}) {
      Call call;
      call.request = AnyRequest(op, region, 1, {0, 8}, op == Op::kWrite ? kFlagCreate : 0);
      if (op == Op::kWrite) call.out = reinterpret_cast<const std::byte*>(page.data());
      if (op == Op::kRead) call.in = reinterpret_cast<std::byte*>(back.data());
      call.deadline_ns = DeadlineAfterMs(20'000);
      good->Start(&call);
      good->Wait(&call);
      const absl::Status status = CallStatus(call, "test");
      if (!status.ok()) return status;
    }
    return page == back ? absl::OkStatus() : absl::DataLossError("wrong bytes");
  }

  TestDataServer server_;
  Poller poller_;
  uint64_t generation_ = 0;
};

TEST_F(CrowdTest, WhoSaysNothingGivesWay) {
  const auto before = ConnectGood(1);
  ASSERT_TRUE(WriteAndRead(before.get(), 1).ok());
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < 3 * kConnectionsMax; ++i) crowd.push_back(ConnectFrom("127.0.0.1"));
  const auto after = ConnectGood(2);
  EXPECT_TRUE(WriteAndRead(after.get(), 2).ok());
  EXPECT_TRUE(WriteAndRead(before.get(), 1).ok()) << "who does something stays";
  EXPECT_GT(server_.counters().displaced, 0);
  EXPECT_LE(server_.counters().open, kConnectionsMax);
}

TEST_F(CrowdTest, WhoOnlyPingsGivesWay) {
  const auto before = ConnectGood(1);
  ASSERT_TRUE(WriteAndRead(before.get(), 1).ok());
  // As many clients as fill the table, each with its share of two connections.
  std::vector<UniqueFd> crowd;
  for (uint64_t i = 0; i < kConnectionsMax; ++i) {
    const uint64_t lease = 100 + i / 2;
    server_.Grant(lease);
    crowd.push_back(ConnectFrom("127.0.0.1"));
    ASSERT_TRUE(Hello(crowd.back().get(), lease, i % 2 == 1));
    ASSERT_TRUE(Ask(crowd.back().get(), Request(Op::kPing), 2));
  }
  const auto after = ConnectGood(2);
  EXPECT_TRUE(WriteAndRead(after.get(), 2).ok());
  EXPECT_TRUE(WriteAndRead(before.get(), 1).ok());
  EXPECT_GT(server_.counters().displaced, 0);
}

TEST_F(CrowdTest, ALeaseHasNoMoreThanItsTwo) {
  server_.Grant(100);
  std::vector<UniqueFd> crowd;
  for (int i = 0; i < kConnectionsMax; ++i) {
    crowd.push_back(ConnectFrom("127.0.0.1"));
    ASSERT_TRUE(Hello(crowd.back().get(), 100));
    ASSERT_TRUE(Ask(crowd.back().get(), Request(Op::kRead), 2));
  }
  const auto after = ConnectGood(2);
  EXPECT_TRUE(WriteAndRead(after.get(), 2).ok());
  EXPECT_TRUE(Ask(crowd.back().get(), Request(Op::kRead), 3)) << "the newest is the lease's";
}

TEST_F(CrowdTest, AHostThatHasMostOfTheTableGivesWayToAnother) {
  std::vector<UniqueFd> crowd;
  for (uint64_t lease = 100; lease < 100 + kConnectionsMax; ++lease) {
    server_.Grant(lease);
    crowd.push_back(ConnectFrom("127.0.0.2"));
    ASSERT_TRUE(Hello(crowd.back().get(), lease));
    ASSERT_TRUE(Ask(crowd.back().get(), Request(Op::kRead), 2));
  }
  const auto after = ConnectGood(2);
  EXPECT_TRUE(WriteAndRead(after.get(), 2).ok());
  // The crowd's address cannot take its own connections: the server does not cut off a working client for one more
  // client of the same address.
  UniqueFd more = ConnectFrom("127.0.0.2");
  server_.Grant(99);
  EXPECT_FALSE(Hello(more.get(), 99));
  EXPECT_TRUE(Ask(crowd.front().get(), Request(Op::kRead), 3));
}

class LongRequestTest : public CrowdTest {
 protected:
  static TestDataServer::Options SlowSteps() {
    TestDataServer::Options options;
    options.data.workers_per_class = 1;
    options.between_steps = [] { poll(nullptr, 0, 5); };
    return options;
  }
  LongRequestTest() : CrowdTest(SlowSteps()) {}
};

// The only worker has a destroy of two hundred steps; it serves all other connections in the meantime.
TEST_F(LongRequestTest, NobodyWaitsForADestroyOrTrim) {
  const auto lease = server_.Grant(1);
  for (const Op op : {Op::kTrim, Op::kDestroy}) {
    for (uint64_t span = 0; span < 64 * 200; ++span) {
      FrameLoc landed;
      ASSERT_TRUE(server_.landing().Take(1, &landed));
      memset(server_.arena().Data(landed), 7, kChunkBytes);
      const uint32_t crc = 0;
      Payment payment;
      const PageStore::WriteArgs args{.region = RegionId{6},
                                      .epoch = 1,
                                      .range = {span * kPagesPerSpan * kChunksPerPage, 1},
                                      .page_crcs = {&crc, 1},
                                      .landed = &landed,
                                      .absent = PageStore::IfAbsent::kCreate};
      ASSERT_EQ(server_.store().Write(lease.get(), args, &payment), Reason::kOk);
      server_.landing().Give(&landed, 1);
    }
    UniqueFd busy = ConnectFrom("127.0.0.1");
    ASSERT_TRUE(Hello(busy.get(), 1));
    const MessageHeader request = AnyRequest(op, 6, 1, {0, 64 * 200 * kPagesPerSpan * kChunksPerPage});
    ASSERT_TRUE(Send(busy.get(), request, 2));
    const auto good = ConnectGood(2);
    EXPECT_TRUE(WriteAndRead(good.get(), 2).ok());
    char byte;
    EXPECT_EQ(recv(busy.get(), &byte, 1, MSG_DONTWAIT), -1) << "the long one was done first: nothing is shown";
    if (op == Op::kTrim) {
      // A newer connection of the same client does not wait either: it stops the long request.
      UniqueFd newer = ConnectFrom("127.0.0.1");
      EXPECT_TRUE(Hello(newer.get(), 1));
      const int64_t pages = server_.store().counters().pages;
      EXPECT_GT(pages, 1);
      MessageHeader reply;
      EXPECT_FALSE(Receive(busy.get(), &reply)) << "it was cut off";
      EXPECT_EQ(server_.store().counters().pages, pages);
    } else {
      MessageHeader reply;
      ASSERT_TRUE(Receive(busy.get(), &reply));
      EXPECT_EQ(reply.reason, Reason::kOk);
      EXPECT_EQ(server_.store().counters().regions, 1) << "the good client's";
    }
  }
}

// Beyond a prepaid number, connections need room too.
class FullServerCrowdTest : public CrowdTest {
 protected:
  static constexpr int kPrepaid = 64;

  FullServerCrowdTest() : CrowdTest(TestDataServer::Options()) {}
  void FillArena() {
    const auto lease = server_.Grant(1'000);
    for (uint64_t pages = 1 << 20; pages > 0; pages /= 2) {
      while (server_.arena().Reserve(pages, &lease->reservation)) {
      }
    }
    while (server_.arena().ChargeFixed(512)) {
    }
  }
  // A connection that has sent a request.
  UniqueFd ConnectUsed(const char* from, uint64_t lease) {
    server_.Grant(lease);
    UniqueFd fd = ConnectFrom(from);
    if (!Hello(fd.get(), lease) || !Ask(fd.get(), Request(Op::kRead), 2)) fd.reset();
    return fd;
  }
  bool EventuallyOpen(int count) {
    const int64_t deadline_ns = DeadlineAfterMs(20'000);
    while (server_.counters().open != count && MonotonicNs() < deadline_ns) poll(nullptr, 0, 1);
    return server_.counters().open == count;
  }
};

TEST_F(FullServerCrowdTest, WhoHasManyGivesWayThereToo) {
  FillArena();
  std::vector<UniqueFd> crowd;
  for (uint64_t lease = 1; lease <= kPrepaid; ++lease) crowd.push_back(ConnectUsed("127.0.0.2", lease));
  EXPECT_FALSE(ConnectUsed("127.0.0.2", 100).valid()) << "no room for one more";
  EXPECT_TRUE(ConnectUsed("127.0.0.3", 101).valid());
  EXPECT_LE(server_.counters().open, kPrepaid);
}

TEST_F(FullServerCrowdTest, WhoHadOneFindsRoomForItAgain) {
  std::vector<UniqueFd> crowd;
  for (uint64_t lease = 1; lease <= kPrepaid + 8; ++lease) crowd.push_back(ConnectUsed("127.0.0.2", lease));
  ASSERT_TRUE(crowd.back().valid());
  FillArena();
  // After a cut of the network all clients return, and others have taken all the room.
  crowd.clear();
  ASSERT_TRUE(EventuallyOpen(0));
  FillArena();
  for (uint64_t lease = 1; lease <= kPrepaid + 8; ++lease) {
    crowd.push_back(ConnectUsed("127.0.0.2", lease));
    ASSERT_TRUE(crowd.back().valid()) << lease;
  }
}

}  // namespace
}  // namespace nram
