// Versions of mapped memory on real servers: observers see a version unchanged, whatever the producer does meanwhile.

#include <algorithm>
#include <atomic>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/test_seed.h"
#include "client/memory/memory.h"
#include "gtest/gtest.h"
#include "tests/memory/publish_util.h"

namespace nram {
namespace {

TEST_F(PublishTest, AnObserverSeesWhatWasPublishedUntilItGoesOn) {
  constexpr uint64_t kBytes = 8 * kMiB, kCount = kBytes / 8;
  auto producer = Open();
  auto observer = Open();
  uint64_t* const words = MapWords(producer.get(), "field", kBytes);
  EXPECT_TRUE(absl::IsNotFound(observer->Observe("field", 0, false).status()));
  Fill(words, kCount, 1);
  EXPECT_EQ(Publish(producer.get(), {words}), 1u);
  Fill(words, kCount, 2);  // while the first is on its way
  ASSERT_TRUE(AwaitPublished(producer.get(), words).ok());
  const uint64_t* const seen = Observe(observer.get(), "field");
  ASSERT_NE(seen, nullptr);
  EXPECT_EQ(FirstWrong(seen, kCount, 1), kCount);
  EXPECT_TRUE(absl::IsDeadlineExceeded(observer->Next(seen, MonotonicNs()).status()));
  ASSERT_TRUE(producer->Flush(words, kBytes).ok());
  EXPECT_EQ(FirstWrong(seen, kCount, 1), kCount) << "the head is not the version";
  EXPECT_EQ(Publish(producer.get(), {words}), 2u);
  ASSERT_TRUE(AwaitPublished(producer.get(), words).ok());
  EXPECT_EQ(FirstWrong(seen, kCount, 1), kCount) << "nobody has asked for the next";
  const auto next = observer->Next(seen, DeadlineAfterMs(kPatienceMs));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(*next, 2u);
  EXPECT_EQ(FirstWrong(seen, kCount, 2), kCount);
  EXPECT_EQ(FirstWrong(words, kCount, 2), kCount);
  EXPECT_LE(observer->resident_bytes(), kBudget);
}

TEST_F(PublishTest, WhatWasNeverWrittenIsZerosInAVersionToo) {
  constexpr uint64_t kBytes = 4 * kMiB;
  auto producer = Open();
  auto observer = Open();
  uint64_t* const words = MapWords(producer.get(), "field", kBytes);
  words[kWordsPerPage] = 7;
  Publish(producer.get(), {words});
  words[0] = 8;
  const absl::Status published = AwaitPublished(producer.get(), words);
  ASSERT_TRUE(published.ok()) << published;
  const uint64_t* const seen = Observe(observer.get(), "field");
  ASSERT_NE(seen, nullptr);
  for (uint64_t i = 0; i < kBytes / 8; ++i) ASSERT_EQ(seen[i], i == kWordsPerPage ? 7u : 0u) << i;
}

// Random pages are written, published, and written again at once. The memory exceeds the budget, so that pages are
// evicted all the time. All versions are kept, and each equals the model.
TEST_F(PublishTest, EachVersionIsTheStateOfItsCall) {
  constexpr uint64_t kPages = 4'096, kVersions = 12;
  std::mt19937_64 random(TestSeed());
  auto producer = Open();
  uint64_t* const words = MapWords(producer.get(), "field", kPages * kPageBytes);
  std::vector<uint64_t> model(kPages * 2);  // the first and the last word of each page
  std::map<uint64_t, std::vector<uint64_t>> versions;
  for (uint64_t round = 1; round <= kVersions; ++round) {
    for (int i = 0; i < 1'500; ++i) {
      const uint64_t page = round % 3 == 0 ? i : random() % kPages;
      const uint64_t half = random() % 2;
      model[page * 2 + half] = words[page * kWordsPerPage + half * (kWordsPerPage - 1)] = random();
    }
    if (round % 4 == 0) {
      const uint64_t page = random() % (kPages - 64);
      ASSERT_TRUE(producer->Drop(words + page * kWordsPerPage, 64 * kPageBytes).ok());
      std::fill_n(model.begin() + static_cast<ptrdiff_t>(page * 2), 128, 0);
    }
    versions[Publish(producer.get(), {words}, kVersions)] = model;
  }
  ASSERT_TRUE(AwaitPublished(producer.get(), words).ok());
  ASSERT_EQ(versions.size(), kVersions);
  auto observer = Open();
  for (const auto& [number, was] : versions) {
    ASSERT_TRUE(AwaitPublished(producer.get(), words, number).ok());
    const uint64_t* const seen = Observe(observer.get(), "field", number);
    ASSERT_NE(seen, nullptr);
    for (uint64_t page = 0; page < kPages; ++page) {
      ASSERT_EQ(seen[page * kWordsPerPage], was[page * 2]) << "version " << number << ", page " << page;
      ASSERT_EQ(seen[(page + 1) * kWordsPerPage - 1], was[page * 2 + 1]) << "version " << number << ", page " << page;
    }
    ASSERT_TRUE(observer->Unmap(seen).ok());
  }
  EXPECT_LE(producer->resident_bytes(), kBudget);
}

// Threads go round through their parts of a field. A version has for each thread all words that it had written up to
// some moment, and no later ones.
TEST_F(PublishTest, WritersDuringTheSendAreCutAtOneMoment) {
  constexpr uint64_t kThreads = 3, kPages = 512, kPart = kPages * kWordsPerPage;
  auto producer = Open();
  uint64_t* const words = MapWords(producer.get(), "field", kThreads * kPages * kPageBytes);
  std::atomic<bool> stop{false};
  std::vector<std::thread> writers;
  for (uint64_t i = 0; i < kThreads; ++i) {
    writers.emplace_back([&, part = words + i * kPart] {
      for (uint64_t round = 1; !stop; ++round) {
        for (uint64_t page = 0; page < kPages; ++page) part[page * kWordsPerPage + page % kWordsPerPage] = round;
      }
    });
  }
  auto observer = Open();
  const uint64_t* seen = nullptr;
  uint64_t before[kThreads] = {};
  for (int version = 0; version < 8; ++version) {
    Publish(producer.get(), {words});
    const absl::Status published = AwaitPublished(producer.get(), words);
    EXPECT_TRUE(published.ok()) << published;
    if (seen == nullptr) {
      seen = Observe(observer.get(), "field");
    } else {
      EXPECT_TRUE(observer->Next(seen, DeadlineAfterMs(kPatienceMs)).ok());
    }
    if (seen == nullptr) break;
    for (uint64_t i = 0; i < kThreads; ++i) {
      const auto at = [&](uint64_t page) { return seen[i * kPart + page * kWordsPerPage + page % kWordsPerPage]; };
      uint64_t steps = 0;
      for (uint64_t page = 1; page < kPages; ++page) {
        if (at(page) == at(page - 1)) continue;
        ++steps;
        EXPECT_EQ(at(page) + 1, at(page - 1)) << "thread " << i << ", page " << page;
      }
      EXPECT_LE(steps, 1u) << "thread " << i;
      EXPECT_GE(at(kPages - 1), before[i]);
      before[i] = at(kPages - 1);
    }
  }
  stop = true;
  for (std::thread& writer : writers) writer.join();
}

TEST_F(PublishTest, SeveralMappingsAreOneVersion) {
  auto producer = Open();
  uint64_t* const a = MapWords(producer.get(), "a", kMiB);
  uint64_t* const b = MapWords(producer.get(), "b", 2 * kMiB);
  std::atomic<bool> stop{false};
  std::thread writer([&] {
    for (uint64_t i = 1; !stop; ++i) {
      a[i % 64 * kWordsPerPage] = i;
      b[i % 64 * kWordsPerPage] = i;
    }
  });
  auto observer = Open();
  std::vector<std::byte*> bases;
  for (int version = 0; version < 6; ++version) {
    Publish(producer.get(), {a, b});
    const absl::Status published = AwaitPublished(producer.get(), a);
    EXPECT_TRUE(published.ok()) << published;
    if (bases.empty()) {
      auto observed = observer->Observe("a", 0, /*all=*/true);
      EXPECT_TRUE(observed.ok()) << observed.status();
      if (!observed.ok()) break;
      bases = observed->bases;
    } else {
      EXPECT_TRUE(observer->Next(bases[version % 2], DeadlineAfterMs(kPatienceMs)).ok());
    }
    if (bases.size() != 2) break;
    EXPECT_EQ(observer->LengthOf(bases[1]), 2 * kMiB);
    uint64_t last[2] = {};
    for (int k = 0; k < 2; ++k) {
      for (uint64_t i = 0; i < 64; ++i) {
        last[k] = std::max(last[k], reinterpret_cast<uint64_t*>(bases[k])[i * kWordsPerPage]);
      }
    }
    EXPECT_TRUE(last[0] == last[1] || last[0] == last[1] + 1) << last[0] << " and " << last[1];
  }
  stop = true;
  writer.join();
  EXPECT_EQ(bases.size(), 2u);
  EXPECT_TRUE(absl::IsNotFound(observer->Observe("b", 0, false).status())) << "the first one's name is the version's";
}

TEST_F(PublishTest, WhatDidNotChangeStaysHereWhenAnObserverGoesOn) {
  constexpr uint64_t kPages = 512;
  auto producer = Open();
  auto observer = Open(16 * kMiB);
  uint64_t* const words = MapWords(producer.get(), "field", kPages * kPageBytes);
  for (uint64_t page = 0; page < kPages; ++page) words[page * kWordsPerPage] = page;
  Publish(producer.get(), {words});
  ASSERT_TRUE(AwaitPublished(producer.get(), words).ok());
  const uint64_t* const seen = Observe(observer.get(), "field");
  ASSERT_NE(seen, nullptr);
  ASSERT_TRUE(observer->SetReadAhead(const_cast<uint64_t*>(seen), ReadAhead::kNever).ok());
  for (uint64_t page = 0; page < kPages; ++page) ASSERT_EQ(seen[page * kWordsPerPage], page);
  EXPECT_EQ(observer->counters().fetched_bytes, kPages * kPageBytes);
  const uint64_t sent = producer->counters().written_bytes;
  // Far from the end of the first writes in order: close to it, neighbours count as written too.
  const auto is_changed = [&](uint64_t page) { return page % 50 == 5 && page < kPages - 100; };
  uint64_t changed = 0;
  for (uint64_t page = 0; page < kPages; ++page) {
    if (!is_changed(page)) continue;
    words[page * kWordsPerPage] = 1'000 + page;
    ++changed;
  }
  Publish(producer.get(), {words});
  ASSERT_TRUE(AwaitPublished(producer.get(), words).ok());
  EXPECT_LE(producer->counters().written_bytes - sent, changed * kPageBytes) << "only what was changed travels";
  ASSERT_TRUE(observer->Next(seen, DeadlineAfterMs(kPatienceMs)).ok());
  for (uint64_t page = 0; page < kPages; ++page) {
    ASSERT_EQ(seen[page * kWordsPerPage], is_changed(page) ? 1'000 + page : page);
  }
  EXPECT_EQ(observer->counters().fetched_bytes, (kPages + changed) * kPageBytes);
}

// Servers that have a part of a mapping are members of its version. In the record they take room as headers do.
TEST(PublishRecordTest, AVersionThatIsBegunHasRoomInItsRecord) {
  constexpr uint64_t kServers = 6;
  TestPool servers(kServers);
  auto producer = OpenMemory(OptionsFor(servers.Options()));
  std::vector<const void*> bases;
  for (int i = 0; i < 64; ++i) {
    uint64_t* const words = MapWords(producer.get(), absl::StrCat("field-", i), kServers * kSpanBytes);
    for (uint64_t span = 0; span < kServers; ++span) words[span * kSpanBytes / sizeof(uint64_t)] = 1;
    bases.push_back(words);
  }
  int begun = 0, refused = 0;
  for (size_t bytes = 38'000; bytes < 56'000; bytes += 3'000) {
    const std::string header = absl::StrCat("\"", std::string(bytes, 'x'), "\"");
    const auto version = producer->Publish({.bases = bases, .header_json = header});
    if (version.ok()) {
      ++begun;
      const absl::Status status = AwaitPublished(producer.get(), bases[0], *version);
      ASSERT_TRUE(status.ok()) << bytes << ": " << status;
    } else {
      ++refused;
      EXPECT_TRUE(absl::IsInvalidArgument(version.status())) << version.status();
    }
  }
  EXPECT_GT(begun, 0);
  EXPECT_GT(refused, 0);
}

TEST_F(PublishTest, SixtyFourObserversOfSixtyFourVersions) {
  constexpr uint64_t kVersions = 64, kPages = 64, kCount = kPages * kWordsPerPage;
  auto producer = Open();
  uint64_t* const words = MapWords(producer.get(), "field", kPages * kPageBytes);
  std::vector<std::unique_ptr<Memory>> memories;
  for (int i = 0; i < 4; ++i) memories.push_back(Open());
  std::map<uint64_t, const uint64_t*> views;
  for (uint64_t i = 1; i <= kVersions; ++i) {
    Fill(words, kCount, i);
    const uint64_t version = Publish(producer.get(), {words});
    ASSERT_TRUE(AwaitPublished(producer.get(), words, version).ok());
    views[i] = Observe(memories[i % 4].get(), "field", version);
    ASSERT_NE(views[i], nullptr);
  }
  // The name leads to two versions only; the observers of the others still see them.
  EXPECT_TRUE(absl::IsNotFound(memories[0]->Observe("field", 1, false).status()));
  for (const auto& [i, seen] : views) ASSERT_EQ(FirstWrong(seen, kCount, i), kCount) << "version " << i;
  for (const auto& [i, seen] : views) {
    if (i % 2 == 0) continue;
    const auto next = memories[i % 4]->Next(seen, DeadlineAfterMs(kPatienceMs));
    ASSERT_EQ(next.ok(), i != kVersions) << next.status();
    ASSERT_EQ(FirstWrong(seen, kCount, kVersions), kCount);
  }
  for (const auto& [i, seen] : views) {
    if (i % 2 == 0) {
      ASSERT_EQ(FirstWrong(seen, kCount, i), kCount) << "version " << i;
    }
  }
}

TEST_F(PublishTest, UnmappingFlushingAndPinnedPagesInTheMiddle) {
  constexpr uint64_t kBytes = 2 * kMiB, kCount = kBytes / 8;
  auto producer = Open(8 * kMiB);
  auto observer = Open();
  uint64_t* words = MapWords(producer.get(), "field", kBytes, /*keep=*/true);
  ASSERT_TRUE(producer->Pin(words, 64 * kPageBytes).ok());
  Fill(words, kCount, 1);
  Publish(producer.get(), {words});
  Fill(words, kCount, 2);
  ASSERT_TRUE(producer->Flush(words, kBytes).ok());
  ASSERT_TRUE(AwaitPublished(producer.get(), words).ok()) << "a flush has waited for it";
  const uint64_t* const seen = Observe(observer.get(), "field");
  ASSERT_NE(seen, nullptr);
  ASSERT_TRUE(observer->Pin(const_cast<uint64_t*>(seen), 64 * kPageBytes).ok());
  EXPECT_EQ(FirstWrong(seen, kCount, 1), kCount);
  Publish(producer.get(), {words});
  ASSERT_TRUE(producer->Unmap(words).ok());  // waits for the version
  ASSERT_TRUE(observer->Next(seen, DeadlineAfterMs(kPatienceMs)).ok());
  EXPECT_EQ(FirstWrong(seen, kCount, 2), kCount);
  // The next owner continues the numbers.
  auto base = producer->Map({.name = "field", .kind = MapKind::kAttach, .keep = true});
  ASSERT_TRUE(base.ok()) << base.status();
  words = reinterpret_cast<uint64_t*>(*base);
  words[0] = 3;
  EXPECT_EQ(Publish(producer.get(), {words}), 3u);
  ASSERT_TRUE(AwaitPublished(producer.get(), words).ok());
  ASSERT_TRUE(observer->Next(seen, DeadlineAfterMs(kPatienceMs)).ok());
  EXPECT_EQ(seen[0], 3u);
  EXPECT_EQ(seen[1], WordOf(2, 1));
  ASSERT_TRUE(producer->DropVersion(words, 3).ok());
  EXPECT_TRUE(absl::IsNotFound(producer->DropVersion(words, 3)));
  EXPECT_EQ(seen[0], 3u) << "who observes it has it";
}

TEST_F(PublishTest, WhatCannotBePublishedIsRefused) {
  auto producer = Open();
  auto nameless = producer->Map({.length = kMiB});
  ASSERT_TRUE(nameless.ok());
  EXPECT_TRUE(absl::IsInvalidArgument(producer->Publish({.bases = {*nameless}, .header_json = ""}).status()));
  uint64_t* const words = MapWords(producer.get(), "field", kMiB);
  words[0] = 1;
  EXPECT_TRUE(absl::IsInvalidArgument(AwaitPublished(producer.get(), words)));
  EXPECT_TRUE(absl::IsInvalidArgument(producer->Publish({.bases = {words, words}, .header_json = ""}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(producer->Publish({.bases = {}, .header_json = ""}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(producer->Publish({.bases = {words}, .header_json = "{"}).status()));
  const std::string long_header = absl::StrCat("\"", std::string(60'000, 'x'), "\"");
  EXPECT_TRUE(absl::IsInvalidArgument(producer->Publish({.bases = {words}, .header_json = long_header}).status()));
  const auto version = producer->Publish({.bases = {words}, .step = 9, .header_json = R"({"dims":[1,2]})"});
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_TRUE(absl::IsInvalidArgument(AwaitPublished(producer.get(), words, *version + 1)));
  ASSERT_TRUE(AwaitPublished(producer.get(), words, *version).ok());
  auto observer = Open();
  const uint64_t* const seen = Observe(observer.get(), "field", *version);
  ASSERT_NE(seen, nullptr);
  EXPECT_TRUE(absl::IsInvalidArgument(observer->Publish({.bases = {seen}, .header_json = ""}).status()));
  EXPECT_EQ(observer->ObservedRecord(seen)->header_json, R"({"dims":[1,2]})");
  EXPECT_EQ(observer->ObservedRecord(seen)->step, 9u);
  EXPECT_EQ(producer->ObservedRecord(words), nullptr);
  EXPECT_TRUE(absl::IsNotFound(observer->Observe("field", *version + 5, false).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(producer->Next(words, MonotonicNs()).status()));
  uint64_t* const taken = MapWords(producer.get(), "other.versions", kMiB);
  ASSERT_NE(taken, nullptr);
  uint64_t* const other = MapWords(producer.get(), "other", kMiB);
  EXPECT_TRUE(absl::IsAlreadyExists(producer->Publish({.bases = {other}, .header_json = ""}).status()));
}

}  // namespace
}  // namespace nram
