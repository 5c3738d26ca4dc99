// Regions of two copies on real servers, each of which counts as a host of its own, while servers end, start again and
// leave.

#include <atomic>
#include <filesystem>
#include <iterator>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/poll_until.h"
#include "base/test_seed.h"
#include "base/units.h"
#include "client/pool/pool.h"
#include "client/transport/control_client.h"
#include "gtest/gtest.h"
#include "tests/util/plain_model.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

constexpr int64_t kPatienceMs = 60'000;
constexpr int64_t kLookMs = 5;

class CopiesTest : public ::testing::Test {
 protected:
  explicit CopiesTest(int servers = 3) : servers_(servers, 128 * kMiB, Clock::Real(), TestPool::Hosts::kPretended) {}

  void SetUp() override {
    pool_ = TestPool::Open(Options());
    ASSERT_NE(pool_, nullptr);
    region_ = MakeRegion();
  }
  PoolOptions Options() const {
    PoolOptions options = servers_.Options();
    options.ExpectCopies();
    options.replace_after_ms = 300;
    options.repair_bytes_per_s = PoolOptions::kRepairUnbounded;
    options.io_timeout_ms = 30'000;
    options.reserve_step_bytes = kMiB;
    return options;
  }
  std::unique_ptr<Region> MakeRegion(bool gc = true) {
    auto region = pool_->CreateRegion({.gc = gc, .copies = 2});
    EXPECT_TRUE(region.ok()) << region.status();
    return *std::move(region);
  }
  void Write(uint64_t offset, const std::string& data) {
    const absl::Status status = region_->Write(offset, Bytes(data));
    ASSERT_TRUE(status.ok()) << status;
    if (model_.size() < offset + data.size()) model_.resize(offset + data.size(), '\0');
    model_.replace(offset, data.size(), data);
  }
  // The region reads as the model.
  void Check() {
    for (uint64_t at = 0; at < model_.size(); at += kMiB) {
      const auto back = Read(region_.get(), at, kMiB);
      ASSERT_TRUE(back.ok()) << "at " << at << ": " << back.status();
      ASSERT_TRUE(*back == model_.substr(at, kMiB)) << "wrong bytes in the span at " << at;
    }
  }
  template <typename Done>
  bool Await(Done done) {
    return PollUntil(DeadlineAfterMs(kPatienceMs), kLookMs, done);
  }

  uint64_t PagesOf(int i) { return servers_.server(i).store().counters().pages; }
  uint64_t AllPages() {
    uint64_t pages = 0;
    for (size_t i = 0; i < servers_.size(); ++i) pages += servers_.runs(i) ? PagesOf(i) : 0;
    return pages;
  }
  // The span that holds the page has two copies in sync, in the present lives of servers that run and remain.
  bool HasTwoCopies(uint64_t page, const std::set<uint16_t>& leaving = {}) {
    CopyMap::Legs legs;
    bool unsettled = false;
    const CopyMap::ReadState state =
        region_->map()->copies()->LookForRead({page * kChunksPerPage, 1}, &legs, &unsettled);
    if (state != CopyMap::ReadState::kPlaced || unsettled || legs.size() != 2) return false;
    for (const CopyMap::Leg& leg : legs) {
      const uint16_t server = leg.life.server;
      if (leaving.contains(server) || !servers_.runs(server)) return false;
      if (leg.life.incarnation != servers_.server(server).incarnation()) return false;
    }
    return true;
  }
  bool IsWhole(uint64_t span, const std::set<uint16_t>& leaving = {}) {
    return HasTwoCopies(span * kPagesPerSpan, leaving);
  }
  // A busy machine may need several tries to connect.
  void Drain(ControlClient* control, bool leaves) {
    absl::Status status;
    ASSERT_TRUE(Await([&] { return (status = control->Drain(leaves, leaves, DeadlineAfterMs(kPatienceMs))).ok(); }))
        << status;
  }
  // All spans of the model are whole, and the pool has counted them.
  void AwaitWhole(const std::set<uint16_t>& leaving = {}) {
    const uint64_t spans = model_.size() / kMiB;
    uint64_t bad = 0;
    ASSERT_TRUE(Await([&] {
      for (bad = 0; bad < spans && IsWhole(bad, leaving); ++bad) {
      }
      return bad == spans;
    })) << "span "
        << bad << " does not get its copies";
    ASSERT_TRUE(Await([&] {
      const CopiesReport report = pool_->copies();
      return report.in_sync == spans && report.degraded + report.repairing + report.lost + report.moving == 0;
    })) << pool_->copies().degraded
        << " are degraded, " << pool_->copies().in_sync << " in sync";
  }
  // Another client takes all room that is not reserved.
  static void FillUp(Pool* pool, std::unique_ptr<Region>* greedy) {
    *greedy = pool->CreateRegion({.gc = true}).value();
    const std::string data = Pattern(kMiB, 77);
    uint64_t at = 0;
    for (const size_t bytes : {kMiB, kPageBytes}) {
      absl::Status status;
      while ((status = (*greedy)->Write(at, Bytes(data.substr(0, bytes)))).ok()) at += bytes;
      ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    }
  }
  // Each page by itself, in any order.
  void WritePages(uint64_t bytes) {
    const std::string data = Pattern(bytes, 5);
    const uint64_t pages = bytes / kPageBytes;
    for (uint64_t i = 0; i < pages; ++i) {
      const uint64_t at = i * 4099 % pages * kPageBytes;
      const absl::Status status = region_->Write(at, Bytes(data.substr(at, kPageBytes)));
      ASSERT_TRUE(status.ok()) << "page " << i << ": " << status;
    }
    model_ = data;
  }

