// The contract of every Transport, tested on each of them: TCP, Unix socket, in-process, and a socket behind a network
// that delays.

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/poller.h"
#include "base/test_seed.h"
#include "client/transport/call.h"
#include "client/transport/inproc_transport.h"
#include "client/transport/socket_transport.h"
#include "gtest/gtest.h"
#include "memserver/session.h"
#include "proto/any_request.h"
#include "tests/util/faulty_relay.h"
#include "tests/util/pattern.h"
#include "tests/util/test_server.h"

namespace nram {
namespace {

enum class Kind { kTcp, kTcpSpinning, kUnix, kInproc, kSlowNetwork };

std::string KindName(const ::testing::TestParamInfo<Kind>& info) {
  switch (info.param) {
    case Kind::kTcp:
      return "Tcp";
    case Kind::kTcpSpinning:
      return "TcpSpinning";
    case Kind::kUnix:
      return "Unix";
    case Kind::kInproc:
      return "Inproc";
    case Kind::kSlowNetwork:
      return "SlowNetwork";
  }
  return "";
}

class TransportTest : public ::testing::TestWithParam<Kind> {
 protected:
  static constexpr uint64_t kLease = 77;
  static constexpr uint64_t kRegion = 5;

  TransportTest() : server_(ServerOptions()) { lease_ = server_.Grant(kLease); }

  // Long enough that the server sees the next request while it polls, on a slow machine too.
  static TestDataServer::Options ServerOptions() {
    TestDataServer::Options options;
    options.data.spin.limit_us = GetParam() == Kind::kTcpSpinning ? 500 : 0;
    return options;
  }

  std::unique_ptr<Transport> Make(bool urgent = false, uint64_t lease = kLease) {
    SocketTransportOptions options{LeaseId{lease}, urgent, 0, SpinOptions{0}};
    switch (GetParam()) {
      case Kind::kTcpSpinning:
        options.spin.limit_us = 50;
        [[fallthrough]];
      case Kind::kTcp:
        return std::make_unique<SocketTransport>(ResolveEndpoint(server_.tcp()).value(), options, &poller_);
      case Kind::kUnix:
        return std::make_unique<SocketTransport>(ResolveEndpoint(server_.unix_socket()).value(), options, &poller_);
      case Kind::kInproc:
        return std::make_unique<InprocTransport>(LeaseId{lease}, urgent,
                                                 [this] { return std::make_unique<Session>(server_.context()); });
      case Kind::kSlowNetwork:
        if (relay_ == nullptr) {
          relay_ = std::make_unique<FaultyRelay>(server_.unix_socket(), TestSeed());
          relay_->SetPlan({.delay = 0.3, .delay_us_max = 500});
        }
        return std::make_unique<SocketTransport>(ResolveEndpoint(relay_->endpoint()).value(), options, &poller_);
    }
    return nullptr;
  }

  std::unique_ptr<Transport> MakeConnected(bool urgent = false, uint64_t lease = kLease) {
    auto transport = Make(urgent, lease);
    const absl::Status status = transport->Connect(DeadlineAfterMs(5000));
    EXPECT_TRUE(status.ok()) << status;
    return transport;
  }

