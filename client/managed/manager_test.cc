// The manager over a store in memory.

#include "client/managed/manager.h"

#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <random>
#include <thread>
#include <vector>

#include "base/test_seed.h"
#include "client/managed/fake_store.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

constexpr uint64_t kBlock = 128 * kKiB;

class ManagerTest : public testing::Test {
 protected:
  void Open(uint64_t budget = kMiB, FakeStore::Ends ends = FakeStore::Ends::kAtOnce, bool waits = true,
            int64_t wait_ms = 60'000, uint64_t room = kGiB) {
    auto store = std::make_unique<FakeStore>(ends, room);
    store_ = store.get();
    auto manager = Manager::New(std::move(store), {.budget_bytes = budget, .waits = waits, .wait_ms = wait_ms});
    ASSERT_TRUE(manager.ok()) << manager.status();
    manager_ = *std::move(manager);
  }

  // Released, with its number in its first bytes.
  Manager::Object Make(uint64_t bytes, int value, bool fixed = false) {
    const auto object = manager_->Create(bytes, 16, fixed);
    EXPECT_TRUE(object.ok()) << object.status();
    if (!object.ok()) return {};
    *reinterpret_cast<int*>(Manager::AddressOf(*object)) = value;
    manager_->Release(object->block, manager_->Taker());
    return *object;
  }
  std::vector<Manager::Object> MakeMany(int count, uint64_t bytes = kBlock) {
    std::vector<Manager::Object> objects;
    for (int i = 0; i < count; ++i) objects.push_back(Make(bytes, i));
    return objects;
  }
  int Read(const Manager::Object& object) {
    const absl::Status status = manager_->Hold(object.block, /*writes=*/false);
    EXPECT_TRUE(status.ok()) << status;
    if (!status.ok()) return -1;
    const int value = *reinterpret_cast<const int*>(Manager::AddressOf(object));
    Release(object);
    return value;
  }
  void Release(const Manager::Object& object) { manager_->Release(object.block, manager_->Taker()); }
  uint64_t here() const { return manager_->counters().local_bytes; }

  FakeStore* store_ = nullptr;
  std::unique_ptr<Manager> manager_;
};

TEST_F(ManagerTest, ObjectsComeBackAsTheyWereAndTheBudgetHolds) {
  Open();
  const auto objects = MakeMany(40);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 40; ++i) {
      EXPECT_EQ(Read(objects[i]), i);
      ASSERT_LE(here(), kMiB);
    }
  }
  EXPECT_GT(manager_->counters().misses, 0u);
}

TEST_F(ManagerTest, RoundsOfReadingWriteNothing) {
  Open();
  const auto objects = MakeMany(40);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(Read(objects[i]), i);
  const uint64_t written = store_->written_bytes;
  for (int round = 0; round < 4; ++round) {
    for (int i = 0; i < 40; ++i) EXPECT_EQ(Read(objects[i]), i);
  }
  EXPECT_EQ(store_->written_bytes, written);
}

TEST_F(ManagerTest, WhatWasWrittenIsWrittenBack) {
  Open();
  const auto objects = MakeMany(40);
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(manager_->Hold(objects[i].block, /*writes=*/true).ok());
    *reinterpret_cast<int*>(Manager::AddressOf(objects[i])) += 1'000;
    Release(objects[i]);
  }
  for (int i = 0; i < 40; ++i) EXPECT_EQ(Read(objects[i]), 1'000 + i);
}

// Four times the budget, in rounds: the budget's share are hits, and nearly all of the rest is fetched ahead.
TEST_F(ManagerTest, ACycleIsFetchedAheadAndKeepsAsMuchAsFits) {
  Open(8 * kMiB);
  const auto objects = MakeMany(256);
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < 256; ++i) EXPECT_EQ(Read(objects[i]), i);
  }
  const ManagedCounters before = manager_->counters();
  for (int i = 0; i < 256; ++i) EXPECT_EQ(Read(objects[i]), i);
  const ManagedCounters after = manager_->counters();
  EXPECT_LE(after.fetched_bytes - before.fetched_bytes, 256 * kBlock * 85 / 100);
  EXPECT_LE(after.misses - before.misses, 10u);
  EXPECT_LE(after.ahead_wasted - before.ahead_wasted, 10u);
}