  TestPool servers_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Region> region_;
  std::string model_;
};

TEST_F(CopiesTest, EachPageIsOnTwoServers) {
  Write(0, Pattern(6 * kMiB, 1));
  EXPECT_EQ(AllPages(), 2 * 6 * kPagesPerSpan);
  AwaitWhole();
  for (int i = 0; i < 3; ++i) EXPECT_GT(PagesOf(i), 0u) << i;
  Check();
  Write(kMiB - 512, Pattern(1024, 2));
  ASSERT_TRUE(region_->Trim(2 * kMiB, 2 * kMiB).ok());
  model_.replace(2 * kMiB, 2 * kMiB, 2 * kMiB, '\0');
  EXPECT_EQ(AllPages(), 2 * 4 * kPagesPerSpan);
  Check();
  Write(3 * kMiB + 4096, Pattern(512, 3));
  EXPECT_EQ(AllPages(), 2 * 4 * kPagesPerSpan + 2);
  Check();
}

TEST(CopiesOnOneHostTest, ThereIsNoPlaceForTwoCopies) {
  TestPool alone(2);
  PoolOptions options = alone.Options();
  options.ExpectCopies();
  const auto pool = TestPool::Open(options);
  ASSERT_NE(pool, nullptr);
  const auto region = pool->CreateRegion({.gc = true, .copies = 2}).value();
  EXPECT_EQ(region->Write(0, Bytes(Pattern(4096, 1))).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(alone.server(0).store().counters().pages + alone.server(1).store().counters().pages, 0);
  EXPECT_EQ(pool->CreateRegion({.gc = true, .copies = 5}).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST_F(CopiesTest, RoomIsReservedOnEachCopy) {
  constexpr uint64_t kSpans = 16;
  ASSERT_TRUE(region_->Reserve(0, kSpans * kMiB).ok());
  std::vector<uint64_t> spans_of(servers_.size());
  for (uint64_t span = 0; span < kSpans; ++span) {
    const CopyMap::Servers at = region_->map()->copies()->ServersOf(span);
    ASSERT_EQ(at.size(), 2u);
    for (const uint16_t server : at) ++spans_of[server];
    EXPECT_EQ(region_->map()->copies()->ReservedPages(span), kPagesPerSpan);
  }
  for (int i = 0; i < 3; ++i) {
    EXPECT_GE(region_->map()->reserved_bytes(i), spans_of[i] * kMiB) << i;
    EXPECT_GE(servers_.server(i).arena().usage().reserved_bytes, spans_of[i] * kMiB) << i;
  }
  const auto other_pool = TestPool::Open(servers_.Options());
  std::unique_ptr<Region> greedy;
  ASSERT_NO_FATAL_FAILURE(FillUp(other_pool.get(), &greedy));
  ASSERT_NO_FATAL_FAILURE(WritePages(kSpans * kMiB));
  Check();
  for (uint64_t span = 0; span < kSpans; ++span) EXPECT_TRUE(IsWhole(span)) << span << ": for lack of room";
}

TEST_F(CopiesTest, ReservedRoomMovesWithTheCopies) {
  constexpr uint64_t kSpans = 16;
  ASSERT_TRUE(region_->Reserve(0, kSpans * kMiB).ok());
  servers_.StopServer(0);
  uint64_t bad = 0;
  ASSERT_TRUE(Await([&] {
    for (bad = 0; bad < kSpans; ++bad) {
      const CopyMap::Servers at = region_->map()->copies()->ServersOf(bad);
      if (at.size() != 2 || at[0] == 0 || at[1] == 0) return false;
    }
    return true;
  })) << "span "
      << bad << " does not move";
  for (const int i : {1, 2}) {
    EXPECT_GE(servers_.server(i).arena().usage().reserved_bytes, kSpans * kMiB) << i;
    EXPECT_EQ(PagesOf(i), 0u) << i;
  }
  PoolOptions options = servers_.Options();
  options.servers.erase(options.servers.begin());  // its absence would make the pool's clients wait for it
  const auto other_pool = TestPool::Open(options);
  std::unique_ptr<Region> greedy;
  ASSERT_NO_FATAL_FAILURE(FillUp(other_pool.get(), &greedy));
  ASSERT_NO_FATAL_FAILURE(WritePages(kSpans * kMiB));
  Check();
  for (uint64_t span = 0; span < kSpans; ++span) EXPECT_TRUE(IsWhole(span)) << span << ": for lack of room";
}

// The first spans' copies are settled on the way: the settling must leave nothing in the message for the next one.
TEST_F(CopiesTest, ATrimOfManySpansBesideADeadServer) {
  constexpr uint64_t kSpans = 40;
  const std::string data = Pattern(kMiB, 5);
  for (uint64_t span = 0; span < kSpans; ++span) Write(span * kMiB, data);
  servers_.StopServer(1);
  const int64_t began_ns = MonotonicNs();
  const absl::Status status = region_->Trim(0, kSpans * kMiB);
  ASSERT_TRUE(status.ok()) << status << " after " << (MonotonicNs() - began_ns) / kNsPerMs << " ms";
  model_.assign(model_.size(), '\0');
  ASSERT_NO_FATAL_FAILURE(Check());
}

TEST_F(CopiesTest, ServersGoOneAfterTheOther) {
  ASSERT_NO_FATAL_FAILURE(Write(0, Pattern(8 * kMiB, 1)));
  AwaitWhole();
  const uint64_t made = pool_->copies().made;
  servers_.StopServer(0);
  ASSERT_NO_FATAL_FAILURE(Check());
  ASSERT_NO_FATAL_FAILURE(Write(kMiB + 512, Pattern(2 * kMiB, 2)));
  ASSERT_NO_FATAL_FAILURE(Write(8 * kMiB, Pattern(4 * kMiB, 3)));
  ASSERT_NO_FATAL_FAILURE(Check());
  ASSERT_NO_FATAL_FAILURE(AwaitWhole());
  EXPECT_TRUE(Await([&] { return pool_->copies().made > made; }));  // it is reported a little later
  EXPECT_EQ(PagesOf(1), 12 * kPagesPerSpan);
  EXPECT_EQ(PagesOf(2), 12 * kPagesPerSpan);
  // The repaired data is right: it is the only copy.
  servers_.StopServer(1);
  ASSERT_NO_FATAL_FAILURE(Check());
  ASSERT_NO_FATAL_FAILURE(Write(5 * kMiB, Pattern(kMiB, 4)));
  ASSERT_NO_FATAL_FAILURE(Write(12 * kMiB, Pattern(kMiB, 5)));
  ASSERT_NO_FATAL_FAILURE(Check());
  // A new life of the server holds nothing at first.
  servers_.StartServer(1);
  ASSERT_NO_FATAL_FAILURE(AwaitWhole());
  EXPECT_EQ(PagesOf(1), 13 * kPagesPerSpan);
  servers_.StopServer(2);
  ASSERT_NO_FATAL_FAILURE(Check());
  servers_.StartServer(0);
  ASSERT_NO_FATAL_FAILURE(AwaitWhole());
  servers_.StopServer(1);
  ASSERT_NO_FATAL_FAILURE(Check());
}

TEST_F(CopiesTest, AServerThatLeavesIsEmptied) {
  ASSERT_NO_FATAL_FAILURE(Write(0, Pattern(12 * kMiB, 1)));
  AwaitWhole();
  ASSERT_GT(PagesOf(0), 0u);
  const uint64_t made = pool_->copies().made;
  const auto control = ControlClient::Create(servers_.Options().servers[0]);
  ASSERT_NO_FATAL_FAILURE(Drain(control.get(), true));
  ASSERT_NO_FATAL_FAILURE(Check());
  ASSERT_TRUE(Await([&] { return PagesOf(0) == 0; })) << PagesOf(0) << " pages are left";
  ASSERT_NO_FATAL_FAILURE(AwaitWhole({0}));
  EXPECT_TRUE(Await([&] { return pool_->copies().made > made; }));  // it is reported a little later
  ASSERT_NO_FATAL_FAILURE(Write(11 * kMiB, Pattern(3 * kMiB, 2)));
  EXPECT_EQ(PagesOf(0), 0u) << "it has got new pages";
  servers_.StopServer(0);
  ASSERT_NO_FATAL_FAILURE(Check());
  ASSERT_NO_FATAL_FAILURE(AwaitWhole());
}

TEST_F(CopiesTest, AServerThatStaysAfterAllIsUsedAgain) {
  const auto control = ControlClient::Create(servers_.Options().servers[0]);
  ASSERT_NO_FATAL_FAILURE(Drain(control.get(), true));
  ASSERT_TRUE(Await([&] { return pool_->session(0)->capacity().leaving; }));
  ASSERT_NO_FATAL_FAILURE(Write(0, Pattern(6 * kMiB, 1)));
  EXPECT_EQ(PagesOf(0), 0u);
  ASSERT_NO_FATAL_FAILURE(Drain(control.get(), false));
  ASSERT_TRUE(Await([&] { return !pool_->session(0)->capacity().draining; }));
  servers_.StopServer(1);
  ASSERT_NO_FATAL_FAILURE(AwaitWhole());
  EXPECT_EQ(PagesOf(0), 6 * kPagesPerSpan);
  ASSERT_NO_FATAL_FAILURE(Check());
}

class LostCopiesTest : public CopiesTest {
 protected:
  LostCopiesTest() : CopiesTest(2) {}  // there is no third host for a copy

  absl::Status ReadPage(uint64_t page) { return Read(region_.get(), page * kPageBytes, kPageBytes).status(); }
};

TEST_F(LostCopiesTest, AllCopiesGoneIsALossAndNeverZeros) {
  ASSERT_NO_FATAL_FAILURE(Write(0, Pattern(2 * kMiB, 1)));
  ASSERT_NO_FATAL_FAILURE(Write(4 * kMiB, Pattern(kPageBytes, 2)));
  servers_.StopServer(0);
  servers_.StopServer(1);
  EXPECT_FALSE(Read(region_.get(), 0, kPageBytes, {.timeout_ms = 200}).ok());
  servers_.StartServer(0);
  servers_.StartServer(1);
  absl::Status status;
  ASSERT_TRUE(Await([&] {
    status = Read(region_.get(), 0, kPageBytes, {.timeout_ms = 1'000}).status();
    return status.ok() || absl::IsDataLoss(status);
  })) << status;
  for (const uint64_t span : {0, 1, 4}) {
    for (uint64_t page = span * kPagesPerSpan; page < (span + 1) * kPagesPerSpan; ++page) {
      status = ReadPage(page);
      ASSERT_TRUE(absl::IsDataLoss(status)) << "page " << page << ": " << status;
    }
  }
  for (const uint64_t at : {3 * kMiB, 5 * kMiB, 7 * kMiB}) {
    const auto back = Read(region_.get(), at, kMiB);
    ASSERT_TRUE(back.ok()) << "nothing was ever stored at " << at << ": " << back.status();
    EXPECT_TRUE(*back == std::string(kMiB, '\0'));
  }
  EXPECT_TRUE(Await([&] { return pool_->copies().lost >= 3; })) << pool_->copies().lost;

  // A write of a part does not make the page readable, and the readable part does not make another page look whole.
  const std::string data = Pattern(kPageBytes, 9);
  status = region_->Write(5 * kPageBytes, Bytes(data.substr(0, 512)));
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_TRUE(absl::IsDataLoss(ReadPage(5)));
  status = region_->Write(5 * kPageBytes, Bytes(data));
  ASSERT_TRUE(status.ok()) << status;
  const auto back = Read(region_.get(), 5 * kPageBytes, kPageBytes);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(*back == data);
  for (uint64_t page = 0; page < 2 * kPagesPerSpan; ++page) {
    if (page != 5) {
      ASSERT_TRUE(absl::IsDataLoss(ReadPage(page))) << page;
    }
  }
  // Now a part of the page may be written.
  ASSERT_TRUE(region_->Write(5 * kPageBytes + 512, Bytes(data.substr(0, 512))).ok());
  ASSERT_TRUE(region_->Trim(7 * kPageBytes, kPageBytes).ok());
  EXPECT_TRUE(Read(region_.get(), 7 * kPageBytes, kPageBytes).value() == std::string(kPageBytes, '\0'));
  EXPECT_TRUE(absl::IsDataLoss(ReadPage(8)));

  // Lost pages of a placed span are lost to newly made copies, too.
  servers_.StopServer(0);
  servers_.StartServer(0);
  ASSERT_TRUE(Await([&] { return HasTwoCopies(5); }));
  servers_.StopServer(1);
  EXPECT_TRUE(Read(region_.get(), 5 * kPageBytes, kPageBytes).value() ==
              data.substr(0, 512) + data.substr(0, 512) + data.substr(1024));
  EXPECT_TRUE(absl::IsDataLoss(ReadPage(6)));
  EXPECT_TRUE(Read(region_.get(), 7 * kPageBytes, kPageBytes).value() == std::string(kPageBytes, '\0'));
}

TEST_F(CopiesTest, DestroyFreesAllOnEachServer) {
  ASSERT_NO_FATAL_FAILURE(Write(0, Pattern(kMiB, 1)));  // from now on the pool's fixed memory is taken
  std::vector<uint64_t> before;
  const auto used = [&](int i) { return servers_.server(i).arena().usage().frame_bytes; };
  for (int i = 0; i < 3; ++i) before.push_back(used(i));
  auto doomed = MakeRegion(/*gc=*/false);
  ASSERT_TRUE(doomed->Reserve(0, 64 * kMiB).ok());
  ASSERT_TRUE(doomed->Write(0, Bytes(Pattern(6 * kMiB, 2))).ok());
  EXPECT_EQ(AllPages(), 2 * 7 * kPagesPerSpan);
  const absl::Status status = doomed->Destroy();
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_TRUE(Await([&] { return AllPages() == 2 * kPagesPerSpan; })) << AllPages();
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(Await([&] { return used(i) == before[i]; })) << i << ": " << used(i) << ", not " << before[i];
  }
  doomed = nullptr;
  // The room that it had not used is free again, except room that is reserved ahead: two steps at most on each server.
  ASSERT_TRUE(Await([&] {
    uint64_t reserved = 0;
    for (int i = 0; i < 3; ++i) reserved += servers_.server(i).arena().usage().reserved_bytes;
    return reserved <= 3 * 2 * PoolOptions().reserve_step_bytes + kMiB;
  }));
  Check();
}

TEST_F(CopiesTest, DestroyFreesAllWhileCopiesAreMade) {
  for (int round = 0; round < 6; ++round) {
    region_ = MakeRegion(/*gc=*/false);
    ASSERT_TRUE(region_->Write(0, Bytes(Pattern(16 * kMiB, round))).ok());
    const int restarted = round % 3;
    const uint64_t left = AllPages() - PagesOf(restarted);
    servers_.StopServer(restarted);
    servers_.StartServer(restarted);
    // Repair has begun on some server: it does not wait for one that is slow to return. It makes a little more progress
    // in each round.
    ASSERT_TRUE(Await([&] { return AllPages() > left + static_cast<uint64_t>(round / 2) * kPagesPerSpan; })) << round;
    const absl::Status status = region_->Destroy();
    ASSERT_TRUE(status.ok()) << "round " << round << ": " << status;
    EXPECT_EQ(region_->Write(0, Bytes(Pattern(512, 1))).code(), absl::StatusCode::kFailedPrecondition);
    region_ = nullptr;
    ASSERT_TRUE(Await([&] { return AllPages() == 0; })) << "round " << round << ": " << AllPages() << " pages";
  }
  pool_ = nullptr;  // nothing is under way any more
  EXPECT_EQ(AllPages(), 0u);
  for (size_t i = 0; i < servers_.size(); ++i) {
    const auto control = ControlClient::Create(servers_.Options().servers[i]);
    const auto regions = control->ListRegions(false, false, DeadlineAfterMs(kPatienceMs));
    ASSERT_TRUE(regions.ok()) << regions.status();
    EXPECT_TRUE(regions->empty()) << "server " << i << " has " << regions->size() << " regions";
  }
}

// Each life of a server has its own connections: they are closed when they break.
TEST_F(CopiesTest, AServerThatRestartsLeavesNoSocketsOpen) {
  const auto descriptors = [] {
    const auto listed = std::filesystem::directory_iterator("/proc/self/fd");
    return std::distance(begin(listed), end(listed));
  };
  Write(0, Pattern(2 * kMiB, 3));
  const auto before = descriptors();
  constexpr int kRestarts = 3;
  for (int i = 0; i < kRestarts; ++i) {
    const uint64_t incarnation = pool_->session(0)->incarnation();
    servers_.StopServer(0);
    servers_.StartServer(0);
    ASSERT_TRUE(Await([&] { return pool_->session(0)->usable() && pool_->session(0)->incarnation() != incarnation; }));
  }
  // gRPC keeps some of its own, for a while.
  EXPECT_TRUE(Await([&] { return descriptors() < before + kRestarts; })) << before << " before, " << descriptors();
}

// Servers end and start again, one at a time, each time after all copies are there. Then no operation fails.
TEST_F(CopiesTest, AgreesWithAMapWhileServersRestart) {
  constexpr int kThreads = 3;
  std::atomic<bool> done{false};
  std::atomic<uint64_t> steps{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      PlainModel model(region_.get(), t);
      for (int i = 0; (i < 200 || !done) && !HasFailure(); ++i, ++steps) {
        ASSERT_NO_FATAL_FAILURE(model.Step()) << "thread " << t << " step " << i;
      }
    });
  }
  const auto more_steps = [&](uint64_t count) {
    const uint64_t target = steps + count;
    return Await([&] { return steps >= target || HasFailure(); });
  };
  // Trims make holes of spans, and writes place them anew: each placed span has two copies on present servers.
  const auto is_whole = [&] {
    std::vector<CopyMap::Donor> donors;
    for (size_t i = 0; i < servers_.size(); ++i) {
      const bool is_there = servers_.runs(i) && pool_->session(i)->usable();
      donors.push_back({is_there ? CopyMap::Donor::Standing::kStays : CopyMap::Donor::Standing::kAway, is_there});
    }
    bool whole = true;
    const auto incarnation_of = [&](uint16_t server) -> uint64_t {
      return servers_.runs(server) ? servers_.server(server).incarnation() : pool_->session(server)->incarnation();
    };
    for (uint64_t span = 0; span != UINT64_MAX;) {
      span = region_->map()->copies()->Walk(span, 64, donors, incarnation_of,
                                            [&](uint64_t, CopyMap::Health health, const CopyMap::Plan&) {
                                              whole = whole && health == CopyMap::Health::kInSync;
                                            });
    }
    return whole || HasFailure();
  };
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 8 && !HasFailure(); ++round) {
    EXPECT_TRUE(more_steps(random() % 30)) << round;
    EXPECT_TRUE(Await(is_whole)) << round;
    const int chosen = static_cast<int>(random() % servers_.size());
    servers_.StopServer(chosen);
    EXPECT_TRUE(more_steps(1 + random() % 60)) << round;
    if (random() % 2 == 0) {
      EXPECT_TRUE(Await(is_whole)) << round << ": without server " << chosen;
    }
    servers_.StartServer(chosen);
  }
  EXPECT_TRUE(Await(is_whole));
  done = true;
  for (std::thread& thread : threads) thread.join();
  EXPECT_GE(steps, 600u);
}

}  // namespace
}  // namespace nram
