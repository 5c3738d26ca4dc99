// The contract of every Transport, tested on each of them: TCP, Unix socket, in-process, and a socket behind a network
// that delays. Networks that fail: transport_faults_test.cc.

#include <array>
#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/test_seed.h"
#include "client/transport/call.h"
#include "client/transport/socket_transport.h"
#include "gtest/gtest.h"
#include "proto/any_request.h"
#include "tests/conformance/transport_fixture.h"
#include "tests/util/pattern.h"

namespace nram {
namespace {

INSTANTIATE_TEST_SUITE_P(All, TransportTest,
                         ::testing::Values(Kind::kTcp, Kind::kTcpSpinning, Kind::kUnix, Kind::kInproc,
                                           Kind::kSlowNetwork),
                         KindName);

TEST_P(TransportTest, CarriesSealsWithTheirPages) {
  auto transport = MakeConnected();
  constexpr size_t kPages = 33;
  const ChunkRange range{8, kPages * kChunksPerPage};
  std::array<PageSeal, kPages> seals{}, got{};
  std::array<ChunkMask, kPages> masks{};
  for (size_t i = 0; i < kPages; ++i) {
    masks[i] = i % 3 == 0 ? 0 : kAllChunks;
    if (masks[i] == 0) continue;
    seals[i].counter[0] = static_cast<uint8_t>(i + 1);
    seals[i].tag[15] = static_cast<uint8_t>(~i);
  }
  const std::string data = Pattern(range.bytes(), 5);
  std::string back(range.bytes(), '?');
  for (const bool sparse : {true, false}) {
    if (!sparse) {
      for (size_t i = 0; i < kPages; ++i) seals[i].counter[1] = 7;
    }
    Call write;
    Prepare(&write, Op::kWrite, range, kFlagCreate);
    write.out = reinterpret_cast<const std::byte*>(data.data());
    write.masks = sparse ? masks.data() : nullptr;
    write.seals = seals.data();
    ASSERT_TRUE(Run(transport.get(), &write).ok());
    for (const size_t pages : {kPages, size_t{1}, size_t{2}}) {
      Call read;
      Prepare(&read, Op::kRead, {8, pages * kChunksPerPage});
      read.in = reinterpret_cast<std::byte*>(back.data());
      read.seals = got.data();
      const absl::Status status = Run(transport.get(), &read);
      ASSERT_TRUE(status.ok()) << status;
      for (size_t i = 0; i < pages; ++i) {
        EXPECT_TRUE(got[i] == seals[i]) << i;
        const std::string page = back.substr(i * kPageBytes, kPageBytes);
        const bool is_hole = sparse && masks[i] == 0;
        EXPECT_TRUE(page == (is_hole ? std::string(kPageBytes, '\0') : data.substr(i * kPageBytes, kPageBytes))) << i;
      }
    }
  }
  // Plain requests to a sealed region.
  EXPECT_FALSE(Write(transport.get(), range, data).ok());
  EXPECT_TRUE(transport->connected()) << "a refusal is an answer";
  EXPECT_FALSE(Read(transport.get(), range).ok());
  EXPECT_FALSE(transport->connected()) << "seals where none were asked for";
}

TEST_P(TransportTest, ReadsBackWhatWasWritten) {
  auto transport = MakeConnected();
  for (const ChunkRange range :
       {ChunkRange{0, 1}, {8, 8}, {3, 2}, {7, 2}, {100, 512 - 100}, {1024, 512}, {(1ull << 53) - 9, 9}}) {
    const std::string data = Pattern(range.bytes(), range.first + 1);
    const absl::Status status = Write(transport.get(), range, data);
    ASSERT_TRUE(status.ok()) << status;
    const auto back = Read(transport.get(), range);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_TRUE(*back == data) << "range " << range.first << "+" << range.count;
  }
}

TEST_P(TransportTest, HolesReadAsZeros) {
  auto transport = MakeConnected();
  const std::string chunk = Pattern(512, 1);
  ASSERT_TRUE(Write(transport.get(), {11, 1}, chunk).ok());
  const std::string data = Read(transport.get(), {0, 64}).value();
  EXPECT_EQ(data.substr(11 * 512, 512), chunk);
  EXPECT_EQ(data.substr(0, 11 * 512), std::string(11 * 512, '\0'));
  EXPECT_EQ(data.substr(12 * 512), std::string(52 * 512, '\0'));
}

TEST_P(TransportTest, MaskedWritesTouchOnlyTheirChunks) {
  auto transport = MakeConnected();
  const std::string before = Pattern(3 * 4096, 1);
  ASSERT_TRUE(Write(transport.get(), {0, 24}, before).ok());
  const std::string after = Pattern(3 * 4096, 2);
  const ChunkMask masks[] = {0x81, 0x00, 0x3C};
  Call call;
  Prepare(&call, Op::kWrite, {0, 24});
  call.out = reinterpret_cast<const std::byte*>(after.data());
  call.masks = masks;
  ASSERT_TRUE(Run(transport.get(), &call).ok());
  EXPECT_EQ(call.request.payload_bytes, 3 + 6 * 512);
  const std::string data = Read(transport.get(), {0, 24}).value();
  for (int chunk = 0; chunk < 24; ++chunk) {
    const std::string& from = masks[chunk / 8] >> chunk % 8 & 1 ? after : before;
    EXPECT_TRUE(data.compare(chunk * 512, 512, from, chunk * 512, 512) == 0) << chunk;
  }
}

TEST_P(TransportTest, ErrorsAreTyped) {
  auto transport = MakeConnected();
  EXPECT_EQ(Read(transport.get(), {0, 8}).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(Write(transport.get(), {0, 1}, Pattern(512, 1), 0).code(), absl::StatusCode::kNotFound);
  Call create;
  Prepare(&create, Op::kCreate, {});
  EXPECT_TRUE(Run(transport.get(), &create).ok());
  EXPECT_EQ(Run(transport.get(), &create).code(), absl::StatusCode::kAlreadyExists);
  Call stale;
  Prepare(&stale, Op::kTrim, {0, 8});
  stale.request = AnyRequest(Op::kTrim, kRegion, 7, {0, 8});
  EXPECT_EQ(Run(transport.get(), &stale).code(), absl::StatusCode::kFailedPrecondition);
  Call destroy;
  Prepare(&destroy, Op::kDestroy, {});
  EXPECT_TRUE(Run(transport.get(), &destroy).ok());
  EXPECT_EQ(Run(transport.get(), &destroy).code(), absl::StatusCode::kNotFound);
}

// Each is refused with its own reason, and the connection goes on.
TEST_P(TransportTest, OtherGenerationsAndVersionsAreRefused) {
  auto transport = MakeConnected();
  const std::string data = Pattern(4096, 1);
  ASSERT_TRUE(Write(transport.get(), {0, 8}, data).ok());
  const std::string other = Pattern(4096, 2);
  std::string buffer(4096, '\0');
  const RegionId region{kRegion};
  const SpanGeneration one{1};
  const std::pair<MessageHeader, Reason> requests[] = {
      {MessageHeader(WriteRequest{.region = region, .range = {0, 8}, .epoch = Epoch{1}, .span_generation = one}),
       Reason::kOtherGeneration},
      {MessageHeader(ReadRequest{.region = region, .range = {0, 8}, .epoch = Epoch{1}, .span_generation = one}),
       Reason::kOtherGeneration},
      {MessageHeader(ReadRequest{.region = region, .range = {0, 8}, .version = VersionNumber{1}}),
       Reason::kUnknownSnapshot},
  };
  for (const auto& [request, reason] : requests) {
    Call call;
    call.request = request;
    call.out = reinterpret_cast<const std::byte*>(other.data());
    call.in = reinterpret_cast<std::byte*>(buffer.data());
    call.deadline_ns = DeadlineAfterMs(10'000);
    EXPECT_FALSE(Run(transport.get(), &call).ok());
    EXPECT_EQ(call.code, absl::StatusCode::kOk);
    EXPECT_EQ(call.reason, reason);
  }
  EXPECT_EQ(Read(transport.get(), {0, 8}).value(), data);
}

TEST_P(TransportTest, ACallOnNoConnectionFailsAtOnce) {
  auto transport = Make();
  EXPECT_EQ(Read(transport.get(), {0, 8}).status().code(), absl::StatusCode::kUnavailable);
}

TEST_P(TransportTest, AVersionThatTheServerDoesNotSpeakIsRefusedWithWhatItSpeaks) {
  SocketTransportOptions options{LeaseId{kLease}, false, 0, SpinOptions{0}};
  options.version = kWireVersion + 1;
  SocketTransport transport(ResolveEndpoint(server_.tcp()).value(), options, &poller_);
  const absl::Status status = transport.Connect(DeadlineAfterMs(5000));
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_NE(status.message().find("the server is too old"), absl::string_view::npos) << status;
}

TEST_P(TransportTest, AnUnknownLeaseIsRefused) {
  server_.leases().End(LeaseId{kLease});
  auto transport = Make();
  EXPECT_EQ(transport->Connect(DeadlineAfterMs(5000)).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_P(TransportTest, AnEndedLeaseStopsWrites) {
  auto transport = MakeConnected();
  ASSERT_TRUE(Write(transport.get(), {0, 8}, Pattern(4096, 1)).ok());
  server_.leases().End(LeaseId{kLease});
  Call call;
  const std::string data = Pattern(4096, 2);
  Prepare(&call, Op::kWrite, {0, 8});
  call.out = reinterpret_cast<const std::byte*>(data.data());
  EXPECT_FALSE(Run(transport.get(), &call).ok());
  EXPECT_EQ(call.reason, Reason::kLeaseEnded);
}

TEST_P(TransportTest, ANewerConnectionFencesTheOlder) {
  auto first = MakeConnected();
  ASSERT_TRUE(Write(first.get(), {0, 8}, Pattern(4096, 1)).ok());
  auto second = MakeConnected();
  EXPECT_EQ(Write(first.get(), {0, 8}, Pattern(4096, 2)).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(Read(second.get(), {0, 8}).value(), Pattern(4096, 1));
}

TEST_P(TransportTest, UrgentAndBulkStandBesideEachOther) {
  auto bulk = MakeConnected(false);
  auto urgent = MakeConnected(true);
  ASSERT_TRUE(Write(bulk.get(), {0, 8}, Pattern(4096, 1)).ok());
  EXPECT_EQ(Read(urgent.get(), {0, 8}).value(), Pattern(4096, 1));
}

TEST_P(TransportTest, ClientsThatTakeTurnsAndGoAreAllServed) {
  const auto other_lease = server_.Grant(kLease + 1);
  auto here = MakeConnected();
  auto there = MakeConnected(/*urgent=*/false, kLease + 1);
  ASSERT_TRUE(Write(here.get(), {0, 8}, Pattern(4096, 1)).ok());
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 100; ++i) {
    // Rows of requests, so that a server that polls settles on one client.
    Transport* const transport = (random() % 2 == 0 ? here : there).get();
    for (uint64_t row = random() % 8; row > 0; --row) ASSERT_EQ(Read(transport, {0, 8}).value(), Pattern(4096, 1));
    if (random() % 8 == 0) {
      transport->Disconnect();
      ASSERT_TRUE(transport->Connect(DeadlineAfterMs(5000)).ok());
    }
  }
}

TEST_P(TransportTest, ReconnectsAfterADisconnect) {
  auto transport = MakeConnected();
  ASSERT_TRUE(Write(transport.get(), {0, 8}, Pattern(4096, 1)).ok());
  for (int i = 0; i < 5; ++i) {
    transport->Disconnect();
    EXPECT_FALSE(transport->connected());
    EXPECT_EQ(Read(transport.get(), {0, 8}).status().code(), absl::StatusCode::kUnavailable);
    ASSERT_TRUE(transport->Connect(DeadlineAfterMs(5000)).ok());
    EXPECT_EQ(Read(transport.get(), {0, 8}).value(), Pattern(4096, 1));
  }
}

TEST_P(TransportTest, ManyThreadsPipelineOnOneConnection) {
  auto transport = MakeConnected();
  ASSERT_TRUE(Write(transport.get(), {0, 8}, Pattern(4096, 1)).ok());
  constexpr int kThreads = 6;
  constexpr int kDepth = 12;
  const int rounds = GetParam() == Kind::kSlowNetwork ? 3 : 15;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      std::vector<Call> calls(kDepth);
      std::vector<std::string> buffers(kDepth);
      for (int round = 0; round < rounds; ++round) {
        for (const Op op : {Op::kWrite, Op::kRead}) {
          for (int d = 0; d < kDepth; ++d) {
            // Sizes from a chunk to a whole message.
            const ChunkRange range{uint64_t(t * kDepth + d) * 1024, uint64_t(1 + (d * 97 + round * 31) % 512)};
            const std::string expected = Pattern(range.bytes(), t * 1000 + d + round * 17);
            Prepare(&calls[d], op, range);
            if (op == Op::kWrite) {
              buffers[d] = expected;
            } else {
              buffers[d].assign(range.bytes(), '?');
            }
            calls[d].out = calls[d].in = reinterpret_cast<std::byte*>(buffers[d].data());
            transport->Start(&calls[d]);
          }
          for (int d = 0; d < kDepth; ++d) {
            transport->Wait(&calls[d]);
            ASSERT_TRUE(CallStatus(calls[d], "test").ok());
            if (op == Op::kRead) {
              const size_t bytes = calls[d].request.range().bytes();
              ASSERT_TRUE(buffers[d] == Pattern(bytes, t * 1000 + d + round * 17));
            }
          }
        }
      }
    });
  }
  for (auto& thread : threads) thread.join();
}

TEST_P(TransportTest, CallsThatNobodyWaitsForComplete) {
  auto transport = MakeConnected();
  ASSERT_TRUE(Write(transport.get(), {0, 512}, Pattern(512 * 512, 3)).ok());
  struct Chain {
    Transport* transport;
    std::string buffer = std::string(512 * 512, '?');
    int left = 50;
    std::atomic<bool> finished{false};
  } chain{transport.get()};
  Call call;
  Prepare(&call, Op::kRead, {0, 512});
  call.in = reinterpret_cast<std::byte*>(chain.buffer.data());
  call.context = &chain;
  // Each completion starts the next.
  call.done = [](Call* done) {
    auto* chain = static_cast<Chain*>(done->context);
    if (CallStatus(*done, "test").ok() && --chain->left > 0) {
      chain->transport->Start(done);
    } else {
      chain->finished = true;
    }
  };
  transport->Start(&call);
  const int64_t deadline_ns = DeadlineAfterMs(20'000);
  while (!chain.finished && MonotonicNs() < deadline_ns) std::this_thread::yield();
  EXPECT_EQ(chain.left, 0);
  EXPECT_EQ(chain.buffer, Pattern(512 * 512, 3));
}

TEST_P(TransportTest, DisconnectEndsWhatIsUnderWay) {
  auto transport = MakeConnected();
  ASSERT_TRUE(Write(transport.get(), {0, 512}, Pattern(512 * 512, 3)).ok());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      while (!stop) (void)Read(transport.get(), {0, 512});
    });
  }
  for (int i = 0; i < 20; ++i) {
    transport->Disconnect();
    ASSERT_TRUE(transport->Connect(DeadlineAfterMs(5000)).ok());
  }
  stop = true;
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(Read(transport.get(), {0, 512}).value(), Pattern(512 * 512, 3));
}

}  // namespace
}  // namespace nram
