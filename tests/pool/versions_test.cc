// Versions of regions on real servers: sealed by the owner, read by others, while servers and owners come and go.

#include <sys/stat.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "base/poll_until.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/pool/pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/faulty_relay.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::testing::Contains;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr int64_t kPatienceMs = 60'000;
constexpr const char* kName = "kept";
constexpr uint64_t kSpans = 4;

bool Await(absl::FunctionRef<bool()> done) { return PollUntil(DeadlineAfterMs(kPatienceMs), 5, done); }

struct Kind {
  int copies;
  bool sealed;
};

// A client whose data can be held back on its way to a server.
class Client {
 public:
  Client(const TestPool& servers, const std::string& key_file) {
    PoolOptions options = servers.Options();
    options.ExpectCopies();
    options.replace_after_ms = 60'000;
    options.repair_bytes_per_s = PoolOptions::kRepairUnbounded;
    options.reserve_step_bytes = kMiB;
    options.key_file = key_file;
    options.seal = key_file.empty() ? Seal::kNo : Seal::kYes;
    options.reroute_data_for_test = [this](size_t server, const Endpoint& target) {
      MutexLock lock(&mu_);
      std::unique_ptr<FaultyRelay>& relay = data_[{server, target.ToString()}];
      if (relay == nullptr) relay = std::make_unique<FaultyRelay>(target, 1);
      return relay->endpoint();
    };
    pool_ = TestPool::Open(options);
  }
  ~Client() {
    region_ = nullptr;
    pool_ = nullptr;
  }
  // What is sent to the server waits on its way, and arrives later.
  void Hold(size_t server, bool hold) {
    MutexLock lock(&mu_);
    for (auto& [where, relay] : data_) {
      if (where.first == server) relay->Hold(hold);
    }
  }
  Pool* pool() { return pool_.get(); }
  Region* region() { return region_.get(); }
  void Take(std::unique_ptr<Region> region) { region_ = std::move(region); }

 private:
  Mutex mu_;
  std::map<std::pair<size_t, std::string>, std::unique_ptr<FaultyRelay>> data_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Region> region_;
};

class VersionsTest : public ::testing::TestWithParam<Kind> {
 protected:
  VersionsTest() {
    const char* const given = getenv("TEST_TMPDIR");
    std::string directory = absl::StrCat(given == nullptr ? "/tmp" : given, "/versions-XXXXXX");
    EXPECT_NE(mkdtemp(directory.data()), nullptr);
    if (GetParam().sealed) {
      key_file_ = directory + "/key";
      EXPECT_TRUE(WriteFileAtomically(key_file_, std::string(32, 'k')).ok());
      EXPECT_EQ(chmod(key_file_.c_str(), 0600), 0);
    }
    owner_ = NewClient();
    auto region = owner_->pool()->CreateRegion(
        {.gc = false, .copies = copies(), .name = kName, .size_bytes = 64 * kMiB, .versioned = true});
    EXPECT_TRUE(region.ok()) << region.status();
    if (region.ok()) owner_->Take(*std::move(region));
    model_.resize(kSpans * kMiB);
  }
  static int copies() { return GetParam().copies; }
  std::unique_ptr<Client> NewClient() { return std::make_unique<Client>(servers_, key_file_); }
  Region* region() { return owner_->region(); }

  void Write(uint64_t offset, const std::string& data) {
    const absl::Status status = region()->Write(offset, Bytes(data));
    ASSERT_TRUE(status.ok()) << status;
    model_.replace(offset, data.size(), data);
  }
  void Trim(uint64_t offset, uint64_t bytes) {
    const absl::Status status = region()->Trim(offset, bytes);
    ASSERT_TRUE(status.ok()) << status;
    memset(&model_[offset], 0, bytes);
  }
  // All but the last span.
  void Fill(uint64_t seed = 0) {
    for (uint64_t span = 0; span + 1 < kSpans; ++span) Write(span * kMiB, Pattern(kMiB, 10 * seed + span));
  }
  VersionPlace Snapshot(VersionKeep keep = VersionKeep::kUntilDropped) {
    const auto sealed = region()->Snapshot(keep);
    EXPECT_TRUE(sealed.ok()) << sealed.status();
    if (!sealed.ok()) return {};
    return PlaceOf(*sealed);
  }
  VersionPlace PlaceOf(const SealedVersion& sealed) {
    return {kName, region()->id(), sealed.number, sealed.incarnations, sealed.least_in_sync};
  }
  static void Check(Region* region, const std::string& model) {
    for (uint64_t at = 0; at < model.size(); at += kMiB) {
      const auto back = Read(region, at, kMiB);
      ASSERT_TRUE(back.ok()) << "at " << at << ": " << back.status();
      ASSERT_TRUE(*back == model.substr(at, kMiB)) << "wrong bytes in the span at " << at;
    }
  }
  // As another client sees it.
  void CheckVersion(const VersionPlace& place, const std::string& model) {
    if (observer_ == nullptr) observer_ = NewClient();
    auto version = observer_->pool()->OpenVersion(place);
    ASSERT_TRUE(version.ok()) << version.status();
    EXPECT_EQ((*version)->version(), place.number);
    EXPECT_EQ((*version)->sealed(), GetParam().sealed);
    ASSERT_NO_FATAL_FAILURE(Check(version->get(), model));
  }
  absl::Status OpenError(const VersionPlace& place) {
    if (observer_ == nullptr) observer_ = NewClient();
    return observer_->pool()->OpenVersion(place).status();
  }
  void Restart(int server) {
    servers_.StopServer(server);
    servers_.StartServer(server);
  }
  // The client has noticed.
  void AwaitLife(Client* client, int server) {
    ASSERT_TRUE(Await([&] {
      const ServerSession& session = *client->pool()->session(static_cast<size_t>(server));
      return session.usable() && session.incarnation() == servers_.server(server).incarnation();
    }));
  }
  std::vector<StoredVersion> StoredAt(int server) {
    return servers_.server(server).store().ListVersions({region()->id(), 0}).value_or(std::vector<StoredVersion>());
  }
  std::vector<uint32_t> VersionsAt(int server) {
    std::vector<uint32_t> numbers;
    for (const StoredVersion& version : StoredAt(server)) numbers.push_back(Raw(version.number));
    return numbers;
  }
  size_t HoldsAt(int server) {
    size_t holds = 0;
    for (const StoredVersion& version : StoredAt(server)) holds += version.holds;
    return holds;
  }

