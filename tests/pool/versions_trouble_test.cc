// Versions of regions on real servers, while servers, owners and copies change.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "base/clock.h"
#include "client/pool/pool.h"
#include "client/transport/control_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/pool/versions_fixture.h"
#include "tests/util/region_io.h"

namespace nram {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

INSTANTIATE_TEST_SUITE_P(Kinds, VersionsTest, kKinds, KindName);

// The server executes the seal late, so its version of that number has later data.
TEST_P(VersionsTest, AServerThatMissesTheSealIsNoMemberWhateverItDoesLater) {
  if (copies() == 1) GTEST_SKIP() << "its spans have no other copy";
  ASSERT_NO_FATAL_FAILURE(Fill());
  const uint64_t absent = servers_.server(0).incarnation();
  owner_->Hold(0, true);
  const VersionPlace place = Snapshot();
  EXPECT_EQ(place.incarnations.size(), 2u);
  EXPECT_EQ(place.least_in_sync, 2u);
  EXPECT_THAT(place.incarnations, Not(Contains(absent)));
  const std::string before = model_;
  Write(0, Pattern(kMiB, 91));
  owner_->Hold(0, false);
  ASSERT_NO_FATAL_FAILURE(CheckVersion(place, before));
  ASSERT_NO_FATAL_FAILURE(AwaitLife(owner_.get(), 0));
  // It drops that version as soon as it gets the order.
  ASSERT_TRUE(Await([&] {
    const auto next = region()->Snapshot(VersionKeep::kWithOwner);
    if (next.ok()) (void)region()->DropVersions(next->number, next->number, true);
    const std::vector<uint32_t> versions = VersionsAt(0);
    return next.ok() && next->incarnations.size() == 3 &&
           std::find(versions.begin(), versions.end(), Raw(place.number)) == versions.end();
  }));
  ASSERT_NO_FATAL_FAILURE(CheckVersion(place, before));
}

TEST_P(VersionsTest, AVersionOutlivesAsManyServersAsItsCopiesAllow) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  const VersionPlace place = Snapshot();
  const std::string before = model_;
  observer_ = NewClient();
  auto early = observer_->pool()->OpenVersion(place);
  ASSERT_TRUE(early.ok()) << early.status();
  const Region::Servers servers = region()->ServersOf(0);
  ASSERT_EQ(servers.size(), static_cast<size_t>(copies()));
  for (const int server : servers) {
    ASSERT_NO_FATAL_FAILURE(CheckVersion(place, before));
    ASSERT_NO_FATAL_FAILURE(Check(early->get(), before));
    Restart(server);
    ASSERT_NO_FATAL_FAILURE(AwaitLife(observer_.get(), server));
  }
  const absl::Status status = OpenError(place);
  EXPECT_TRUE(absl::IsDataLoss(status)) << status;
  // The remaining spans are right, and the lost ones are not zeros.
  int lost = 0;
  for (uint64_t span = 0; span + 1 < kSpans; ++span) {
    const auto back = Read(early->get(), span * kMiB, kMiB);
    lost += back.ok() ? 0 : 1;
    EXPECT_TRUE(back.ok() ? *back == before.substr(span * kMiB, kMiB) : absl::IsDataLoss(back.status()))
        << back.status();
  }
  EXPECT_GT(lost, 0);
}

// Otherwise it would also drop versions that are sealed later.
TEST_P(VersionsTest, ADropThatIsOwedIsOfVersionsOfBefore) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  const VersionPlace place = Snapshot();
  servers_.StopServer(1);
  ASSERT_TRUE(Await([&] { return !owner_->pool()->session(1)->usable(); }));
  const auto dropped = region()->DropVersions(VersionNumber{1}, kVersionNumberMax, /*force=*/true);
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_EQ(dropped->unanswered, 1u);
  const std::vector<VersionDebt> debts = region()->map()->TakeVersionDebts();
  ASSERT_EQ(debts.size(), 1u);
  EXPECT_EQ(debts[0].last, place.number);
}

