// <nram/managed.hpp>: objects, guards, and what C++ promises of them.

#include <cstdlib>
#include <map>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/managed/managed_fixture.h"

namespace nram {
namespace {

constexpr size_t kRow = 16 * 1024;  // doubles: 128 KiB

// Evicts all other objects, and this one too.
void EvictAll(managed_memory& memory) {
  const uint64_t budget = memory.stats().budget_bytes;
  std::vector<managed<char>> others;
  for (uint64_t made = 0; made < 2 * budget; made += 128 * kKiB) others.emplace_back(memory, 128 * kKiB);
}

TEST(ManagedTest, ElementsAreZerosOrMadeOfTheArguments) {
  FakeMemory fake;
  const managed<double> one(*fake.memory);
  const managed<double> zeros(*fake.memory, kRow);
  const managed<double> ones(*fake.memory, kRow, 1.5);
  EXPECT_EQ(one.size(), 1u);
  EXPECT_EQ(*adhere(one), 0);
  for (const double value : adhere(zeros)) ASSERT_EQ(value, 0);
  for (const double value : adhere(ones).span()) ASSERT_EQ(value, 1.5);
}

TEST(ManagedTest, SeveralDimensions) {
  FakeMemory fake;
  managed<int, 3> cube(*fake.memory, 4, 5, 20'000, 7);
  ASSERT_EQ(cube.size(), 4u);
  ASSERT_EQ(cube[0].size(), 5u);
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 5; ++j) {
      adhere<int> row(cube[i][j]);
      ASSERT_EQ(row.size(), 20'000u);
      row[19'999] += static_cast<int>(10 * i + j);
    }
  }
  for (size_t i = 0; i < 4; ++i) {
    for (size_t j = 0; j < 5; ++j)
      EXPECT_EQ(adhere(std::as_const(cube[i][j]))[19'999], static_cast<int>(7 + 10 * i + j));
  }
}

TEST(ManagedTest, ConstRoundsSendNothing) {
  FakeMemory fake;
  std::vector<managed<double>> rows;
  for (int i = 0; i < 40; ++i) rows.emplace_back(*fake.memory, kRow, i);
  const auto sum = [&] {
    double all = 0;
    for (const auto& row : rows) {
      const adhere<const double> values(row);
      all = std::accumulate(values.begin(), values.end(), all);
    }
    return all;
  };
  const double first = sum();
  EvictAll(*fake.memory);
  const uint64_t written = fake.store->written_bytes;
  for (int round = 0; round < 3; ++round) EXPECT_EQ(sum(), first);
  EXPECT_EQ(fake.store->written_bytes, written);
  EXPECT_GT(fake.store->read_bytes, 0u);
}

TEST(ManagedTest, StringsLiveOnAfterEviction) {
  FakeMemory fake;
  managed<std::string> strings(*fake.memory, 100, "short");
  managed<std::map<int, std::string>> tree(*fake.memory);
  const std::string* const address = adhere(std::as_const(strings)).get();
  {
    adhere<std::string> all(strings);
    for (int i = 0; i < 100; ++i) all[i] += std::string(i, 'x');
    adhere<std::map<int, std::string>> map(tree);
    for (int i = 0; i < 100; ++i) (*map)[i] = all[i];
  }
  EvictAll(*fake.memory);
  const uint64_t read = fake.store->read_bytes;
  const adhere<const std::string> all(strings);
  EXPECT_GT(fake.store->read_bytes, read);
  EXPECT_EQ(all.get(), address);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(all[i], "short" + std::string(i, 'x'));
  EXPECT_EQ(adhere(std::as_const(tree))->at(42), all[42]);
}

std::vector<std::string>* told = nullptr;

struct Part {
  explicit Part(std::string its) : name(std::move(its)) { told->push_back("+" + name); }
  ~Part() { told->push_back("-" + name); }
  Part(const Part&) = delete;
  std::string name;
};

struct Whole {
  Whole(managed_memory& memory, const std::string& name)
      : first(memory, 1, name + ".1"), second(memory, 2, name + ".2"), values(memory, kRow, 3.0), itself(name) {}
  managed<Part> first;
  managed<Part> second;
  managed<double> values;
  Part itself;
};

TEST(ManagedTest, DestructorsOfEvictedNestedObjectsRunInOrder) {
  std::vector<std::string> events;
  told = &events;
  FakeMemory fake;
  {
    managed<Whole> whole(*fake.memory, 1, *fake.memory, "w");
    EXPECT_EQ(events, (std::vector<std::string>{"+w.1", "+w.2", "+w.2", "+w"}));
    events.clear();
    EvictAll(*fake.memory);
    EXPECT_EQ(adhere(std::as_const(adhere(whole)->values))[kRow - 1], 3.0);
    EvictAll(*fake.memory);
  }
  EXPECT_EQ(events, (std::vector<std::string>{"-w", "-w.2", "-w.2", "-w.1"}));
  EXPECT_EQ(fake.memory->stats().over_budget, 0u);
}

struct Thrower {
  Thrower() {
    if (made == 3) throw std::runtime_error("the fourth");
    ++made;
  }
  ~Thrower() { --made; }
  static inline int made = 0;
};

TEST(ManagedTest, AConstructorThatThrowsTakesBackTheOthers) {
  FakeMemory fake;
  EXPECT_THROW(managed<Thrower>(*fake.memory, 10), std::runtime_error);
  EXPECT_EQ(Thrower::made, 0);
  const managed<Thrower> three(*fake.memory, 3);
  EXPECT_EQ(Thrower::made, 3);
}

TEST(ManagedTest, MovedObjectsHaveOneOwner) {
  FakeMemory fake;
  std::vector<std::string> events;
  told = &events;
  {
    managed<Part> a(*fake.memory, 1, "a");
    managed<Part> b(std::move(a));
    managed<Part> c(*fake.memory, 1, "c");
    c = std::move(b);
    EXPECT_EQ(adhere(c)->name, "a");
  }
  EXPECT_EQ(events, (std::vector<std::string>{"+a", "+c", "-c", "-a"}));
}

TEST(ManagedTest, GuardsAreCopiedMovedAndReleased) {
  FakeMemory fake;
  managed<int> object(*fake.memory, 1, 5);
  adhere<int> a(object);
  adhere<int> b(a);
  adhere<int> c(std::move(a));
  c = b;
  *c = 6;
  EXPECT_EQ(*b, 6);
  b.release();
  EXPECT_EQ(*b, 6);
  adhere<int> late(&object, load::delayed);
  late[0] += 1;
  int* const plain = late;
  EXPECT_EQ(*plain, 7);
}

TEST(ManagedTest, DelayedLoadingHoldsNothingBeforeTheFirstUse) {
  FakeMemory fake;
  std::vector<managed<double>> rows;
  for (int i = 0; i < 40; ++i) rows.emplace_back(*fake.memory, kRow, i);
  std::vector<adhere<double>> guards;
  for (auto& row : rows) guards.emplace_back(row, load::delayed);
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(guards[i][0], i);
    guards[i].release();
  }
}

TEST(ManagedTest, MoreThanFitsIsAnErrorAndNothingStaysHeld) {
  FakeMemory fake;
  std::vector<managed<double>> rows;
  for (int i = 0; i < 20; ++i) rows.emplace_back(*fake.memory, kRow, i);
  const auto hold_all = [&] {
    std::vector<adhere<double>> guards;
    for (auto& row : rows) guards.emplace_back(row);
  };
  EXPECT_THROW(hold_all(), over_budget);
  EXPECT_THROW(managed<double>(*fake.memory, 10 * kRow), over_budget);
  for (int i = 0; i < 20; ++i) EXPECT_EQ(adhere(rows[i])[0], i);
}

TEST(ManagedTest, AdhereAllIsForReadingWhereConst) {
  FakeMemory fake;
  managed<int> a(*fake.memory, 1, 1);
  const managed<int> b(*fake.memory, 1, 2);
  managed<double> c(*fake.memory, kRow, 3);
  auto [x, y, z] = adhere_all(a, b, std::as_const(c));
  static_assert(std::is_same_v<decltype(x), adhere<int>> && std::is_same_v<decltype(y), adhere<const int>>);
  *x += *y + static_cast<int>(z[5]);
  EXPECT_EQ(*x, 6);
  FakeMemory another;
  managed<int> d(*another.memory, 1, 1);
  EXPECT_THROW(adhere_all(a, d), managed_error);
}

// On servers: a matrix of twice the budget is transposed.
TEST(ManagedOnServersTest, ATransposedMatrix) {
  TestPool pool(2);
  const auto memory = OpenManaged(pool);
  ASSERT_NE(memory, nullptr);
  constexpr size_t kSide = 512;  // rows of 4 KiB
  managed<double, 2> matrix(*memory, kSide, kSide);
  for (size_t i = 0; i < kSide; ++i) {
    adhere<double> row(matrix[i]);
    for (size_t j = 0; j < kSide; ++j) row[j] = static_cast<double>(i * kSide + j);
  }
  for (size_t i = 0; i < kSide; ++i) {
    for (size_t j = i + 1; j < kSide; ++j) {
      auto [upper, lower] = adhere_all(matrix[i], matrix[j]);
      std::swap(upper[j], lower[i]);
    }
  }
  for (size_t i = 0; i < kSide; ++i) {
    const adhere<const double> row(matrix[i]);
    for (size_t j = 0; j < kSide; ++j) ASSERT_EQ(row[j], static_cast<double>(j * kSide + i));
  }
  const nram_managed_stats stats = memory->stats();
  EXPECT_LE(stats.local_bytes, stats.budget_bytes);
  EXPECT_GT(stats.fetched_bytes, 0u);
}

TEST(ManagedOnServersTest, ACopyOutlivesAServer) {
  TestPool pool(3, 128 * kMiB, Clock::Real(), TestPool::Hosts::kPretended);
  const auto memory = OpenManaged(pool, kMiB, /*copies=*/2);
  ASSERT_NE(memory, nullptr);
  std::vector<managed<double>> rows;
  for (int i = 0; i < 40; ++i) rows.emplace_back(*memory, kRow, i);
  EvictAll(*memory);
  pool.StopServer(0);
  for (int i = 0; i < 40; ++i) EXPECT_EQ(adhere(std::as_const(rows[i]))[kRow - 1], i);
}

TEST(ManagedOnServersTest, FewerHostsThanCopiesAreAnErrorAtOnce) {
  TestPool pool(2);  // on one host
  std::string spec;
  for (const Endpoint& server : pool.Options().servers) {
    absl::StrAppend(&spec, spec.empty() ? "" : ",", server.host, ":", server.port);
  }
  managed_options options = managed_memory::default_options();
  for (const std::string setting : {"nram_managed_options.copies", "$NRAM_COPIES"}) {
    options.copies = setting[0] == '$' ? 0 : 2;
    setenv("NRAM_COPIES", "2", 1);
    try {
      const managed_memory memory(spec.c_str(), options);
      ADD_FAILURE() << setting << " has found hosts for its copies";
    } catch (const managed_error& error) {
      EXPECT_EQ(error.code().value(), ENOMEM) << error.what();
      EXPECT_NE(std::string(error.what()).find(setting + "=2: each copy needs its own host, and the pool has 1 host:"),
                std::string::npos)
          << error.what();
    }
    unsetenv("NRAM_COPIES");
  }
}

TEST(ManagedOnServersTest, ALostServerIsAnErrorNotZeros) {
  TestPool pool(1);
  const auto memory = OpenManaged(pool);
  ASSERT_NE(memory, nullptr);
  std::vector<managed<double>> rows;
  for (int i = 0; i < 20; ++i) rows.emplace_back(*memory, kRow, 1.0 + i);
  EvictAll(*memory);
  pool.StopServer(0);
  pool.StartServer(0);
  try {
    (void)adhere(std::as_const(rows[0])).get();
    ADD_FAILURE() << "lost data was read";
  } catch (const over_budget&) {
    ADD_FAILURE() << "not for lack of room";
  } catch (const managed_error& error) {
    EXPECT_EQ(error.code().value(), EIO) << error.what();
  }
}

}  // namespace
}  // namespace nram
