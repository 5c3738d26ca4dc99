// Servers join and leave a pool that is open, on real servers in this process.

#include <atomic>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/poll_until.h"
#include "base/test_seed.h"
#include "client/pool/pool_spec.h"
#include "gtest/gtest.h"
#include "tests/util/fake_members.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

// The resolver below gRPC leaks its copy of the name "localhost".
extern "C" const char* __lsan_default_suppressions();  // NOLINT: the sanitizer's name
extern "C" const char* __lsan_default_suppressions() { return "leak:libcares.so"; }

namespace nram {
namespace {

constexpr uint64_t kSpans = 24;

class LivePoolTest : public ::testing::Test {
 protected:
  explicit LivePoolTest(int servers = 5) : servers_(servers, 128 * kMiB, Clock::Real(), TestPool::Hosts::kPretended) {}

  Endpoint Server(size_t i) const { return servers_.Options().servers[i]; }
  std::vector<Endpoint> Servers(const std::vector<size_t>& numbers) const {
    std::vector<Endpoint> servers;
    for (const size_t i : numbers) servers.push_back(Server(i));
    return servers;
  }
  void Open(std::vector<size_t> first, bool moves = true) {
    PoolOptions options = servers_.Options();
    options.servers = Servers(first);
    options.members = members_ = std::make_shared<FakeMembers>(options.servers);
    options.ExpectCopies();
    options.moves = moves;
    options.repair_bytes_per_s = PoolOptions::kRepairUnbounded;
    options.io_timeout_ms = 30'000;
    options.reserve_step_bytes = kMiB;
    pool_ = TestPool::Open(options);
    ASSERT_NE(pool_, nullptr);
  }
  void TearDown() override {
    region_.reset();
    pool_.reset();
  }
  void MakeRegion(int copies) {
    auto region = pool_->CreateRegion({.gc = true, .copies = copies});
    ASSERT_TRUE(region.ok()) << region.status();
    region_ = *std::move(region);
  }
  void Write(uint64_t seed, uint64_t first = 0, uint64_t spans = kSpans) {
    for (uint64_t span = first; span < first + spans; ++span) {
      const absl::Status status = region_->Write(span * kMiB, Bytes(Pattern(kMiB, seed + span)));
      ASSERT_TRUE(status.ok()) << status;
    }
  }
  void Check(uint64_t seed) {
    for (uint64_t span = 0; span < kSpans; ++span) {
      const auto back = Read(region_.get(), span * kMiB, kMiB);
      ASSERT_TRUE(back.ok()) << back.status();
      ASSERT_TRUE(*back == Pattern(kMiB, seed + span)) << "wrong bytes in span " << span;
    }
  }
  uint64_t PagesOf(int i) { return servers_.server(i).store().counters().pages; }
  size_t LeasesOf(int i) { return servers_.server(i).leases().live_count(); }
  // Waits until the source has been asked this number of times more.
  void AwaitLooks(int64_t looks) {
    const int64_t before = members_->looks();
    ASSERT_TRUE(Await([&] { return members_->looks() >= before + looks; }));
  }
  template <typename Done>
  static bool Await(Done done) {
    return PollUntil(DeadlineAfterMs(60'000), 5, done);
  }

  TestPool servers_;
  std::shared_ptr<FakeMembers> members_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Region> region_;
};

TEST_F(LivePoolTest, ANewServerIsUsed) {
  ASSERT_NO_FATAL_FAILURE(Open({0, 1}));
  ASSERT_NO_FATAL_FAILURE(MakeRegion(2));
  ASSERT_NO_FATAL_FAILURE(Write(1));
  EXPECT_EQ(PagesOf(2), 0u);
  members_->Set(Servers({0, 1, 2}));
  ASSERT_TRUE(Await([&] { return pool_->server_count() == 3 && pool_->session(2)->usable(); }));
  ASSERT_NO_FATAL_FAILURE(Write(2, kSpans, 8));
  EXPECT_GT(PagesOf(2), 0u);
  ASSERT_NO_FATAL_FAILURE(Check(1));
}

TEST_F(LivePoolTest, ARemovedServerIsEmptiedAndGetsNothingNew) {
  ASSERT_NO_FATAL_FAILURE(Open({0, 1, 2}));
  ASSERT_NO_FATAL_FAILURE(MakeRegion(2));
  ASSERT_NO_FATAL_FAILURE(Write(1));
  ASSERT_GT(PagesOf(0), 0u);
  members_->Set(Servers({1, 2}));
  ASSERT_TRUE(Await([&] { return PagesOf(0) == 0; })) << PagesOf(0) << " pages are left";
  ASSERT_NO_FATAL_FAILURE(Write(2));
  EXPECT_EQ(PagesOf(0), 0u) << "it has got new pages";
  servers_.StopServer(0);
  ASSERT_NO_FATAL_FAILURE(Check(2));
  EXPECT_EQ(pool_->CountHosts(/*with_away=*/true), 2) << "it counts no more";
}

TEST_F(LivePoolTest, OneCopyMovesToo) {
  ASSERT_NO_FATAL_FAILURE(Open({0, 1}));
  ASSERT_NO_FATAL_FAILURE(MakeRegion(1));
  ASSERT_NO_FATAL_FAILURE(Write(1));
  members_->Set(Servers({1, 2}));
  ASSERT_TRUE(Await([&] { return PagesOf(0) == 0; })) << PagesOf(0) << " pages are left";
  servers_.StopServer(0);
  ASSERT_NO_FATAL_FAILURE(Check(1));
}

TEST_F(LivePoolTest, ANameThatIsGoneForAMomentChangesNothing) {
  ASSERT_NO_FATAL_FAILURE(Open({0, 1, 2}));
  ASSERT_NO_FATAL_FAILURE(MakeRegion(2));
  ASSERT_NO_FATAL_FAILURE(Write(1));
  const uint64_t pages = PagesOf(0);
  for (int i = 0; i < 10; ++i) {
    members_->Set(Servers({1, 2}));
    ASSERT_NO_FATAL_FAILURE(AwaitLooks(1));
    members_->Set(Servers({0, 1, 2}));
    ASSERT_NO_FATAL_FAILURE(AwaitLooks(2));
    EXPECT_FALSE(pool_->session(0)->removed());
  }
  EXPECT_EQ(PagesOf(0), pages);
  EXPECT_EQ(pool_->session(0)->times_up(), 1u) << "its connections were broken";
}

TEST_F(LivePoolTest, ASourceThatSaysNothingChangesNothing) {
  ASSERT_NO_FATAL_FAILURE(Open({0, 1, 2}));
  ASSERT_NO_FATAL_FAILURE(MakeRegion(2));
  members_->Fail(absl::UnavailableError("silence"));
  ASSERT_NO_FATAL_FAILURE(AwaitLooks(50));
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(pool_->session(i)->removed()) << i;
  ASSERT_NO_FATAL_FAILURE(Write(1));
  ASSERT_NO_FATAL_FAILURE(Check(1));
}

TEST_F(LivePoolTest, AServerThatComesBackIsUsedAgain) {
  ASSERT_NO_FATAL_FAILURE(Open({0, 1, 2}));
  ASSERT_NO_FATAL_FAILURE(MakeRegion(2));
  members_->Set(Servers({1, 2}));
  ASSERT_TRUE(Await([&] { return pool_->session(0)->removed(); }));
  EXPECT_TRUE(pool_->session(0)->up()) << "it is no dead server";
  ASSERT_NO_FATAL_FAILURE(Write(1));
  EXPECT_EQ(PagesOf(0), 0u);
  members_->Set(Servers({0, 1, 2}));
  ASSERT_TRUE(Await([&] { return !pool_->session(0)->removed(); }));
  ASSERT_NO_FATAL_FAILURE(Write(2, kSpans, 8));
  EXPECT_GT(PagesOf(0), 0u);
  EXPECT_EQ(pool_->server_count(), 3u) << "it has its number again";
}

TEST_F(LivePoolTest, AServerWithTwoNamesIsOne) {
  ASSERT_NO_FATAL_FAILURE(Open({0, 1}));
  std::vector<Endpoint> named = Servers({0, 1});
  named.push_back({"localhost", Server(0).port, ""});
  members_->Set(named);
  ASSERT_TRUE(Await([&] { return pool_->server_count() == 3 && pool_->session(2)->keeps_out(); }))
      << pool_->session(2)->last_error();
  EXPECT_EQ(pool_->session(2)->twin(), 0);
  EXPECT_EQ(LeasesOf(0), 1u);
  EXPECT_EQ(pool_->CountHosts(/*with_away=*/true), 2);
  // The server is a member as long as one of its names is.
  members_->Set({named[1], named[2]});
  ASSERT_NO_FATAL_FAILURE(AwaitLooks(10));
  EXPECT_FALSE(pool_->session(0)->removed());
  members_->Set({named[1]});
  EXPECT_TRUE(Await([&] { return pool_->session(0)->removed(); }));
}

TEST_F(LivePoolTest, APoolOfThisMachineAloneTakesInNoOther) {
  ASSERT_NO_FATAL_FAILURE(Open({0, 1}));
  std::vector<Endpoint> named = Servers({0, 1, 2});
  named.insert(named.begin(), {"192.0.2.1", 7070, ""});  // an unused address (RFC 5737)
  members_->Set(named);
  ASSERT_TRUE(Await([&] { return pool_->server_count() == 3; }));
  ASSERT_NO_FATAL_FAILURE(AwaitLooks(3));
  EXPECT_EQ(pool_->server_count(), 3u);
  EXPECT_EQ(pool_->session(2)->endpoint(), Server(2));
}

TEST_F(LivePoolTest, AHostFileIsReadAgain) {
  const char* const directory = getenv("TEST_TMPDIR");
  const std::string path = absl::StrCat(directory == nullptr ? "/tmp" : directory, "/hosts.", getpid());
  const auto write = [&](const std::vector<Endpoint>& servers) {
    std::string text;
    for (const Endpoint& server : servers) absl::StrAppend(&text, server.ToString(), "\n");
    ASSERT_TRUE(WriteFileAtomically(path, text).ok());
  };
  write(Servers({0}));
  PoolOptions options = servers_.Options();
  ASSERT_TRUE(UsePool("@" + path, &options).ok());
  pool_ = TestPool::Open(options);
  EXPECT_EQ(pool_->server_count(), 1u);
  write(Servers({0, 1}));
  EXPECT_TRUE(Await([&] { return pool_->server_count() == 2 && pool_->session(1)->usable(); }));
  write(Servers({1}));
  EXPECT_TRUE(Await([&] { return pool_->session(0)->removed(); }));
  ASSERT_TRUE(WriteFileAtomically(path, "what is this:7:7\n").ok());
  write(Servers({0, 1}));
  EXPECT_TRUE(Await([&] { return !pool_->session(0)->removed(); }));
  unlink(path.c_str());
}

// Servers join and leave, a hundred times, while a thread writes and reads.
TEST_F(LivePoolTest, AHundredChangesUnderLoad) {
  ASSERT_NO_FATAL_FAILURE(Open({0, 1, 2, 3, 4}));
  ASSERT_NO_FATAL_FAILURE(MakeRegion(2));
  ASSERT_NO_FATAL_FAILURE(Write(0));
  std::atomic<bool> ends{false};
  std::atomic<uint64_t> rounds{0};
  std::vector<uint64_t> seeds(kSpans);
  std::thread load([&] {
    std::mt19937_64 random(7);
    for (uint64_t round = 1; !ends && !HasFailure(); ++round) {
      const uint64_t span = random() % kSpans;
      ASSERT_NO_FATAL_FAILURE(Write(round * 1'000, span, 1));
      seeds[span] = round * 1'000;
      const uint64_t other = random() % kSpans;
      const auto back = Read(region_.get(), other * kMiB, kMiB);
      ASSERT_TRUE(back.ok()) << back.status();
      ASSERT_TRUE(*back == Pattern(kMiB, seeds[other] + other)) << "wrong bytes in span " << other;
      rounds = round;
    }
  });
  std::mt19937_64 random(TestSeed());
  for (int change = 0; change < 100 && !HasFailure(); ++change) {
    const size_t out = random() % 5;
    std::vector<size_t> in;
    for (size_t i = 0; i < 5; ++i) {
      if (i != out || change % 2 == 1) in.push_back(i);
    }
    members_->Set(Servers(in));
    const uint64_t before = rounds;
    EXPECT_TRUE(Await([&] { return rounds >= before + 2 || HasFailure(); }));
    AwaitLooks(3);
  }
  ends = true;
  load.join();
  for (uint64_t span = 0; span < kSpans; ++span) {
    const auto back = Read(region_.get(), span * kMiB, kMiB);
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_TRUE(*back == Pattern(kMiB, seeds[span] + span)) << "wrong bytes in span " << span;
  }
}

}  // namespace
}  // namespace nram
