// The store on the pool: the reports of its room, and of the hosts that copies need.

#include "fsd/pool_store.h"

#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/units.h"
#include "gtest/gtest.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

TEST(PoolStoreTest, CapacityCountsAPageOnceHoweverManyCopiesItHas) {
  TestPool servers(2);
  const std::unique_ptr<Pool> pool = servers.Open();
  ASSERT_NE(pool, nullptr);
  const StoreCapacity one = NewPoolStore(pool.get(), {})->Capacity();
  const StoreCapacity two = NewPoolStore(pool.get(), {.copies = 2})->Capacity();
  // Servers may report between the two calls.
  EXPECT_NEAR(static_cast<double>(two.total_bytes), static_cast<double>(one.total_bytes) / 2, kMiB);
  EXPECT_NEAR(static_cast<double>(two.free_bytes), static_cast<double>(one.free_bytes) / 2, kMiB);
}

// fallocate of all that df says is free.
TEST(PoolStoreTest, AllThatIsFreeCanBeReserved) {
  for (const int count : {1, 2, 3}) {
    TestPool servers(count);
    const std::unique_ptr<Pool> pool = servers.Open();
    ASSERT_NE(pool, nullptr);
    const std::unique_ptr<BlockStore> store = NewPoolStore(pool.get(), {});
    const uint64_t free_bytes = store->Capacity().free_bytes;
    EXPECT_GE(free_bytes, count * 70 * kMiB) << "it says too little";
    std::unique_ptr<BlockFile> file = store->Create().value();
    const absl::Status status = file->Reserve(0, free_bytes);
    EXPECT_TRUE(status.ok()) << count << " servers, " << FormatByteSize(free_bytes) << ": " << status;
    std::vector<std::unique_ptr<BlockFile>> files;
    files.push_back(std::move(file));
    store->Destroy(std::move(files));
  }
}

TEST(PoolStoreTest, CopiesNeedHostsOfTheirOwn) {
  TestPool servers(2);  // on one host
  const std::unique_ptr<Pool> pool = servers.Open();
  ASSERT_NE(pool, nullptr);
  EXPECT_TRUE(CheckHosts(*pool, 1, "--copies").ok());
  const absl::Status status = CheckHosts(*pool, 2, "--copies");
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_TRUE(absl::StrContains(status.message(), "--copies=2")) << status;
  EXPECT_TRUE(absl::StrContains(status.message(), "has 1 host:")) << status;
}

TEST(PoolStoreTest, AServerThatIsAwayMayBeAnotherHost) {
  TestPool servers(2);
  servers.StopServer(1);
  PoolOptions options = servers.Options();
  options.open_timeout_ms = 1'000;
  const std::unique_ptr<Pool> pool = TestPool::Open(options);
  ASSERT_NE(pool, nullptr);
  EXPECT_TRUE(CheckHosts(*pool, 2, "--copies").ok());
  EXPECT_FALSE(CheckHosts(*pool, 3, "--copies").ok());
}

}  // namespace
}  // namespace nram
