// Versions of regions on real servers: their contents, their lives, and their effect on writers.

#include <algorithm>
#include <atomic>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "client/pool/pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/pool/versions_fixture.h"
#include "tests/util/region_io.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

INSTANTIATE_TEST_SUITE_P(Kinds, VersionsTest, kKinds, KindName);

TEST_P(VersionsTest, AVersionStaysAsItWas) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  const VersionPlace first = Snapshot();
  EXPECT_GE(first.incarnations.size(), static_cast<size_t>(copies()));
  EXPECT_EQ(first.least_in_sync, static_cast<uint32_t>(copies()));
  const std::string before = model_;
  Write(3 * kPageBytes, Pattern(5 * kPageBytes, 77));
  Trim(kMiB, kMiB);
  Write((kSpans - 1) * kMiB, Pattern(kMiB, 78));
  ASSERT_NO_FATAL_FAILURE(CheckVersion(first, before));
  ASSERT_NO_FATAL_FAILURE(Check(region(), model_));
  const VersionPlace second = Snapshot();
  EXPECT_GT(second.number, first.number);
  const std::string between = model_;
  Write(0, Pattern(2 * kMiB, 79));
  ASSERT_NO_FATAL_FAILURE(CheckVersion(first, before));
  ASSERT_NO_FATAL_FAILURE(CheckVersion(second, between));
  ASSERT_NO_FATAL_FAILURE(Check(region(), model_));
}

TEST_P(VersionsTest, OnlyItsOwnerSealsARegionAndOnlyOneThatIsMadeForIt) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  auto reader = owner_->pool()->AttachRegion(kName, AttachMode::kReadOnly);
  ASSERT_TRUE(reader.ok()) << reader.status();
  absl::Status status = (*reader)->Snapshot(VersionKeep::kWithOwner).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(absl::IsFailedPrecondition((*reader)->DropVersions(VersionNumber{1}, VersionNumber{1}, true).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(region()->DropVersions(VersionNumber{2}, VersionNumber{1}, true).status()));
  auto plain = owner_->pool()->CreateRegion({.gc = true, .seal = Seal::kNo}).value();
  status = plain->Snapshot(VersionKeep::kWithOwner).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("was not created for versions"));
  const VersionPlace place = Snapshot();
  auto version = owner_->pool()->OpenVersion(place);
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_TRUE(absl::IsFailedPrecondition((*version)->Write(0, Bytes(Pattern(kPageBytes, 1)))));
  EXPECT_TRUE(absl::IsFailedPrecondition((*version)->Trim(0, kPageBytes)));
  EXPECT_TRUE(absl::IsFailedPrecondition((*version)->Destroy()));
  EXPECT_TRUE(absl::IsFailedPrecondition((*version)->Snapshot(VersionKeep::kWithOwner).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(OpenError({kName, region()->id(), {}, {1}, 1})));
}

TEST_P(VersionsTest, WhatWasDroppedIsGoneAndNeverZeros) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  const VersionPlace first = Snapshot();
  const std::string before = model_;
  ASSERT_NO_FATAL_FAILURE(Fill(1));
  const VersionPlace second = Snapshot();
  const std::string between = model_;
  ASSERT_NO_FATAL_FAILURE(Fill(2));
  observer_ = NewClient();
  auto held = observer_->pool()->OpenVersion(first);
  ASSERT_TRUE(held.ok()) << held.status();
  auto dropped = region()->DropVersions(VersionNumber{1}, kVersionNumberMax, /*force=*/false);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_EQ(dropped->held, 1u);
  EXPECT_EQ(dropped->unanswered, 0u);
  absl::Status status = OpenError(second);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("version 2 of region \"kept\" is gone on all its servers"));
  ASSERT_NO_FATAL_FAILURE(Check(held->get(), before));
  dropped = region()->DropVersions(VersionNumber{1}, kVersionNumberMax, /*force=*/true);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_EQ(dropped->held, 0u);
  for (uint64_t span = 0; span + 1 < kSpans; ++span) {
    const auto back = Read(held->get(), span * kMiB, kPageBytes);
    EXPECT_TRUE(absl::IsDataLoss(back.status())) << back.status();
    EXPECT_THAT(back.status().ToString(), HasSubstr("is gone on all its servers"));
  }
  ASSERT_NO_FATAL_FAILURE(Check(region(), model_));
}

