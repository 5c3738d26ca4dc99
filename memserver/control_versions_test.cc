// Versions over the control plane: the requests of observers, and a server's figures of its room.

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "gtest/gtest.h"
#include "memserver/control_service.h"
#include "memserver/server_core.h"

namespace nram {
namespace {

constexpr uint64_t kRegion = 5;
constexpr uint64_t kPages = 1'500;

class ControlVersionsTest : public ::testing::Test {
 protected:
  ControlVersionsTest()
      : core_(ServerCore::Create({.incarnation = 7, .ceiling_bytes = 32 * kMiB, .fixed_bytes = kMiB}, &clock_).value()),
        service_(core_.get(), [] { return Surroundings(); }) {
    tenant_ = core_->tenants().Set(0, "local", {});
    other_ = core_->tenants().Set(1, "other", {});
    lease_ = Grant(1);
    v1::CreateRegionRequest create;
    create.set_lease_id(1);
    create.set_region_id(kRegion);
    create.set_epoch(1);
    create.set_gc(true);
    create.set_name("state");
    create.set_versioned(true);
    create.set_companion_id(6);
    v1::CreateRegionReply created;
    EXPECT_TRUE(service_.CreateRegion(caller(), create, &created).ok());
  }

  Caller caller() const { return {tenant_, "anyone", "user"}; }
  std::shared_ptr<Lease> Grant(uint64_t id) {
    return core_->leases().Grant({.tenant = tenant_, .id = LeaseId{id}, .client_name = "test"}).value();
  }
  void WritePages(uint64_t pages, char what) {
    FrameArena& arena = core_->arena();
    const FrameLoc frame = arena.Allocate(8);
    ASSERT_NE(frame, kNoFrame);
    FrameLoc landed = frame;
    for (uint64_t page = 0; page < pages; ++page) {
      memset(arena.Data(landed), what, kPageBytes);
      const uint32_t crc = static_cast<uint32_t>(what);
      Payment payment;
      ASSERT_EQ(core_->store().Write(lease_.get(),
                                     {.region = RegionId{kRegion},
                                      .epoch = 1,
                                      .range = {page * kChunksPerPage, kChunksPerPage},
                                      .page_crcs = {&crc, 1},
                                      .landed = &landed,
                                      .absent = PageStore::IfAbsent::kCreate,
                                      .generation = SpanGeneration{2}},
                                     &payment),
                Reason::kOk);
    }
    arena.Free(landed);
  }
  void Seal(uint32_t version) {
    ASSERT_EQ(core_->store().SealVersion(lease_.get(), {RegionId{kRegion}, 1, VersionNumber{version}}), Reason::kOk);
  }
  absl::Status Hold(uint64_t lease, uint32_t version, bool release = false) {
    v1::HoldVersionRequest request;
    request.set_lease_id(lease);
    request.set_region_id(kRegion);
    request.set_version(version);
    request.set_release(release);
    v1::HoldVersionReply reply;
    absl::Status status = service_.HoldVersion(caller(), request, &reply);
    EXPECT_TRUE(!status.ok() || reply.incarnation() == 7);
    return status;
  }
  v1::ListVersionsReply Versions() {
    v1::ListVersionsRequest request;
    request.set_region_id(kRegion);
    v1::ListVersionsReply reply;
    EXPECT_TRUE(service_.ListVersions(caller(), request, &reply).ok());
    return reply;
  }
  v1::RegionInfo Attach(const Caller& caller) {
    v1::AttachRegionRequest request;
    request.set_region_id(kRegion);
    request.set_read_only(true);
    v1::AttachRegionReply reply;
    EXPECT_TRUE(service_.AttachRegion(caller, request, &reply).ok());
    return reply.region();
  }
  v1::Statistics Statistics() {
    v1::Statistics statistics;
    EXPECT_TRUE(service_.GetStatistics(caller(), {}, &statistics).ok());
    return statistics;
  }
  absl::Status Reserve(uint64_t lease, int64_t pages, bool ahead = false) {
    v1::ReserveRequest request;
    request.set_lease_id(lease);
    request.set_pages(pages);
    request.set_ahead(ahead);
    v1::LeaseReply reply;
    return service_.Reserve(caller(), request, &reply);
  }