  TestPool servers_{3, 128 * kMiB, Clock::Real(), TestPool::Hosts::kPretended};
  std::string key_file_;
  std::unique_ptr<Client> owner_;
  std::unique_ptr<Client> observer_;
  std::string model_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, VersionsTest,
                         ::testing::Values(Kind{1, false}, Kind{3, false}, Kind{1, true}, Kind{3, true}),
                         [](const auto& kind) {
                           return absl::StrCat("Copies", kind.param.copies, kind.param.sealed ? "Sealed" : "Plain");
                         });

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
  // Whoever dies holds nothing.
  auto again = observer_->pool()->OpenVersion(place);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(holds(), place.incarnations.size());
  again->reset();
  observer_ = nullptr;
  EXPECT_EQ(holds(), 0u);
}

// It executes the seal when it is let go: what it has as that version is of later.
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
  // It drops it as soon as it can be told so.
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
  // What is left of it is right, and what is not is no zeros.
  int lost = 0;
  for (uint64_t span = 0; span + 1 < kSpans; ++span) {
    const auto back = Read(early->get(), span * kMiB, kMiB);
    lost += back.ok() ? 0 : 1;
    EXPECT_TRUE(back.ok() ? *back == before.substr(span * kMiB, kMiB) : absl::IsDataLoss(back.status()))
        << back.status();
  }
  EXPECT_GT(lost, 0);
}

// It would take versions along that are sealed later.
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

// The next owner does not know of the number, and the server does.
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

// It would use up all numbers.
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

// A seal does not keep them waiting for as long as that takes.
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

TEST_P(VersionsTest, AMemberThatDoesNotAnswerIsWaitedFor) {
  ASSERT_NO_FATAL_FAILURE(Fill());
  const VersionPlace place = Snapshot();
  observer_ = NewClient();
  // With one copy, not every server may have something.
  size_t member = 0;
  while (!absl::c_linear_search(place.incarnations, servers_.server(member).incarnation())) ++member;
  servers_.StopServer(member);
  absl::Status status;
  ASSERT_TRUE(Await([&] { return absl::IsUnavailable(status = OpenError(place)); })) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("does not answer"));
  // What was held at others has been let go.
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
  EXPECT_THAT(status.ToString(), HasSubstr("is lost: write it anew or drop it first"));
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
  // The highest numbers were dropped: the servers know better than the next owner.
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
  ASSERT_NO_FATAL_FAILURE(Fill(4));  // it does not matter what comes later
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
  // All of the last span: where it came, nothing may have been before, and so no version.
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
  // Where no server has both, whole spans.
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

// Two threads write counters, one page after the other: a version has no later one without the earlier.
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
        // Over all spans, so over all servers.
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
    // A server begins again, and gets copies of all. Nothing of what it had of versions comes back.
    Restart(2);
    const auto is_whole = [&] {
      const CopiesReport report = owner_->pool()->copies();
      return report.in_sync == kSpans - 1 && report.degraded + report.repairing + report.moving == 0;
    };
    ASSERT_NO_FATAL_FAILURE(AwaitLife(owner_.get(), 2));
    for (int i = 0; i < 40 && !is_whole(); ++i) ASSERT_NO_FATAL_FAILURE(change_and_seal(++seed));
    ASSERT_TRUE(Await(is_whole));
  } else {
    // One leaves, with what others cannot have of older versions.
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
  // Where it was one, server 2 has left.
  ASSERT_TRUE(copies() > 1 || Await([&] { return StoredAt(2).empty(); })) << "the region there is not freed";
  for (const auto& [place, model] : sealed) {
    // A server that leaves takes its part along.
    if (copies() == 1 && absl::IsDataLoss(OpenError(place))) continue;
    ASSERT_NO_FATAL_FAILURE(CheckVersion(place, model));
  }
  ASSERT_NO_FATAL_FAILURE(Check(region(), model_));
}

}  // namespace
}  // namespace nram