// The next owner does not know the number, and the server does.
TEST_P(VersionsTest, TheNextOwnerPassesNumbersThatWereDropped) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  const VersionPlace first = Snapshot();
  const VersionPlace second = Snapshot();
  ASSERT_TRUE(region()->DropVersions(second.number, second.number, /*force=*/true).ok());
  auto next = NewClient();
  auto taken = next->pool()->AttachRegion(kName, AttachMode::kTakeOver);
  ASSERT_TRUE(taken.ok()) << taken.status();
  const auto sealed = (*taken)->Snapshot(VersionKeep::kUntilDropped);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_GT(sealed->number, second.number);
  EXPECT_EQ(sealed->incarnations, first.incarnations);
  taken->reset();
}

// Otherwise it would use up all numbers.
TEST_P(VersionsTest, AServerThatSaysThatAllNumbersAreOldIsNoMember) {
  if (copies() == 1) GTEST_SKIP() << "it has the only copy of something";
  ASSERT_NO_FATAL_FAILURE(Fill());
  const std::shared_ptr<Lease> lease = servers_.server(0).leases().Find(owner_->pool()->session(0)->lease());
  ASSERT_NE(lease, nullptr);
  const PageStore::VersionSeal last{region()->id(), Raw(region()->map()->key().epoch), kVersionNumberMax};
  ASSERT_EQ(servers_.server(0).store().SealVersion(lease.get(), last), Reason::kOk);
  for (int i = 0; i < 3; ++i) {
    const VersionPlace place = Snapshot();
    EXPECT_EQ(place.incarnations.size(), 2u);
    EXPECT_LT(Raw(place.number), 1u << 28);
    ASSERT_NO_FATAL_FAILURE(CheckVersion(place, model_));
  }
}

TEST_P(VersionsTest, AMemberThatDoesNotAnswerIsWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  const VersionPlace place = Snapshot();
  observer_ = NewClient();
  // With one copy, a server may have no part of the region.
  size_t member = 0;
  while (!absl::c_linear_search(place.incarnations, servers_.server(member).incarnation())) ++member;
  servers_.StopServer(member);
  absl::Status status;
  ASSERT_TRUE(Await([&] { return absl::IsUnavailable(status = OpenError(place)); })) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("does not answer"));
  // The holds at other servers have been released.
  for (size_t other = 0; other < 3; ++other) {
    if (other == member) continue;
    EXPECT_EQ(HoldsAt(other), 0u);
  }
}

TEST_P(VersionsTest, WhatIsLostIsNotSealed) {
  if (copies() > 1) GTEST_SKIP() << "nothing is";
  ASSERT_NO_FATAL_FAILURE(Fill());
  const int server = region()->ServersOf(0)[0];
  Restart(server);
  ASSERT_NO_FATAL_FAILURE(AwaitLife(owner_.get(), server));
  absl::Status status;
  ASSERT_TRUE(Await([&] { return absl::IsDataLoss(status = region()->Snapshot(VersionKeep::kWithOwner).status()); }))
      << status;
  EXPECT_THAT(status.ToString(), HasSubstr("is lost: write it again or drop it first"));
  ASSERT_NO_FATAL_FAILURE(Fill(3));
  const VersionPlace place = Snapshot();
  ASSERT_NO_FATAL_FAILURE(CheckVersion(place, model_));
}