  FakeClock clock_;
  const std::unique_ptr<ServerCore> core_;
  ControlService service_;
  Tenant* tenant_ = nullptr;
  Tenant* other_ = nullptr;
  std::shared_ptr<Lease> lease_;
};

TEST_F(ControlVersionsTest, ARegionTellsThatItIsVersionedAndWhatItHas) {
  EXPECT_TRUE(Attach(caller()).versioned());
  EXPECT_EQ(Attach(caller()).companion_id(), 6u);
  EXPECT_EQ(Attach(caller()).newest_version(), 0u);
  EXPECT_EQ(Versions().versions_size(), 0);
  WritePages(3, 'a');
  Seal(4);
  WritePages(2, 'b');
  Seal(9);
  EXPECT_EQ(Attach(caller()).newest_version(), 9u);
  EXPECT_EQ(Attach(caller()).version_bytes(), 2 * kPageBytes);
  Grant(2);
  ASSERT_TRUE(Hold(2, 4).ok());
  const v1::ListVersionsReply list = Versions();
  ASSERT_EQ(list.versions_size(), 2);
  EXPECT_EQ(list.incarnation(), 7u);
  EXPECT_EQ(list.versions(0).number(), 4u);
  EXPECT_EQ(list.versions(0).holds(), 1u);
  EXPECT_EQ(list.versions(0).own_pages(), 2u);
  EXPECT_EQ(list.versions(0).own_bytes(), 2 * kPageBytes);
  EXPECT_EQ(list.versions(1).number(), 9u);
  EXPECT_EQ(list.versions(1).holds(), 0u);
}

TEST_F(ControlVersionsTest, AnotherTenantsVersionsAreNotThere) {
  WritePages(1, 'a');
  Seal(1);
  const Caller other{other_, "other", "user"};
  v1::ListVersionsRequest list;
  list.set_region_id(kRegion);
  v1::ListVersionsReply listed;
  EXPECT_TRUE(absl::IsNotFound(service_.ListVersions(other, list, &listed)));
  core_->leases().Grant({.tenant = other_, .id = LeaseId{3}}).value();
  v1::HoldVersionRequest hold;
  hold.set_lease_id(3);
  hold.set_region_id(kRegion);
  hold.set_version(1);
  v1::HoldVersionReply held;
  EXPECT_TRUE(absl::IsNotFound(service_.HoldVersion(other, hold, &held)));
  hold.set_lease_id(1);
  EXPECT_TRUE(absl::IsNotFound(service_.HoldVersion(other, hold, &held))) << "the lease is not its own";
  v1::ListChangesRequest changes;
  changes.set_region_id(kRegion);
  changes.set_from_version(1);
  changes.set_to_version(2);
  v1::ListChangesReply changed;
  EXPECT_TRUE(absl::IsNotFound(service_.ListChanges(other, changes, &changed)));
}

TEST_F(ControlVersionsTest, HoldsEndWithTheLeaseAlsoAtATick) {
  WritePages(1, 'a');
  Seal(1);
  EXPECT_TRUE(absl::IsNotFound(Hold(2, 1)));
  const std::shared_ptr<Lease> observer = Grant(2);
  EXPECT_TRUE(absl::IsNotFound(Hold(2, 2)));
  ASSERT_TRUE(Hold(2, 1).ok());
  clock_.AdvanceMs(9'000);
  ASSERT_TRUE(core_->leases().Renew(*tenant_, LeaseId{1}).ok());
  clock_.AdvanceMs(2'000);
  EXPECT_EQ(core_->Tick(clock_.NowNs(), clock_.NowNs()).size(), 1u);
  EXPECT_FALSE(observer->live());
  EXPECT_EQ(Versions().versions(0).holds(), 0u);
}

TEST_F(ControlVersionsTest, SpansAndChangesOfVersions) {
  WritePages(300, 'a');
  Seal(1);
  WritePages(3, 'b');
  Seal(2);
  v1::ListSpansRequest spans;
  spans.set_region_id(kRegion);
  spans.set_version(1);
  v1::ListSpansReply listed;
  ASSERT_TRUE(service_.ListSpans(caller(), spans, &listed).ok());
  ASSERT_EQ(listed.spans_size(), 2);
  ASSERT_EQ(listed.generations_size(), 2);
  EXPECT_EQ(listed.generations(1), 2u);
  EXPECT_EQ(listed.next_span(), 0u);
  spans.set_version(3);
  EXPECT_TRUE(absl::IsNotFound(service_.ListSpans(caller(), spans, &listed)));
  v1::ListChangesRequest changes;
  changes.set_region_id(kRegion);
  changes.set_from_version(1);
  changes.set_to_version(2);
  v1::ListChangesReply changed;
  ASSERT_TRUE(service_.ListChanges(caller(), changes, &changed).ok());
  ASSERT_EQ(changed.spans_size(), 1);
  EXPECT_EQ(changed.spans(0), 0u);
  EXPECT_EQ(changed.maps(), std::string("\7", 1) + std::string(31, '\0'));
  EXPECT_EQ(changed.next_span(), 0u);
  changes.set_from_version(2);
  EXPECT_TRUE(absl::IsInvalidArgument(service_.ListChanges(caller(), changes, &changed)));
}

TEST_F(ControlVersionsTest, WhatVersionsTakeCountsAsFreeAndIsGiven) {
  WritePages(kPages, 'a');
  const v1::Statistics before = Statistics();
  Seal(1);
  WritePages(kPages, 'b');
  const v1::Statistics after = Statistics();
  EXPECT_EQ(after.versions(), 1u);
  EXPECT_GE(after.version_bytes(), kPages * kPageBytes);
  EXPECT_EQ(after.pages(), kPages);
  // Except for partly filled slabs.
  const uint64_t free_bytes = after.capacity().free_bytes();
  EXPECT_GE(free_bytes + 4 * kMiB, before.capacity().free_bytes());
  EXPECT_LE(free_bytes, before.capacity().free_bytes() + kMiB);
  EXPECT_LE(after.capacity().used_bytes(), before.capacity().used_bytes() + kMiB);
  EXPECT_LE(after.capacity().used_bytes() + after.capacity().reserved_bytes() + free_bytes +
                after.capacity().overhead_bytes(),
            after.capacity().donated_bytes());
  // More than there is: no version yields for that.
  Grant(2);
  EXPECT_TRUE(absl::IsResourceExhausted(Reserve(2, 1 << 20)));
  EXPECT_EQ(Versions().versions_size(), 1);
  const auto pages = static_cast<int64_t>((free_bytes - 3 * kMiB) / kReservationBytesPerPage);
  EXPECT_TRUE(Reserve(2, pages).ok());
  EXPECT_EQ(Versions().versions_size(), 0);
  EXPECT_EQ(Statistics().versions_yielded(), 1u);
}

TEST_F(ControlVersionsTest, AHeldVersionStaysWhereAClientReservesAheadOfNeed) {
  WritePages(kPages, 'a');
  Seal(1);
  WritePages(kPages, 'b');
  Grant(2);
  ASSERT_TRUE(Hold(2, 1).ok());
  Grant(3);
  const auto pages = static_cast<int64_t>((Statistics().capacity().free_bytes() - 3 * kMiB) / kReservationBytesPerPage);
  EXPECT_TRUE(absl::IsResourceExhausted(Reserve(3, pages, /*ahead=*/true)));
  EXPECT_EQ(Versions().versions_size(), 1);
  // One that is not held goes.
  ASSERT_TRUE(Hold(2, 1, /*release=*/true).ok());
  EXPECT_TRUE(Reserve(3, pages, /*ahead=*/true).ok());
  EXPECT_EQ(Versions().versions_size(), 0);
}

TEST_F(ControlVersionsTest, AHeldVersionGoesWhereAClientNeedsTheRoom) {
  WritePages(kPages, 'a');
  Seal(1);
  WritePages(kPages, 'b');
  ASSERT_TRUE(Hold(1, 1).ok());
  const auto pages = static_cast<int64_t>((Statistics().capacity().free_bytes() - 3 * kMiB) / kReservationBytesPerPage);
  Grant(2);
  EXPECT_TRUE(Reserve(2, pages).ok());
  EXPECT_EQ(Versions().versions_size(), 0);
}

TEST_F(ControlVersionsTest, ATickFreesWhatWasDropped) {
  WritePages(kPages, 'a');
  Seal(1);
  WritePages(kPages, 'b');
  Seal(2);
  ASSERT_EQ(core_->store().SealVersion(lease_.get(), {RegionId{kRegion}, 1, VersionNumber{3}}), Reason::kOk);
  bool done = false;
  DropVersionReply reply;
  ASSERT_EQ(core_->store().DropVersionsStep(lease_.get(), {RegionId{kRegion}, 1, VersionNumber{1}, VersionNumber{2}},
                                            /*is_first=*/true, &done, &reply),
            Reason::kOk);
  EXPECT_FALSE(done);
  core_->Tick(clock_.NowNs(), clock_.NowNs());
  EXPECT_EQ(Statistics().versions(), 1u);
  EXPECT_LT(Statistics().version_bytes(), kMiB);
}

}  // namespace
}  // namespace nram
