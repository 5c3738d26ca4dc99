// Deleted files are freed together, in the background, and waiters for their room are called.

#include "fsd/reclaimer.h"

#include <atomic>
#include <chrono>
#include <functional>
#include <future>
#include <memory>
#include <vector>

#include "gtest/gtest.h"

namespace nram {
namespace {

class CountingStore : public BlockStore {
 public:
  absl::StatusOr<std::unique_ptr<BlockFile>> Create() override { return absl::UnimplementedError("not for this test"); }
  void Destroy(std::vector<std::unique_ptr<BlockFile>> files) override {
    ++calls;
    if (on_destroy) on_destroy();
    destroyed += static_cast<int>(files.size());
  }
  StoreCapacity Capacity() const override { return {}; }

  std::function<void()> on_destroy;
  std::atomic<int> calls{0};
  std::atomic<int> destroyed{0};
};

struct TestWaiter : Reclaimer::Waiter {
  void OnFreed() override { called.set_value(); }
  std::promise<void> called;
};

std::unique_ptr<BlockFile> SomeFile() {
  class File : public BlockFile {
    bool Start(BlockIo*) override { return false; }
    absl::Status Trim(uint64_t, uint64_t) override { return absl::OkStatus(); }
    absl::Status Reserve(uint64_t, uint64_t) override { return absl::OkStatus(); }
  };
  return std::make_unique<File>();
}

TEST(ReclaimerTest, AwaitFreedWaitsForAllThatWasDeleted) {
  CountingStore store;
  Reclaimer reclaimer(&store);
  EXPECT_FALSE(reclaimer.AwaitFreed(reclaimer.Freed())) << "there is nothing to wait for";
  for (int i = 0; i < 1'000; ++i) reclaimer.Free(SomeFile());
  EXPECT_TRUE(reclaimer.AwaitFreed(0));
  EXPECT_EQ(store.destroyed, 1'000);
  EXPECT_EQ(reclaimer.Freed(), 1'000u);
  EXPECT_TRUE(reclaimer.AwaitFreed(999)) << "one was freed since";
  EXPECT_FALSE(reclaimer.AwaitFreed(1'000));
}

TEST(ReclaimerTest, FilesAreFreedTogether) {
  CountingStore store;
  std::promise<void> first, all_given;
  store.on_destroy = [&] {
    if (store.calls > 1) return;
    first.set_value();
    all_given.get_future().wait_for(std::chrono::minutes(1));
  };
  Reclaimer reclaimer(&store);
  reclaimer.Free(SomeFile());
  first.get_future().wait();
  for (int i = 0; i < 256; ++i) reclaimer.Free(SomeFile());
  all_given.set_value();
  EXPECT_TRUE(reclaimer.AwaitFreed(0));
  EXPECT_EQ(store.destroyed, 257);
  EXPECT_EQ(store.calls, 2) << "256 at once";
}

TEST(ReclaimerTest, AWaiterIsCalledOnceWhatWasDeletedBeforeIsFreed) {
  CountingStore store;
  std::promise<void> destroys, released;
  store.on_destroy = [&] {
    destroys.set_value();
    released.get_future().wait_for(std::chrono::minutes(1));
  };
  Reclaimer reclaimer(&store);
  TestWaiter at_once;
  reclaimer.CallWhenFreed(&at_once);
  EXPECT_EQ(at_once.called.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
  reclaimer.Free(SomeFile());
  destroys.get_future().wait();
  TestWaiter waiter;
  reclaimer.CallWhenFreed(&waiter);
  released.set_value();
  EXPECT_EQ(waiter.called.get_future().wait_for(std::chrono::minutes(1)), std::future_status::ready);
}

TEST(ReclaimerTest, AtItsEndItFreesTheRestAndCallsTheWaiters) {
  CountingStore store;
  TestWaiter waiter;
  {
    Reclaimer reclaimer(&store);
    for (int i = 0; i < 300; ++i) reclaimer.Free(SomeFile());
    reclaimer.CallWhenFreed(&waiter);
    reclaimer.StopFreeing();
    reclaimer.Free(SomeFile());
  }
  EXPECT_EQ(store.destroyed, 300) << "the last one stays in the store";
  EXPECT_EQ(waiter.called.get_future().wait_for(std::chrono::seconds(0)), std::future_status::ready);
}

}  // namespace
}  // namespace nram
