// Doors that wait for many replies keep processors awake, and only while they do.

#include <sched.h>
#include <unistd.h>

#include <cstdlib>
#include <functional>
#include <string>

#include "base/clock.h"
#include "base/fd.h"
#include "base/poll_until.h"
#include "client/memory/memory.h"
#include "gtest/gtest.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

class FastWakeTest : public testing::Test {
 protected:
  FastWakeTest() : file_(mkstemp(path_.data())) {}
  ~FastWakeTest() override { unlink(path_.c_str()); }

  PoolOptions Options(FastWake fast_wake = FastWake::kOn) const {
    PoolOptions options = servers_.Options();
    options.fast_wake = fast_wake;
    options.wake_device = path_;
    return options;
  }
  // Expects that the pool holds the request while `work` repeats, and withdraws it after that.
  static void ExpectHeldDuring(WakeLatency* latency, const std::function<void()>& work) {
    EXPECT_FALSE(latency->held());
    const int64_t deadline_ns = DeadlineAfterMs(60'000);
    while (!latency->held() && MonotonicNs() < deadline_ns) work();
    EXPECT_TRUE(latency->held());
    EXPECT_TRUE(PollUntil(deadline_ns, 1, [&] { return !latency->held(); })) << "it is not given back";
  }

  TestPool servers_{1};
  std::string path_ = testing::TempDir() + "/latency.XXXXXX";
  const UniqueFd file_;
};

TEST_F(FastWakeTest, WhileThreadsWaitForReplies) {
  auto pool = TestPool::Open(Options());
  auto region = pool->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(region->Write(0, Bytes(Pattern(4096, 1))).ok());
  ExpectHeldDuring(pool->wake_latency(), [&] { ASSERT_TRUE(Read(region.get(), 0, 4096).ok()); });
}

TEST_F(FastWakeTest, WhileThePollerReceives) {
  auto pool = TestPool::Open(Options());
  auto region = pool->CreateRegion({.gc = true}).value();
  ASSERT_TRUE(region->Write(0, Bytes(Pattern(4096, 1))).ok());
  std::string data(4096, '?');
  std::atomic<bool> done{false};
  Io io;
  ExpectHeldDuring(pool->wake_latency(), [&] {
    done = false;
    region->StartRead(
        &io, 0, Into(&data), {}, [](Io*, void* context) { *static_cast<std::atomic<bool>*>(context) = true; }, &done);
    while (!done) sched_yield();
  });
}

TEST_F(FastWakeTest, WhilePagesAreFaultedIn) {
  MemoryOptions options;
  options.pool = Options();
  options.budget_bytes = 4 * kMiB;
  auto memory = Memory::Open(options);
  ASSERT_TRUE(memory.ok()) << memory.status();
  const uint64_t pages = 64 * kMiB / kPageBytes;
  auto* const at = reinterpret_cast<volatile char*>((*memory)->Map({.length = pages * kPageBytes}).value());
  ASSERT_TRUE((*memory)->SetReadAhead(const_cast<char*>(at), ReadAhead::kNever).ok());
  uint64_t page = 0;
  ExpectHeldDuring((*memory)->wake_latency(), [&] { at[page++ % pages * kPageBytes] = 1; });
}

TEST_F(FastWakeTest, NotWhereItIsOff) {
  auto pool = TestPool::Open(Options(FastWake::kOff));
  auto region = pool->CreateRegion({.gc = true}).value();
  for (int i = 0; i < 3'000; ++i) ASSERT_TRUE(Read(region.get(), 0, 4096).ok());
  EXPECT_FALSE(pool->wake_latency()->held());
}

}  // namespace
}  // namespace nram
