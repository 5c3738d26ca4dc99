// Random operations from several threads over a faulty network, against simple models.

#include <poll.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/test_seed.h"
#include "client/pool/pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/faulty_relay.h"
#include "tests/util/plain_model.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

// Two servers, and a client whose traffic passes through relays that make faults.
class PoolModelTest : public ::testing::Test {
 protected:
  PoolModelTest() {
    for (int i = 0; i < 2; ++i) {
      relays_.push_back(
          std::make_unique<FaultyRelay>(Endpoint{"127.0.0.1", servers_.server(i).data_port(), ""}, TestSeed() + i));
    }
  }

  PoolOptions Options() const {
    PoolOptions options = servers_.Options();
    options.reroute_data_for_test = [this](size_t server, const Endpoint&) { return relays_[server]->endpoint(); };
    return options;
  }
  void SetPlan(const FaultPlan& plan) {
    for (auto& relay : relays_) relay->SetPlan(plan);
  }
  uint64_t faults() const { return relays_[0]->faults() + relays_[1]->faults(); }

  // Servers refuse connections for a while, freeze for a while, and end the pool's leases, in turn.
  void MakeTrouble(const Pool& pool, const std::atomic<bool>& done) {
    for (int round = 0; !done; ++round) {
      FaultyRelay& relay = *relays_[round % 2];
      switch (round % 3) {
        case 0:
          relay.SetDown(true);
          poll(nullptr, 0, 20);
          relay.SetDown(false);
          break;
        case 1:
          relay.Hold(true);
          poll(nullptr, 0, 20);
          relay.Hold(false);
          break;
        default:
          (void)servers_.server(round % 2).leases().End(pool.session(round % 2)->lease());
      }
      poll(nullptr, 0, 30);
    }
  }

  TestPool servers_{2, 256 * kMiB};
  std::vector<std::unique_ptr<FaultyRelay>> relays_;
};

// Random operations from many threads against a plain map, over connections that fail in every way.
TEST_F(PoolModelTest, AgreesWithAMapOverAFaultyNetwork) {
  PoolOptions options = Options();
  options.io_timeout_ms = 30'000;
  auto pool = TestPool::Open(options);
  auto region = pool->CreateRegion({.gc = true}).value();
  SetPlan({.repeat = 0.002, .corrupt = 0.002, .cut = 0.002, .reorder = 0.002, .delay = 0.02, .delay_us_max = 500});
  constexpr int kThreads = 4;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      PlainModel model(region.get(), t);
      for (int i = 0; i < 250; ++i) ASSERT_NO_FATAL_FAILURE(model.Step()) << "thread " << t << " step " << i;
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_GT(faults(), 20);
}

struct Outcomes {
  std::atomic<int> failed{0}, succeeded{0};
};

// One thread's chunks of a region, and their possible contents after failed operations: old or new. One thread of each
// pair has the even chunks and the other the odd chunks of the same pages.
class OldOrNewModel {
 public:
  OldOrNewModel(Region* region, int thread, Outcomes* outcomes)
      : region_(region),
        thread_(thread),
        mine_(thread % 2 == 0 ? 0x55 : 0xAA),
        outcomes_(outcomes),
        random_(TestSeed() + 100 + thread) {}

  // A random operation, which may fail; a fatal failure of the test if it reads a value that its chunk cannot have.
  void Step() {
    const uint64_t pages = 1 + random_() % (random_() % 8 == 0 ? 200 : 8);
    const uint64_t first_page = random_() % (kChunks / kChunksPerPage - pages);
    const IoOptions how{.timeout_ms = 1 + static_cast<int64_t>(random_() % 60),
                        .io_class = random_() % 2 == 0 ? IoClass::kUrgent : IoClass::kBulk};
    if (random_() % 2 == 0) {
      WriteMine(first_page, pages, how);
    } else {
      ReadAndCheck(first_page, pages, how);
    }
  }

 private:
  static constexpr uint64_t kChunks = 4 * kChunksPerSpan;

