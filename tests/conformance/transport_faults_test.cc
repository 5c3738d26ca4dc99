// The contract of every Transport over a network that fails: it drops, repeats, corrupts, cuts, reorders, delays, and
// freezes.

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
#include "tests/conformance/transport_fixture.h"
#include "tests/util/faulty_relay.h"
#include "tests/util/pattern.h"

namespace nram {
namespace {

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

// A thread waits for one part of an operation. That part's call ends, and the part is used again at once for another
// server.
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

// An answered write remains. A write without an answer leaves old or new bytes, and nothing else, ever. No call
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
