// Published versions: committed by one, found by others, over real servers.

#include "client/pool/publication.h"

#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/poll_until.h"
#include "base/units.h"
#include "client/pool/pool.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/util/region_io.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPatienceMs = 60'000;

class PublicationTest : public ::testing::TestWithParam<int> {
 protected:
  PublicationTest() : servers_(GetParam(), 128 * kMiB, Clock::Real(), TestPool::Hosts::kPretended) {
    pool_ = Open();
    other_ = Open();
  }
  std::unique_ptr<Pool> Open() const {
    PoolOptions options = servers_.Options();
    options.ExpectCopies();
    options.reserve_step_bytes = kMiB;
    return TestPool::Open(options);
  }
  static int64_t Soon() { return DeadlineAfterMs(kPatienceMs); }
  static RegionOptions Plain() { return {.gc = false, .copies = 1, .name = "data", .versioned = true}; }
  static PublicationRecord Record(uint64_t number) {
    PublicationRecord record;
    record.number = number;
    record.step = 10 * number;
    record.regions.push_back({"data", RegionId{77}, VersionNumber{static_cast<uint32_t>(number)}, {5, 6}, 1});
    record.lengths = {kMiB};
    record.header_json = "{\"n\": [1, 2, 3]}";
    return record;
  }
  std::unique_ptr<Publication> Create() {
    auto made = Publication::Create(pool_.get(), "data", Plain());
    EXPECT_TRUE(made.ok()) << made.status();
    return made.ok() ? *std::move(made) : nullptr;
  }
  static std::unique_ptr<Publication> Attach(Pool* pool, AttachMode mode = AttachMode::kReadOnly) {
    auto attached = Publication::Attach(pool, "data", mode);
    EXPECT_TRUE(attached.ok()) << attached.status();
    return attached.ok() ? *std::move(attached) : nullptr;
  }
  static std::vector<uint64_t> Numbers(Publication* publication) {
    const auto list = publication->List(Soon());
    EXPECT_TRUE(list.ok()) << list.status();
    std::vector<uint64_t> numbers;
    for (const PublicationRecord& record : list.value_or(std::vector<PublicationRecord>())) {
      EXPECT_TRUE(record == Record(record.number));
      numbers.push_back(record.number);
    }
    return numbers;
  }

  TestPool servers_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Pool> other_;
};

INSTANTIATE_TEST_SUITE_P(Servers, PublicationTest, ::testing::Values(1, 3));

TEST_P(PublicationTest, WhatIsCommittedIsFoundAndWhatIsForgottenIsNot) {
  EXPECT_TRUE(absl::IsNotFound(Publication::Attach(other_.get(), "data", AttachMode::kReadOnly).status()));
  auto owner = Create();
  auto reader = Attach(other_.get());
  EXPECT_TRUE(absl::IsNotFound(reader->Read(0, Soon()).status()));
  EXPECT_TRUE(Numbers(reader.get()).empty());
  for (uint64_t number = 1; number <= 40; ++number) {
    const absl::Status status = owner->Commit(Record(number), Soon());
    ASSERT_TRUE(status.ok()) << status;
    const auto newest = reader->Read(0, Soon());
    ASSERT_TRUE(newest.ok()) << newest.status();
    EXPECT_TRUE(*newest == Record(number));
  }
  EXPECT_EQ(Numbers(reader.get()).size(), 40u);
  EXPECT_TRUE(reader->Read(17, Soon()).value() == Record(17));
  EXPECT_TRUE(absl::IsNotFound(reader->Read(41, Soon()).status()));
  ASSERT_TRUE(owner->Forget(17, Soon()).ok());
  ASSERT_TRUE(owner->Forget(40, Soon()).ok());
  EXPECT_TRUE(absl::IsNotFound(owner->Forget(40, Soon())));
  EXPECT_TRUE(absl::IsNotFound(reader->Read(17, Soon()).status()));
  EXPECT_EQ(reader->Read(0, Soon())->number, 39u);
  EXPECT_EQ(Numbers(reader.get()).size(), 38u);
  EXPECT_EQ(Numbers(owner.get()).size(), 38u);
  EXPECT_TRUE(absl::IsFailedPrecondition(reader->Commit(Record(50), Soon())));
  EXPECT_TRUE(absl::IsFailedPrecondition(reader->Forget(39, Soon())));
}

