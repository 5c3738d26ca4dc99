// Versions of mapped memory when a resource is short or fails: servers that are full or take nothing for a while, and
// producers that are killed.

#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/poll_until.h"
#include "base/subprocess.h"
#include "base/sync.h"
#include "base/test_seed.h"
#include "client/memory/memory.h"
#include "client/pool/pool_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/memory/publish_util.h"
#include "tests/util/faulty_relay.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

// Tells whether a page can be read. The kernel touches it, so a loss is not a signal.
bool CanBeHad(const uint64_t* page) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const UniqueFd out(ends[0]), in(ends[1]);
  const bool had = write(in.get(), page, sizeof(*page)) == sizeof(*page);
  EXPECT_TRUE(had || errno == EFAULT) << errno;
  return had;
}

TEST(PublishRoomTest, VersionsGiveWayAndNoWriteFails) {
  TestPool servers(1, 64 * kMiB);
  constexpr uint64_t kPages = 2'048, kCount = kPages * kWordsPerPage;  // 8 of 17 MiB
  auto producer = OpenMemory(OptionsFor(servers.Options()));
  MemoryOptions careful = OptionsFor(servers.Options());
  std::atomic<int> lost{0};
  careful.on_loss = [&](void*, size_t, const std::string&) { ++lost; };
  auto observer = OpenMemory(careful);
  uint64_t* const words = MapWords(producer.get(), "field", kPages * kPageBytes);
  const uint64_t* first = nullptr;
  for (uint64_t round = 1; round <= 8; ++round) {
    Fill(words, kCount, round);
    Publish(producer.get(), {words}, 8);
    const absl::Status published = AwaitPublished(producer.get(), words);
    ASSERT_TRUE(published.ok()) << "round " << round << ": " << published;
    if (round == 1) first = Observe(observer.get(), "field");
    ASSERT_NE(first, nullptr);
  }
  EXPECT_EQ(FirstWrong(words, kCount, 8), kCount);
  uint64_t gone = 0;
  for (uint64_t page = 0; page < kPages; ++page) {
    if (!CanBeHad(first + page * kWordsPerPage)) {
      ++gone;
    } else {
      ASSERT_EQ(first[page * kWordsPerPage], WordOf(1, page * kWordsPerPage)) << "another state's page " << page;
    }
  }
  EXPECT_GT(gone, 0u) << "eight versions of 8 MiB cannot be there";
  EXPECT_GT(lost, 0);
  const auto next = observer->Next(first, DeadlineAfterMs(kPatienceMs));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(*next, 8u);
  EXPECT_EQ(FirstWrong(first, kCount, 8), kCount) << "lost pages are tried again";
}

// A server that can take nothing for a while.
class PublishTroubleTest : public ::testing::Test {
 protected:
  MemoryOptions Options() {
    MemoryOptions options = OptionsFor(servers_.Options());
    options.pool.reroute_data_for_test = [this](size_t, const Endpoint& target) {
      MutexLock lock(&mu_);
      relays_.push_back(std::make_unique<FaultyRelay>(target, 1));
      return relays_.back()->endpoint();
    };
    return options;
  }
  void Hold(bool held) {
    MutexLock lock(&mu_);
    for (auto& relay : relays_) relay->Hold(held);
  }
  void SetPlan(const FaultPlan& plan) {
    MutexLock lock(&mu_);
    for (auto& relay : relays_) relay->SetPlan(plan);
  }

  // With a short timeout this may be late on a slow machine; then it is tried again.
  static bool PublishWord(Memory* memory, uint64_t* words) {
    return PollUntil(DeadlineAfterMs(kPatienceMs), 1, [&] {
      ++words[0];
      const auto version = memory->Publish({.bases = {words}, .header_json = ""});
      return version.ok() && AwaitPublished(memory, words).ok();
    });
  }

  TestPool servers_{1, 256 * kMiB};

 private:
  Mutex mu_;
  std::vector<std::unique_ptr<FaultyRelay>> relays_ ABSL_GUARDED_BY(mu_);
};