TEST_P(VersionsTest, AHoldLastsAsLongAsTheLastHandle) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  const VersionPlace place = Snapshot();
  const auto holds = [&] { return HoldsAt(0) + HoldsAt(1) + HoldsAt(2); };
  observer_ = NewClient();
  auto one = observer_->pool()->OpenVersion(place);
  auto two = observer_->pool()->OpenVersion(place);
  ASSERT_TRUE(one.ok() && two.ok()) << one.status() << two.status();
  EXPECT_EQ(holds(), place.incarnations.size());
  one->reset();
  EXPECT_EQ(holds(), place.incarnations.size());
  two->reset();
  EXPECT_EQ(holds(), 0u);
  // A dead observer holds nothing.
  auto again = observer_->pool()->OpenVersion(place);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(holds(), place.incarnations.size());
  again->reset();
  observer_ = nullptr;
  EXPECT_EQ(holds(), 0u);
}

// A seal behind a slow change does not make the others wait for that change.
TEST_P(VersionsTest, OneSlowChangeDoesNotStopOthersBehindASeal) {
  if (copies() > 1) GTEST_SKIP() << "it would not be slow";
  ASSERT_NO_FATAL_FAILURE(Fill());
  const int server = region()->ServersOf(0)[0];
  uint64_t other = kMiB;
  while (other < (kSpans - 1) * kMiB && region()->ServersOf(other)[0] == server) other += kMiB;
  ASSERT_LT(other, (kSpans - 1) * kMiB);
  owner_->Hold(static_cast<size_t>(server), true);
  std::atomic<bool> slow_ended{false};
  std::atomic<bool> stop{false};
  std::thread slow([&] {
    (void)region()->Write(0, Bytes(Pattern(kPageBytes, 5)), {.timeout_ms = 2 * kPatienceMs});
    slow_ended = true;
  });
  std::thread seals([&] {
    while (!stop) (void)region()->Snapshot(VersionKeep::kWithOwner, {.timeout_ms = kPatienceMs});
  });
  for (int i = 0; i < 5; ++i) {
    const absl::Status status = region()->Write(other, Bytes(Pattern(kPageBytes, 6)), {.timeout_ms = kPatienceMs / 4});
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_FALSE(slow_ended);
  stop = true;
  owner_->Hold(static_cast<size_t>(server), false);
  slow.join();
  seals.join();
}

TEST_P(VersionsTest, ChangesAreTheseAndNoMore) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  const VersionPlace first = Snapshot();
  const std::string before = model_;
  Write(7 * kPageBytes, Pattern(2 * kPageBytes, 5));
  Write(kMiB + 100 * kPageBytes, Pattern(kPageBytes, 6));
  Write(kMiB + 100 * kPageBytes, before.substr(kMiB + 100 * kPageBytes, kPageBytes));
  Trim(2 * kMiB + 64 * kPageBytes, 3 * kPageBytes);
  Write((kSpans - 1) * kMiB + 5 * kPageBytes, Pattern(kPageBytes, 8));
  const VersionPlace second = Snapshot();
  const std::string after = model_;
  ASSERT_NO_FATAL_FAILURE(Fill(4));  // later writes do not matter
  observer_ = NewClient();
  auto from = observer_->pool()->OpenVersion(first);
  auto to = observer_->pool()->OpenVersion(second);
  ASSERT_TRUE(from.ok() && to.ok()) << from.status() << to.status();
  std::vector<bool> changed(kSpans * kPagesPerSpan);
  const auto visit = [&](uint64_t span, const ChangedPages& pages) {
    for (uint64_t i = 0; i < kPagesPerSpan && span < kSpans; ++i) {
      changed[span * kPagesPerSpan + i] = (pages[i / 64] >> i % 64 & 1) != 0;
    }
  };
  // All pages of the last span may be reported: before its first write it had no version.
  const auto check = [&](uint64_t most) {
    uint64_t count = 0;
    for (uint64_t page = 0; page < changed.size(); ++page) {
      const bool differs = before.compare(page * kPageBytes, kPageBytes, after, page * kPageBytes, kPageBytes) != 0;
      EXPECT_TRUE(changed[page] || !differs) << "page " << page;
      count += changed[page] && page / kPagesPerSpan < kSpans - 1 ? 1 : 0;
    }
    EXPECT_LE(count, most);
  };
  absl::Status status = observer_->pool()->VisitChanges(**from, **to, visit);
  ASSERT_TRUE(status.ok()) << status;
  check(6);
  EXPECT_TRUE(absl::IsInvalidArgument(observer_->pool()->VisitChanges(**to, **from, visit)));
  EXPECT_TRUE(absl::IsInvalidArgument(observer_->pool()->VisitChanges(*region(), **to, visit)));
  // Without a server that has both versions, whole spans are reported.
  from->reset();
  ASSERT_TRUE(region()->DropVersions(first.number, first.number, true).ok());
  const VersionPlace third = Snapshot();
  auto later = observer_->pool()->OpenVersion(third);
  ASSERT_TRUE(later.ok()) << later.status();
  ASSERT_TRUE(region()->DropVersions(second.number, second.number, true).ok());
  changed.assign(changed.size(), false);
  status = observer_->pool()->VisitChanges(**to, **later, visit);
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(std::count(changed.begin(), changed.end(), true), static_cast<long>(changed.size()));
}

