// Requests whose fate the client never learns, behind a network that stops. Their effects must not show later, and the
// room that they took must not be lost.

#include <poll.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

class UnansweredTest : public ::testing::Test {
 protected:
  static constexpr IoOptions kBriefly{.timeout_ms = 30};

  // `pages` pages full of `c`.
  static std::string Of(char c, uint64_t pages = 1) { return std::string(pages * kPageBytes, c); }

  // Returns "A" for a page full of A.
  std::string ReadPage(Region* region, uint64_t page, const IoOptions& options = {}) {
    std::string data = Of('?');
    const absl::Status status =
        region->Read(page * kPageBytes, {reinterpret_cast<std::byte*>(data.data()), data.size()}, options);
    if (!status.ok()) return std::string(status.message());
    if (data != Of(data[0])) return "mixed";
    return data[0] == '\0' ? "zeros" : data.substr(0, 1);
  }
  void Open(uint64_t donate_bytes, int64_t lease_ttl_ms = 2'000) {
    servers_ = std::make_unique<TestPool>(1, donate_bytes);
    relay_ = std::make_unique<FaultyRelay>(Endpoint{"127.0.0.1", server().data_port(), ""}, TestSeed());
    PoolOptions options = servers_->Options();
    options.lease_ttl_ms = lease_ttl_ms;  // renewed three times as often
    options.reroute_data_for_test = [this](size_t, const Endpoint&) { return relay_->endpoint(); };
    pool_ = TestPool::Open(options);
    ASSERT_NE(pool_, nullptr);
  }
  MemServer& server() { return servers_->server(0); }
  static bool Eventually(const std::function<bool()>& what) {
    const int64_t deadline_ns = DeadlineAfterMs(30'000);
    bool held = false;
    while (!(held = what()) && MonotonicNs() < deadline_ns) poll(nullptr, 0, 10);
    return held;
  }

  std::unique_ptr<TestPool> servers_;
  std::unique_ptr<FaultyRelay> relay_;
  std::unique_ptr<Pool> pool_;
};

TEST_F(UnansweredTest, WhatIsTrimmedOrDestroyedIsGoneThoughNobodyKnewThatItWasThere) {
  Open(128 * kMiB);
  int64_t executed = 0;
  for (int round = 0; round < 30; ++round) {
    const int64_t writes = server().store().counters().writes;
    auto region = pool_->CreateRegion({.gc = true}).value();
    relay_->Hold(true);
    ASSERT_FALSE(region->Write(0, Bytes(Of('A')), kBriefly).ok());
    relay_->Hold(false);
    const std::string old = ReadPage(region.get(), 0);
    EXPECT_TRUE(old == "A" || old == "zeros") << old;
    if (round % 2 == 0) {
      ASSERT_TRUE(region->Trim(0, 64 * kKiB).ok());
      ASSERT_TRUE(region->Write(64 * kKiB, Bytes(Of('B'))).ok());
      EXPECT_EQ(ReadPage(region.get(), 0), "zeros") << "round " << round;
    }
    ASSERT_TRUE(region->Destroy().ok());
    ASSERT_EQ(server().store().counters().pages, 0) << "round " << round;
    executed += server().store().counters().writes - writes - (round % 2 == 0 ? 1 : 0);
  }
  EXPECT_GT(executed, 0) << "the server has executed none of the writes that had no answer";
}

TEST_F(UnansweredTest, WhatIsDestroyedWhileTheServerIsAwayIsFreedWhenItIsBack) {
  Open(128 * kMiB, 10'000);
  std::vector<std::unique_ptr<Region>> regions;
  for (int i = 0; i < 200; ++i) {
    regions.push_back(pool_->CreateRegion({.gc = true}).value());
    ASSERT_TRUE(regions.back()->Write(0, Bytes(Of('A'))).ok());
  }
  relay_->Hold(true);
  for (auto& region : regions) {
    EXPECT_FALSE(region->Destroy({.timeout_ms = 10}).ok());
    region.reset();
  }
  EXPECT_EQ(server().store().counters().pages, 200);
  relay_->Hold(false);
  EXPECT_TRUE(Eventually([&] { return server().store().counters().pages == 0; })) << server().store().counters().pages;
}

TEST_F(UnansweredTest, OnlySoManyDestroysAreRemembered) {
  constexpr uint64_t kRemembered = 1 << 18;
  Open(128 * kMiB, 10'000);
  const auto region = [&] {
    auto made = pool_->CreateRegion({.gc = false}).value();
    EXPECT_TRUE(made->Write(0, Bytes(Of('A'))).ok());
    return made;
  };
  const auto first = region(), last = region();
  ServerSession* const session = pool_->session(0);
  relay_->SetDown(true);
  EXPECT_FALSE(first->Destroy({.timeout_ms = 10}).ok());
  ASSERT_TRUE(Eventually([&] { return !session->up(); }));
  for (uint64_t i = 1; i < kRemembered; ++i) {
    session->DestroyLater({RegionId{i}, Epoch{1}, session->incarnation()});
  }
  EXPECT_FALSE(last->Destroy({.timeout_ms = 10}).ok());
  relay_->SetDown(false);
  EXPECT_TRUE(Eventually([&] { return server().store().counters().pages == 1; })) << server().store().counters().pages;
  // The list of destroys is empty again, and takes more.
  EXPECT_EQ(ReadPage(region().get(), 0), "A");
  session->DestroyLater({last->id(), Epoch{1}, session->incarnation()});
  EXPECT_TRUE(Eventually([&] { return server().store().counters().pages == 1; })) << "all but the newest";
}

TEST_F(UnansweredTest, TheLeaseIsKeptWhileOnlyTheControlPlaneCanBeReached) {
  Open(128 * kMiB, 4'000);
  auto region = pool_->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(region->Write(0, Bytes(Of('A'))).ok());
  relay_->Hold(true);
  const int64_t until_ns = DeadlineAfterMs(9'000);
  while (MonotonicNs() < until_ns) (void)region->Write(kPageBytes, Bytes(Of('B')), {.timeout_ms = 100});
  relay_->Hold(false);
  ASSERT_TRUE(Eventually([&] { return pool_->session(0)->up(); }));
  EXPECT_EQ(ReadPage(region.get(), 0), "A");
}

// The lease cannot be renewed. When it has ended, the server is away, even if data connections still work.
TEST_F(UnansweredTest, AServerWithoutAControlPlaneIsNotWaitedForForEver) {
  TestPool servers(2);
  PoolOptions options = servers.Options();
  options.lease_ttl_ms = 1'500;
  options.fail_fast_after_ms = 1'000;
  FaultyRelay data(Endpoint{"127.0.0.1", servers.server(0).data_port(), ""}, TestSeed());
  options.reroute_data_for_test = [&](size_t index, const Endpoint& usual) {
    return index == 0 ? data.endpoint() : usual;
  };
  const auto pool = TestPool::Open(options);
  const auto region = pool->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(region->Write(0, Bytes(Of('A', 16 * kPagesPerSpan))).ok());
  // Many operations are under way that no thread waits for, and in the end no server answers.
  constexpr size_t kChains = 16;
  struct Chain {
    Region* region;
    std::string data = Of('C');
    Io io;
    std::atomic<bool> stop{false};
    std::atomic<bool> ended{false};
    static void Next(Io* io, void* context) {
      auto* const chain = static_cast<Chain*>(context);
      if (io != nullptr && (chain->stop || !io->Wait().ok())) {
        chain->ended = true;
        return;
      }
      chain->region->StartWrite(&chain->io, 0, Bytes(chain->data), {}, &Next, chain);
    }
  };
  std::vector<std::unique_ptr<Chain>> chains;
  std::vector<std::unique_ptr<Region>> regions;
  for (size_t i = 0; i < kChains; ++i) {
    regions.push_back(pool->CreateRegion({.gc = true}).value());
    chains.push_back(std::make_unique<Chain>());
    chains.back()->region = regions.back().get();
    Chain::Next(nullptr, chains.back().get());
  }
  data.Hold(true);
  servers.server(0).StopControlForTest();
  EXPECT_TRUE(Eventually([&] { return !pool->session(0)->up(); }));
  EXPECT_TRUE(Eventually([&] { return pool->session(0)->away_too_long(); }));
  const auto other = pool->CreateRegion({.gc = true}).value();
  EXPECT_TRUE(other->Write(0, Bytes(Of('B', 16 * kPagesPerSpan))).ok()) << "new spans go elsewhere";
  for (const auto& chain : chains) chain->stop = true;
  for (const auto& chain : chains) EXPECT_TRUE(Eventually([&] { return chain->ended.load(); }));
}

TEST_F(UnansweredTest, NoLaterWriteIsOvertakenOnTheOtherConnection) {
  Open(128 * kMiB);
  auto region = pool_->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(region->Write(0, Bytes(Of('0'))).ok());
  for (int round = 0; round < 60; ++round) {
    relay_->Hold(true);
    ASSERT_FALSE(region->Write(0, Bytes(Of('A')), kBriefly).ok());
    std::thread later([&] {
      poll(nullptr, 0, 5);
      relay_->Hold(false);
    });
    EXPECT_TRUE(region->Write(0, Bytes(Of('B')), {.io_class = IoClass::kUrgent}).ok());
    later.join();
    // Once the write is answered, the bulk connection is a new one, and the old one's requests are over.
    EXPECT_EQ(ReadPage(region.get(), 0, {.io_class = IoClass::kBulk}), "B") << "round " << round;
    EXPECT_EQ(ReadPage(region.get(), 0, {.io_class = IoClass::kUrgent}), "B") << "round " << round;
  }
}

TEST_F(UnansweredTest, RoomTakenForThemComesBackBesideARegionThatKeepsSome) {
  Open(128 * kMiB);
  auto keeps = pool_->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(keeps->Reserve(0, kMiB).ok());
  auto region = pool_->CreateRegion({.gc = true}).value();
  const uint64_t step = pool_->options().reserve_step_bytes;
  for (int round = 0; round < 12; ++round) {
    relay_->Hold(true);
    ASSERT_FALSE(region->Write(0, Bytes(Of('A', 1024)), kBriefly).ok());
    relay_->Hold(false);
    ASSERT_TRUE(region->Write(0, Bytes(Of('B', 1024))).ok());
    ASSERT_TRUE(region->Trim(0, 4 * kMiB).ok());
  }
  EXPECT_TRUE(Eventually([&] { return server().arena().usage().reserved_bytes <= 3 * step; }))
      << server().arena().usage().reserved_bytes;
  EXPECT_TRUE(Eventually([&] { return pool_->session(0)->room()->free_bytes() >= static_cast<int64_t>(step / 2); }))
      << pool_->session(0)->room()->free_bytes();
  // The kept room is there, and can be used without asking.
  EXPECT_GE(server().arena().usage().reserved_bytes, kMiB);
  ASSERT_TRUE(keeps->Write(0, Bytes(Of('C', 256))).ok());
}

// Room that a trim without an answer has kept is the region's. It must not pass to the client and then to other
// clients.
TEST_F(UnansweredTest, RoomThatSuchTrimsKeepIsThereAgain) {
  constexpr uint64_t kPages = 4096;
  servers_ = std::make_unique<TestPool>(1, 128 * kMiB);
  relay_ = std::make_unique<FaultyRelay>(Endpoint{"127.0.0.1", server().data_port(), ""}, TestSeed());
  PoolOptions options = servers_->Options();
  options.reserve_step_bytes = 64 * kKiB;  // room beyond that is given back soon
  auto others = TestPool::Open(options);
  options.reroute_data_for_test = [this](size_t, const Endpoint&) { return relay_->endpoint(); };
  pool_ = TestPool::Open(options);
  auto mine = pool_->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(mine->Reserve(0, kPages * kPageBytes).ok());
  auto greedy = others->CreateRegion({.gc = true}).value();
  uint64_t greedy_end = 0;
  for (int round = 0; round < 8; ++round) {
    for (uint64_t page = 0; page < kPages; page += 64) {
      const absl::Status status = mine->Write(page * kPageBytes, Bytes(Of('A', 64)));
      ASSERT_TRUE(status.ok()) << "round " << round << ", page " << page << ": " << status;
    }
    if (round % 2 == 0) {
      relay_->SetPlan({.cut = 0.02});
      for (uint64_t page = 0; page < kPages; page += 8) {
        ASSERT_TRUE(mine->Trim(page * kPageBytes, 8 * kPageBytes, {}, Region::TrimRoom::kKeep).ok());
      }
      relay_->SetPlan({});
      ASSERT_EQ(ReadPage(mine.get(), 0), "zeros");
    } else {
      // A trim that ends without an answer.
      relay_->Hold(true);
      ASSERT_FALSE(mine->Trim(0, kPages * kPageBytes, kBriefly, Region::TrimRoom::kKeep).ok());
      relay_->Hold(false);
      if (round == 3) {
        ASSERT_TRUE(mine->Trim(0, kPageBytes, {}, Region::TrimRoom::kKeep).ok());
      }
    }
    // A renewal and a return of room may take this time.
    const int64_t until_ns = DeadlineAfterMs(1'500);
    while (MonotonicNs() < until_ns) {
      const bool fits = greedy->Write(greedy_end, Bytes(Of('G', 64))).ok();
      greedy_end += fits ? 64 * kPageBytes : kSpanBytes;
    }
  }
  EXPECT_GT(relay_->faults(), 0);
}

// A region's reserved room ends with the server's former incarnation, or with the lease.
TEST_F(UnansweredTest, RoomKeptInAFormerLifeIsNotAskedForAgain) {
  for (const bool restarts : {true, false}) {
    TestPool servers(1, 128 * kMiB);
    PoolOptions options = servers.Options();
    options.lease_ttl_ms = 1'500;
    auto pool = TestPool::Open(options);
    auto keeps = pool->CreateRegion({.gc = true}).value();
    // With such a short lease a control call has 0.4 s, which may not suffice on a busy machine.
    absl::Status reserved;
    ASSERT_TRUE(Eventually([&] { return (reserved = keeps->Reserve(0, 64 * kMiB)).ok(); })) << reserved;
    ASSERT_TRUE(keeps->Write(0, Bytes(Of('A'))).ok());
    const uint64_t life = pool->session(0)->incarnation();
    if (restarts) {
      servers.StopServer(0);
      servers.StartServer(0);
      ASSERT_TRUE(Eventually([&] { return pool->session(0)->up() && pool->session(0)->incarnation() != life; }));
    } else {
      const auto lease = servers.server(0).leases().End(pool->session(0)->lease());
      ASSERT_NE(lease, nullptr);
      servers.server(0).store().CollectLease(*lease);
      (void)keeps->Write(0, Bytes(Of('A')));  // the client learns of it, one way or another
    }
    const uint64_t step = options.reserve_step_bytes;
    auto other = pool->CreateRegion({.gc = true}).value();
    const int64_t until_ns = DeadlineAfterMs(2'500);  // some renewals
    while (MonotonicNs() < until_ns) {
      ASSERT_TRUE(other->Write(0, Bytes(Of('B', 256))).ok()) << restarts;
      ASSERT_GE(pool->session(0)->room()->free_bytes(), 0) << restarts;
      ASSERT_LE(servers.server(0).arena().usage().reserved_bytes, 3 * step) << restarts;
      poll(nullptr, 0, 20);
    }
    // Room that has ended is not given back to the region later either.
    keeps.reset();
    ASSERT_TRUE(other->Write(kMiB, Bytes(Of('B', 256))).ok()) << restarts;
    EXPECT_LE(pool->session(0)->room()->free_bytes(), static_cast<int64_t>(3 * step)) << restarts;
  }
}

TEST_F(UnansweredTest, RoomThatNobodyWantsAnyMoreIsOthersSoon) {
  Open(256 * kMiB);
  const uint64_t free_bytes = server().arena().usage().free_bytes;
  const uint64_t step = pool_->options().reserve_step_bytes;
  const auto is_back = [&] { return server().arena().usage().free_bytes + 3 * step > free_bytes; };
  auto region = pool_->CreateRegion({.gc = true}).value();
  EXPECT_EQ(region->Reserve(0, kGiB).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(Eventually(is_back)) << "refused";
  ASSERT_TRUE(region->Reserve(0, 128 * kMiB).ok());
  EXPECT_FALSE(is_back());
  region->Unreserve(0, 128 * kMiB);
  EXPECT_TRUE(Eventually(is_back)) << "unreserved";
  ASSERT_TRUE(region->Reserve(0, 128 * kMiB).ok());
  region.reset();
  EXPECT_TRUE(Eventually(is_back)) << "gone";
}

}  // namespace
}  // namespace nram
