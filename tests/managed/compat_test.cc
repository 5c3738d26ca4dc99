// The names of Rambrain, on servers.

#include <nram/compat/rambrain.h>

#include <cstdlib>
#include <thread>

#include "gtest/gtest.h"
#include "tests/util/test_pool.h"

namespace {

// The program's own manager is opened once, and its servers remain.
class CompatTest : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    // The default memory is never closed, so its servers must not end before it: it would log that when no log is left.
    static nram::TestPool& pool = *new nram::TestPool(2);
    const auto& servers = pool.Options().servers;
    setenv("NRAM_POOL", absl::StrCat("127.0.0.1:", servers[0].port, ",127.0.0.1:", servers[1].port).c_str(), 1);
    setenv("NRAM_BUDGET", "1M", 1);
  }
};

TEST_F(CompatTest, ConstPullsAreNotWrittenBack) {
  std::vector<managedPtr<double>> rows;
  for (int i = 0; i < 30; ++i) rows.emplace_back(16 * 1024, i);
  const auto sum = [&] {
    double all = 0;
    for (const auto& row : rows) {
      const adhereTo<double> glue(row);
      const double* values = glue;
      all += values[100];
    }
    return all;
  };
  EXPECT_EQ(sum(), 29 * 30 / 2);
  EXPECT_EQ(sum(), 29 * 30 / 2);
  nram_managed_stats before = nram::managed_memory::get_default().stats();
  EXPECT_EQ(sum(), 29 * 30 / 2);
  nram_managed_stats after = nram::managed_memory::get_default().stats();
  EXPECT_EQ(after.written_bytes, before.written_bytes);
  EXPECT_GT(after.fetched_bytes, before.fetched_bytes);
}

TEST_F(CompatTest, CopiesShareAnObjectThatGoesWithTheLast) {
  const uint64_t before = nram::managed_memory::get_default().stats().managed_bytes;
  {
    managedPtr<int> copy(1);
    {
      managedPtr<int> original(100'000, 3);
      copy = original;
    }
    EXPECT_EQ(copy.size(), 100'000u);
    adhereTo<int> glue(copy);
    int* values = glue;
    EXPECT_EQ(values[99'999], 3);
  }
  EXPECT_LE(nram::managed_memory::get_default().stats().managed_bytes, before + 64 * 1024);
}

TEST_F(CompatTest, OutOfMemoryIsItsException) {
  EXPECT_THROW(managedPtr<double>(1 << 20), memoryException);
  EXPECT_TRUE(managedMemory::defaultManager->setMemoryLimit(16 << 20));
  EXPECT_NO_THROW(managedPtr<double>(1 << 20));
  EXPECT_TRUE(managedMemory::defaultManager->setMemoryLimit(100));
  EXPECT_EQ(managedMemory::defaultManager->getMemoryLimit(), 1u << 20);
}

}  // namespace
