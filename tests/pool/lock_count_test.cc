// The number of locks that a small read or write takes on its own thread: the path of a page is short, and remains so.

#include <dlfcn.h>
#include <pthread.h>

#include <algorithm>
#include <vector>

#include "client/pool/pool.h"
#include "gtest/gtest.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace {
thread_local int locks = 0;
}  // namespace

// Takes the place of the C library's function: all mutexes of this program pass here.
extern "C" int pthread_mutex_lock(pthread_mutex_t* mutex) {
  using Lock = int (*)(pthread_mutex_t*);
  static Lock lock = nullptr;
  if (lock == nullptr) lock = reinterpret_cast<Lock>(dlsym(RTLD_NEXT, "pthread_mutex_lock"));
  ++locks;
  return lock(mutex);
}

namespace nram {
namespace {

// The region map's gate is a lock too, but no mutex.
constexpr int kGates = 1;
constexpr int kLocksMax = 10;

// The median of many: a thread that has to wait in turns takes a few more.
template <typename Operation>
int LocksOf(const Operation& operation) {
  std::vector<int> counts;
  for (int i = 0; i < 1'001; ++i) {
    const int before = locks;
    operation();
    counts.push_back(locks - before + kGates);
  }
  std::nth_element(counts.begin(), counts.begin() + 500, counts.end());
  return counts[500];
}

TEST(LockCountTest, AnOverwriteAndAReadOf4KiB) {
  TestPool servers(1);
  auto pool = servers.Open();
  auto region = pool->CreateRegion({.gc = true}).value();
  const std::string page = Pattern(4096, 1);
  std::vector<std::byte> room(4096);
  ASSERT_TRUE(region->Write(0, Bytes(page)).ok());
  const int write = LocksOf([&] { ASSERT_TRUE(region->Write(0, Bytes(page)).ok()); });
  const int read = LocksOf([&] { ASSERT_TRUE(region->Read(0, absl::MakeSpan(room)).ok()); });
  // In a region with reserved room, the ledger's lock is taken twice more.
  ASSERT_TRUE(region->Reserve(0, kMiB).ok());
  const int reserved = LocksOf([&] { ASSERT_TRUE(region->Write(0, Bytes(page)).ok()); });
  std::cerr << "locks of a 4 KiB overwrite: " << write << ", with reserved room " << reserved << ", of a read: " << read
            << "\n";
  EXPECT_GE(write, 4) << "locks are not counted";
  EXPECT_LE(write, kLocksMax);
  EXPECT_LE(read, kLocksMax);
  EXPECT_LE(reserved, kLocksMax + 2);
}

}  // namespace
}  // namespace nram