TEST_P(VersionsTest, TheNextOwnerCountsOnAndFindsWhatWasSealed) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  const VersionPlace first = Snapshot();
  const std::string before = model_;
  ASSERT_NO_FATAL_FAILURE(Fill(1));
  auto former = std::move(owner_);
  owner_ = NewClient();
  auto taken = owner_->pool()->AttachRegion(kName, AttachMode::kTakeOver);
  ASSERT_TRUE(taken.ok()) << taken.status();
  owner_->Take(*std::move(taken));
  const VersionPlace second = Snapshot();
  EXPECT_GT(second.number, first.number);
  ASSERT_NO_FATAL_FAILURE(CheckVersion(first, before));
  ASSERT_NO_FATAL_FAILURE(CheckVersion(second, model_));
  const absl::Status status = former->region()->Snapshot(VersionKeep::kUntilDropped).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("another client"));
  EXPECT_FALSE(former->region()->DropVersions(first.number, second.number, true).ok());
  ASSERT_NO_FATAL_FAILURE(CheckVersion(second, model_));
  // The highest numbers were dropped: the servers know them, and the next owner does not.
  for (int i = 0; i < 5; ++i) (void)Snapshot();
  ASSERT_TRUE(region()->DropVersions(VersionNumber{1}, kVersionNumberMax, true).ok());
  former = std::move(owner_);
  owner_ = NewClient();
  taken = owner_->pool()->AttachRegion(kName, AttachMode::kTakeOver);
  ASSERT_TRUE(taken.ok()) << taken.status();
  owner_->Take(*std::move(taken));
  const VersionPlace last = Snapshot();
  EXPECT_GT(Raw(last.number), Raw(second.number) + 5);
  ASSERT_NO_FATAL_FAILURE(CheckVersion(last, model_));
}

// Copies move, and join anew, while versions are sealed.
TEST_P(VersionsTest, CopiesMoveAndComeMeanwhile) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  std::vector<std::pair<VersionPlace, std::string>> sealed;
  const auto change_and_seal = [&](uint64_t seed) {
    Write(seed % 3 * kMiB + seed % 200 * kPageBytes, Pattern(3 * kPageBytes, seed));
    const auto version = region()->Snapshot(VersionKeep::kUntilDropped, {.timeout_ms = kPatienceMs});
    ASSERT_TRUE(version.ok()) << version.status();
    sealed.emplace_back(PlaceOf(*version), model_);
  };
  uint64_t seed = 100;
  ASSERT_NO_FATAL_FAILURE(change_and_seal(++seed));
  if (copies() > 1) {
    // A server starts again, and gets copies of all spans. Its former versions are lost.
    Restart(2);
    const auto is_whole = [&] {
      const CopiesReport report = owner_->pool()->copies();
      return report.in_sync == kSpans - 1 && report.degraded + report.repairing + report.moving == 0;
    };
    ASSERT_NO_FATAL_FAILURE(AwaitLife(owner_.get(), 2));
    for (int i = 0; i < 40 && !is_whole(); ++i) ASSERT_NO_FATAL_FAILURE(change_and_seal(++seed));
    ASSERT_TRUE(Await(is_whole));
  } else {
    // One server is drained. It has parts of older versions that no other server can get.
    auto control = ControlClient::Create(servers_.Options().servers[2]);
    ASSERT_TRUE(control->Drain(true, /*leaving=*/true, DeadlineAfterMs(kPatienceMs)).ok());
    const auto has_left = [&] {
      for (uint64_t span = 0; span + 1 < kSpans; ++span) {
        for (const uint16_t server : region()->ServersOf(span * kMiB)) {
          if (server == 2) return false;
        }
      }
      return true;
    };
    for (int i = 0; i < 40 && !has_left(); ++i) ASSERT_NO_FATAL_FAILURE(change_and_seal(++seed));
    ASSERT_TRUE(Await(has_left));
  }
  ASSERT_NO_FATAL_FAILURE(change_and_seal(++seed));
  ASSERT_NO_FATAL_FAILURE(CheckVersion(sealed.back().first, sealed.back().second));
  // With one copy, server 2 has left.
  ASSERT_TRUE(copies() > 1 || Await([&] { return StoredAt(2).empty(); })) << "the region there is not freed";
  for (const auto& [place, model] : sealed) {
    // The drained server's parts of versions are lost.
    if (copies() == 1 && absl::IsDataLoss(OpenError(place))) continue;
    ASSERT_NO_FATAL_FAILURE(CheckVersion(place, model));
  }
  ASSERT_NO_FATAL_FAILURE(Check(region(), model_));
}

}  // namespace
}  // namespace nram
