#ifndef NRAM_TESTS_MANAGED_MANAGED_FIXTURE_H_
#define NRAM_TESTS_MANAGED_MANAGED_FIXTURE_H_

#include <memory>
#include <nram/managed.hpp>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/managed/fake_store.h"
#include "client/managed/managed_handle.h"
#include "client/managed/region_store.h"
#include "tests/util/test_pool.h"

namespace nram {

// <nram/managed.hpp> over a store in memory.
struct FakeMemory {
  explicit FakeMemory(uint64_t budget = kMiB, FakeStore::Ends ends = FakeStore::Ends::kOnThread, bool waits = true) {
    auto made = std::make_unique<FakeStore>(ends);
    store = made.get();
    auto manager = Manager::New(std::move(made), {.budget_bytes = budget, .waits = waits});
    EXPECT_TRUE(manager.ok()) << manager.status();
    memory = std::make_unique<managed_memory>(managed_memory::take_over{}, new nram_managed{*std::move(manager)});
  }

  FakeStore* store;
  std::unique_ptr<managed_memory> memory;
};

// The same over servers in this process.
inline std::unique_ptr<managed_memory> OpenManaged(const TestPool& pool, uint64_t budget = kMiB, int copies = 1) {
  PoolOptions options = pool.Options();
  if (copies > 1) {
    options.ExpectCopies();
    options.fail_fast_after_ms = 1'000;
  }
  auto store = RegionStore::Open(options, copies);
  EXPECT_TRUE(store.ok()) << store.status();
  if (!store.ok()) return nullptr;
  auto manager = Manager::New(*std::move(store), {.budget_bytes = budget});
  EXPECT_TRUE(manager.ok()) << manager.status();
  return std::make_unique<managed_memory>(managed_memory::take_over{}, new nram_managed{*std::move(manager)});
}

}  // namespace nram

#endif  // NRAM_TESTS_MANAGED_MANAGED_FIXTURE_H_
