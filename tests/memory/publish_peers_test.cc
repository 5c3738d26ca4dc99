// A producer and observers that do not let go, and servers that are full or whose answers are lost: neither side waits
// for the other, and all reports are true.

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/poll_until.h"
#include "base/sync.h"
#include "client/memory/memory.h"
#include "client/pool/pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/faulty_relay.h"
#include "tests/util/lying_server.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kBudget = 4 * kMiB;
constexpr uint64_t kWordsPerPage = kPageBytes / sizeof(uint64_t);
constexpr int64_t kPatienceMs = 120'000;

std::unique_ptr<Memory> OpenMemory(MemoryOptions options) {
  options.budget_bytes = kBudget;
  // A slow machine is no reason to give a version up.
  options.publish_patience_ms = kPatienceMs;
  auto memory = Memory::Open(options);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return memory.ok() ? *std::move(memory) : nullptr;
}

uint64_t* MapWords(Memory* memory, const std::string& name, uint64_t bytes, bool keep = false) {
  auto base = memory->Map({.length = bytes, .name = name, .keep = keep});
  EXPECT_TRUE(base.ok()) << base.status();
  return base.ok() ? reinterpret_cast<uint64_t*>(*base) : nullptr;
}

// The version whose pages all begin with the same new value; 0: it could not be published, and `status` says why.
uint64_t PublishNext(Memory* memory, uint64_t* words, uint64_t pages, VersionRequest request = {},
                     absl::Status* status = nullptr) {
  static std::atomic<uint64_t> seed{0};
  const uint64_t value = ++seed;
  for (uint64_t page = 0; page < pages; ++page) words[page * kWordsPerPage] = value;
  request.bases = {words};
  const auto version = memory->Publish(request);
  absl::Status published = version.status();
  if (version.ok()) published = memory->AwaitPublished(words, *version, DeadlineAfterMs(kPatienceMs));
  EXPECT_TRUE(published.ok() || status != nullptr) << published;
  if (status != nullptr) *status = published;
  return published.ok() ? *version : 0;
}

// nullopt: the page is lost. The kernel touches the page, so a loss is not a signal.
std::optional<uint64_t> WordOf(const uint64_t* at) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const UniqueFd out(ends[0]), in(ends[1]);
  uint64_t word = 0;
  if (write(in.get(), at, sizeof word) != sizeof word) return std::nullopt;
  EXPECT_EQ(read(out.get(), &word, sizeof word), static_cast<ssize_t>(sizeof word));
  return word;
}

const uint64_t* Observe(Memory* memory, const std::string& name, uint64_t version = 0) {
  auto observed = memory->Observe(name, version, /*all=*/false);
  EXPECT_TRUE(observed.ok()) << observed.status();
  return observed.ok() ? reinterpret_cast<const uint64_t*>(observed->bases[0]) : nullptr;
}

class PublishPeersTest : public ::testing::Test {
 protected:
  std::unique_ptr<Memory> Open(uint32_t versions_max = 1'000) {
    MemoryOptions options;
    options.pool = servers_.Options();
    options.publish_versions_max = versions_max;
    options.on_loss = [](void*, size_t, const std::string&) {};
    return OpenMemory(std::move(options));
  }
  // The number of versions at the server that has the most.
  size_t VersionsThere() {
    const auto region = pool_->AttachRegion("field", AttachMode::kReadOnly);
    EXPECT_TRUE(region.ok()) << region.status();
    size_t most = 0;
    for (size_t i = 0; region.ok() && i < servers_.size(); ++i) {
      const auto list = servers_.server(static_cast<int>(i)).store().ListVersions({(*region)->id(), 0});
      if (list.ok()) most = std::max(most, list->size());
    }
    return most;
  }

  TestPool servers_{2, 64 * kMiB};
  const std::unique_ptr<Pool> pool_ = servers_.Open();
};

