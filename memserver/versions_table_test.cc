// Holds, owners that go, and versions that yield when room is needed.

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "memserver/page_store_fixture.h"

namespace nram {
namespace {

constexpr VersionNumber kOne{1}, kTwo{2}, kThree{3};
constexpr uint64_t kEver = std::numeric_limits<uint64_t>::max();
constexpr RegionId kOther{43};

class VersionsTableTest : public PageStoreTest {
 protected:
  VersionsTableTest() {
    generation_ = SpanGeneration{2};
    absent_ = PageStore::IfAbsent::kCreateGc;
  }

  static StoredKey KeyOf(RegionId region, TenantNumber tenant = 0) { return {region, tenant}; }
  static std::string Data(uint64_t page, char what) {
    std::string data(kPageBytes, what);
    data[0] = static_cast<char>(1 + page % 100);
    return data;
  }
  Reason WritePage(uint64_t page, char what, Lease* lease = nullptr, RegionId region = kRegion) {
    return Write({page * kChunksPerPage, kChunksPerPage}, Data(page, what), {}, 1, lease, region);
  }
  void WritePages(uint64_t pages, char what, Lease* lease = nullptr, RegionId region = kRegion) {
    for (uint64_t page = 0; page < pages; ++page) {
      absent_ = page % kPagesPerSpan == 0 ? PageStore::IfAbsent::kCreateGc : PageStore::IfAbsent::kRefuse;
      ASSERT_EQ(WritePage(page, what, lease, region), Reason::kOk) << page;
    }
  }
  Reason Seal(VersionNumber version, VersionKeep keep = VersionKeep::kWithOwner, Lease* lease = nullptr,
              RegionId region = kRegion) {
    return store_.SealVersion(lease != nullptr ? lease : lease_.get(), {region, 1, version, keep});
  }
  RegionVersions::Dropped Drop(VersionNumber first, VersionNumber last, bool force = false) {
    RegionVersions::Dropped dropped;
    EXPECT_EQ(store_.DropVersions(lease_.get(), {kRegion, 1, first, last, force}, &dropped), Reason::kOk);
    return dropped;
  }
  absl::Status Hold(Lease* lease, VersionNumber version, bool release = false) {
    return store_.HoldVersion(lease, KeyOf(kRegion), version, release);
  }
  std::vector<VersionNumber> Numbers(RegionId region = kRegion, TenantNumber tenant = 0) const {
    std::vector<VersionNumber> numbers;
    const auto list = store_.ListVersions({region, tenant}).value();
    for (const StoredVersion& version : list) numbers.push_back(version.number);
    return numbers;
  }
  bool IsThere(RegionId region) const { return store_.ListVersions(KeyOf(region)).ok(); }
  std::string ReadAt(VersionNumber version, uint64_t page) {
    version_ = version;
    std::string data = Read({page * kChunksPerPage, kChunksPerPage});
    version_ = VersionNumber{};
    return data;
  }
  void EndLease(uint64_t id) {
    const std::shared_ptr<Lease> lease = leases_.End(LeaseId{id});
    ASSERT_NE(lease, nullptr);
    store_.CollectLease(*lease);
  }
  // Leaves room for `pages` pages.
  void FillUp(uint64_t pages) {
    uint64_t all = arena_->usage().free_bytes / kPageBytes;
    while (!arena_->Reserve(all, &rest_)) --all;
    arena_->Unreserve(pages, &rest_);
  }
  // Also memory of the index, until there is none.
  void FillUpAll() {
    FillUp(0);
    while (arena_->ChargeIndex(64)) ++charged_;
  }
  void EmptyAll() {
    arena_->ReleaseIndex(charged_ * 64);
    arena_->CloseReservation(&rest_);
  }

