// Random operations against plain copies of the objects. Replay with --seed=N or NRAM_SEED=N.

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "tests/managed/managed_fixture.h"
#include "tests/util/pattern.h"

namespace nram {
namespace {

// An object at any address, or a fixed one, and its expected value.
struct Modelled {
  std::variant<managed<char>, managed<std::string>> object;
  std::string expected;
};

class Model {
 public:
  Model(managed_memory* memory, uint64_t seed) : memory_(memory), random_(seed) {}

  void Step() {
    switch (random_() % 12) {
      case 0:
      case 1:
        if (objects_.size() < 200) Make();
        break;
      case 2:
        if (!objects_.empty() && random_() % 3 == 0) objects_.erase(objects_.begin() + random_() % objects_.size());
        break;
      case 3:
      case 4:
        if (!objects_.empty()) Change(&Any());
        break;
      case 5:
        if (!objects_.empty()) Start(Any());
        break;
      case 6:
        if (random_() % 50 == 0) memory_->set_budget(kMiB + random_() % (3 * kMiB));
        break;
      case 7:
        if (objects_.size() > 3) Several();
        break;
      case 8:  // in order, so that something is fetched ahead
        if (random_() % 10 == 0) {
          for (const auto& each : objects_) Check(*each);
        }
        break;
      default:
        if (!objects_.empty()) Check(Any());
    }
    const nram_managed_stats stats = memory_->stats();
    // Local memory shrinks to a smaller budget as writes end.
    ASSERT_LE(stats.local_bytes, std::max(stats.budget_bytes + kPageBytes, local_bytes_)) << "beyond the budget";
    local_bytes_ = stats.local_bytes;
  }

  void CheckAll() {
    for (const auto& each : objects_) Check(*each);
  }

 private:
  Modelled& Any() { return *objects_[random_() % objects_.size()]; }

  void Make() {
    if (random_() % 4 == 0) {
      std::string text = Pattern(8 * (random_() % 4), random_());
      objects_.push_back(std::make_unique<Modelled>(Modelled{managed<std::string>(*memory_, 1, text), text}));
      return;
    }
    const size_t bytes = 8 + 8 * (random_() % (random_() % 2 == 0 ? 200 : 20'000));
    auto made = std::make_unique<Modelled>(Modelled{managed<char>(*memory_, bytes), std::string(bytes, '\0')});
    objects_.push_back(std::move(made));
  }

  void Change(Modelled* it) {
    if (auto* const text = std::get_if<managed<std::string>>(&it->object)) {
      it->expected = Pattern(8 * (random_() % 100), random_());
      *adhere(*text) = it->expected;
      return;
    }
    auto& bytes = std::get<managed<char>>(it->object);
    const size_t first = random_() % (bytes.size() / 8) * 8;
    const std::string data = Pattern(std::min<size_t>(bytes.size() - first, 8 + 8 * (random_() % 500)), random_());
    memcpy(adhere(bytes).get() + first, data.data(), data.size());
    it->expected.replace(first, data.size(), data);
  }

  void Start(const Modelled& it) {
    std::visit([](const auto& object) { object.start(); }, it.object);
  }

  void Check(const Modelled& it) {
    if (const auto* const text = std::get_if<managed<std::string>>(&it.object)) {
      ASSERT_TRUE(*adhere(*text) == it.expected);
      return;
    }
    const adhere<const char> bytes(std::get<managed<char>>(it.object));
    ASSERT_EQ(memcmp(bytes.get(), it.expected.data(), bytes.size()), 0);
  }

  // Two at once, which may be the same or share a block.
  void Several() {
    auto* const a = std::get_if<managed<char>>(&Any().object);
    auto* const b = std::get_if<managed<char>>(&Any().object);
    if (a == nullptr || b == nullptr) return;
    auto [x, y] = adhere_all(std::as_const(*a), std::as_const(*b));
    ASSERT_EQ(x.get() == y.get(), a == b);
  }

  managed_memory* const memory_;
  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Modelled>> objects_;
  uint64_t local_bytes_ = 0;  // after the last step
};

void RunModel(managed_memory* memory, int steps, uint64_t salt) {
  Model model(memory, TestSeed() + salt);
  for (int step = 0; step < steps; ++step) {
    ASSERT_NO_FATAL_FAILURE(model.Step()) << "step " << step;
  }
  ASSERT_NO_FATAL_FAILURE(model.CheckAll());
}

TEST(ManagedModelTest, InMemory) {
  FakeMemory fake(kMiB, FakeStore::Ends::kOnThread);
  RunModel(fake.memory.get(), 20'000, 0);
  EXPECT_GT(fake.store->read_bytes, 0u);
}

TEST(ManagedModelTest, WhereOperationsEndAtOnce) {
  FakeMemory fake(kMiB, FakeStore::Ends::kAtOnce);
  RunModel(fake.memory.get(), 20'000, 1);
}

TEST(ManagedModelTest, OnServers) {
  TestPool pool(2);
  const auto memory = OpenManaged(pool);
  ASSERT_NE(memory, nullptr);
  RunModel(memory.get(), 5'000, 2);
}

}  // namespace
}  // namespace nram

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  for (int i = 1; i < argc; ++i) {
    if (strncmp(argv[i], "--seed=", 7) == 0) setenv("NRAM_SEED", argv[i] + 7, 1);
  }
  return RUN_ALL_TESTS();
}
