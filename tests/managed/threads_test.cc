// Many threads on one budget: nested guards, dynamic schedules, shared objects.

#include <atomic>
#include <random>
#include <thread>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "tests/managed/managed_fixture.h"

namespace nram {
namespace {

constexpr size_t kRow = 16 * 1024;  // doubles: 128 KiB

void RunThreads(int count, const std::function<void(int)>& run) {
  std::vector<std::thread> threads;
  for (int i = 0; i < count; ++i) threads.emplace_back(run, i);
  for (std::thread& thread : threads) thread.join();
}

// Seven rows fit at a time, 64 threads want up to three each, one after the other. A refused thread gives up its rows
// and tries again.
TEST(ManagedThreadsTest, NestedGuardsOf64ThreadsNeverHang) {
  FakeMemory fake;
  std::vector<managed<double>> rows;
  for (int i = 0; i < 32; ++i) rows.emplace_back(*fake.memory, kRow);
  std::atomic<int> additions{0};
  std::atomic<int> refused{0};
  RunThreads(64, [&](int thread) {
    std::mt19937_64 random(TestSeed() + thread);
    for (int round = 0; round < 20; ++round) {
      while (true) {
        try {
          adhere<double> a(rows[random() % rows.size()]);
          adhere<double> b(rows[random() % rows.size()]);
          adhere<double> c(rows[random() % rows.size()]);
          std::atomic_ref<double>(c[7]).fetch_add(1);
          ++additions;
          break;
        } catch (const over_budget&) {
          ++refused;
        }
      }
    }
  });
  double sum = 0;
  for (const auto& row : rows) sum += adhere(row)[7];
  EXPECT_EQ(additions, 64 * 20);
  EXPECT_EQ(sum, additions);
  EXPECT_EQ(fake.memory->stats().over_budget, static_cast<uint64_t>(refused));
}

// The memory for all is taken at once: no thread is ever refused.
TEST(ManagedThreadsTest, AdhereAllOf64ThreadsIsNeverRefused) {
  FakeMemory fake;
  std::vector<managed<double>> rows;
  for (int i = 0; i < 32; ++i) rows.emplace_back(*fake.memory, kRow);
  RunThreads(64, [&](int thread) {
    std::mt19937_64 random(TestSeed() + thread);
    for (int round = 0; round < 20; ++round) {
      auto [a, b, c] =
          adhere_all(rows[random() % rows.size()], rows[random() % rows.size()], rows[random() % rows.size()]);
      std::atomic_ref<double>(a[3]).fetch_add(1);
    }
  });
  double sum = 0;
  for (const auto& row : rows) sum += adhere(row)[3];
  EXPECT_EQ(sum, 64 * 20);
  EXPECT_EQ(fake.memory->stats().over_budget, 0u);
}

// OpenMP's dynamic schedule: a free thread takes the next row, round after round.
TEST(ManagedThreadsTest, ADynamicScheduleKeepsEachRowsValue) {
  FakeMemory fake(2 * kMiB);
  constexpr int kRows = 64;
  std::vector<managed<double>> rows;
  for (int i = 0; i < kRows; ++i) rows.emplace_back(*fake.memory, kRow, i);
  for (int round = 0; round < 4; ++round) {
    std::atomic<int> next{0};
    RunThreads(4, [&](int) {
      for (int i; (i = next++) < kRows;) {
        adhere<double> row(rows[i]);
        for (double& value : row) value += 1;
      }
    });
  }
  for (int i = 0; i < kRows; ++i) {
    for (const double value : adhere(std::as_const(rows[i]))) ASSERT_EQ(value, i + 4);
  }
}

TEST(ManagedThreadsTest, ObjectsAreMadeAndDestroyedByAllThreads) {
  FakeMemory fake(2 * kMiB);
  RunThreads(8, [&](int thread) {
    std::mt19937_64 random(TestSeed() + thread);
    std::vector<managed<std::string>> small;
    for (int round = 0; round < 100; ++round) {
      const std::string text = absl::StrCat("thread ", thread, ", round ", round);
      small.emplace_back(*fake.memory, 1, text);
      managed<uint64_t> large(*fake.memory, 10'000, 7 * round + thread);
      ASSERT_EQ(adhere(std::as_const(large))[9'999], static_cast<uint64_t>(7 * round + thread));
      ASSERT_EQ(*adhere(std::as_const(small[round])), text);
      ASSERT_EQ(adhere(small[random() % small.size()])->substr(0, 7), "thread ");
    }
  });
  EXPECT_LE(fake.memory->stats().managed_bytes, 2 * Manager::kPackBytes);
}

TEST(ManagedThreadsTest, OnServers) {
  TestPool pool(2);
  const auto memory = OpenManaged(pool, 2 * kMiB);
  ASSERT_NE(memory, nullptr);
  std::vector<managed<double>> rows;
  for (int i = 0; i < 64; ++i) rows.emplace_back(*memory, kRow, i);
  for (int round = 0; round < 2; ++round) {
    RunThreads(4, [&](int thread) {
      for (int i = thread; i < 64; i += 4) {
        adhere<double> row(rows[i]);
        for (double& value : row) value += 1;
      }
    });
  }
  for (int i = 0; i < 64; ++i) ASSERT_EQ(adhere(std::as_const(rows[i]))[kRow - 1], i + 2);
}

}  // namespace
}  // namespace nram