TEST_F(PublishPeersTest, AnObserverThatNeverLetsGoKeepsItsVersionAlone) {
  constexpr uint64_t kPages = 16, kVersions = 50;
  auto producer = Open();
  auto observer = Open();
  uint64_t* const words = MapWords(producer.get(), "field", kPages * kPageBytes);
  PublishNext(producer.get(), words, kPages);
  const uint64_t first = words[0];
  const uint64_t* const seen = Observe(observer.get(), "field");
  ASSERT_NE(seen, nullptr);
  for (uint64_t i = 1; i < kVersions; ++i) ASSERT_EQ(PublishNext(producer.get(), words, kPages), i + 1);
  // The observed version, and the history.
  EXPECT_EQ(VersionsThere(), 3u);
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(seen[page * kWordsPerPage], first);
  ASSERT_TRUE(observer->Unmap(seen).ok());
  EXPECT_EQ(VersionsThere(), 2u);
}

// A client has a stock of room at each server. These have none for so many stocks.
TEST_F(PublishPeersTest, AnObservedVersionIsNotGivenForAStockOfRoom) {
  constexpr uint64_t kPages = 16, kVersions = 10;
  std::vector<std::unique_ptr<Memory>> others;
  auto producer = Open();
  auto observer = Open();
  uint64_t* const words = MapWords(producer.get(), "field", kPages * kPageBytes);
  PublishNext(producer.get(), words, kPages);
  const uint64_t first = words[0];
  const uint64_t* const seen = Observe(observer.get(), "field");
  ASSERT_NE(seen, nullptr);
  for (int client = 0; client < 4; ++client) {
    auto other = Open();
    others.push_back(std::move(other));
    uint64_t* const at = MapWords(others.back().get(), absl::StrCat("other", client), kPages * kPageBytes);
    for (uint64_t i = 1; i < kVersions; ++i) {
      PublishNext(others.back().get(), at, kPages);
      PublishNext(producer.get(), words, kPages);
    }
  }
  for (uint64_t page = 0; page < kPages; ++page) EXPECT_EQ(WordOf(&seen[page * kWordsPerPage]), first);
}

TEST_F(PublishPeersTest, ManyThatNeverLetGoDoNotStopTheProducer) {
  constexpr uint64_t kPages = 16, kObserved = 8, kMost = 5;
  auto producer = Open(kMost);
  auto observer = Open();
  uint64_t* const words = MapWords(producer.get(), "field", kPages * kPageBytes);
  const uint64_t* last = nullptr;
  for (uint64_t i = 1; i <= kObserved; ++i) {
    ASSERT_EQ(PublishNext(producer.get(), words, kPages), i);
    last = Observe(observer.get(), "field", i);
    ASSERT_NE(last, nullptr);
    ASSERT_LE(VersionsThere(), kMost);
  }
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(last[page * kWordsPerPage], words[0]);
  // A history longer than the limit, too.
  for (uint64_t i = 1; i <= kObserved; ++i) {
    ASSERT_EQ(PublishNext(producer.get(), words, kPages, {.history = 2 * kMost}), kObserved + i);
    ASSERT_LE(VersionsThere(), kMost);
  }
  const auto next = observer->Next(last, DeadlineAfterMs(kPatienceMs));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(last[0], words[0]);
}

