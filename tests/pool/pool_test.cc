// The pool client on real servers: its promises, and its behaviour when servers fail.

#include "client/pool/pool.h"

#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/test_seed.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

TEST(PoolTest, WritesAreStripedAndReadBack) {
  TestPool servers(3);
  auto pool = servers.Open();
  auto region = pool->CreateRegion({.gc = true}).value();
  const std::string data = Pattern(10 * kMiB + 512, 1);
  ASSERT_TRUE(region->Write(3 * 512, Bytes(data)).ok());
  EXPECT_TRUE(Read(region.get(), 3 * 512, data.size()).value() == data);
  EXPECT_EQ(Read(region.get(), 0, 3 * 512).value(), std::string(3 * 512, '\0'));
  EXPECT_EQ(Read(region.get(), uint64_t{1} << 61, 4096).value(), std::string(4096, '\0'));
  for (size_t i = 0; i < servers.size(); ++i) EXPECT_GT(servers.server(i).store().counters().pages, 100) << i;
}

TEST(PoolTest, RefusesBadRanges) {
  TestPool servers(1);
  auto pool = servers.Open();
  auto region = pool->CreateRegion({}).value();
  std::string data(1000, 'x');
  EXPECT_EQ(region->Write(0, Bytes(data)).code(), absl::StatusCode::kInvalidArgument);
  data.resize(512);
  EXPECT_EQ(region->Write(1, Bytes(data)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(region->Read(kRegionBytesMax, Into(&data)).code(), absl::StatusCode::kInvalidArgument);
  const ChunkMask outside[] = {0x02};
  EXPECT_EQ(region->WriteChunks(0, Bytes(data), outside).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_TRUE(region->Read(kRegionBytesMax - 512, Into(&data)).ok());
  EXPECT_TRUE(region->Write(0, {}).ok());
  EXPECT_EQ(pool->CreateRegion({.copies = 5}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PoolTest, TrimAndDestroyFreeAtOnce) {
  TestPool servers(2);
  auto pool = servers.Open();
  auto region = pool->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(region->Write(0, Bytes(Pattern(8 * kMiB, 1))).ok());
  ASSERT_TRUE(region->Trim(kMiB, 4 * kMiB).ok());
  const auto pages = [&] {
    return servers.server(0).store().counters().pages + servers.server(1).store().counters().pages;
  };
  EXPECT_EQ(pages(), 4 * kMiB / kPageBytes);
  EXPECT_EQ(Read(region.get(), 2 * kMiB, 4096).value(), std::string(4096, '\0'));
  ASSERT_TRUE(region->Destroy().ok());
  EXPECT_EQ(pages(), 0);
  EXPECT_EQ(region->Write(0, Bytes(Pattern(512, 1))).code(), absl::StatusCode::kFailedPrecondition);
}

TEST(PoolTest, AsynchronousOperationsComplete) {
  TestPool servers(2);
  auto pool = servers.Open();
  auto region = pool->CreateRegion({.gc = true}).value();
  const std::string data = Pattern(6 * kMiB, 1);  // needs more parts than one Io has
  Io io;
  region->StartWrite(&io, 0, Bytes(data));
  ASSERT_TRUE(io.Wait().ok());
  std::string back(data.size(), '?');
  region->StartRead(&io, 0, Into(&back));
  ASSERT_TRUE(io.Wait().ok());
  EXPECT_TRUE(back == data);
  // A bad range is an error of the operation too.
  region->StartRead(&io, 1, Into(&back));
  EXPECT_EQ(io.Wait().code(), absl::StatusCode::kInvalidArgument);
}

struct Chain {
  Region* region;
  std::string buffer;
  int left;
  std::atomic<bool> finished{false};
  static void Next(Io* io, void* context) {
    auto* chain = static_cast<Chain*>(context);
    if (--chain->left == 0) {
      chain->finished = true;
    } else {
      chain->region->StartRead(io, kMiB, Into(&chain->buffer), {}, &Chain::Next, chain);
    }
  }
};

TEST(PoolTest, CallbacksMayStartTheNext) {
  TestPool servers(2);
  auto pool = servers.Open();
  auto region = pool->CreateRegion({.gc = true}).value();
  const std::string data = Pattern(6 * kMiB, 1);
  ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
  Chain chain{region.get(), std::string(3 * kMiB, '?'), 30};
  Io io;
  region->StartRead(&io, kMiB, Into(&chain.buffer), {}, &Chain::Next, &chain);
  const int64_t deadline_ns = DeadlineAfterMs(20'000);
  while (!chain.finished && MonotonicNs() < deadline_ns) std::this_thread::yield();
  ASSERT_TRUE(chain.finished);
  EXPECT_TRUE(chain.buffer == data.substr(kMiB, 3 * kMiB));
}

// A socket becomes full while the poller receives the replies to all earlier calls: only the poller is there to send
// the rest.
TEST(PoolTest, WritesThatNobodyWaitsForAreSentWhole) {
  TestPool servers(1);
  FaultyRelay relay({"127.0.0.1", servers.server(0).data_port(), ""}, TestSeed());
  PoolOptions options = servers.Options();
  options.reroute_data_for_test = [&](size_t, const Endpoint&) { return relay.endpoint(); };
  auto pool = TestPool::Open(options);
  auto region = pool->CreateRegion({.gc = true}).value();
  const std::string data = Pattern(2 * kMiB, 1);
  ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
  // The socket fills up now and then, and replies come at any time.
  relay.SetPlan({.delay = 0.5, .delay_us_max = 300});
  struct Lane {
    Io io;
    std::atomic<bool> done{false};
  };
  Lane small, large;
  IoOptions how;
  how.timeout_ms = 5'000;  // past that the connection breaks, and the operation is an error
  const auto start = [&](Lane* lane, size_t bytes) {
    lane->done = false;
    region->StartWrite(
        &lane->io, 0, Bytes(data).subspan(0, bytes), how,
        [](Io*, void* context) { static_cast<Lane*>(context)->done = true; }, lane);
  };
  std::mt19937_64 random(TestSeed());
  const uint64_t connections = servers.server(0).connections().accepted;
  for (int step = 0; step < 800; ++step) {
    start(&small, kPageBytes);
    for (const int64_t until_ns = MonotonicNs() + static_cast<int64_t>(random() % 300'000); MonotonicNs() < until_ns;) {
    }
    start(&large, data.size());
    while (!small.done || !large.done) std::this_thread::yield();
    ASSERT_TRUE(small.io.Wait().ok()) << step << ": " << small.io.Wait();
    ASSERT_TRUE(large.io.Wait().ok()) << step << ": " << large.io.Wait();
    ASSERT_EQ(servers.server(0).connections().accepted, connections) << "step " << step << " took a reconnection";
  }
}

TEST(PoolTest, OpenLeavesOutWhoDoesNotAnswerAndTakesHimInLater) {
  TestPool servers(2);
  servers.StopServer(1);
  PoolOptions options = servers.Options();
  options.open_timeout_ms = 3000;
  auto pool = TestPool::Open(options);
  EXPECT_TRUE(pool->session(0)->up());
  EXPECT_FALSE(pool->session(1)->up());
  auto region = pool->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(region->Write(0, Bytes(Pattern(4 * kMiB, 1))).ok());
  servers.StartServer(1);
  ASSERT_TRUE(pool->session(1)->AwaitUp(DeadlineAfterMs(10'000)).ok());
  ASSERT_TRUE(region->Write(4 * kMiB, Bytes(Pattern(8 * kMiB, 2))).ok());
  EXPECT_GT(servers.server(1).store().counters().pages, 0);
}

TEST(PoolTest, NobodyAnswersIsAClearError) {
  PoolOptions options;
  options.servers = {{"127.0.0.1", 9, ""}};
  options.open_timeout_ms = 300;
  options.io_timeout_ms = 60'000;
  const int64_t patience_ns = DeadlineAfterMs(30'000);
  const auto pool = Pool::Open(options);
  EXPECT_LT(MonotonicNs(), patience_ns) << "who refuses is not waited for";
  EXPECT_EQ(pool.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(pool.status().message()), HasSubstr("127.0.0.1:9"));
}

TEST(PoolTest, ARestartedServerMeansDataLossNeverZeros) {
  TestPool servers(2);
  auto pool = servers.Open();
  auto region = pool->CreateRegion({.gc = true}).value();
  const std::string data = Pattern(16 * kMiB, 1);
  ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
  servers.StopServer(1);
  servers.StartServer(1);
  int lost = 0, kept = 0;
  for (uint64_t at = 0; at < data.size(); at += kMiB) {
    const auto back = Read(region.get(), at, kMiB);
    if (back.ok()) {
      ++kept;
      ASSERT_TRUE(*back == data.substr(at, kMiB));
    } else {
      ++lost;
      ASSERT_EQ(back.status().code(), absl::StatusCode::kDataLoss) << back.status();
      // Writing to a lost span is DATA_LOSS too.
      ASSERT_EQ(region->Write(at, Bytes(data).subspan(0, 512)).code(), absl::StatusCode::kDataLoss);
    }
  }
  EXPECT_GT(lost, 0);
  EXPECT_GT(kept, 0);
  // The rest of the pool, the restarted server included, serves other regions.
  auto other = pool->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(other->Write(0, Bytes(data)).ok());
  EXPECT_TRUE(Read(other.get(), 0, data.size()).value() == data);
  EXPECT_GT(servers.server(1).store().counters().pages, 0);
}

TEST(PoolTest, ADonorWhoseMemoryHasChangedMeansDataLossNeverAWrongByte) {
  TestPool servers(1);
  auto pool = servers.Open();
  auto region = pool->CreateRegion({.gc = true}).value();
  const std::string data = Pattern(kMiB, 1);
  ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
  ASSERT_EQ(servers.server(0).store().ReadInPlace(
                {.region = {region->id(), 0}, .range = {3 * kChunksPerPage, 1}},
                [](const auto& stored) { static_cast<std::byte*>(stored.chunks[0].iov_base)[100] ^= std::byte{1}; }),
            Reason::kOk);
  const absl::Status one = Read(region.get(), 3 * kPageBytes, kPageBytes).status();
  EXPECT_EQ(one.code(), absl::StatusCode::kDataLoss);
  EXPECT_THAT(one.message(), HasSubstr("is that machine's memory sound?"));
  EXPECT_EQ(Read(region.get(), 0, kMiB).status().code(), absl::StatusCode::kDataLoss);
  // Other calls on that connection, which breaks each time, succeed all the same.
  std::string others(kMiB / 2, '?');
  std::string damaged(kMiB / 2, '?');
  Io io[2];
  region->StartRead(&io[0], 0, Into(&damaged));
  region->StartRead(&io[1], kMiB / 2, Into(&others));
  EXPECT_EQ(io[0].Wait().code(), absl::StatusCode::kDataLoss);
  EXPECT_TRUE(io[1].Wait().ok());
  EXPECT_TRUE(others == data.substr(kMiB / 2));
  ASSERT_TRUE(region->Write(3 * kPageBytes, Bytes(data).subspan(3 * kPageBytes, kPageBytes)).ok());
  EXPECT_TRUE(Read(region.get(), 0, kMiB).value() == data);
}

TEST(PoolTest, AFrozenServerEndsInTheDeadlineAndTheOthersGoOn) {
  TestPool servers(2);
  FaultyRelay relay({"127.0.0.1", servers.server(1).data_port(), ""}, TestSeed());
  PoolOptions options = servers.Options();
  options.fail_fast_after_ms = 120'000;  // so that operations end only by their own deadlines
  options.reroute_data_for_test = [&](size_t server, const Endpoint& data) {
    return server == 1 ? relay.endpoint() : data;
  };
  auto pool = TestPool::Open(options);
  auto region = pool->CreateRegion({.gc = true}).value();
  const std::string data = Pattern(16 * kMiB, 1);
  ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
  const uint64_t frozen_spans = servers.server(1).store().counters().pages / kPagesPerSpan;
  ASSERT_GT(frozen_spans, 0);
  ASSERT_LT(frozen_spans, data.size() / kMiB);
  relay.Hold(true);
  // Has more time than all others together take. It neither delays them nor ends with them, although their deadlines
  // break its connection again and again.
  Io patient;
  std::string patients(4096, '?');
  uint64_t patients_at = 0, late = 0;
  for (uint64_t at = 0; at < data.size(); at += kMiB) {
    const int64_t deadline_ns = DeadlineAfterMs(1'000);
    const auto back = Read(region.get(), at, 4096, {.timeout_ms = 1'000});
    if (back.ok()) {
      EXPECT_EQ(*back, data.substr(at, 4096));
      continue;
    }
    EXPECT_GE(MonotonicNs(), deadline_ns) << "it gave up early: " << back.status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(back.status()) || absl::IsUnavailable(back.status())) << back.status();
    if (late++ > 0) continue;
    patients_at = at;
    region->StartRead(&patient, at, Into(&patients), {.timeout_ms = 60'000});
  }
  EXPECT_EQ(late, frozen_spans) << "reads of the other server's spans failed, or the frozen one answered";
  EXPECT_FALSE(patient.done()) << "later than its deadline, or before: " << patient.Wait();
  // New spans are placed on the other server.
  auto fresh = pool->CreateRegion({.gc = true}).value();
  for (uint64_t at = 0; at < 8 * kMiB; at += kMiB) {
    const absl::Status written = fresh->Write(at, Bytes(data).subspan(at, 4096));
    EXPECT_TRUE(written.ok()) << at << ": " << written;
  }
  EXPECT_EQ(servers.server(1).store().counters().pages, frozen_spans * kPagesPerSpan);
  // An operation that still waits when the server answers again has lost nothing.
  relay.Hold(false);
  ASSERT_TRUE(patient.Wait().ok()) << patient.Wait();
  EXPECT_EQ(patients, data.substr(patients_at, 4096));
  EXPECT_TRUE(Read(region.get(), 0, data.size()).value() == data);
}

TEST(PoolTest, AnEndedPoolsGcRegionsAreCollectedAndOthersAreOrphans) {
  TestPool servers(1);
  {
    auto pool = servers.Open();
    auto collected = pool->CreateRegion({.gc = true}).value();
    auto kept = pool->CreateRegion({.gc = false}).value();
    ASSERT_TRUE(collected->Write(0, Bytes(Pattern(4096, 1))).ok());
    ASSERT_TRUE(kept->Write(0, Bytes(Pattern(4096, 1))).ok());
  }
  EXPECT_EQ(servers.server(0).store().counters().regions, 1);
  EXPECT_EQ(servers.server(0).store().CountOrphans(), 1);
  EXPECT_EQ(servers.server(0).arena().usage().reserved_bytes, 0);
}

TEST(PoolTest, ALeaseThatIsNotRenewedEnds) {
  FakeClock clock;
  TestPool servers(1, 128 * kMiB, &clock);
  auto pool = servers.Open();
  auto region = pool->CreateRegion({.gc = true}).value();
  auto kept = pool->CreateRegion({.gc = false}).value();
  ASSERT_TRUE(region->Write(0, Bytes(Pattern(4096, 1))).ok());
  ASSERT_TRUE(kept->Write(0, Bytes(Pattern(4096, 2))).ok());
  // The lease ends as if this client had slept.
  clock.AdvanceMs(60'000);
  servers.server(0).CollectOnce();
  const absl::Status lost = Read(region.get(), 0, 4096).status();
  EXPECT_EQ(lost.code(), absl::StatusCode::kDataLoss) << lost;
  // The client reattaches by itself to the region that was not collected.
  ASSERT_TRUE(kept->Write(4096, Bytes(Pattern(4096, 3))).ok());
  EXPECT_EQ(Read(kept.get(), 0, 4096).value(), Pattern(4096, 2));
}

TEST(PoolTest, NamedRegionsAreAttachedByOthers) {
  TestPool servers(2);
  auto first = servers.Open();
  auto region = first->CreateRegion({.name = "heap", .size_bytes = 1234}).value();
  const std::string data = Pattern(5 * kMiB, 1);
  ASSERT_TRUE(region->Write(kMiB, Bytes(data)).ok());
  EXPECT_EQ(first->CreateRegion({.name = "heap"}).status().code(), absl::StatusCode::kAlreadyExists);

  auto second = servers.Open();
  EXPECT_EQ(second->AttachRegion("nothing", AttachMode::kReadOnly).status().code(), absl::StatusCode::kNotFound);
  auto reader = second->AttachRegion("heap", AttachMode::kReadOnly).value();
  EXPECT_EQ(reader->size_bytes(), 1234);
  EXPECT_TRUE(Read(reader.get(), kMiB, data.size()).value() == data);
  EXPECT_EQ(reader->Write(0, Bytes(data)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(second->AttachRegion("heap", AttachMode::kOwner).status().code(), absl::StatusCode::kFailedPrecondition);

  // With two owners the older is shut out.
  auto taken = second->AttachRegion("heap", AttachMode::kTakeOver).value();
  EXPECT_EQ(region->Write(kMiB, Bytes(data)).code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(Read(region.get(), kMiB, 4096).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(taken->Write(0, Bytes(data)).ok());
  EXPECT_TRUE(Read(reader.get(), kMiB + 4 * kMiB, 4096).ok());

  // A later run attaches the region of an earlier one.
  taken.reset();
  reader.reset();
  second.reset();
  auto third = servers.Open();
  auto again = third->AttachRegion("heap", AttachMode::kOwner).value();
  EXPECT_TRUE(Read(again.get(), 0, data.size()).value() == data);
  servers.StopServer(0);
  servers.StartServer(0);
  auto fourth = servers.Open();
  EXPECT_EQ(fourth->AttachRegion("heap", AttachMode::kReadOnly).status().code(), absl::StatusCode::kDataLoss);
}

TEST(PoolTest, APartThatWasCollectedIsALossToWhoAttachesTheRest) {
  TestPool servers(2);
  auto owner = servers.Open();
  auto region = owner->CreateRegion({.gc = true, .name = "array", .size_bytes = 4 * kMiB}).value();
  ASSERT_TRUE(region->Write(0, Bytes(Pattern(4 * kMiB, 1))).ok());
  ASSERT_GT(servers.server(0).store().counters().pages, 0);
  auto second = servers.Open();
  ASSERT_TRUE(second->AttachRegion("array", AttachMode::kReadOnly).ok());
  // One server has not heard of the owner for a while.
  const auto lease = servers.server(0).leases().End(owner->session(0)->lease());
  ASSERT_NE(lease, nullptr);
  servers.server(0).store().CollectLease(*lease);
  for (const AttachMode mode : {AttachMode::kReadOnly, AttachMode::kTakeOver}) {
    EXPECT_EQ(second->AttachRegion("array", mode).status().code(), absl::StatusCode::kDataLoss);
  }
}

// A donor that is also a client must not be able to act as another client elsewhere.
TEST(PoolTest, WhatOneServerKnowsOfALeaseIsWorthNothingAtAnother) {
  TestPool servers(2);
  auto pool = servers.Open();
  const auto renew = [&](int lease_of, int at) {
    return pool->session(at)->control()->RenewLease(pool->session(lease_of)->lease(), {}, DeadlineAfterMs(20'000));
  };
  EXPECT_TRUE(renew(0, 0).ok() && renew(1, 1).ok());
  EXPECT_TRUE(absl::IsNotFound(renew(0, 1).status()) && absl::IsNotFound(renew(1, 0).status()));
}

TEST(PoolTest, WhoIsRefusedHasTakenTheRegionFromNobody) {
  TestPool servers(2);
  auto owner = servers.Open();
  auto region = owner->CreateRegion({.gc = false, .name = "array"}).value();
  const std::string data = Pattern(4 * kMiB, 1);
  ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
  auto second = servers.Open();
  ASSERT_NE(servers.server(0).leases().End(owner->session(0)->lease()), nullptr);
  EXPECT_EQ(second->AttachRegion("array", AttachMode::kOwner).status().code(), absl::StatusCode::kFailedPrecondition);
  // The owner returns to the one server and was never away from the other.
  const absl::Status status = region->Write(0, Bytes(data));
  EXPECT_TRUE(status.ok()) << status;
}

TEST(PoolTest, ADrainingServerTakesNoNewSpans) {
  TestPool servers(2);
  auto pool = servers.Open();
  servers.server(0).SetDraining(true);
  auto fresh = servers.Open();
  auto region = fresh->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(region->Write(0, Bytes(Pattern(8 * kMiB, 1))).ok());
  EXPECT_EQ(servers.server(0).store().counters().pages, 0);
}

}  // namespace
}  // namespace nram