  uint64_t OffsetOf(uint64_t page) const {
    const uint64_t base = thread_ / 2 * kChunks;
    return (base + page * kChunksPerPage) * kChunkBytes;
  }
  bool IsMine(uint64_t chunk) const { return (mine_ >> chunk % kChunksPerPage & 1) != 0; }

  void WriteMine(uint64_t first_page, uint64_t pages, const IoOptions& how) {
    std::string data(pages * kPageBytes, '\0');
    const uint64_t tag = random_() << 8 | static_cast<uint64_t>(thread_) << 1 | 1;
    for (size_t at = 0; at < data.size(); at += sizeof tag) memcpy(&data[at], &tag, sizeof tag);
    const std::vector<ChunkMask> masks(pages, mine_);
    const absl::Status status = region_->WriteChunks(OffsetOf(first_page), Bytes(data), masks, how);
    ++(status.ok() ? outcomes_->succeeded : outcomes_->failed);
    for (uint64_t chunk = 0; chunk < pages * kChunksPerPage; ++chunk) {
      if (!IsMine(chunk)) continue;
      auto& may_be = possible_[first_page * kChunksPerPage + chunk];
      if (status.ok()) may_be.clear();
      may_be.push_back(tag);
    }
  }

  void ReadAndCheck(uint64_t first_page, uint64_t pages, const IoOptions& how) {
    const auto back = Read(region_, OffsetOf(first_page), pages * kPageBytes, how);
    ++(back.ok() ? outcomes_->succeeded : outcomes_->failed);
    if (!back.ok()) return;
    for (uint64_t chunk = 0; chunk < pages * kChunksPerPage; ++chunk) {
      if (!IsMine(chunk)) continue;
      uint64_t words[kChunkBytes / sizeof(uint64_t)];
      memcpy(words, &(*back)[chunk * kChunkBytes], sizeof words);
      const auto& may_be = possible_[first_page * kChunksPerPage + chunk];
      ASSERT_THAT(may_be, ::testing::Contains(words[0])) << "chunk " << chunk;
      for (const uint64_t word : words) ASSERT_EQ(word, words[0]) << "a mixed chunk";
    }
  }

  Region* const region_;
  const int thread_;
  const ChunkMask mine_;
  Outcomes* const outcomes_;
  std::mt19937_64 random_;
  // The values that each chunk may hold, by its first word; 0 is a hole.
  std::vector<std::vector<uint64_t>> possible_ = std::vector<std::vector<uint64_t>>(kChunks, {0});
};

// The same test with operations that fail: messages vanish, servers refuse connections for a while, leases end, and
// timeouts are short. An operation that failed leaves old or new data, chunk by chunk, and two threads work on the same
// pages.
TEST_F(PoolModelTest, AFailedOperationLeavesOldOrNewAndNothingElse) {
  SetPlan({.drop = 0.01, .repeat = 0.002, .corrupt = 0.002, .cut = 0.01, .reorder = 0.002});
  auto pool = TestPool::Open(Options());
  auto region = pool->CreateRegion({.gc = false}).value();  // outlives a lease
  constexpr int kThreads = 4;
  constexpr uint64_t kFaultsMin = 20;
  constexpr int kFailedMin = 10;
  Outcomes outcomes;
  std::atomic<bool> done{false};
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      OldOrNewModel model(region.get(), t, &outcomes);
      // The loop runs longer if too few operations passed the relays to fail.
      const auto needs_more = [&] { return faults() <= kFaultsMin || outcomes.failed <= kFailedMin; };
      for (int i = 0; i < 300 || (i < 6000 && needs_more()); ++i) {
        ASSERT_NO_FATAL_FAILURE(model.Step()) << "thread " << t << " step " << i;
      }
    });
  }
  std::thread trouble([&] { MakeTrouble(*pool, done); });
  for (auto& thread : threads) thread.join();
  done = true;
  trouble.join();
  EXPECT_GT(outcomes.failed, kFailedMin);
  EXPECT_GT(outcomes.succeeded, 100);
  EXPECT_GT(faults(), kFaultsMin);
}

}  // namespace
}  // namespace nram