TEST_F(PublishTroubleTest, AWriterGoesOnThoughNoServerHasItsPage) {
  // More pages than are on their way at a time: the last pages are not being sent yet.
  constexpr uint64_t kPages = 6'144, kWritten = 100;
  MemoryOptions options = Options();
  options.budget_bytes = 64 * kMiB;
  auto producer = OpenMemory(options);
  auto observer = OpenMemory(OptionsFor(servers_.Options()));
  uint64_t* const words = MapWords(producer.get(), "field", kPages * kPageBytes);
  words[0] = 1;
  Publish(producer.get(), {words});
  ASSERT_TRUE(AwaitPublished(producer.get(), words).ok());
  for (uint64_t page = 0; page < kPages; ++page) words[page * kWordsPerPage] = page;
  Hold(true);
  const uint64_t version = Publish(producer.get(), {words});
  for (uint64_t page = kPages - kWritten; page < kPages; ++page) words[page * kWordsPerPage] = 7'000'000;
  EXPECT_TRUE(absl::IsDeadlineExceeded(producer->AwaitPublished(words, version, MonotonicNs())));
  Hold(false);
  const absl::Status published = AwaitPublished(producer.get(), words);
  ASSERT_TRUE(published.ok()) << published;
  const uint64_t* const seen = Observe(observer.get(), "field");
  ASSERT_NE(seen, nullptr);
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(seen[page * kWordsPerPage], page);
  Publish(producer.get(), {words});
  ASSERT_TRUE(AwaitPublished(producer.get(), words).ok());
  ASSERT_TRUE(observer->Next(seen, DeadlineAfterMs(kPatienceMs)).ok());
  for (uint64_t page = 0; page < kPages; ++page) {
    ASSERT_EQ(seen[page * kWordsPerPage], page < kPages - kWritten ? page : 7'000'000);
  }
}

