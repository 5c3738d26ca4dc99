// The steady read and write path allocates nothing, at either end: swap depends on that. Client and server are in this
// process, over TCP; the test counts every malloc of the process.

#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "tests/util/count_allocations.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

TEST(AllocTest, CountsAtAll) {
  counting = true;
  delete new std::string(1000, 'x');
  counting = false;
  EXPECT_GE(allocations.exchange(0), 1);
}

class SteadyPathTest : public ::testing::TestWithParam<Seal> {};

// Sealed pages too: OpenSSL is warm, and versions have their places.
TEST_P(SteadyPathTest, AllocatesNothing) {
  const bool sealed = GetParam() == Seal::kYes;
  TestPool servers(2);
  PoolOptions options = servers.Options();
  // The lease's renewal uses gRPC, which allocates; it is not part of this path.
  auto pool = TestPool::Open(options);
  auto region = pool->CreateRegion({.gc = true, .seal = GetParam()}).value();
  std::vector<std::byte> buffer(2 * kMiB, std::byte{7});
  std::vector<ChunkMask> masks(4, 0x5A);
  std::vector<Io> ios(8);
  const auto round = [&](uint64_t i) {
    // For copies and sealed pages, an operation of several messages allocates its pieces; four pages are in one here.
    const uint64_t offset = i * 7919 % 1000 / (sealed ? 4 : 1) * (sealed ? 4 : 1) * kPageBytes;
    for (const IoClass io_class : {IoClass::kBulk, IoClass::kUrgent}) {
      const IoOptions how{.io_class = io_class};
      ASSERT_TRUE(region->Write(offset, {buffer.data(), 4096}, how).ok());
      ASSERT_TRUE(region->Read(offset, {buffer.data(), 4096}, how).ok());
      const uint64_t part = region->unit_bytes();
      ASSERT_TRUE(region->Write(offset + part, {buffer.data(), part}, how).ok());
      ASSERT_TRUE(region->WriteChunks(offset, {buffer.data(), 4 * 4096}, masks, how).ok());
    }
    if (i % 16 != 0) return;
    if (!sealed) {
      ASSERT_TRUE(region->Write(0, {buffer.data(), buffer.size()}).ok());
      ASSERT_TRUE(region->Read(0, {buffer.data(), buffer.size()}).ok());
    }
    for (size_t k = 0; k < ios.size(); ++k) region->StartRead(&ios[k], k * 65536, {buffer.data() + k * 65536, 65536});
    for (Io& io : ios) ASSERT_TRUE(io.Wait().ok());
  };
  // Places the spans, fills the allocators' caches, reserves the room.
  ASSERT_TRUE(region->Write(0, {buffer.data(), buffer.size()}).ok());
  for (uint64_t i = 0; i < 200; ++i) {
    ASSERT_TRUE(region->Write(2 * kMiB + i % 3 * kMiB, {buffer.data(), kMiB}).ok());
    round(i);
  }
  // Reservations ahead, leases and collectors run beside the path and allocate now and then: the quietest of several
  // windows counts.
  uint64_t fewest = ~uint64_t{0};
  for (int window = 0; window < 20; ++window) {
    allocations = 0;
    counting = true;
    for (uint64_t i = 0; i < 32; ++i) round(i);
    counting = false;
    fewest = std::min<uint64_t>(fewest, allocations);
  }
  EXPECT_EQ(fewest, 0);
}

INSTANTIATE_TEST_SUITE_P(, SteadyPathTest, ::testing::Values(Seal::kNo, Seal::kYes),
                         [](const auto& info) { return info.param == Seal::kYes ? "Sealed" : "Plain"; });

}  // namespace
}  // namespace nram
