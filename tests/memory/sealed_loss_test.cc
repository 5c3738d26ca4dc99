// Programs on sealed memory whose donors lie: each page is the program's own data, or SIGBUS with a line that says why.

#include <setjmp.h>
#include <signal.h>

#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/sync.h"
#include "base/test_seed.h"
#include "gmock/gmock.h"
#include "tests/memory/engine_fixture.h"
#include "tests/util/faulty_relay.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

sigjmp_buf back;

void OnBus(int) { siglongjmp(back, 1); }

// False: SIGBUS.
bool Touch(const uint64_t* word, uint64_t* found) {
  if (sigsetjmp(back, 1) != 0) return false;
  *found = *static_cast<const volatile uint64_t*>(word);
  return true;
}

class SealedLossTest : public ::testing::Test {
 protected:
  SealedLossTest() {
    for (int i = 0; i < 2; ++i) {
      relays_.push_back(
          std::make_unique<FaultyRelay>(Endpoint{"127.0.0.1", servers_.server(i).data_port(), ""}, TestSeed() + i));
    }
    struct sigaction action = {};
    action.sa_handler = OnBus;
    sigaction(SIGBUS, &action, &before_);
  }
  ~SealedLossTest() override { sigaction(SIGBUS, &before_, nullptr); }

  MemoryOptions Options() {
    MemoryOptions options;
    options.pool = servers_.Options();
    options.pool.seal = Seal::kYes;
    options.pool.reroute_data_for_test = [this](size_t server, const Endpoint&) { return relays_[server]->endpoint(); };
    options.budget_bytes = kBudget;
    options.on_loss = [this](void*, size_t, const std::string& reason) {
      MutexLock lock(&mu_);
      reason_ = reason;
    };
    return options;
  }
  std::string reason() {
    MutexLock lock(&mu_);
    return reason_;
  }

  TestPool servers_{2, 256 * kMiB};
  std::vector<std::unique_ptr<FaultyRelay>> relays_;
  struct sigaction before_ = {};
  Mutex mu_;
  std::string reason_ ABSL_GUARDED_BY(mu_);
};

TEST_F(SealedLossTest, DonorsHaveOnlyCiphertextOfAProgramsMemory) {
  constexpr uint64_t kPages = 200;
  constexpr char kCanary[] = "a canary of a program";
  for (const Seal seal : {Seal::kNo, Seal::kYes}) {
    MemoryOptions options = Options();
    options.pool.seal = seal;
    auto memory = Memory::Open(options).value();
    std::byte* const bytes = memory->Map({.length = kPages * kPageBytes}).value();
    for (uint64_t page = 0; page < kPages; ++page) memcpy(bytes + page * kPageBytes, kCanary, sizeof kCanary);
    ASSERT_TRUE(memory->Evict(bytes, kPages * kPageBytes).ok());
    int found = 0;
    for (int i = 0; i < 2; ++i) {
      PageStore& store = servers_.server(i).store();
      for (const RegionDescription& region : store.List(0, 0, 100, false, false)) {
        for (uint64_t page = 0; page < kPages; ++page) {
          const PageStore::ReadArgs args{
              .region = {region.id, 0}, .range = {page * kChunksPerPage, kChunksPerPage}, .generation = std::nullopt};
          store.ReadInPlace(args, [&](const PageStore::Stored& stored) {
            if (stored.chunks.empty()) return;
            found += memmem(stored.chunks[0].iov_base, stored.chunks[0].iov_len, kCanary, sizeof kCanary) != nullptr;
          });
        }
      }
    }
    EXPECT_EQ(found, seal == Seal::kNo ? static_cast<int>(kPages) : 0);
  }
}

TEST_F(SealedLossTest, ALieIsSigbusAndNeverAnotherByte) {
  auto memory = Memory::Open(Options()).value();
  constexpr uint64_t kPages = 2'000;
  auto* const words = reinterpret_cast<uint64_t*>(memory->Map({.length = kPages * kPageBytes}).value());
  ASSERT_TRUE(memory->SetReadAhead(words, ReadAhead::kNever).ok());
  // Each page twice, so that the relay can play back an old version.
  for (uint64_t round = 1; round <= 2; ++round) {
    for (uint64_t page = 0; page < kPages; ++page) words[page * kWordsPerPage] = round << 32 | page;
    ASSERT_TRUE(memory->Evict(words, kPages * kPageBytes).ok());
  }
  for (auto& relay : relays_) relay->SetPlan({.lie = 0.2});
  int lost = 0;
  for (uint64_t page = 0; page < kPages; ++page) {
    uint64_t found = 0;
    if (Touch(&words[page * kWordsPerPage], &found)) {
      ASSERT_EQ(found, uint64_t{2} << 32 | page);
    } else {
      ++lost;
    }
  }
  // A read that gets a lie is tried again, so few are lost.
  EXPECT_GT(lost, 0);
  EXPECT_LT(lost, static_cast<int>(kPages));
  EXPECT_THAT(reason(), HasSubstr("not the last written ones"));
}

}  // namespace
}  // namespace nram
