// Tenants share the threads of the control plane: calls of one that take long keep no other one's waiting.

#include "memserver/call_threads.h"

#include <memory>

#include "base/clock.h"
#include "base/sync.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using Pace = CallThreads::Pace;

constexpr uint32_t kFirst = 1, kSecond = 2, kThird = 3;

class CallThreadsTest : public ::testing::Test {
 protected:
  ~CallThreadsTest() override {
    Permit(100'000);
    threads_.reset();
  }

  // A call that ends when it gets a permit.
  bool PostLong(uint32_t tenant, Pace pace = Pace::kQuick) {
    return threads_->Post(pace, tenant, [this] {
      MutexLock lock(&mu_);
      ++begun_;
      changed_.SignalAll();
      while (permits_ == 0) changed_.WaitUntil(&mu_, DeadlineAfterMs(60'000));
      --permits_;
      ++ended_;
      changed_.SignalAll();
    });
  }
  bool PostShort(uint32_t tenant, Pace pace = Pace::kQuick) {
    return threads_->Post(pace, tenant, [this] {
      MutexLock lock(&mu_);
      ++short_done_;
      changed_.SignalAll();
    });
  }
  void Permit(int calls) {
    MutexLock lock(&mu_);
    permits_ += calls;
    changed_.SignalAll();
  }
  // False: not in time.
  bool AwaitBegun(int wanted) { return Await(&begun_, wanted); }
  bool AwaitEnded(int wanted) { return Await(&ended_, wanted); }
  bool AwaitShort(int wanted) { return Await(&short_done_, wanted); }

  Mutex mu_;
  CondVar changed_;
  int permits_ = 0, begun_ = 0, ended_ = 0, short_done_ = 0;  // guarded by mu_
  std::unique_ptr<CallThreads> threads_ = std::make_unique<CallThreads>();

 private:
  bool Await(const int* count, int wanted) {
    MutexLock lock(&mu_);
    const int64_t deadline_ns = DeadlineAfterMs(30'000);
    while (*count < wanted) {
      if (!changed_.WaitUntil(&mu_, deadline_ns)) return *count >= wanted;
    }
    return true;
  }
};

TEST_F(CallThreadsTest, ATenantsLongCallsLeaveOthersThreads) {
  for (int i = 0; i < 20; ++i) ASSERT_TRUE(PostLong(kFirst, i % 3 == 0 ? Pace::kSlow : Pace::kQuick));
  ASSERT_TRUE(AwaitBegun(CallThreads::kTenantMax));
  ASSERT_TRUE(PostShort(kSecond));
  EXPECT_TRUE(AwaitShort(1));
}

TEST_F(CallThreadsTest, TenantsTakeTurns) {
  for (const Pace pace : {Pace::kQuick, Pace::kSlow}) {
    for (int i = 0; i < 20; ++i) ASSERT_TRUE(PostLong(kFirst, pace) && PostLong(kSecond, pace));
    const int running = pace == Pace::kSlow ? CallThreads::kSlowMax : CallThreads::kThreads;
    ASSERT_TRUE(AwaitBegun(running));
    ASSERT_TRUE(PostShort(kThird, pace));
    Permit(3);  // each tenant's turn comes at the third at the latest
    EXPECT_TRUE(AwaitShort(1));
    Permit(40 - 3);
    ASSERT_TRUE(AwaitEnded(40));
    MutexLock lock(&mu_);
    begun_ = ended_ = short_done_ = 0;
  }
}

TEST_F(CallThreadsTest, ATenantLeavesOthersPlacesToWait) {
  for (const Pace pace : {Pace::kQuick, Pace::kSlow}) {
    int waiting = 0;
    while (PostLong(kFirst, pace)) ASSERT_LT(++waiting, 1'000);
    EXPECT_GE(waiting, static_cast<int>(CallThreads::kSlowWaitingMax) / 2);
    for (int i = 0; i < 4; ++i) EXPECT_TRUE(PostShort(kSecond, pace)) << i;
    EXPECT_TRUE(PostShort(kThird, pace));
  }
}

}  // namespace
}  // namespace nram