// Objects of 16 KiB, which were made one after the other: a request each way moves many of them.
TEST_F(ManagerTest, NeighboursTravelTogether) {
  constexpr uint64_t kBytes = 16 * kKiB;
  constexpr int kCount = 2'048;
  for (const bool writes : {false, true}) {
    Open(8 * kMiB);
    const auto objects = MakeMany(kCount, kBytes);
    EXPECT_LE(store_->writes, kCount / 8) << "what is made goes out in runs";
    uint64_t reads = 0, misses = 0;
    for (int round = 0; round < 5; ++round) {
      reads = store_->reads, store_->writes = 0, misses = manager_->counters().misses;
      for (int i = 0; i < kCount; ++i) {
        ASSERT_TRUE(manager_->Hold(objects[i].block, writes).ok());
        ASSERT_EQ(*reinterpret_cast<const int*>(Manager::AddressOf(objects[i])), i);
        Release(objects[i]);
        ASSERT_LE(here(), 8 * kMiB);
      }
    }
    EXPECT_LE(store_->reads - reads, kCount / 4);
    EXPECT_LE(store_->writes, kCount / 4);
    EXPECT_LE(manager_->counters().misses - misses, 5u) << writes;
  }
}

// One object is lost, not the objects that were fetched ahead together with it.
TEST_F(ManagerTest, OfARunOnlyWhatIsLostFails) {
  constexpr uint64_t kBytes = 16 * kKiB;
  Open();
  const auto objects = MakeMany(200, kBytes);
  for (int i = 0; i < 200; ++i) EXPECT_EQ(Read(objects[i]), i);
  store_->lost_page = objects[101].block->offset;
  for (int i = 0; i < 200; ++i) {
    if (i == 101) {
      EXPECT_TRUE(absl::IsDataLoss(manager_->Hold(objects[i].block, false)));
    } else {
      EXPECT_EQ(Read(objects[i]), i);
    }
  }
  EXPECT_LE(here(), kMiB);
  // One read of a run, and one of the needed object.
  EXPECT_LE(manager_->counters().failed_reads, 3u);
}

// Threads write their own blocks and read the others', while changing pages cannot be read. The holder of a guard sees
// the last written value, and no thread waits for ever.
TEST_F(ManagerTest, NothingIsLostBesideWhatCannotBeRead) {
  constexpr int kThreads = 4;
  constexpr int kBlocks = 128;
  constexpr uint64_t kBytes = 16 * kKiB;
  Open(kMiB, FakeStore::Ends::kOnThread);
  const auto objects = MakeMany(kBlocks, kBytes);
  std::vector<std::atomic<int>> last(kBlocks);
  for (int i = 0; i < kBlocks; ++i) last[i] = i;
  std::atomic<int> running{kThreads};
  std::vector<std::thread> threads;
  for (int own = 0; own < kThreads; ++own) {
    threads.emplace_back([&, own] {
      std::mt19937_64 random(TestSeed() + own);
      for (int step = 0; step < 6'000; ++step) {
        const int i = step % kBlocks;  // in order, so that much is fetched ahead
        const bool writes = i % kThreads == own && random() % 2 == 0;
        const bool starts = random() % 16 == 0;
        if (starts) manager_->Start(objects[random() % kBlocks].block);
        // A guard on another thread's block shows at least the value from before the guard.
        const int before = last[i];
        const absl::Status status = manager_->Hold(objects[i].block, writes);
        if (!status.ok()) {
          EXPECT_TRUE(absl::IsDataLoss(status)) << status;
          continue;
        }
        auto* const value = reinterpret_cast<std::atomic<int>*>(Manager::AddressOf(objects[i]));
        EXPECT_GE(*value, before) << i;
        if (i % kThreads == own) {
          EXPECT_EQ(*value, last[i]) << i;
        }
        if (writes) last[i] = value->fetch_add(kBlocks) + kBlocks;
        Release(objects[i]);
      }
      --running;
    });
  }
  std::mt19937_64 random(TestSeed());
  while (running > 0) {
    store_->lost_page = objects[random() % kBlocks].block->offset;
    std::this_thread::yield();
  }
  for (std::thread& thread : threads) thread.join();
  store_->lost_page = UINT64_MAX;
  for (int i = 0; i < kBlocks; ++i) EXPECT_EQ(Read(objects[i]), last[i]);
  EXPECT_GT(manager_->counters().failed_reads, 0u);
}