TEST_F(PublishPeersTest, AVersionStaysWithoutItsProducerAsItWasMeantTo) {
  constexpr uint64_t kPages = 16;
  auto producer = Open();
  std::map<std::string, VersionKeep> kept{{"stays", VersionKeep::kUntilDropped}, {"goes", VersionKeep::kWithOwner}};
  uint64_t value = 0;
  for (const auto& [name, keep] : kept) {
    uint64_t* const words = MapWords(producer.get(), name, kPages * kPageBytes, /*keep=*/true);
    ASSERT_NE(PublishNext(producer.get(), words, kPages, {.keep = keep}), 0u);
    if (name == "stays") value = words[0];
    for (uint64_t page = 0; page < kPages; ++page) words[page * kWordsPerPage] = 0;
  }
  uint64_t* const words = MapWords(producer.get(), "mapping", kPages * kPageBytes);
  words[0] = 1;
  const absl::Status refused =
      producer->Publish({.bases = {words}, .keep = VersionKeep::kUntilDropped, .header_json = ""}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(std::string(refused.message()), HasSubstr("map it with NRAM_MAP_KEEP"));
  producer = nullptr;
  auto observer = Open();
  const uint64_t* const seen = Observe(observer.get(), "stays");
  ASSERT_NE(seen, nullptr);
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(seen[page * kWordsPerPage], value);
  // Servers look for versions to drop from time to time.
  absl::Status status;
  EXPECT_TRUE(PollUntil(DeadlineAfterMs(kPatienceMs), 10, [&] {
    const auto observed = observer->Observe("goes", 0, /*all=*/false);
    if (observed.ok()) (void)observer->Unmap(observed->bases[0]);
    return absl::IsDataLoss(status = observed.status());
  })) << status;
}

// Another client has all room of the pool.
TEST_F(PublishPeersTest, AVersionWhileThePoolIsFull) {
  constexpr uint64_t kPages = 512;
  auto producer = Open();
  auto observer = Open();
  uint64_t* const words = MapWords(producer.get(), "field", kPages * kPageBytes);
  ASSERT_NE(PublishNext(producer.get(), words, kPages), 0u);
  const uint64_t first = words[0];
  const uint64_t* const seen = Observe(observer.get(), "field");
  ASSERT_NE(seen, nullptr);
  auto filler = servers_.Open();
  auto region = filler->CreateRegion({.gc = true}).value();
  absl::Status full;
  for (uint64_t at = 0; full.ok(); at += kMiB) full = region->Write(at, Bytes(Pattern(kMiB, at)));
  ASSERT_TRUE(absl::IsResourceExhausted(full)) << full;
  for (uint64_t i = 2; i <= 5; ++i) ASSERT_EQ(PublishNext(producer.get(), words, kPages), i);
  // The readable pages are the first version's; the rest has yielded.
  uint64_t gone = 0;
  for (uint64_t page = 0; page < kPages; ++page) {
    const std::optional<uint64_t> word = WordOf(seen + page * kWordsPerPage);
    gone += word.has_value() ? 0 : 1;
    ASSERT_EQ(word.value_or(first), first) << "another state's page " << page;
  }
  EXPECT_GT(gone, 0u);
  const auto next = observer->Next(seen, DeadlineAfterMs(kPatienceMs));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(*next, 5u);
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(seen[page * kWordsPerPage], words[0]);
}

// A publication that takes longer than three timeouts, since one page after the other is late.
TEST_F(PublishPeersTest, ADropWaitsForAVersionForAsLongAsThatTakes) {
  constexpr uint64_t kPages = 640;
  Mutex mu;
  std::vector<std::unique_ptr<FaultyRelay>> relays;
  const auto set_plan = [&](const FaultPlan& plan) {
    MutexLock lock(&mu);
    for (auto& relay : relays) relay->SetPlan(plan);
  };
  MemoryOptions options;
  options.pool = servers_.Options();
  options.pool.io_timeout_ms = 600;
  options.pool.reroute_data_for_test = [&](size_t, const Endpoint& target) {
    MutexLock lock(&mu);
    relays.push_back(std::make_unique<FaultyRelay>(target, 1));
    return relays.back()->endpoint();
  };
  auto producer = OpenMemory(std::move(options));
  uint64_t* const words = MapWords(producer.get(), "field", kPages * kPageBytes);
  // With a short timeout this may be late on a slow machine; then it is tried again.
  absl::Status status;
  ASSERT_TRUE(PollUntil(DeadlineAfterMs(kPatienceMs), 1, [&] {
    return PublishNext(producer.get(), words, 1, {}, &status) != 0;
  })) << status;
  set_plan({.delay = 1, .delay_us_max = 10'000});
  for (uint64_t page = 0; page < kPages; page += 2) words[page * kWordsPerPage] = 2;
  const auto slow = producer->Publish({.bases = {words}, .header_json = ""});
  ASSERT_TRUE(slow.ok()) << slow.status();
  status = producer->DropVersion(words, *slow + 1);
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_FALSE(absl::IsDeadlineExceeded(producer->AwaitPublished(words, *slow, MonotonicNs()))) << "it did not wait";
  set_plan({});
  producer = nullptr;
}

// --- Servers whose answers are lost.

class LyingPublishTest : public ::testing::Test {
 protected:
  LyingPublishTest() {
    server_.Set(
        {.create =
             [this](const v1::CreateRegionRequest& request, v1::CreateRegionReply*) {
               MutexLock lock(&mu_);
               if (request.name() == "field.versions") records_ = RegionId{request.region_id()};
               return grpc::Status::OK;
             },
         .attach =
             [](const v1::AttachRegionRequest& request, v1::AttachRegionReply* reply) {
               if (request.region_id() != 0) reply->mutable_region()->set_region_id(request.region_id());
               return grpc::Status::OK;
             },
         .message = [this](const MessageHeader& request, const MessageHeader& good) { return Answer(request, good); }});
    MemoryOptions options;
    options.pool.servers = {server_.endpoint()};
    options.pool.open_timeout_ms = kPatienceMs;
    options.pool.io_timeout_ms = 1'000;
    memory_ = OpenMemory(std::move(options));
    words_ = MapWords(memory_.get(), "field", kPageBytes);
  }

  std::string Answer(const MessageHeader& request, MessageHeader good) {
    MutexLock lock(&mu_);
    if (request.op == Op::kWrite && request.region() == records_ && request.range().first == 0) {
      if (loses_heads_) return "";
    }
    if (request.op == Op::kDropVersion) {
      ++drops_;
      DropVersionReply reply{.region = request.region(), .held = 1};
      const uint64_t id = good.request_id;
      good = MessageHeader(reply);
      good.request_id = id;
    }
    return LyingServer::Encode(good);
  }
  void LoseHeads(bool lose) {
    MutexLock lock(&mu_);
    loses_heads_ = lose;
  }
  int drops() {
    MutexLock lock(&mu_);
    return drops_;
  }

  Mutex mu_;
  RegionId records_ ABSL_GUARDED_BY(mu_){};
  bool loses_heads_ ABSL_GUARDED_BY(mu_) = false;
  int drops_ ABSL_GUARDED_BY(mu_) = 0;
  LyingServer server_;
  std::unique_ptr<Memory> memory_;
  uint64_t* words_ = nullptr;
};

TEST_F(LyingPublishTest, AVersionWhoseLastAnswerIsLostIsThereWhenTheNextOneIs) {
  ASSERT_NE(words_, nullptr);
  absl::Status status;
  // With a short timeout any step may be late on a slow machine; then there is no such version.
  const auto publish = [&] { return PublishNext(memory_.get(), words_, 1, {}, &status) != 0; };
  ASSERT_TRUE(PollUntil(DeadlineAfterMs(kPatienceMs), 1, publish)) << status;
  LoseHeads(true);
  uint64_t doubtful = 0;
  ASSERT_TRUE(PollUntil(DeadlineAfterMs(kPatienceMs), 1, [&] {
    ++words_[0];
    const auto version = memory_->Publish({.bases = {words_}, .header_json = ""});
    doubtful = version.value_or(0);
    status = version.ok() ? memory_->AwaitPublished(words_, *version, DeadlineAfterMs(kPatienceMs)) : version.status();
    return absl::IsUnknown(status);
  })) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("may exist or not"));
  EXPECT_TRUE(absl::IsUnknown(memory_->AwaitPublished(words_, doubtful, MonotonicNs())));
  LoseHeads(false);
  ASSERT_TRUE(PollUntil(DeadlineAfterMs(kPatienceMs), 1, publish)) << status;
  status = memory_->AwaitPublished(words_, doubtful, MonotonicNs());
  EXPECT_TRUE(status.ok()) << status;
}

// The server reports an observer for each version.
TEST_F(LyingPublishTest, ObserversDoNotSlowTheProducerDown) {
  constexpr int kVersions = 60;
  ASSERT_NE(words_, nullptr);
  absl::Status status;
  int published = 0;
  while (published < kVersions) published += PublishNext(memory_.get(), words_, 1, {}, &status) != 0 ? 1 : 0;
  EXPECT_LE(drops(), 4 * kVersions) << "each of them was asked for each time";
}

}  // namespace
}  // namespace nram
