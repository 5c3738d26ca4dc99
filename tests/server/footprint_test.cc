// The ceiling holds for the process, and bookkeeping stays small. Real servers as processes of their own; small sizes
// here, the figures of docs/performance.md come from the same program with NRAM_FOOTPRINT_MIB=4096.

#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/host_memory.h"
#include "client/pool/pool.h"
#include "client/pool/pool_spec.h"
#include "gtest/gtest.h"
#include "tools/nram/local_pool.h"

namespace nram {
namespace {

class FootprintTest : public ::testing::Test {
 protected:
  void StartServer(uint64_t donate_bytes) {
    options_.directory = ::testing::TempDir() + "/footprint";
    options_.servers = 1;
    options_.server_flags = {"--donate=" + std::to_string(donate_bytes)};
    options_.die_with_parent = true;
    auto servers = StartLocalPool(options_);
    ASSERT_TRUE(servers.ok()) << servers.status();
    pid_ = servers->front().pid;
    PoolOptions pool;
    pool.servers = ParsePoolSpec("@" + options_.directory + "/pool").value();
    pool_ = Pool::Open(pool).value();
  }
  ~FootprintTest() override {
    pool_.reset();
    (void)StopLocalPool(options_.directory, 5'000);
  }
  uint64_t Resident() const { return ReadProcessMemory(pid_).resident_bytes; }

  LocalPoolOptions options_;
  int pid_ = 0;
  std::unique_ptr<Pool> pool_;
};

std::vector<std::byte> RandomBytes(size_t bytes) {
  std::vector<std::byte> data(bytes);
  std::mt19937_64 random(1);
  for (size_t i = 0; i < bytes; i += 8) {
    const uint64_t word = random();
    memcpy(&data[i], &word, 8);
  }
  return data;
}

TEST_F(FootprintTest, TheCeilingHoldsForTheWholeProcess) {
  constexpr uint64_t kDonate = 192 * kMiB;
  StartServer(kDonate);
  const auto data = RandomBytes(kMiB);
  auto region = pool_->CreateRegion({.gc = true}).value();
  uint64_t at = 0;
  while (region->Write(at, data).ok()) at += data.size();
  // Then one chunk of each page, far apart, where the index weighs most.
  auto scattered = pool_->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(region->Trim(0, at / 2).ok());
  for (uint64_t i = 0; scattered->Write(i * kSpanBytes, {data.data(), 512}).ok(); ++i) {
    ASSERT_LT(i, 10'000'000);
  }
  EXPECT_LE(Resident(), kDonate);
  std::cerr << "resident " << FormatByteSize(Resident()) << " of " << FormatByteSize(kDonate) << "\n";
}

TEST_F(FootprintTest, FullPagesCostLittleBesideThemselves) {
  const char* given = std::getenv("NRAM_FOOTPRINT_MIB");
  const uint64_t mib = given != nullptr ? std::strtoull(given, nullptr, 10) : 256;
  StartServer((mib + 256) * kMiB);
  const uint64_t before = Resident();
  const auto data = RandomBytes(kMiB);
  auto region = pool_->CreateRegion({.gc = true}).value();
  for (uint64_t at = 0; at < mib * kMiB; at += kMiB) ASSERT_TRUE(region->Write(at, data).ok());
  const auto statistics = pool_->link(0)->control()->GetStatistics(DeadlineAfterMs(5'000)).value();
  uint64_t index = 0, pages = 0;
  for (const auto& [name, value] : statistics.counters) {
    if (name == "index_bytes") index = value;
    if (name == "pages") pages = value;
  }
  const double beyond = static_cast<double>(Resident()) - mib * kMiB;
  std::cerr << "data " << mib << " MiB, resident before " << FormatByteSize(before) << ", beyond the data "
            << FormatByteSize(beyond) << " (" << 100.0 * beyond / (mib * kMiB) << " %), index " << double(index) / pages
            << " B a page, client " << double(region->memory_bytes()) / mib << " B a MiB\n";
  EXPECT_EQ(pages, mib * kMiB / kPageBytes);
  EXPECT_LE(index, 16 * pages);
  EXPECT_LE(region->memory_bytes(), 16 * mib + 1024);
  // 1 % all in is for 4 GiB; the process itself does not shrink with the data.
  EXPECT_LE(beyond, 0.01 * std::max<uint64_t>(mib, 4096) * kMiB);
}

}  // namespace
}  // namespace nram