  static void Prepare(Call* call, Op op, ChunkRange range, uint8_t flags = 0) {
    call->request = AnyRequest(op, kRegion, 1, range, flags);
    call->deadline_ns = DeadlineAfterMs(10'000);
  }

  static absl::Status Run(Transport* transport, Call* call) {
    transport->Start(call);
    transport->Wait(call);
    return CallStatus(*call, "test");
  }

  absl::Status Write(Transport* transport, ChunkRange range, const std::string& data, uint8_t flags = kFlagCreate) {
    Call call;
    Prepare(&call, Op::kWrite, range, flags);
    call.out = reinterpret_cast<const std::byte*>(data.data());
    return Run(transport, &call);
  }

  absl::StatusOr<std::string> Read(Transport* transport, ChunkRange range) {
    Call call;
    std::string data(range.bytes(), '?');
    Prepare(&call, Op::kRead, range);
    call.in = reinterpret_cast<std::byte*>(data.data());
    const absl::Status status = Run(transport, &call);
    if (!status.ok()) return status;
    return data;
  }

  TestDataServer server_;
  std::shared_ptr<Lease> lease_;
  Poller poller_;
  std::unique_ptr<FaultyRelay> relay_;
};

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

// --- Faults that only a network has. ---

class FaultTest : public TransportTest {};
INSTANTIATE_TEST_SUITE_P(Network, FaultTest, ::testing::Values(Kind::kSlowNetwork), KindName);

TEST_P(FaultTest, AFrozenPeerEndsInTheDeadline) {
  auto transport = MakeConnected();
  ASSERT_TRUE(Write(transport.get(), {0, 8}, Pattern(4096, 1)).ok());
  relay_->Hold(true);
  std::string data(4096, '?');
  Call call;
  Prepare(&call, Op::kRead, {0, 8});
  call.in = reinterpret_cast<std::byte*>(data.data());
  call.deadline_ns = DeadlineAfterMs(50);
  EXPECT_EQ(Run(transport.get(), &call).code(), absl::StatusCode::kDeadlineExceeded);
  // A call that no thread waits for, likewise.
  relay_->Hold(false);
  ASSERT_TRUE(transport->Connect(DeadlineAfterMs(5000)).ok());
  relay_->Hold(true);
  std::atomic<bool> done{false};
  Call unwaited;
  Prepare(&unwaited, Op::kRead, {0, 8});
  unwaited.in = call.in;
  unwaited.deadline_ns = DeadlineAfterMs(50);
  unwaited.context = &done;
  unwaited.done = [](Call* call) { *static_cast<std::atomic<bool>*>(call->context) = true; };
  transport->Start(&unwaited);
  const int64_t deadline_ns = DeadlineAfterMs(20'000);
  while (!done && MonotonicNs() < deadline_ns) std::this_thread::yield();
  ASSERT_TRUE(done);
  EXPECT_EQ(unwaited.code, absl::StatusCode::kDeadlineExceeded);
  relay_->Hold(false);
  ASSERT_TRUE(transport->Connect(DeadlineAfterMs(5000)).ok());
  EXPECT_EQ(Read(transport.get(), {0, 8}).value(), Pattern(4096, 1));
}

TEST_P(FaultTest, ALateFollowerBreaksTheConnectionForAll) {
  auto transport = MakeConnected();
  ASSERT_TRUE(Write(transport.get(), {0, 8}, Pattern(4096, 1)).ok());
  relay_->Hold(true);
  std::vector<std::thread> threads;
  std::atomic<int> late{0}, broken{0};
  for (int t = 0; t < 6; ++t) {
    threads.emplace_back([&, t] {
      std::string data(4096, '?');
      Call call;
      Prepare(&call, Op::kRead, {0, 8});
      call.in = reinterpret_cast<std::byte*>(data.data());
      call.deadline_ns = DeadlineAfterMs(t == 3 ? 100 : 20'000);
      const absl::StatusCode code = Run(transport.get(), &call).code();
      ++(code == absl::StatusCode::kDeadlineExceeded ? late : broken);
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(late, 1);
  EXPECT_EQ(broken, 5);
}

// While a thread waits for a part of an operation, that part is used again for another server as soon as its call is
// done.
TEST_P(FaultTest, WhoWaitsIsNotKeptByWhatGoesOnElsewhere) {
  SocketTransport here(ResolveEndpoint(server_.unix_socket()).value(), {LeaseId{kLease}, false, 0, SpinOptions{0}},
                       &poller_);
  ASSERT_TRUE(here.Connect(DeadlineAfterMs(5000)).ok());
  auto elsewhere = Make(/*urgent=*/true);
  struct Wanderer {
    Call call;
    std::string data = std::string(4096, '?');
    Transport* next = nullptr;
    std::atomic<bool> ended{false};
  };
  for (int round = 0; round < 20; ++round) {
    relay_->Hold(false);
    ASSERT_TRUE(elsewhere->Connect(DeadlineAfterMs(5000)).ok());
    relay_->Hold(true);
    std::vector<Wanderer> wanderers(4);
    std::vector<std::thread> threads;
    for (Wanderer& wanderer : wanderers) {
      Prepare(&wanderer.call, Op::kRead, {0, 8});
      wanderer.call.in = reinterpret_cast<std::byte*>(wanderer.data.data());
      wanderer.call.context = &wanderer;
      wanderer.call.wait_expected = true;
      wanderer.next = elsewhere.get();
      wanderer.call.done = [](Call* call) {
        auto* const wanderer = static_cast<Wanderer*>(call->context);
        Transport* const next = std::exchange(wanderer->next, nullptr);
        if (next != nullptr) {
          next->Start(call);
        } else {
          wanderer->ended = true;
        }
      };
      threads.emplace_back([&here, &wanderer] {
        here.Start(&wanderer.call);
        here.Wait(&wanderer.call);
      });
    }
    for (auto& thread : threads) thread.join();
    EXPECT_TRUE(here.connected());
    elsewhere->Disconnect();
    for (Wanderer& wanderer : wanderers) {
      while (!wanderer.ended) std::this_thread::yield();
    }
    ASSERT_FALSE(HasFailure());
  }
}

struct NamedPlan {
  const char* name;
  FaultPlan plan;
};

// A write that was answered stays. A write without an answer leaves old or new bytes, and nothing else, ever. No call
// outlives its deadline.
TEST_P(FaultTest, EveryFaultIsAnErrorAndNeverAWrongByte) {
  const NamedPlan plans[] = {{"drop", {.drop = 0.05}},       {"repeat", {.repeat = 0.05}},
                             {"corrupt", {.corrupt = 0.05}}, {"cut", {.cut = 0.05}},
                             {"reorder", {.reorder = 0.05}}, {"delay", {.delay = 0.5, .delay_us_max = 300}}};
  constexpr int kPlaces = 16;
  // The bytes that each place may hold: the seed of the last answered write, and the seeds of unanswered writes since.
  // 0: zeros.
  std::vector<std::vector<uint64_t>> possible(kPlaces, {0});
  uint64_t next_seed = 1;
  bool created = false;
  std::mt19937_64 random(TestSeed());
  for (const auto& [name, plan] : plans) {
    SCOPED_TRACE(name);
    auto transport = MakeConnected();
    relay_->SetPlan(plan);
    const uint64_t faults_before = relay_->faults();
    int failures = 0;
    for (int i = 0; i < 600; ++i) {
      if (!transport->connected()) {
        ++failures;
        ASSERT_TRUE(transport->Connect(DeadlineAfterMs(5000)).ok());
      }
      const int place = random() % kPlaces;
      const ChunkRange range{uint64_t(place) * 512, 24};
      Call call;
      std::string data;
      const bool write = i == 0 || random() % 2 == 0;
      Prepare(&call, write ? Op::kWrite : Op::kRead, range, write ? kFlagCreate : 0);
      call.deadline_ns = DeadlineAfterMs(100);
      data = write ? Pattern(range.bytes(), next_seed) : std::string(range.bytes(), '?');
      call.out = call.in = reinterpret_cast<std::byte*>(data.data());
      const absl::Status status = Run(transport.get(), &call);
      if (write) {
        if (status.ok()) possible[place].clear();
        created = created || status.ok();
        possible[place].push_back(next_seed++);
      } else if (status.ok()) {
        // Each chunk is checked on its own: a later unanswered write may have overwritten none or all of it.
        for (int chunk = 0; chunk < 24; ++chunk) {
          bool known = false;
          for (const uint64_t seed : possible[place]) {
            const std::string expected = seed == 0 ? std::string(range.bytes(), '\0') : Pattern(range.bytes(), seed);
            known = known || data.compare(chunk * 512, 512, expected, chunk * 512, 512) == 0;
          }
          ASSERT_TRUE(known) << "place " << place << " chunk " << chunk << " holds what was never written there";
        }
      } else {
        ASSERT_TRUE(!created || status.code() != absl::StatusCode::kNotFound) << status;
      }
    }
    EXPECT_GT(relay_->faults(), faults_before);
    // With one call at a time a reordered message overtakes nothing, and delay is no failure.
    if (std::string(name) != "delay" && std::string(name) != "reorder") {
      EXPECT_GT(failures, 0);
    }
    relay_->SetPlan({});
  }
}

}  // namespace
}  // namespace nram
