// The pool client on real servers: its promises, and its behaviour when servers fail.

#include "client/pool/pool.h"

#include <poll.h>

#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
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
  EXPECT_EQ(pool->CreateRegion({.replicas = 2}).status().code(), absl::StatusCode::kUnimplemented);
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
                {.region = region->id(), .range = {3 * kChunksPerPage, 1}},
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
  options.fail_fast_after_ms = 120'000;  // so that nothing ends but by its own deadline
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
  // Has more time than all others together take. It neither delays them nor is ended by them, whose deadlines break its
  // connection again and again.
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
  // Whoever still waits when the server answers again has lost nothing.
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
  // The client takes up the region that was not collected again by itself.
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

  // A later run attaches what an earlier one left.
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
  const auto lease = servers.server(0).leases().End(owner->lease());
  ASSERT_NE(lease, nullptr);
  servers.server(0).store().CollectLease(*lease);
  for (const AttachMode mode : {AttachMode::kReadOnly, AttachMode::kTakeOver}) {
    EXPECT_EQ(second->AttachRegion("array", mode).status().code(), absl::StatusCode::kDataLoss);
  }
}

TEST(PoolTest, WhoIsRefusedHasTakenTheRegionFromNobody) {
  TestPool servers(2);
  auto owner = servers.Open();
  auto region = owner->CreateRegion({.gc = false, .name = "array"}).value();
  const std::string data = Pattern(4 * kMiB, 1);
  ASSERT_TRUE(region->Write(0, Bytes(data)).ok());
  auto second = servers.Open();
  ASSERT_NE(servers.server(0).leases().End(owner->lease()), nullptr);
  EXPECT_EQ(second->AttachRegion("array", AttachMode::kOwner).status().code(), absl::StatusCode::kFailedPrecondition);
  // The owner comes back to the one server and was never away from the other.
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

// Two servers, and a client all of whose data goes through relays that make faults.
class PoolModelTest : public ::testing::Test {
 protected:
  PoolModelTest() {
    for (int i = 0; i < 2; ++i) {
      relays_.push_back(
          std::make_unique<FaultyRelay>(Endpoint{"127.0.0.1", servers_.server(i).data_port(), ""}, TestSeed() + i));
    }
  }

  PoolOptions Options() const {
    PoolOptions options = servers_.Options();
    options.reroute_data_for_test = [this](size_t server, const Endpoint&) { return relays_[server]->endpoint(); };
    return options;
  }
  void SetPlan(const FaultPlan& plan) {
    for (auto& relay : relays_) relay->SetPlan(plan);
  }
  uint64_t faults() const { return relays_[0]->faults() + relays_[1]->faults(); }

  // Servers refuse connections for a while, freeze for a while, and end the pool's leases, in turn.
  void MakeTrouble(const Pool& pool, const std::atomic<bool>& done) {
    for (int round = 0; !done; ++round) {
      FaultyRelay& relay = *relays_[round % 2];
      switch (round % 3) {
        case 0:
          relay.SetDown(true);
          poll(nullptr, 0, 20);
          relay.SetDown(false);
          break;
        case 1:
          relay.Hold(true);
          poll(nullptr, 0, 20);
          relay.Hold(false);
          break;
        default:
          (void)servers_.server(round % 2).leases().End(pool.lease());
      }
      poll(nullptr, 0, 30);
    }
  }

  TestPool servers_{2, 256 * kMiB};
  std::vector<std::unique_ptr<FaultyRelay>> relays_;
};

// A part of a region that only one thread uses, and a plain string that should be the same.
class PlainModel {
 public:
  PlainModel(Region* region, int thread)
      : region_(region), base_(thread * kChunks * kChunkBytes), random_(TestSeed() + 100 + thread) {}

  // A random operation; a fatal failure of the test if it fails, or reads other data than the model's.
  void Step() {
    const uint64_t first = random_() % kChunks;
    const uint64_t count = std::min<uint64_t>(1 + random_() % (random_() % 8 == 0 ? 3000 : 40), kChunks - first);
    const std::string data = Pattern(count * kChunkBytes, random_());
    const IoOptions how{.io_class = random_() % 2 == 0 ? IoClass::kUrgent : IoClass::kBulk};
    absl::Status status;
    switch (random_() % 5) {
      case 0:
        status = region_->Trim(base_ + first * kChunkBytes, count * kChunkBytes);
        memset(&model_[first * kChunkBytes], 0, count * kChunkBytes);
        break;
      case 1:
        status = Write(first, data, how);
        break;
      case 2:
        status = WriteSomeChunks(first, data, how);
        break;
      default: {
        std::string back(count * kChunkBytes, '?');
        status = Read(first, &back, how);
        if (status.ok()) {
          ASSERT_TRUE(back == model_.substr(first * kChunkBytes, back.size()));
        }
      }
    }
    // Retries repair every failure; only the model's own operations may change the region.
    ASSERT_TRUE(status.ok()) << status;
  }

 private:
  static constexpr uint64_t kChunks = 6 * kChunksPerSpan;

  absl::Status Write(uint64_t first, const std::string& data, const IoOptions& how) {
    const uint64_t offset = base_ + first * kChunkBytes;
    absl::Status status;
    if (random_() % 2 == 0) {
      region_->StartWrite(&io_, offset, Bytes(data), how);
      status = io_.Wait();
    } else {
      status = region_->Write(offset, Bytes(data), how);
    }
    model_.replace(first * kChunkBytes, data.size(), data);
    return status;
  }

  absl::Status WriteSomeChunks(uint64_t first, const std::string& data, const IoOptions& how) {
    const uint64_t offset = base_ + first * kChunkBytes;
    const ChunkRange range{offset / kChunkBytes, data.size() / kChunkBytes};
    std::vector<ChunkMask> masks;
    for (uint64_t page = 0; page < range.pages(); ++page)
      masks.push_back(MaskOfPage(range, range.first_page() + page) & random_());
    const absl::Status status = region_->WriteChunks(offset, Bytes(data), masks, how);
    for (uint64_t chunk = range.first; chunk < range.end(); ++chunk) {
      if ((masks[chunk / 8 - range.first_page()] >> chunk % 8 & 1) == 0) continue;
      model_.replace((chunk - range.first + first) * kChunkBytes, kChunkBytes, data,
                     (chunk - range.first) * kChunkBytes, kChunkBytes);
    }
    return status;
  }

  absl::Status Read(uint64_t first, std::string* back, const IoOptions& how) {
    const uint64_t offset = base_ + first * kChunkBytes;
    if (random_() % 2 != 0) return region_->Read(offset, Into(back), how);
    region_->StartRead(&io_, offset, Into(back), how);
    return io_.Wait();
  }

  Region* const region_;
  const uint64_t base_;  // where the part begins
  std::mt19937_64 random_;
  std::string model_ = std::string(kChunks * kChunkBytes, '\0');
  Io io_;
};

// Random operations from many threads against a plain map, over connections that fail in every way.
TEST_F(PoolModelTest, AgreesWithAMapOverAFaultyNetwork) {
  PoolOptions options = Options();
  options.io_timeout_ms = 30'000;
  auto pool = TestPool::Open(options);
  auto region = pool->CreateRegion({.gc = true}).value();
  SetPlan({.repeat = 0.002, .corrupt = 0.002, .cut = 0.002, .reorder = 0.002, .delay = 0.02, .delay_us_max = 500});
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      PlainModel model(region.get(), t);
      for (int i = 0; i < 250; ++i) ASSERT_NO_FATAL_FAILURE(model.Step()) << "thread " << t << " step " << i;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(faults(), 20);
}

struct Outcomes {
  std::atomic<int> failed{0}, succeeded{0};
};

// One thread's chunks of a region, and what each of them may hold when operations fail: old or new. One thread of each
// pair has the even chunks and the other the odd chunks of the same pages.
class OldOrNewModel {
 public:
  OldOrNewModel(Region* region, int thread, Outcomes* outcomes)
      : region_(region),
        thread_(thread),
        mine_(thread % 2 == 0 ? 0x55 : 0xAA),
        outcomes_(outcomes),
        random_(TestSeed() + 100 + thread) {}

  // A random operation, which may fail; a fatal failure of the test if it reads what no chunk may hold.
  void Step() {
    const uint64_t pages = 1 + random_() % (random_() % 8 == 0 ? 200 : 8);
    const uint64_t first_page = random_() % (kChunks / kChunksPerPage - pages);
    const IoOptions how{.timeout_ms = 1 + static_cast<int64_t>(random_() % 60),
                        .io_class = random_() % 2 == 0 ? IoClass::kUrgent : IoClass::kBulk};
    if (random_() % 2 == 0) {
      WriteMine(first_page, pages, how);
    } else {
      ReadAndCheck(first_page, pages, how);
    }
  }

 private:
  static constexpr uint64_t kChunks = 4 * kChunksPerSpan;

  uint64_t OffsetOf(uint64_t page) const {
    const uint64_t base = thread_ / 2 * kChunks;
    return (base + page * kChunksPerPage) * kChunkBytes;
  }
  bool IsMine(uint64_t chunk) const { return (mine_ >> chunk % kChunksPerPage & 1) != 0; }

  void WriteMine(uint64_t first_page, uint64_t pages, const IoOptions& how) {
    std::string data(pages * kPageBytes, '\0');
    const uint64_t tag = random_() << 8 | static_cast<uint64_t>(thread_) << 1 | 1;
    for (size_t at = 0; at < data.size(); at += sizeof tag) memcpy(&data[at], &tag, sizeof tag);
    const std::vector<ChunkMask> masks(pages, mine_);
    const absl::Status status = region_->WriteChunks(OffsetOf(first_page), Bytes(data), masks, how);
    ++(status.ok() ? outcomes_->succeeded : outcomes_->failed);
    for (uint64_t chunk = 0; chunk < pages * kChunksPerPage; ++chunk) {
      if (!IsMine(chunk)) continue;
      auto& may_be = possible_[first_page * kChunksPerPage + chunk];
      if (status.ok()) may_be.clear();
      may_be.push_back(tag);
    }
  }

  void ReadAndCheck(uint64_t first_page, uint64_t pages, const IoOptions& how) {
    const auto back = Read(region_, OffsetOf(first_page), pages * kPageBytes, how);
    ++(back.ok() ? outcomes_->succeeded : outcomes_->failed);
    if (!back.ok()) return;
    for (uint64_t chunk = 0; chunk < pages * kChunksPerPage; ++chunk) {
      if (!IsMine(chunk)) continue;
      uint64_t words[kChunkBytes / sizeof(uint64_t)];
      memcpy(words, &(*back)[chunk * kChunkBytes], sizeof words);
      const auto& may_be = possible_[first_page * kChunksPerPage + chunk];
      ASSERT_THAT(may_be, ::testing::Contains(words[0])) << "chunk " << chunk;
      for (const uint64_t word : words) ASSERT_EQ(word, words[0]) << "a mixed chunk";
    }
  }

  Region* const region_;
  const int thread_;
  const ChunkMask mine_;
  Outcomes* const outcomes_;
  std::mt19937_64 random_;
  // The values that each chunk may hold, by its first word; 0 is a hole.
  std::vector<std::vector<uint64_t>> possible_ = std::vector<std::vector<uint64_t>>(kChunks, {0});
};

// The same test with operations that fail: messages vanish, servers refuse connections for a while, leases end, and
// timeouts are short. An operation that failed leaves old or new data, chunk by chunk, and two threads work on the same
// pages.
TEST_F(PoolModelTest, AFailedOperationLeavesOldOrNewAndNothingElse) {
  SetPlan({.drop = 0.01, .repeat = 0.002, .corrupt = 0.002, .cut = 0.01, .reorder = 0.002});
  auto pool = TestPool::Open(Options());
  auto region = pool->CreateRegion({.gc = false}).value();  // outlives a lease
  constexpr int kThreads = 4;
  constexpr uint64_t kFaultsMin = 20;
  constexpr int kFailedMin = 10;
  Outcomes outcomes;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      OldOrNewModel model(region.get(), t, &outcomes);
      // The loop runs longer if so few operations went through the relays that these had hardly a chance to fail.
      const auto needs_more = [&] { return faults() <= kFaultsMin || outcomes.failed <= kFailedMin; };
      for (int i = 0; i < 300 || (i < 6000 && needs_more()); ++i) {
        ASSERT_NO_FATAL_FAILURE(model.Step()) << "thread " << t << " step " << i;
      }
    });
  }
  std::thread trouble([&] { MakeTrouble(*pool, done); });
  for (auto& thread : threads) thread.join();
  done = true;
  trouble.join();
  EXPECT_GT(outcomes.failed, kFailedMin);
  EXPECT_GT(outcomes.succeeded, 100);
  EXPECT_GT(faults(), kFaultsMin);
}

}  // namespace
}  // namespace nram
