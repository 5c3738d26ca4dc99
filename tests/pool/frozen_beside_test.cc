// A frozen server beside a healthy one: the healthy one goes on for the client, over the same connections.

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/poll_until.h"
#include "client/pool/pool.h"
#include "gtest/gtest.h"
#include "tests/util/region_io.h"
#include "tests/util/server_process.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

constexpr int64_t kTimeoutMs = 3'500;  // longer than a server waits for a client that takes no replies

class FrozenBesideTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() { frozen_ = std::make_unique<ServerProcess>(); }
  static void TearDownTestSuite() { frozen_.reset(); }

  void SetUp() override {
    ASSERT_NE(frozen_->port(), 0);
    servers_ = std::make_unique<TestPool>(1, 256 * kMiB);
    PoolOptions options = servers_->Options();
    options.servers.push_back({"127.0.0.1", frozen_->port(), ""});
    options.io_timeout_ms = kTimeoutMs;
    pool_ = TestPool::Open(options);
    ASSERT_NE(pool_, nullptr);
    region_ = pool_->CreateRegion({.gc = true}).value();
    ASSERT_TRUE(region_->Write(0, Bytes(data_)).ok());
    connections_ = healthy().connections().accepted;
  }
  void TearDown() override { frozen_->Thaw(); }

  MemServer& healthy() { return servers_->server(0); }
  void Freeze() { frozen_->Freeze(); }
  // Holds after each kind of contact with the frozen server.
  void ExpectTheHealthyOneIsUsedAsBefore() {
    // This traffic reconnects any broken connection at the latest.
    for (uint64_t at = 0; at < data_.size(); at += kMiB) {
      if (region_->ServersOf(at) != Region::Servers{0}) continue;
      EXPECT_TRUE(Read(region_.get(), at, 4096).ok());
      EXPECT_TRUE(region_->Write(at, Bytes(data_).subspan(at, 4096)).ok());
    }
    EXPECT_EQ(healthy().connections().accepted, connections_) << "a connection of the healthy server was broken";
    EXPECT_FALSE(pool_->session(0)->was_silent()) << "the healthy server is avoided";
    EXPECT_TRUE(pool_->session(0)->up());
    // The test did meet the frozen server.
    EXPECT_TRUE(pool_->session(1)->was_silent() || !pool_->session(1)->up());
  }

  static inline std::unique_ptr<ServerProcess> frozen_;
  std::unique_ptr<TestPool> servers_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Region> region_;
  const std::string data_ = Pattern(16 * kMiB, 1);
  uint64_t connections_ = 0;
};

TEST_F(FrozenBesideTest, OneThreadReads) {
  Freeze();
  EXPECT_FALSE(Read(region_.get(), 0, 4 * kMiB).ok());
  ExpectTheHealthyOneIsUsedAsBefore();
}

TEST_F(FrozenBesideTest, OneThreadWrites) {
  Freeze();
  EXPECT_FALSE(region_->Write(0, Bytes(data_)).ok());
  ExpectTheHealthyOneIsUsedAsBefore();
}

TEST_F(FrozenBesideTest, ManyThreadsRead) {
  Freeze();
  std::vector<std::thread> threads;
  for (uint64_t i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { EXPECT_FALSE(Read(region_.get(), i % 4 * 4 * kMiB, 4 * kMiB).ok()); });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectTheHealthyOneIsUsedAsBefore();
}

TEST_F(FrozenBesideTest, AsynchronousReads) {
  Freeze();
  std::vector<std::string> buffers(8, std::string(4 * kMiB, '?'));
  std::vector<Io> ios(buffers.size());
  for (size_t i = 0; i < ios.size(); ++i) region_->StartRead(&ios[i], i % 4 * 4 * kMiB, Into(&buffers[i]));
  for (Io& io : ios) EXPECT_FALSE(io.Wait().ok());
  ExpectTheHealthyOneIsUsedAsBefore();
}

TEST_F(FrozenBesideTest, TrimsAndDestroys) {
  constexpr int kRegions = 2'000;  // more than are sent at once
  std::vector<std::unique_ptr<Region>> regions;
  for (int i = 0; i < kRegions; ++i) {
    regions.push_back(pool_->CreateRegion({.gc = true}).value());
    ASSERT_TRUE(regions.back()->Write(0, Bytes(data_).subspan(0, 4096)).ok());
  }
  Freeze();
  EXPECT_FALSE(region_->Trim(0, data_.size()).ok());
  EXPECT_EQ(healthy().store().counters().pages, healthy().store().counters().regions - 1);
  EXPECT_FALSE(Region::DestroyAll(regions).ok());
  EXPECT_EQ(healthy().store().counters().regions, 1) << "what could be destroyed was not";
  ExpectTheHealthyOneIsUsedAsBefore();
}

// A frozen server receives the create when it is thawed.
TEST_F(FrozenBesideTest, ANamedRegionCanBeCreatedAgainAfterAFailure) {
  for (const bool gc : {true, false}) {
    const std::string name = gc ? "gc" : "kept";
    Freeze();
    const absl::Status failed = pool_->CreateRegion({.gc = gc, .name = name}).status();
    EXPECT_FALSE(failed.ok());
    EXPECT_EQ(Raw(healthy().store().FindByName(0, name)), 0) << failed;
    frozen_->Thaw();
    const int64_t patience_ns = DeadlineAfterMs(60'000);
    ASSERT_TRUE(pool_->session(1)->AwaitUp(patience_ns).ok());
    absl::StatusOr<std::unique_ptr<Region>> region = absl::UnknownError("");
    PollUntil(patience_ns, 10, [&] {
      region = pool_->CreateRegion({.gc = gc, .name = name});
      EXPECT_TRUE(region.ok() || absl::IsUnavailable(region.status()) || absl::IsDeadlineExceeded(region.status()))
          << region.status();
      return region.ok();
    });
    ASSERT_TRUE(region.ok()) << region.status();
    EXPECT_TRUE(Read(region->get(), 0, 4 * kMiB).ok());
    EXPECT_TRUE((*region)->Destroy().ok());
  }
}

}  // namespace
}  // namespace nram