TEST_P(PublicationTest, WhatCannotBeCommittedIsRefused) {
  auto owner = Create();
  EXPECT_TRUE(absl::IsAlreadyExists(Publication::Create(other_.get(), "data", Plain()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Publication::Create(pool_.get(), "", Plain()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(Publication::Create(pool_.get(), std::string(247, 'n'), Plain()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(owner->Commit(PublicationRecord(), Soon())));
  PublicationRecord large = Record(1);
  large.header_json = "\"" + std::string(kPublicationBytesMax, 'x') + "\"";
  EXPECT_THAT(owner->Commit(large, Soon()).ToString(), HasSubstr("shorten its header"));
  large.header_json = "\"" + std::string(kPublicationBytesMax - 1000, 'x') + "\"";
  ASSERT_TRUE(owner->Commit(large, Soon()).ok());
  EXPECT_TRUE(Attach(other_.get())->Read(1, Soon()).value() == large);
  EXPECT_THAT(owner->Commit(Record(1), Soon()).ToString(), HasSubstr("must be above"));
  ASSERT_TRUE(owner->Forget(1, Soon()).ok());
  EXPECT_THAT(owner->Commit(Record(1), Soon()).ToString(), HasSubstr("must be above"));
}

TEST_P(PublicationTest, ItIsFullWhenAllSlotsAre) {
  if (GetParam() > 1) GTEST_SKIP() << "once is enough";
  auto owner = Create();
  for (uint64_t number = 1; number <= kRecordSlots; ++number) ASSERT_TRUE(owner->Commit(Record(number), Soon()).ok());
  EXPECT_TRUE(absl::IsResourceExhausted(owner->Commit(Record(kRecordSlots + 1), Soon())));
  ASSERT_TRUE(owner->Forget(5, Soon()).ok());
  ASSERT_TRUE(owner->Commit(Record(kRecordSlots + 1), Soon()).ok());
  auto reader = Attach(other_.get());
  EXPECT_EQ(Numbers(reader.get()).size(), size_t{kRecordSlots});
  // Its slot is not the one that is searched first.
  EXPECT_TRUE(reader->Read(kRecordSlots + 1, Soon()).value() == Record(kRecordSlots + 1));
  ASSERT_TRUE(owner->Commit(Record(kRecordSlots + 2), Soon()).code() == absl::StatusCode::kResourceExhausted);
}

TEST_P(PublicationTest, AReaderHearsOfTheNextOne) {
  auto owner = Create();
  auto reader = Attach(other_.get());
  EXPECT_TRUE(absl::IsDeadlineExceeded(reader->AwaitAbove(0, DeadlineAfterMs(20)).status()));
  std::thread publisher([&] {
    for (uint64_t number = 1; number <= 5; ++number) ASSERT_TRUE(owner->Commit(Record(number), Soon()).ok());
  });
  uint64_t seen = 0;
  while (seen < 5) {
    const auto next = reader->AwaitAbove(seen, Soon());
    ASSERT_TRUE(next.ok()) << next.status();
    EXPECT_GT(*next, seen);
    seen = *next;
  }
  publisher.join();
}

TEST_P(PublicationTest, TheNextOwnerFindsItAsItWas) {
  auto owner = Create();
  auto reader = Attach(other_.get());
  for (uint64_t number = 1; number <= 3; ++number) ASSERT_TRUE(owner->Commit(Record(number), Soon()).ok());
  auto next = Attach(other_.get(), AttachMode::kTakeOver);
  EXPECT_EQ(Numbers(next.get()), (std::vector<uint64_t>{1, 2, 3}));
  EXPECT_TRUE(absl::IsFailedPrecondition(owner->Commit(Record(4), Soon())));
  EXPECT_EQ(Numbers(reader.get()), (std::vector<uint64_t>{1, 2, 3}));
  ASSERT_TRUE(next->Forget(3, Soon()).ok());
  EXPECT_THAT(next->Commit(Record(3), Soon()).ToString(), HasSubstr("must be above"));
  ASSERT_TRUE(next->Commit(Record(4), Soon()).ok());
  EXPECT_EQ(Numbers(reader.get()), (std::vector<uint64_t>{1, 2, 4}));
  EXPECT_EQ(reader->Read(0, Soon())->number, 4u);
}

// All together: a state is published, and another client reads it; then its owner dies before it commits another one.
TEST_P(PublicationTest, WhatHasNoRecordIsDroppedByTheNextOwner) {
  auto owner = Create();
  auto region = pool_->CreateRegion(Plain()).value();
  const std::string first = Pattern(kMiB, 1);
  ASSERT_TRUE(region->Write(0, Bytes(first)).ok());
  const auto publish = [&](uint64_t number, const SealedVersion& sealed) {
    PublicationRecord record = Record(number);
    record.regions = {{"data", region->id(), sealed.number, sealed.incarnations, sealed.least_in_sync}};
    return owner->Commit(record, Soon());
  };
  ASSERT_TRUE(publish(1, region->Snapshot(VersionKeep::kUntilDropped).value()).ok());
  ASSERT_TRUE(region->Write(0, Bytes(Pattern(kMiB, 2))).ok());
  const SealedVersion lost = region->Snapshot(VersionKeep::kUntilDropped).value();
  const auto open = [&](Publication* publication) {
    const auto record = publication->Read(0, Soon());
    return record.ok() ? other_->OpenVersion(record->regions[0]) : record.status();
  };
  auto reader = Attach(other_.get());
  auto version = open(reader.get());
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_TRUE(Read(version->get(), 0, kMiB).value() == first);
  // The next owner takes the publication first, then the region.
  auto next = Attach(other_.get(), AttachMode::kTakeOver);
  auto taken = other_->AttachRegion("data", AttachMode::kTakeOver);
  ASSERT_TRUE(taken.ok()) << taken.status();
  const absl::Status status = next->DropUnrecorded(taken->get(), Soon());
  ASSERT_TRUE(status.ok()) << status;
  const VersionPlace place{"data", region->id(), lost.number, lost.incarnations, lost.least_in_sync};
  EXPECT_TRUE(absl::IsDataLoss(other_->OpenVersion(place).status()));
  version = open(next.get());
  ASSERT_TRUE(version.ok()) << version.status();
  EXPECT_TRUE(Read(version->get(), 0, kMiB).value() == first);
  EXPECT_FALSE(publish(2, lost).ok());
}

TEST_P(PublicationTest, AllThatHasNoRecordGoesAndNothingElse) {
  auto owner = Create();
  auto region = pool_->CreateRegion(Plain()).value();
  std::vector<uint32_t> recorded;
  for (uint64_t number = 1; number <= 12; ++number) {
    ASSERT_TRUE(region->Write(0, Bytes(Pattern(kMiB, number))).ok());
    const SealedVersion sealed = region->Snapshot(VersionKeep::kUntilDropped).value();
    if (number != 2 && number != 6 && number != 7 && number != 10) continue;
    PublicationRecord record = Record(number);
    record.regions = {{"data", region->id(), sealed.number, sealed.incarnations, sealed.least_in_sync}};
    ASSERT_TRUE(owner->Commit(record, Soon()).ok());
    recorded.push_back(Raw(sealed.number));
  }
  auto next = Attach(other_.get(), AttachMode::kTakeOver);
  auto taken = other_->AttachRegion("data", AttachMode::kTakeOver).value();
  const absl::Status status = next->DropUnrecorded(taken.get(), Soon());
  ASSERT_TRUE(status.ok()) << status;
  const auto servers = other_->ListVersions(region->id(), Soon());
  ASSERT_TRUE(servers.ok()) << servers.status();
  for (const ServerVersions& server : *servers) {
    std::vector<uint32_t> there;
    for (const VersionInfo& version : server.versions) there.push_back(Raw(version.number));
    EXPECT_EQ(there, recorded);
  }
}

// The first owner dies before the publication is complete. A reader has attached meanwhile.
TEST_P(PublicationTest, AReaderSeesWhatWasLaidAfterItHasAttached) {
  RegionOptions options = Plain();
  options.name = "data.versions";
  options.size_bytes = 64 * kMiB;
  auto begun = pool_->CreateRegion(options).value();
  auto reader = Attach(other_.get());
  EXPECT_TRUE(absl::IsNotFound(reader->Read(0, Soon()).status()));
  auto owner = Attach(pool_.get(), AttachMode::kTakeOver);
  ASSERT_TRUE(owner->Commit(Record(1), Soon()).ok());
  EXPECT_EQ(reader->AwaitAbove(0, DeadlineAfterMs(kPatienceMs / 4)).value_or(0), 1u);
  // They lie in another span, too.
  for (uint64_t number = 2; number <= 20; ++number) ASSERT_TRUE(owner->Commit(Record(number), Soon()).ok());
  EXPECT_EQ(Numbers(reader.get()).size(), 20u);
}

// The servers have freed the region since, and have it anew: they know no number of the former one.
TEST_P(PublicationTest, ANumberThatWasPublishedIsNotUsedAgain) {
  auto owner = Create();
  auto region = pool_->CreateRegion(Plain()).value();
  ASSERT_TRUE(region->Write(0, Bytes(Pattern(kMiB, 1))).ok());
  PublicationRecord record = Record(1);
  record.regions = {{"data", region->id(), VersionNumber{9}, {5}, 1}};
  ASSERT_TRUE(owner->Commit(record, Soon()).ok());
  auto next = Attach(other_.get(), AttachMode::kTakeOver);
  ASSERT_TRUE(next->Forget(1, Soon()).ok());
  auto taken = other_->AttachRegion("data", AttachMode::kTakeOver).value();
  // The number is not used again even if the owner cannot look up the versions.
  auto last = Attach(pool_.get(), AttachMode::kTakeOver);
  ASSERT_FALSE(next->DropUnrecorded(taken.get(), Soon()).ok());
  const auto sealed = taken->Snapshot(VersionKeep::kUntilDropped);
  ASSERT_TRUE(sealed.ok()) << sealed.status();
  EXPECT_GT(Raw(sealed->number), 9u);
}

}  // namespace
}  // namespace nram