// Two threads write counters, one page after the other: a version that has a later one has the earlier one, too.
TEST_P(VersionsTest, WritersGoOnAndEachVersionIsOneState) {
  constexpr uint64_t kPages = 16;
  ASSERT_NO_FATAL_FAILURE(Fill());
  std::atomic<bool> stop{false};
  std::vector<std::thread> threads;
  std::atomic<uint64_t> written[2] = {0, 0};
  for (uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      std::string page(kPageBytes, '\0');
      for (uint64_t i = 1; !stop; ++i) {
        memcpy(page.data(), &i, sizeof i);
        // In all spans, so at all servers.
        const uint64_t at = i % kPages;
        const absl::Status status = region()->Write((at % kSpans) * kMiB + (2 * at + t) * kPageBytes, Bytes(page));
        ASSERT_TRUE(status.ok()) << status;
        ++written[t];
      }
    });
  }
  std::vector<VersionPlace> places;
  for (int i = 0; i < 6; ++i) {
    const uint64_t before[2] = {written[0], written[1]};
    ASSERT_TRUE(Await([&] { return written[0] > before[0] + kPages && written[1] > before[1] + kPages; }));
    places.push_back(Snapshot());
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  observer_ = NewClient();
  for (const VersionPlace& place : places) {
    auto version = observer_->pool()->OpenVersion(place);
    ASSERT_TRUE(version.ok()) << version.status();
    for (uint64_t t = 0; t < 2; ++t) {
      std::vector<uint64_t> counters;
      for (uint64_t at = 0; at < kPages; ++at) {
        const auto page = Read(version->get(), (at % kSpans) * kMiB + (2 * at + t) * kPageBytes, kPageBytes);
        ASSERT_TRUE(page.ok()) << page.status();
        uint64_t counter = 0;
        memcpy(&counter, page->data(), sizeof counter);
        EXPECT_EQ(counter % kPages, at);
        counters.push_back(counter);
      }
      const auto [least, most] = std::minmax_element(counters.begin(), counters.end());
      EXPECT_EQ(*most - *least, kPages - 1) << "version " << Raw(place.number) << " is a mixture";
    }
  }
}

}  // namespace
}  // namespace nram