TEST_F(PublishTroubleTest, AVersionIsGivenUpSoThatTheProgramGoesOn) {
  MemoryOptions options = Options();
  options.publish_patience_ms = 50;
  constexpr uint64_t kPages = 64, kOthers = 4'096;
  auto producer = OpenMemory(options);
  auto observer = OpenMemory(OptionsFor(servers_.Options()));
  uint64_t* const words = MapWords(producer.get(), "field", kPages * kPageBytes);
  uint64_t* const others = MapWords(producer.get(), "", kOthers * kPageBytes);
  const auto write_all = [](uint64_t* pages, uint64_t count, uint64_t seed) {
    for (uint64_t page = 0; page < count; ++page) pages[page * kWordsPerPage] = seed + page;
  };
  // On a slow machine these may be given up as well.
  const auto publish = [&] {
    return PollUntil(DeadlineAfterMs(kPatienceMs), 1, [&] {
      Publish(producer.get(), {words});
      return AwaitPublished(producer.get(), words).ok();
    });
  };
  write_all(words, kPages, 1);
  ASSERT_TRUE(publish());
  write_all(words, kPages, 1'000);
  Hold(true);
  const uint64_t bad = Publish(producer.get(), {words});
  std::thread writer([&] { write_all(others, kOthers, 5); });  // new pages, more than the budget
  const absl::Status status = AwaitPublished(producer.get(), words, bad);
  Hold(false);
  writer.join();
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(std::string(status.message()), HasSubstr("was abandoned"));
  const uint64_t* const seen = Observe(observer.get(), "field");
  ASSERT_NE(seen, nullptr);
  EXPECT_LT(observer->ObservedRecord(seen)->number, bad);
  const auto expect = [&](const uint64_t* pages, uint64_t count, uint64_t seed) {
    for (uint64_t page = 0; page < count; ++page) ASSERT_EQ(pages[page * kWordsPerPage], seed + page);
  };
  expect(seen, kPages, 1);
  expect(words, kPages, 1'000);
  expect(others, kOthers, 5);
  ASSERT_TRUE(publish());
  ASSERT_TRUE(observer->Next(seen, DeadlineAfterMs(kPatienceMs)).ok());
  expect(seen, kPages, 1'000);
}

TEST_F(PublishTroubleTest, AVersionThatNoServerTakesInTimeIsNotStillUnderWay) {
  MemoryOptions options = Options();
  options.pool.io_timeout_ms = 1'000;
  auto producer = OpenMemory(options);
  uint64_t* const words = MapWords(producer.get(), "field", kPageBytes);
  ASSERT_TRUE(PublishWord(producer.get(), words));
  words[0] = 1'000;
  Hold(true);
  const uint64_t bad = Publish(producer.get(), {words});
  const absl::Status status = AwaitPublished(producer.get(), words, bad);
  Hold(false);
  EXPECT_FALSE(status.ok());
  EXPECT_FALSE(absl::IsDeadlineExceeded(status)) << "who waits for it would do so for ever: " << status;
  EXPECT_TRUE(PublishWord(producer.get(), words));
}

TEST_F(PublishTroubleTest, AVersionHoldsUpTheNextForAsLongAsItTakes) {
  // Three timeouts are less than the time for every other page, one after the other.
  constexpr uint64_t kPages = 640;
  MemoryOptions options = Options();
  options.pool.io_timeout_ms = 600;
  auto producer = OpenMemory(options);
  uint64_t* const words = MapWords(producer.get(), "field", kPages * kPageBytes);
  ASSERT_TRUE(PublishWord(producer.get(), words));
  SetPlan({.delay = 1, .delay_us_max = 10'000});
  for (uint64_t page = 0; page < kPages; page += 2) words[page * kWordsPerPage] = 2;
  const uint64_t slow = Publish(producer.get(), {words});
  EXPECT_EQ(Publish(producer.get(), {words}), slow + 1);
  SetPlan({});
}

// --- A producer that is killed: it is this program again.

constexpr const char* kProducerEnv = "NRAM_PUBLISH_TEST_SERVERS";
constexpr const char* kKeyFileEnv = "NRAM_PUBLISH_TEST_KEY_FILE";
constexpr uint64_t kKilledBytes = 4 * kMiB;

int RunProducer(const std::string& servers) {
  PoolOptions pool;
  pool.servers = *ParsePoolSpec(servers);
  pool.lease_ttl_ms = 1'000;
  if (const char* const key_file = getenv(kKeyFileEnv); key_file != nullptr) {
    pool.seal = Seal::kYes;
    pool.key_file = key_file;
  }
  auto memory = OpenMemory(OptionsFor(pool));
  uint64_t* const words = MapWords(memory.get(), "field", kKilledBytes, /*keep=*/true);
  if (words == nullptr) return 1;
  for (uint64_t round = 1;; ++round) {
    Fill(words, kKilledBytes / 8, round);
    if (Publish(memory.get(), {words}) != round) return 2;
  }
}

TEST_F(PublishTest, AProducerThatIsKilledLeavesAWholeVersion) {
  std::string servers;
  for (const Endpoint& server : servers_.Options().servers) {
    absl::StrAppend(&servers, servers.empty() ? "" : ",", server.ToString());
  }
  constexpr uint64_t kCount = kKilledBytes / 8;
  auto observer = Open(16 * kMiB);
  std::mt19937_64 random(TestSeed());
  setenv(kProducerEnv, servers.c_str(), 1);
  if (const std::string key_file = servers_.Options().key_file; !key_file.empty()) {
    setenv(kKeyFileEnv, key_file.c_str(), 1);
  }
  auto child = Subprocess::Start({"/proc/self/exe"});
  unsetenv(kProducerEnv);
  ASSERT_TRUE(child.ok()) << child.status();
  absl::StatusOr<Observed> observed;
  ASSERT_TRUE(PollUntil(DeadlineAfterMs(kPatienceMs), 5, [&] {
    observed = observer->Observe("field", 0, false);
    return observed.ok();
  })) << observed.status();
  const auto* const seen = reinterpret_cast<const uint64_t*>(observed->bases[0]);
  uint64_t version = observed->version;
  for (int i = 0; i < 3; ++i) {
    ASSERT_EQ(FirstWrong(seen, kCount, version), kCount) << "version " << version;
    const auto next = observer->Next(seen, DeadlineAfterMs(kPatienceMs));
    ASSERT_TRUE(next.ok()) << next.status();
    version = *next;
  }
  child->Kill();
  while (true) {
    ASSERT_EQ(FirstWrong(seen, kCount, version), kCount) << "version " << version;
    const auto next = observer->Next(seen, MonotonicNs());
    if (!next.ok()) break;
    version = *next;
  }
  // The next owner has to wait for the end of the lease.
  auto owner = Open();
  absl::StatusOr<std::byte*> base;
  ASSERT_TRUE(PollUntil(DeadlineAfterMs(kPatienceMs), 50, [&] {
    base = owner->Map({.name = "field", .kind = MapKind::kAttach, .keep = true});
    return base.ok();
  })) << base.status();
  auto* const words = reinterpret_cast<uint64_t*>(*base);
  Fill(words, kCount, 1'000);
  const uint64_t later = Publish(owner.get(), {words});
  EXPECT_GT(later, version);
  ASSERT_TRUE(AwaitPublished(owner.get(), words).ok());
  ASSERT_EQ(FirstWrong(seen, kCount, version), kCount) << "version " << version;
  const auto next = observer->Next(seen, DeadlineAfterMs(kPatienceMs));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(*next, later);
  EXPECT_EQ(FirstWrong(seen, kCount, 1'000), kCount);
}

}  // namespace
}  // namespace nram

int main(int argc, char** argv) {
  if (const char* const servers = getenv(nram::kProducerEnv); servers != nullptr) return nram::RunProducer(servers);
  testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