  ArenaReservation rest_;
  uint64_t charged_ = 0;
};

using Versions = std::vector<VersionNumber>;

TEST_F(VersionsTableTest, AHeldVersionStaysUntilItsHolderLetsGoOrItIsForced) {
  const std::shared_ptr<Lease> observer = Grant(2);
  WritePages(3, 'a');
  ASSERT_EQ(Seal(kOne), Reason::kOk);
  ASSERT_TRUE(Hold(observer.get(), kOne).ok());
  ASSERT_TRUE(Hold(observer.get(), kOne).ok()) << "it has the hold, once";
  EXPECT_EQ(store_.ListVersions(KeyOf(kRegion)).value()[0].holds, 1u);
  WritePages(3, 'b');
  ASSERT_TRUE(Hold(observer.get(), kOne, /*release=*/true).ok());
  ASSERT_TRUE(Hold(observer.get(), kOne, /*release=*/true).ok()) << "nothing to release";
  EXPECT_EQ(Numbers(), Versions{kOne}) << "nobody has dropped it";
  ASSERT_TRUE(Hold(observer.get(), kOne).ok());
  EXPECT_EQ(Drop(kOne, kOne).held, 1u);
  EXPECT_EQ(ReadAt(kOne, 1), Data(1, 'a'));
  ASSERT_TRUE(Hold(observer.get(), kOne, /*release=*/true).ok());
  EXPECT_EQ(ReadAt(kOne, 1), "") << "it goes with its last hold";
  EXPECT_TRUE(store_.StepVersions(kEver));
  ASSERT_EQ(Seal(kTwo), Reason::kOk);
  ASSERT_TRUE(Hold(observer.get(), kTwo).ok());
  EXPECT_EQ(Drop(kTwo, kTwo, /*force=*/true).dropped, 1u);
  EXPECT_TRUE(absl::IsNotFound(Hold(observer.get(), kTwo)));
  EXPECT_TRUE(absl::IsNotFound(store_.HoldVersion(observer.get(), KeyOf(kOther), kTwo, false)));
  EXPECT_EQ(ReadAt(VersionNumber{}, 1), Data(1, 'b'));
}

TEST_F(VersionsTableTest, HoldsEndWithTheirLease) {
  const std::shared_ptr<Lease> observer = Grant(2);
  WritePages(1, 'a');
  ASSERT_EQ(Seal(kOne), Reason::kOk);
  ASSERT_TRUE(Hold(observer.get(), kOne).ok());
  EXPECT_EQ(Drop(kOne, kOne).held, 1u);
  EndLease(2);
  EXPECT_FALSE(Hold(observer.get(), kOne).ok()) << "it would never be released";
  EXPECT_EQ(Numbers(), Versions{}) << "it was dropped already";
}

// The page's index remains, and its frame was paid for.
TEST_F(VersionsTableTest, AKeepingTrimReservesTheFrameOnly) {
  ASSERT_TRUE(arena_->Reserve(8, &lease_->reservation));
  WritePages(1, 'a');
  uint64_t kept_bytes = 0;
  const auto trim = [&] {
    const PageStore::TrimArgs args{.region = kRegion,
                                   .epoch = 1,
                                   .range = {0, kChunksPerPage},
                                   .reservation = &lease_->reservation,
                                   .generation = generation_};
    return store_.Trim(lease_.get(), args, &kept_bytes);
  };
  const uint64_t left_bytes = arena_->left_bytes(lease_->reservation);
  for (uint32_t i = 1; i <= 10; ++i) {
    ASSERT_EQ(Seal(VersionNumber{i}), Reason::kOk);
    ASSERT_EQ(trim(), Reason::kOk);
    absent_ = PageStore::IfAbsent::kRefuse;
    ASSERT_EQ(WritePage(0, 'b'), Reason::kOk);
    EXPECT_EQ(arena_->left_bytes(lease_->reservation), left_bytes) << "what the trim has reserved was for that";
  }
  // One that is closed gets nothing, and no version yields for it.
  arena_->CloseReservation(&lease_->reservation);
  ASSERT_EQ(trim(), Reason::kOk);
  EXPECT_EQ(Numbers().size(), 10u);
}

TEST_F(VersionsTableTest, AGcRegionStaysWithoutItsOwnerAsLongAsAVersionOfIt) {
  const std::shared_ptr<Lease> observer = Grant(2);
  WritePages(2, 'a');
  ASSERT_EQ(Seal(kOne), Reason::kOk);
  ASSERT_EQ(Seal(kTwo), Reason::kOk);
  ASSERT_TRUE(Hold(observer.get(), kOne).ok());
  WritePages(2, 'b');
  EndLease(1);
  ASSERT_TRUE(IsThere(kRegion));
  EXPECT_EQ(Numbers(), Versions{kOne}) << "the other was its owner's, and nobody held it";
  EXPECT_EQ(store_.CountOrphans(), 1u);
  EXPECT_TRUE(store_.StepVersions(kEver));
  EXPECT_EQ(ReadAt(kOne, 1), Data(1, 'a'));
  EXPECT_EQ(ReadAt(VersionNumber{}, 1), Data(1, 'b')) << "the region is kept whole";
  ASSERT_TRUE(Hold(observer.get(), kOne, /*release=*/true).ok());
  EXPECT_TRUE(store_.StepVersions(kEver));
  EXPECT_FALSE(IsThere(kRegion));
  EXPECT_TRUE(store_.FreeSome(std::numeric_limits<int64_t>::max()));
  EXPECT_EQ(store_.counters().regions, 0);
  EXPECT_EQ(store_.counters().versions.versions, 0);
  EXPECT_EQ(store_.counters().versions.bytes, 0);
}

TEST_F(VersionsTableTest, WhoeverTakesAnOrphanOverMayDropItsVersions) {
  WritePages(2, 'a');
  ASSERT_EQ(Seal(kOne, VersionKeep::kUntilDropped), Reason::kOk);
  EndLease(1);
  EXPECT_TRUE(store_.StepVersions(kEver));
  ASSERT_TRUE(IsThere(kRegion));
  const std::shared_ptr<Lease> next = Grant(2);
  ASSERT_TRUE(store_.Attach(next.get(), KeyOf(kRegion), 2, /*force=*/false).ok());
  EXPECT_TRUE(store_.StepVersions(kEver));
  EXPECT_EQ(Numbers(), Versions{kOne});
  EXPECT_EQ(store_.DropVersions(lease_.get(), {kRegion, 1, kOne, kOne}), Reason::kStaleEpoch);
  EXPECT_EQ(store_.DropVersions(next.get(), {kRegion, 2, kOne, kOne}), Reason::kOk);
  EXPECT_TRUE(IsThere(kRegion)) << "it has an owner";
  EndLease(2);
  EXPECT_FALSE(IsThere(kRegion));
}

TEST_F(VersionsTableTest, AnOrphanKeepsWhatIsToStayUntilItIsDropped) {
  absent_ = PageStore::IfAbsent::kCreate;
  ASSERT_EQ(WritePage(0, 'a'), Reason::kOk);
  ASSERT_EQ(Seal(kOne, VersionKeep::kUntilDropped), Reason::kOk);
  ASSERT_EQ(Seal(kTwo, VersionKeep::kWithOwner), Reason::kOk);
  EXPECT_TRUE(store_.StepVersions(kEver));
  EXPECT_EQ(Numbers(), (Versions{kOne, kTwo}));
  EndLease(1);
  EXPECT_TRUE(store_.StepVersions(kEver));
  EXPECT_EQ(Numbers(), Versions{kOne});
}

TEST_F(VersionsTableTest, AVersionMayStayForSomeSecondsWithoutAnOwner) {
  absent_ = PageStore::IfAbsent::kCreate;
  ASSERT_EQ(WritePage(0, 'a'), Reason::kOk);
  ASSERT_EQ(Seal(kOne, VersionKeep{5}), Reason::kOk);
  ASSERT_EQ(Seal(kTwo, VersionKeep{9}), Reason::kOk);
  EndLease(1);
  clock_.AdvanceMs(4'000);
  EXPECT_TRUE(store_.StepVersions(kEver));
  EXPECT_EQ(Numbers(), (Versions{kOne, kTwo}));
  // The time begins anew when another owner has ended.
  const std::shared_ptr<Lease> next = Grant(2);
  ASSERT_TRUE(store_.Attach(next.get(), KeyOf(kRegion), 2, /*force=*/false).ok());
  EXPECT_TRUE(store_.StepVersions(kEver));
  clock_.AdvanceMs(2'000);
  EndLease(2);
  EXPECT_TRUE(store_.StepVersions(kEver));
  clock_.AdvanceMs(4'000);
  EXPECT_TRUE(store_.StepVersions(kEver));
  EXPECT_EQ(Numbers(), (Versions{kOne, kTwo}));
  clock_.AdvanceMs(1'000);
  EXPECT_TRUE(store_.StepVersions(kEver));
  EXPECT_EQ(Numbers(), Versions{kTwo});
  const std::shared_ptr<Lease> observer = Grant(3);
  ASSERT_TRUE(Hold(observer.get(), kTwo).ok());
  clock_.AdvanceMs(9'000);
  EXPECT_TRUE(store_.StepVersions(kEver));
  EXPECT_EQ(Numbers(), Versions{kTwo}) << "it is held";
  ASSERT_TRUE(Hold(observer.get(), kTwo, /*release=*/true).ok());
  EXPECT_TRUE(store_.StepVersions(kEver));
  EXPECT_EQ(Numbers(), Versions{});
}

TEST_F(VersionsTableTest, SealsHaveAnOrderAndTheNewestOneIsAnsweredAgain) {
  WritePages(2, 'a');
  SealReply reply;
  EXPECT_EQ(store_.SealVersion(lease_.get(), {kRegion, 1, kTwo}, &reply), Reason::kOk);
  EXPECT_EQ(reply.oldest, kTwo);
  EXPECT_EQ(reply.newest, kTwo);
  EXPECT_EQ(reply.pages, 2u);
  WritePages(2, 'b');
  EXPECT_EQ(Seal(kTwo), Reason::kOk) << "sent again";
  EXPECT_EQ(ReadAt(kTwo, 1), Data(1, 'a'));
  EXPECT_EQ(Seal(kOne), Reason::kOldVersion);
  EXPECT_EQ(store_.SealVersion(lease_.get(), {kRegion, 1, kThree}, &reply), Reason::kOk);
  EXPECT_EQ(reply.oldest, kTwo);
  EXPECT_EQ(reply.newest, kThree);
  EXPECT_EQ(Seal(kTwo), Reason::kOldVersion);
  EXPECT_EQ(Drop(kThree, kThree).dropped, 1u);
  EXPECT_EQ(Seal(kThree), Reason::kUnknownSnapshot) << "it was there, and has gone";
}

TEST_F(VersionsTableTest, ARegionWithoutGenerationsHasNoVersions) {
  generation_ = SpanGeneration{};
  ASSERT_EQ(WritePage(0, 'a'), Reason::kOk);
  EXPECT_EQ(Seal(kOne), Reason::kOtherGeneration);
  EXPECT_EQ(store_.SealVersion(lease_.get(), {kOther, 1, kOne}), Reason::kUnknownRegion);
}

// --- Room.

TEST_F(VersionsTableTest, WritesOfOthersTakeWhatVersionsHave) {
  constexpr uint64_t kPages = 3'000;
  const std::shared_ptr<Lease> other = leases_.Grant({.tenant = &other_, .id = LeaseId{2}}).value();
  WritePages(kPages, 'a');
  ASSERT_EQ(Seal(kOne), Reason::kOk);
  WritePages(kPages, 'b');
  ASSERT_EQ(Seal(kTwo), Reason::kOk);
  WritePages(1, 'c');
  EXPECT_GE(store_.counters().versions.bytes, kPages * kPageBytes);
  EXPECT_EQ(store_.counters().versions.bytes, tenant_.versions.bytes);
  FillUp(16);
  limit_bytes_ = 0;
  WritePages(kPages / 2, 'x', other.get(), kOther);
  EXPECT_EQ(Numbers(), Versions{kTwo}) << "the oldest goes first";
  EXPECT_EQ(store_.counters().versions.yielded, 1u);
  EXPECT_EQ(store_.counters().refused_full, 0u);
  for (uint64_t page = 0; page < kPages; ++page) {
    ASSERT_EQ(ReadAt(VersionNumber{}, page), Data(page, page == 0 ? 'c' : 'b'));
    ASSERT_EQ(ReadAt(kTwo, page), Data(page, 'b'));
  }
  // Without any, the server is full as ever.
  EXPECT_EQ(Drop(kTwo, kTwo).dropped, 1u);
  Reason reason = Reason::kOk;
  absent_ = PageStore::IfAbsent::kCreateGc;
  for (uint64_t page = kPages / 2; page < 4 * kPages && reason == Reason::kOk; ++page) {
    reason = WritePage(page, 'x', other.get(), kOther);
  }
  EXPECT_EQ(reason, Reason::kFull);
  EXPECT_EQ(store_.counters().refused_full, 1u);
  arena_->CloseReservation(&rest_);
}

// The other tenant is full, however much the holder's versions keep; the holder's own writes come first.
TEST_F(VersionsTableTest, AHeldVersionStaysWhereAnotherTenantLacksRoom) {
  constexpr uint64_t kPages = 3'000;
  const std::shared_ptr<Lease> other = leases_.Grant({.tenant = &other_, .id = LeaseId{2}}).value();
  WritePages(kPages, 'a');
  ASSERT_EQ(Seal(kOne), Reason::kOk);
  ASSERT_TRUE(Hold(lease_.get(), kOne).ok());
  WritePages(kPages, 'b');
  ASSERT_EQ(Seal(kTwo), Reason::kOk);
  EXPECT_EQ(store_.counters().versions.BarredFrom(other_.versions), store_.counters().versions.yieldable_bytes());
  EXPECT_EQ(store_.counters().versions.BarredFrom(tenant_.versions), 0u);
  FillUp(16);
  Reason reason = Reason::kOk;
  absent_ = PageStore::IfAbsent::kCreateGc;
  for (uint64_t page = 0; page < kPages && reason == Reason::kOk; ++page) {
    reason = WritePage(page, 'x', other.get(), kOther);
  }
  EXPECT_EQ(reason, Reason::kFull);
  EXPECT_FALSE(store_.YieldVersions(other_, kPageBytes));
  EXPECT_EQ(Numbers(), (Versions{kOne, kTwo}));
  EXPECT_EQ(ReadAt(kOne, 1), Data(1, 'a'));
  // Its tenant needs room itself, or the donor does.
  EXPECT_TRUE(store_.YieldVersions(tenant_, kPageBytes));
  EXPECT_EQ(Numbers(), Versions{kTwo});
  EXPECT_EQ(store_.counters().versions.held_bytes, 0);
  EXPECT_TRUE(store_.StepVersions(kEver));
  ASSERT_TRUE(Hold(lease_.get(), kTwo).ok());
  EXPECT_EQ(store_.YieldForDonor(kPageBytes, /*held=*/false), 0u);
  EXPECT_GT(store_.YieldForDonor(kPageBytes, /*held=*/true), 0u);
  EXPECT_EQ(Numbers(), Versions{});
  EXPECT_EQ(store_.counters().versions.held_bytes, 0);
  arena_->CloseReservation(&rest_);
}

TEST_F(VersionsTableTest, AWriteTellsItsRegionOfWhatHasYielded) {
  constexpr uint64_t kPages = 600;
  WritePages(kPages, 'a');
  ASSERT_EQ(Seal(kOne), Reason::kOk);
  FillUp(64);
  limit_bytes_ = 0;  // the write pays with nothing
  VersionNumber yielded = kThree;
  for (uint64_t page = 0; page < kPages && Numbers() == Versions{kOne}; ++page) {
    ASSERT_EQ(WritePage(page, 'b'), Reason::kOk) << "what it had is its own";
  }
  EXPECT_EQ(Numbers(), Versions{});
  const ChunkMask none = 0;
  const uint32_t crc = 0;
  FrameLoc landed;
  ASSERT_TRUE(landing_.Take(1, &landed));
  Payment payment;
  EXPECT_EQ(store_.Write(lease_.get(),
                         {.region = kRegion,
                          .epoch = 1,
                          .range = {0, kChunksPerPage},
                          .masks = {&none, 1},
                          .page_crcs = {&crc, 1},
                          .landed = &landed,
                          .generation = generation_},
                         &payment, nullptr, &yielded),
            Reason::kOk);
  landing_.Give(&landed, 1);
  EXPECT_EQ(yielded, kOne);
  arena_->CloseReservation(&rest_);
}

TEST_F(VersionsTableTest, ATenantsOwnVersionsGoBeforeThoseOfOthers) {
  constexpr uint64_t kPages = 1'000;
  const std::shared_ptr<Lease> other = leases_.Grant({.tenant = &other_, .id = LeaseId{2}}).value();
  WritePages(kPages, 'a');
  ASSERT_EQ(Seal(kOne), Reason::kOk);
  WritePages(kPages, 'b');
  WritePages(kPages, 'a', other.get(), kOther);
  ASSERT_EQ(Seal(kOne, VersionKeep::kWithOwner, other.get(), kOther), Reason::kOk);
  WritePages(kPages, 'b', other.get(), kOther);
  FillUp(16);
  absent_ = PageStore::IfAbsent::kCreateGc;
  for (uint64_t page = kPages; page < kPages + 300; ++page) {
    ASSERT_EQ(WritePage(page, 'c', other.get(), kOther), Reason::kOk);
  }
  EXPECT_EQ(Numbers(kOther, 1), Versions{});
  EXPECT_EQ(Numbers(), Versions{kOne}) << "it is older, and another tenant's";
  arena_->CloseReservation(&rest_);
}

TEST_F(VersionsTableTest, NothingYieldsInVain) {
  constexpr uint64_t kPages = 500;
  const std::shared_ptr<Lease> other = leases_.Grant({.tenant = &other_, .id = LeaseId{2}}).value();
  WritePages(kPages, 'a');
  ASSERT_EQ(Seal(kOne), Reason::kOk);
  WritePages(kPages, 'b');
  EXPECT_FALSE(store_.YieldVersions(other_, kGiB));
  // A tenant at its limit is not helped by the memory of others.
  other_.account.SetLimit(64 * kKiB);
  Reason reason = Reason::kOk;
  absent_ = PageStore::IfAbsent::kCreateGc;
  for (uint64_t page = 0; page < kPages && reason == Reason::kOk; ++page) {
    reason = WritePage(page, 'x', other.get(), kOther);
  }
  EXPECT_EQ(reason, Reason::kFull);
  // Nor do they help a tenant at its limit of regions.
  other_.account.SetLimit(ArenaAccount::kNoLimit);
  other_.regions.SetLimit(1);
  EXPECT_EQ(store_.Create(other.get(), RegionId{44}, 1, true), Reason::kFull);
  EXPECT_EQ(WritePage(0, 'x', other.get(), RegionId{45}), Reason::kFull);
  EXPECT_EQ(Numbers(), Versions{kOne});
  EXPECT_EQ(store_.counters().versions.yielded, 0u);
}

TEST_F(VersionsTableTest, ARegionIsCreatedWhereVersionsAreInTheWay) {
  constexpr uint64_t kPages = 500;
  WritePages(kPages, 'a');
  ASSERT_EQ(Seal(kOne), Reason::kOk);
  WritePages(kPages, 'b');
  FillUpAll();
  EXPECT_EQ(store_.Create(lease_.get(), kOther, 1, true), Reason::kOk);
  EXPECT_EQ(Numbers(), Versions{});
  EmptyAll();
}

// Otherwise it would be taken over in part, and its former owner shut out for nothing.
TEST_F(VersionsTableTest, ARegionIsTakenOverWhereVersionsAreInTheWay) {
  constexpr uint64_t kPages = 500;
  WritePages(kPages, 'a');
  ASSERT_EQ(Seal(kOne), Reason::kOk);
  WritePages(kPages, 'b');
  FillUpAll();
  const std::shared_ptr<Lease> next = Grant(2);
  ASSERT_NE(next, nullptr) << "it connects, and has nothing";
  const absl::Status attached = store_.Attach(next.get(), KeyOf(kRegion), 2, /*force=*/true).status();
  EXPECT_TRUE(attached.ok()) << attached;
  EXPECT_EQ(Numbers(), Versions{});
  EXPECT_EQ(store_.counters().refused_full, 0u);
  EmptyAll();
}

TEST_F(VersionsTableTest, AViewGrowsWhereVersionsAreInTheWay) {
  constexpr uint64_t kPages = 500;
  ASSERT_TRUE(store_.CreateNamed(lease_.get(), kOther, 1, /*gc=*/true, {"other", {1}}).ok());
  WritePages(kPages, 'a');
  ASSERT_EQ(Seal(kOne), Reason::kOk);
  WritePages(kPages, 'b');
  FillUpAll();
  const absl::Status told = store_.SetView(*lease_, kOther, 1, 1, std::vector<uint64_t>(64, 7), 0);
  EXPECT_TRUE(told.ok()) << told;
  EXPECT_EQ(Numbers(), Versions{});
  EmptyAll();
}

// --- Work is looked for where it is.

TEST_F(VersionsTableTest, RegionsCostNothingWhileNothingHappensToTheirVersions) {
  constexpr uint64_t kRegions = 2'000;
  for (uint64_t id = 1; id <= kRegions; ++id) {
    ASSERT_EQ(store_.Create(lease_.get(), RegionId{id}, 1, /*gc=*/true), Reason::kOk);
    ASSERT_EQ(Seal(kOne, VersionKeep::kUntilDropped, nullptr, RegionId{id}), Reason::kOk);
  }
  EXPECT_TRUE(store_.StepVersions(kEver));
  uint64_t before = store_.looked_at();
  for (int tick = 0; tick < 10; ++tick) EXPECT_TRUE(store_.StepVersions(kEver));
  EXPECT_EQ(store_.looked_at(), before);
  EXPECT_TRUE(store_.YieldVersions(tenant_, kPageBytes)) << "the oldest ones";
  EXPECT_LE(store_.looked_at() - before, 64u) << "of one turn";
  EXPECT_EQ(Numbers(RegionId{1}), Versions{});
  EXPECT_EQ(Numbers(RegionId{kRegions}), Versions{kOne});
  // Nor as orphans that wait for nothing.
  EndLease(1);
  EXPECT_TRUE(store_.StepVersions(kEver));
  before = store_.looked_at();
  for (int tick = 0; tick < 10; ++tick) {
    clock_.AdvanceMs(1'000);
    EXPECT_TRUE(store_.StepVersions(kEver));
  }
  EXPECT_EQ(store_.looked_at(), before);
}

// --- Lists.

TEST_F(VersionsTableTest, ListsGoOnWhereTheyHaveEnded) {
  constexpr uint64_t kSpans = 2'000;
  constexpr uint32_t kVersions = 70;
  for (uint64_t span = 0; span < kSpans; ++span) ASSERT_EQ(WritePage(span * kPagesPerSpan, 'a'), Reason::kOk);
  for (uint32_t version = 1; version <= kVersions; ++version) {
    ASSERT_EQ(Seal(VersionNumber{version}), Reason::kOk);
    ASSERT_EQ(WritePage(version * kPagesPerSpan + 3, 'b'), Reason::kOk);
  }
  std::vector<uint64_t> seen;
  int calls = 0;
  uint64_t next = 0;
  do {
    const auto spans = store_.ListSpansAt(KeyOf(kRegion), kOne, next, &next);
    ASSERT_TRUE(spans.ok());
    ASSERT_LE(spans->size(), 16'384u / kVersions) << "writes wait meanwhile";
    for (const auto& span : *spans) seen.push_back(span.span);
    ++calls;
  } while (next != 0);
  EXPECT_GT(calls, 2);
  ASSERT_EQ(seen.size(), kSpans);
  EXPECT_EQ(seen.back(), kSpans - 1);
  seen.clear();
  do {
    const auto spans = store_.ListChanges(KeyOf(kRegion), kOne, VersionNumber{kVersions}, next, &next);
    ASSERT_TRUE(spans.ok());
    for (const auto& changed : *spans) {
      seen.push_back(changed.span);
      EXPECT_EQ(changed.pages, (PageIndex::SpanPages{8, 0, 0, 0}));
    }
  } while (next != 0);
  ASSERT_EQ(seen.size(), kVersions - 1u) << "the last write came after the last version";
  EXPECT_EQ(seen.front(), 1u);
  EXPECT_TRUE(absl::IsInvalidArgument(store_.ListChanges(KeyOf(kRegion), kTwo, kTwo, 0, &next).status()));
  EXPECT_TRUE(absl::IsNotFound(store_.ListChanges(KeyOf(kRegion), kTwo, VersionNumber{99}, 0, &next).status()));
  EXPECT_TRUE(absl::IsNotFound(store_.ListSpansAt(KeyOf(kRegion), VersionNumber{99}, 0, &next).status()));
  EXPECT_TRUE(absl::IsNotFound(store_.ListVersions(KeyOf(kOther)).status()));
}

}  // namespace
}  // namespace nram