TEST_F(ManagerTest, SmallObjectsShareABlock) {
  Open();
  const auto objects = MakeMany(1'000, 100);
  EXPECT_EQ(manager_->counters().managed_bytes, 2 * Manager::kPackBytes);
  EXPECT_EQ(objects[0].block, objects[500].block);
  for (int i = 0; i < 1'000; ++i) EXPECT_EQ(Read(objects[i]), i);
  for (const auto& object : objects) manager_->Delete(object);
  EXPECT_EQ(manager_->counters().managed_bytes, Manager::kPackBytes);  // the one that takes more
}

TEST_F(ManagerTest, FixedObjectsStayWhereTheyAre) {
  Open();
  const Manager::Object object = Make(kBlock, 42, /*fixed=*/true);
  const std::byte* const address = Manager::AddressOf(object);
  const auto others = MakeMany(20);
  ASSERT_TRUE(manager_->Hold(object.block, /*writes=*/false).ok());
  EXPECT_EQ(Manager::AddressOf(object), address);
  EXPECT_EQ(*reinterpret_cast<const int*>(address), 42);
  Release(object);
  EXPECT_GT(store_->read_bytes, 0u);
}

TEST_F(ManagerTest, AThreadAloneIsToldAtOnceThatNothingFits) {
  Open();
  const auto objects = MakeMany(9);  // eight and the bookkeeping do not fit
  std::vector<Manager::Object> held;
  absl::Status status;
  for (const auto& object : objects) {
    status = manager_->Hold(object.block, /*writes=*/false);
    if (!status.ok()) break;
    held.push_back(object);
  }
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
  EXPECT_EQ(held.size(), 7u);
  EXPECT_TRUE(absl::IsOutOfRange(manager_->Create(kBlock, 16, false).status()));
  // A cleanup may exceed the budget.
  EXPECT_TRUE(manager_->Hold(objects[8].block, true, Manager::Room::kBeyondIfNeeded).ok());
  Release(objects[8]);
  for (const auto& object : held) Release(object);
  for (int i = 0; i < 9; ++i) EXPECT_EQ(Read(objects[i]), i);
  EXPECT_LE(here(), kMiB);
}

TEST_F(ManagerTest, AllOrNone) {
  Open();
  const auto objects = MakeMany(12);
  std::vector<Manager::Want> wants;
  for (const auto& object : objects) wants.push_back({object.block, true});
  EXPECT_TRUE(absl::IsOutOfRange(manager_->Hold(wants)));
  // The last two of these are local, and are the next to be evicted.
  wants.resize(7);
  wants.push_back(wants[0]);  // twice the same
  ASSERT_TRUE(manager_->Hold(wants).ok());
  EXPECT_LE(here(), kMiB);
  for (int i = 0; i < 7; ++i) EXPECT_EQ(*reinterpret_cast<int*>(Manager::AddressOf(objects[i])), i);
  for (const auto& want : wants) manager_->Release(want.block, manager_->Taker());
  for (int i = 0; i < 12; ++i) EXPECT_EQ(Read(objects[i]), i);
}

TEST_F(ManagerTest, AThreadWaitsUntilAnotherReleases) {
  Open();
  const auto objects = MakeMany(12);
  std::vector<Manager::Want> wants;
  for (int i = 0; i < 6; ++i) wants.push_back({objects[i].block, true});
  ASSERT_TRUE(manager_->Hold(wants).ok());
  std::atomic<bool> done{false};
  std::thread other([&] {
    std::vector<Manager::Want> its;
    for (int i = 6; i < 12; ++i) its.push_back({objects[i].block, true});
    EXPECT_TRUE(manager_->Hold(its).ok());
    done = true;
    for (const auto& want : its) manager_->Release(want.block, manager_->Taker());
  });
  while (manager_->counters().room_waits == 0) std::this_thread::yield();
  EXPECT_FALSE(done);
  for (const auto& want : wants) manager_->Release(want.block, manager_->Taker());
  other.join();
  EXPECT_TRUE(done);
}

TEST_F(ManagerTest, WithoutWaitingItFailsAlsoBesideOthers) {
  Open(kMiB, FakeStore::Ends::kAtOnce, /*waits=*/false);
  const auto objects = MakeMany(12);
  std::vector<Manager::Want> wants;
  for (int i = 0; i < 6; ++i) wants.push_back({objects[i].block, true});
  ASSERT_TRUE(manager_->Hold(wants).ok());
  std::thread([&] {
    std::vector<Manager::Want> its;
    for (int i = 6; i < 12; ++i) its.push_back({objects[i].block, true});
    EXPECT_TRUE(absl::IsOutOfRange(manager_->Hold(its)));
  }).join();
  for (const auto& want : wants) manager_->Release(want.block, manager_->Taker());
}

// The thread that holds the memory has ended without a release.
TEST_F(ManagerTest, AWaitHasADeadline) {
  Open(kMiB, FakeStore::Ends::kAtOnce, /*waits=*/true, /*wait_ms=*/50);
  const auto objects = MakeMany(12);
  ThreadRecord* taker = nullptr;
  std::thread([&] {
    for (int i = 0; i < 7; ++i) EXPECT_TRUE(manager_->Hold(objects[i].block, false).ok());
    taker = manager_->Taker();
  }).join();
  EXPECT_TRUE(absl::IsOutOfRange(manager_->Hold(objects[8].block, false)));
  for (int i = 0; i < 7; ++i) manager_->Release(objects[i].block, taker);
  EXPECT_EQ(Read(objects[8]), 8);
}

TEST_F(ManagerTest, AServersLossIsAnErrorOfWhoNeedsIt) {
  Open();
  const auto objects = MakeMany(20);
  store_->fails_reads = true;
  EXPECT_TRUE(absl::IsDataLoss(manager_->Hold(objects[0].block, false)));
  EXPECT_TRUE(absl::IsDataLoss(manager_->Hold(objects[0].block, true)));
  store_->fails_reads = false;
  EXPECT_EQ(Read(objects[0]), 0);
}

TEST_F(ManagerTest, NothingIsLostWhereWritesFail) {
  Open();
  const auto objects = MakeMany(6);
  store_->fails_writes = true;
  absl::Status status;
  std::vector<Manager::Object> more;
  for (int i = 0; i < 20 && status.ok(); ++i) {
    const auto made = manager_->Create(kBlock, 16, false);
    status = made.status();
    if (!made.ok()) break;
    *reinterpret_cast<int*>(Manager::AddressOf(*made)) = 100 + i;
    Release(*made);
    more.push_back(*made);
  }
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  for (int i = 0; i < 6; ++i) EXPECT_EQ(Read(objects[i]), i);
  store_->fails_writes = false;
  MakeMany(20);
  for (int i = 0; i < 6; ++i) EXPECT_EQ(Read(objects[i]), i);
  for (size_t i = 0; i < more.size(); ++i) EXPECT_EQ(Read(more[i]), 100 + static_cast<int>(i));
}

TEST_F(ManagerTest, AFullStoreIsAnErrorOfTheConstructor) {
  Open(kMiB, FakeStore::Ends::kAtOnce, true, 60'000, /*room=*/2 * kMiB);
  const auto objects = MakeMany(16);
  EXPECT_TRUE(absl::IsResourceExhausted(manager_->Create(kBlock, 16, false).status()));
  manager_->Delete(objects[3]);
  EXPECT_EQ(Read(Make(kBlock, 77)), 77);
}

// A block remains local when it is wanted while it is written.
TEST_F(ManagerTest, ABlockThatIsWantedWhileItLeavesStays) {
  Open(kMiB, FakeStore::Ends::kWhenTold);
  const auto objects = MakeMany(7);
  std::thread maker([&] { Make(kBlock, 7); });
  while (store_->started() == 0) std::this_thread::yield();
  std::atomic<int> value{-1};
  std::thread reader([&] { value = Read(objects[0]); });
  // Ends the operations that either thread waits for until both are done.
  std::atomic<bool> done{false};
  std::thread ender([&] {
    while (!done) {
      if (!store_->EndOne()) std::this_thread::yield();
    }
  });
  reader.join();
  maker.join();
  done = true;
  ender.join();
  while (store_->EndOne()) {
  }
  EXPECT_EQ(value, 0);
}

TEST_F(ManagerTest, ASmallerBudgetIsReachedAndALargerOneUsed) {
  Open(8 * kMiB);
  const auto objects = MakeMany(60);
  ASSERT_TRUE(manager_->SetBudget(2 * kMiB).ok());
  EXPECT_LE(here(), 2 * kMiB);
  for (int i = 0; i < 60; ++i) EXPECT_EQ(Read(objects[i]), i);
  ASSERT_TRUE(manager_->SetBudget(16 * kMiB).ok());
  for (int i = 0; i < 60; ++i) EXPECT_EQ(Read(objects[i]), i);
  const uint64_t fetched = store_->read_bytes;
  for (int i = 0; i < 60; ++i) EXPECT_EQ(Read(objects[i]), i);
  EXPECT_EQ(store_->read_bytes, fetched);
  EXPECT_TRUE(absl::IsInvalidArgument(manager_->SetBudget(kMiB - 1)));
}

TEST_F(ManagerTest, WritesUnderWayAreBounded) {
  Open(24 * kMiB, FakeStore::Ends::kWhenTold);
  const auto objects = MakeMany(160);
  ASSERT_TRUE(manager_->SetBudget(kMiB).ok());
  while (store_->started() > 0) {
    ASSERT_LE(store_->under_way_bytes, Manager::kLeavingBytesMax);
    store_->EndOne();
  }
  EXPECT_LE(here(), kMiB);
  // The blocks that are still local are dirty, and are evicted when others are read.
  std::atomic<bool> done{false};
  std::thread ender([&] {
    while (!done) {
      if (!store_->EndOne()) std::this_thread::yield();
    }
  });
  for (int i = 0; i < 160; i += 7) EXPECT_EQ(Read(objects[i]), i);
  done = true;
  ender.join();
  while (store_->EndOne()) {
  }
}

// Static objects may be destroyed after the object that declares the program's end.
TEST_F(ManagerTest, TheStoreEndsWithTheLastObject) {
  Open();
  const Manager::Object first = Make(kBlock, 7);
  EXPECT_EQ(Read(first), 7);
  const Manager::Object large = Make(kBlock, 1), small = Make(100, 2), other = Make(100, 3);
  EXPECT_TRUE(absl::IsOutOfRange(manager_->Create(2 * kMiB, 16, false).status()));  // it does not count
  manager_->Delete(small);
  manager_->EndWithLastObject();
  EXPECT_EQ(store_->ends, 0);
  EXPECT_EQ(Read(large), 1);
  manager_->Delete(large);
  manager_->Delete(other);
  EXPECT_EQ(store_->ends, 0) << "there is the first one";
  manager_->Delete(first);
  EXPECT_EQ(store_->ends, 1);
}

TEST_F(ManagerTest, TheStoreEndsAtOnceWhereThereIsNoObject) {
  Open();
  const Manager::Object large = Make(kBlock, 1), small = Make(100, 2);
  manager_->Delete(large);
  EXPECT_EQ(store_->ends, 0);
  manager_->EndWithLastObject();
  EXPECT_EQ(store_->ends, 0);
  manager_->Delete(small);
  EXPECT_EQ(store_->ends, 1);
  Open();
  manager_->EndWithLastObject();
  EXPECT_EQ(store_->ends, 1);
}

TEST_F(ManagerTest, BadSizesAreRefused) {
  Open();
  EXPECT_TRUE(absl::IsInvalidArgument(manager_->Create(0, 16, false).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(manager_->Create(uint64_t{1} << 50, 16, false).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(manager_->Create(16, 3, false).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(manager_->Create(16, 8192, false).status()));
  EXPECT_TRUE(absl::IsOutOfRange(manager_->Create(2 * kMiB, 16, false).status()));
}

// Its end would destroy the parent's objects.
class StoreOfTheParent : public FakeStore {
 public:
  StoreOfTheParent() : FakeStore(Ends::kWhenTold) {}
  ~StoreOfTheParent() override {
    if (getpid() != made_by_) _exit(3);
  }

 private:
  const pid_t made_by_ = getpid();
};

// A child has only the local objects: it neither waits for operations under way nor ends anything.
TEST_F(ManagerTest, AChildLeavesAllToTheParent) {
  auto store = std::make_unique<StoreOfTheParent>();
  store_ = store.get();
  manager_ = *Manager::New(std::move(store), {.budget_bytes = kMiB});
  const auto objects = MakeMany(7);
  std::thread maker([&] { Make(kBlock, 7); });
  while (store_->started() == 0) std::this_thread::yield();
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    alarm(30);  // a hang is a failure
    const absl::Status held = manager_->Hold(objects[6].block, /*writes=*/true);
    if (held.ok()) Release(objects[6]);
    const bool refused = absl::IsUnimplemented(manager_->Create(kBlock, 16, false).status()) &&
                         absl::IsUnimplemented(manager_->SetBudget(2 * kMiB));
    for (const auto& object : objects) manager_->Delete(object);  // one of them is on its way out
    manager_.reset();
    _exit(held.ok() && refused ? 0 : 4);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
  while (store_->EndOne()) {
  }
  maker.join();
  while (store_->EndOne()) {
  }
}

// A thread's own objects are destroyed in the opposite order of their making; static objects of the main thread last.
TEST_F(ManagerTest, GuardsMayBeTakenWhenTheThreadsOwnObjectsHaveGone) {
  Open();
  auto other = *Manager::New(std::make_unique<FakeStore>(), {.budget_bytes = kMiB});
  const auto objects = MakeMany(2);
  struct Late {
    ~Late() { run(); }
    std::function<void()> run;
  };
  std::thread([&] {
    static thread_local Late late;
    late.run = [&] {
      EXPECT_EQ(Read(objects[1]), 1);
      ThreadRecord* const taker = other->Taker();
      EXPECT_NE(taker, manager_->Taker());
      EXPECT_EQ(other->Taker(), taker);
      EXPECT_EQ(taker->guards(), 0u);
    };
    EXPECT_EQ(Read(objects[0]), 0);
    EXPECT_NE(other->Taker(), nullptr);
  }).join();
}

TEST_F(ManagerTest, AGuardMayBeReleasedByAnotherThread) {
  Open();
  const auto objects = MakeMany(9);
  for (int i = 0; i < 7; ++i) ASSERT_TRUE(manager_->Hold(objects[i].block, false).ok());
  ThreadRecord* const taker = manager_->Taker();
  std::thread([&] {
    for (int i = 0; i < 7; ++i) manager_->Release(objects[i].block, taker);
  }).join();
  EXPECT_EQ(taker->guards(), 0u);
  EXPECT_EQ(Read(objects[8]), 8);
}

}  // namespace
}  // namespace nram
