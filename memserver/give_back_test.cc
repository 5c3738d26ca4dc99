#include "memserver/give_back.h"

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "memserver/page_store_fixture.h"

namespace nram {
namespace {

using Mode = GiveBackOptions::Mode;

constexpr uint64_t kAll = uint64_t{1} << 40;
constexpr uint64_t kExtent = 2 * kMiB;
constexpr uint64_t kSlack = 2 * kExtent;

class GiveBackTest : public PageStoreTest {
 protected:
  GiveBackTest() { Make({}); }

  void Make(GiveBackOptions options) {
    options.compact_ns = std::numeric_limits<int64_t>::max() / 2;  // nothing depends on how long a step takes
    give_back_.emplace(options, arena_.get(), &leases_, &store_, &landing_);
  }
  static std::string Page(uint64_t page) {
    std::string data(kPageBytes, '\0');
    for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(1 + (page * 31 + i / 64) % 250);
    return data;
  }
  static ChunkRange RangeOf(uint64_t page) { return {page * kChunksPerPage, kChunksPerPage}; }
  // Stores `pages` more pages of a region, or until the server is full. Returns how many.
  uint64_t Store(uint64_t pages, Lease* lease = nullptr, RegionId region = kRegion, uint64_t first = 0) {
    for (uint64_t page = 0; page < pages; ++page) {
      if (Write(RangeOf(first + page), Page(first + page), {}, 1, lease, region) != Reason::kOk) return page;
    }
    return pages;
  }
  void Free(uint64_t first, uint64_t pages) {
    for (uint64_t page = first; page < first + pages; ++page) {
      ASSERT_EQ(store_.Trim(lease_.get(), {.region = kRegion, .epoch = 1, .range = RangeOf(page)}), Reason::kOk);
    }
  }
  // The bytes that the server holds, except those that it can free at once. Includes the slack that is never given
  // without a reservation.
  uint64_t Taken() const {
    const ArenaUsage usage = arena_->usage();
    return usage.extent_bytes - arena_->SpareBytes() + usage.index_bytes + usage.fixed_bytes + kSlack;
  }
  std::shared_ptr<Lease> GrantExpendable(uint64_t id) {
    return leases_
        .Grant({.tenant = &tenant_, .id = LeaseId{id}, .client_name = "may go", .ttl_ms = 0, .expendable = true})
        .value();
  }
  void Tick(uint64_t allowed_bytes, int64_t ms = 100) {
    now_ns_ += ms * kNsPerMs;
    give_back_->Tick(allowed_bytes, now_ns_, &remarks_);
    store_.FreeSome(std::numeric_limits<int64_t>::max());
    store_.StepVersions(1'000);  // frees the rest of those that have yielded
  }
  bool Said(const std::string& text) const {
    return std::any_of(remarks_.begin(), remarks_.end(),
                       [&](const std::string& remark) { return remark.find(text) != std::string::npos; });
  }
  bool IsThere(RegionId region) const {
    std::vector<RegionDescription> all = store_.List(0, 0, 100, false, false);
    return std::any_of(all.begin(), all.end(), [&](const RegionDescription& at) { return at.id == region; });
  }

  int64_t now_ns_ = kNsPerSecond;
  std::optional<GiveBack> give_back_;
  std::vector<std::string> remarks_;
};

TEST_F(GiveBackTest, WhatHoldsNothingGoesAtOnceAndNobodyIsAsked) {
  Store(10'000);
  Free(0, 10'000);
  const uint64_t before = arena_->usage().extent_bytes;
  ASSERT_GT(arena_->SpareBytes(), 20 * kMiB);
  Tick(kAll);
  EXPECT_EQ(give_back_->given_back_bytes(), 0u);
  Tick(16 * kMiB);
  EXPECT_LE(arena_->usage().extent_bytes, 16 * kMiB);
  EXPECT_EQ(give_back_->given_back_bytes(), before - arena_->usage().extent_bytes);
  EXPECT_LT(arena_->usage().extent_bytes, before);
  EXPECT_EQ(give_back_->asked_back_bytes(), 0);
  EXPECT_EQ(give_back_->share(), 0u);
  EXPECT_FALSE(give_back_->pressed());
  EXPECT_FALSE(store_.asks_back());
  EXPECT_TRUE(remarks_.empty());
}

TEST_F(GiveBackTest, WhatIsScatteredIsMovedTogetherBeforeAnybodyIsAsked) {
  Store(10'000);
  for (uint64_t page = 0; page < 10'000; ++page) {
    if (page % 4 != 0) Free(page, 1);
  }
  Tick(kAll);
  // A quarter is left, in all extents.
  for (int i = 0; i < 3; ++i) Tick(20 * kMiB);
  EXPECT_LE(Taken(), 20 * kMiB);
  EXPECT_GT(give_back_->given_back_bytes(), 20 * kMiB);
  EXPECT_EQ(give_back_->asked_back_bytes(), 0);
  EXPECT_FALSE(give_back_->pressed());
  EXPECT_GT(give_back_->compactor().counters().pages_moved, 0);
  for (uint64_t page = 0; page < 10'000; page += 4) ASSERT_EQ(Read(RangeOf(page)), Page(page)) << page;
}

TEST_F(GiveBackTest, WhatClientsHaveFreedDoesNotWaitForWhatTheyCannotGive) {
  ASSERT_EQ(Store(10'000), 10'000u);
  Tick(kAll);
  const uint64_t allowed = Taken() - 32 * kMiB;
  Tick(allowed);
  const uint64_t asked = give_back_->asked_back_bytes();
  ASSERT_GT(asked, 28 * kMiB);
  // A fifth of the demand comes, from here and there: more is to come, so nothing moves.
  uint64_t page = 0;
  for (; page < asked / kPageBytes; page += 5) Free(page, 1);
  Tick(allowed);
  EXPECT_EQ(give_back_->compactor().counters().pages_moved, 0u);
  // Three quarters in all are freed, and the rest never is.
  for (page = 0; page < asked / kPageBytes; ++page) {
    if (page % 5 != 0 && page % 16 < 11) Free(page, 1);
  }
  const uint64_t before = arena_->usage().extent_bytes;
  Tick(allowed);
  EXPECT_LT(arena_->usage().extent_bytes, before - asked / 2);
  EXPECT_GT(give_back_->asked_back_bytes(), 0u);
}

TEST_F(GiveBackTest, AsksForTheRestAndForLessAsItComes) {
  Store(10'000);
  Tick(kAll);
  EXPECT_EQ(give_back_->share(), 0u);
  const uint64_t stored = arena_->usage().frame_bytes - landing_.size() * kPageBytes;
  const uint64_t allowed = Taken() - 10 * kMiB;
  Tick(allowed);
  const uint64_t asked = give_back_->asked_back_bytes();
  EXPECT_GE(asked, 8 * kMiB);
  EXPECT_LE(asked, 14 * kMiB);
  EXPECT_NEAR(give_back_->share(), 1e6 * static_cast<double>(asked) / static_cast<double>(stored), 1);
  EXPECT_EQ(give_back_->asked_back_ms(), 1u);
  EXPECT_TRUE(give_back_->pressed());
  EXPECT_TRUE(store_.asks_back());
  EXPECT_TRUE(Said("asked to give"));
  // Between two ticks, too.
  Free(0, 1'024);
  EXPECT_EQ(give_back_->asked_back_bytes(), asked - 4 * kMiB);
  // A client that has given enough is not asked for more, whatever the next tick finds.
  Free(1'024, 3'000);
  EXPECT_EQ(give_back_->asked_back_bytes(), 0);
  EXPECT_EQ(give_back_->share(), 1u) << "the client is to hear again";
  for (int i = 0; i < 3; ++i) Tick(allowed);
  EXPECT_EQ(give_back_->share(), 0u);
  EXPECT_EQ(give_back_->asked_back_ms(), 0u);
  EXPECT_FALSE(store_.asks_back());
  EXPECT_LE(Taken(), allowed);
  EXPECT_TRUE(Said("have given back"));
  EXPECT_GE(give_back_->given_back_bytes(), 10 * kMiB);
}

TEST_F(GiveBackTest, ALittleIsNotAskedButWhatIsAskedIsAskedToTheEnd) {
  Store(8'000);
  Tick(kAll);
  Tick(Taken() - kMiB);
  EXPECT_EQ(give_back_->asked_back_bytes(), 0);
  EXPECT_EQ(give_back_->share(), 0u);
  EXPECT_TRUE(give_back_->pressed()) << "it is no place for new spans nevertheless";
  const uint64_t allowed = Taken() - 6 * kMiB;
  Tick(allowed);
  ASSERT_GT(give_back_->asked_back_bytes(), 4 * kMiB);
  // All but that little.
  Tick(allowed + give_back_->asked_back_bytes() - kMiB);
  EXPECT_EQ(give_back_->asked_back_bytes(), kMiB);
  EXPECT_TRUE(store_.asks_back());
}

TEST_F(GiveBackTest, WithoutProgressTheShareRisesAndTheNextTimeItBeginsAnew) {
  Store(10'000);
  Tick(kAll);
  const uint64_t allowed = Taken() - 4 * kMiB;
  Tick(allowed);
  const uint32_t first = give_back_->share();
  uint32_t last = first;
  for (int i = 0; i < 150; ++i) {
    Tick(allowed);
    EXPECT_GE(give_back_->share(), last);
    last = give_back_->share();
  }
  EXPECT_EQ(last, 1'000'000u);
  EXPECT_LT(first, 200'000u);
  // All stored bytes were asked back; some clients have given enough.
  Free(0, 2'000);
  for (int i = 0; i < 3; ++i) Tick(allowed);
  EXPECT_EQ(give_back_->share(), 0u);
  Tick(Taken() - 4 * kMiB);
  EXPECT_LT(give_back_->share(), 250'000u);
}

TEST_F(GiveBackTest, WithProgressTheShareIsWhatIsMissing) {
  Store(10'000);
  Tick(kAll);
  const uint64_t allowed = Taken() - 20 * kMiB;
  Tick(allowed);
  for (uint64_t page = 0; give_back_->asked_back_bytes() > 4 * kMiB; page += 256) {
    Free(page, 256);
    const ArenaUsage usage = arena_->usage();
    const double stored = static_cast<double>(usage.frame_bytes - landing_.size() * kPageBytes);
    EXPECT_NEAR(give_back_->share(), 1e6 * static_cast<double>(give_back_->asked_back_bytes()) / stored, 1);
    Tick(allowed);
  }
}

TEST_F(GiveBackTest, ExpendableLeasesEndAfterThePatienceAndNothingElseDoes) {
  Make({.patience_ns = 2 * kNsPerSecond});
  const auto expendable = GrantExpendable(7);
  const uint64_t term = expendable->term();
  ASSERT_EQ(Store(4'000, expendable.get(), RegionId{70}), 4'000u);
  ASSERT_EQ(Store(4'000), 4'000u);
  Tick(kAll);
  const uint64_t allowed = Taken() - 10 * kMiB;
  int64_t ms = 0;
  while (expendable->live() && ms < 10'000) {
    Tick(allowed);
    ms += 100;
  }
  EXPECT_FALSE(expendable->live());
  EXPECT_GE(ms, 2'000);
  EXPECT_LE(ms, 2'300);
  EXPECT_TRUE(lease_->live());
  EXPECT_FALSE(IsThere(RegionId{70}));
  EXPECT_TRUE(IsThere(kRegion));
  EXPECT_EQ(give_back_->regions_given_up(), 1u);
  EXPECT_TRUE(Said("may go"));
  for (int i = 0; i < 3; ++i) Tick(allowed);
  EXPECT_EQ(give_back_->asked_back_bytes(), 0);
  EXPECT_LE(Taken(), allowed);
  for (uint64_t page = 0; page < 4'000; page += 99) ASSERT_EQ(Read(RangeOf(page)), Page(page));
  // A request that was on its way when the lease ended does not make a region anew, also if the client is back already.
  const auto again = GrantExpendable(7);
  ASSERT_EQ(again, expendable);
  EXPECT_NE(again->term(), term);
  term_ = term;
  EXPECT_NE(Write(RangeOf(0), Page(0), {}, 1, again.get(), RegionId{70}), Reason::kOk);
  EXPECT_FALSE(IsThere(RegionId{70}));
  term_ = again->term();
  EXPECT_EQ(Write(RangeOf(0), Page(0), {}, 1, again.get(), RegionId{70}), Reason::kOk);
}

TEST_F(GiveBackTest, VersionsGoBeforeClientsAreAsked) {
  generation_ = SpanGeneration{2};
  ASSERT_EQ(Store(4'000), 4'000u);
  ASSERT_EQ(store_.SealVersion(lease_.get(), {kRegion, 1, VersionNumber{1}}), Reason::kOk);
  for (uint64_t page = 0; page < 4'000; ++page) ASSERT_EQ(Write(RangeOf(page), Page(page + 1)), Reason::kOk);
  Tick(kAll);
  const uint64_t allowed = Taken() - 10 * kMiB;
  for (int i = 0; i < 5; ++i) {
    Tick(allowed);
    EXPECT_EQ(give_back_->asked_back_bytes(), 0);
    EXPECT_FALSE(store_.asks_back());
  }
  EXPECT_LE(Taken(), allowed);
  EXPECT_TRUE(store_.ListVersions({kRegion, 0}).value().empty());
  for (uint64_t page = 0; page < 4'000; page += 99) ASSERT_EQ(Read(RangeOf(page)), Page(page + 1));
}

TEST_F(GiveBackTest, HeldVersionsGoWhenClientsGiveNothingAndBeforeWhatIsExpendable) {
  Make({.patience_ns = 2 * kNsPerSecond});
  generation_ = SpanGeneration{2};
  const auto expendable = GrantExpendable(7);
  ASSERT_EQ(Store(2'000, expendable.get(), RegionId{70}), 2'000u);
  ASSERT_EQ(Store(4'000), 4'000u);
  ASSERT_EQ(store_.SealVersion(lease_.get(), {kRegion, 1, VersionNumber{1}}), Reason::kOk);
  ASSERT_TRUE(store_.HoldVersion(lease_.get(), {kRegion, 0}, VersionNumber{1}, /*release=*/false).ok());
  for (uint64_t page = 0; page < 4'000; ++page) ASSERT_EQ(Write(RangeOf(page), Page(page + 1)), Reason::kOk);
  Tick(kAll);
  const uint64_t allowed = Taken() - 10 * kMiB;
  Tick(allowed);
  EXPECT_GE(give_back_->asked_back_bytes(), 8 * kMiB);
  // The share is of the spans that clients can move, without the memory of their versions.
  EXPECT_NEAR(give_back_->share(), 1e6 * static_cast<double>(give_back_->asked_back_bytes()) / (6'000.0 * kPageBytes),
              1e4);
  int64_t ms = 0;
  for (; !store_.ListVersions({kRegion, 0}).value().empty() && ms < 10'000; ms += 100) Tick(allowed);
  EXPECT_GE(ms, 1'900);
  EXPECT_LE(ms, 2'300);
  EXPECT_TRUE(Said("held ones included"));
  for (int i = 0; i < 30; ++i) Tick(allowed);
  EXPECT_EQ(give_back_->asked_back_bytes(), 0);
  EXPECT_LE(Taken(), allowed);
  EXPECT_TRUE(expendable->live());
  for (uint64_t page = 0; page < 4'000; page += 99) ASSERT_EQ(Read(RangeOf(page)), Page(page + 1));
}

TEST_F(GiveBackTest, HeldVersionsGoAtOnceIfClientsHaveTooLittle) {
  generation_ = SpanGeneration{2};
  ASSERT_EQ(Store(6'000), 6'000u);
  ASSERT_EQ(store_.SealVersion(lease_.get(), {kRegion, 1, VersionNumber{1}}), Reason::kOk);
  ASSERT_TRUE(store_.HoldVersion(lease_.get(), {kRegion, 0}, VersionNumber{1}, /*release=*/false).ok());
  ASSERT_EQ(store_.Trim(
                lease_.get(),
                {.region = kRegion, .epoch = 1, .range = {0, 5'500 * kChunksPerPage}, .generation = SpanGeneration{2}}),
            Reason::kOk);
  Tick(kAll);
  const uint64_t allowed = Taken() - 12 * kMiB;
  for (int i = 0; i < 3; ++i) Tick(allowed);
  EXPECT_TRUE(store_.ListVersions({kRegion, 0}).value().empty());
  EXPECT_EQ(give_back_->asked_back_bytes(), 0);
  EXPECT_LE(Taken(), allowed);
}

TEST_F(GiveBackTest, NoMoreExpendableLeasesEndThanAreNeeded) {
  Make({.patience_ns = kNsPerSecond});
  std::vector<std::shared_ptr<Lease>> expendable;
  for (uint64_t i = 0; i < 6; ++i) {
    expendable.push_back(GrantExpendable(100 + i));
    ASSERT_EQ(Store(2'000, expendable.back().get(), RegionId{100 + i}), 2'000u);
  }
  Tick(kAll);
  const uint64_t allowed = Taken() - 10 * kMiB;
  for (int i = 0; i < 60; ++i) Tick(allowed);
  const auto gone =
      std::count_if(expendable.begin(), expendable.end(), [](const auto& lease) { return !lease->live(); });
  EXPECT_GE(gone, 1);
  EXPECT_LE(gone, 3);
  // Nothing is destroyed for reserved room that takes no memory, nor for a little.
  EXPECT_LE(Taken(), allowed + kSlack + kExtent);
}

TEST_F(GiveBackTest, NothingIsGivenUpForALittle) {
  Make({.drops_orphans = true, .patience_ns = kNsPerSecond});
  const auto expendable = GrantExpendable(7);
  Store(4'000, expendable.get(), RegionId{70});
  ASSERT_EQ(Store(4'000), 4'000u);
  Tick(kAll);
  const uint64_t allowed = Taken() - 6 * kMiB;
  Tick(allowed);
  const uint64_t enough = allowed + give_back_->asked_back_bytes() - kMiB;
  for (int i = 0; i < 50; ++i) Tick(enough);
  EXPECT_EQ(give_back_->asked_back_bytes(), kMiB);
  EXPECT_TRUE(expendable->live());
  EXPECT_FALSE(Said("cannot give back"));
}

TEST_F(GiveBackTest, WhileItGoesOnNothingIsGivenUp) {
  Make({.patience_ns = kNsPerSecond});
  const auto expendable = GrantExpendable(7);
  Store(2'000, expendable.get(), RegionId{70});
  Store(10'000);
  Tick(kAll);
  const uint64_t allowed = Taken() - 30 * kMiB;
  Tick(allowed);
  for (uint64_t page = 0; give_back_->asked_back_bytes() > 3 * kMiB; page += 64) {
    Free(page, 64);
    Tick(allowed);
  }
  EXPECT_TRUE(expendable->live());
  EXPECT_EQ(give_back_->regions_given_up(), 0u);
}

TEST_F(GiveBackTest, OrphansGoOnlyWhereTheRuleSaysSo) {
  for (const bool drops : {false, true}) {
    Make({.drops_orphans = drops, .patience_ns = kNsPerSecond});
    if (!drops) {
      ASSERT_EQ(Store(6'000), 6'000u);
      ASSERT_NE(leases_.End(lease_->id), nullptr);
      Tick(kAll);
    }
    const uint64_t allowed = Taken() - 10 * kMiB;
    remarks_.clear();
    for (int i = 0; i < 40; ++i) Tick(allowed);
    EXPECT_EQ(IsThere(kRegion), !drops);
    EXPECT_EQ(give_back_->regions_given_up(), drops ? 1u : 0u);
    EXPECT_EQ(Said("--orphans=drop"), drops);
    EXPECT_EQ(Said("cannot give back"), !drops);
    EXPECT_EQ(std::count_if(remarks_.begin(), remarks_.end(),
                            [](const auto& remark) { return remark.find("cannot give back") != std::string::npos; }),
              drops ? 0 : 1)
        << "it is told once";
  }
}

TEST_F(GiveBackTest, ALiveOwnersRegionIsNoOrphan) {
  Make({.drops_orphans = true, .patience_ns = kNsPerSecond});
  Store(6'000);
  Tick(kAll);
  const uint64_t allowed = Taken() - 10 * kMiB;
  for (int i = 0; i < 40; ++i) Tick(allowed);
  EXPECT_TRUE(IsThere(kRegion));
  EXPECT_TRUE(store_.asks_back());
}

TEST_F(GiveBackTest, TheModesGoSoFar) {
  for (const Mode mode : {Mode::kOff, Mode::kIdle}) {
    Make({.mode = mode, .patience_ns = kNsPerSecond});
    if (mode == Mode::kOff) {
      ASSERT_EQ(Store(10'000), 10'000u);
      for (uint64_t page = 0; page < 10'000; ++page) {
        if (page % 4 != 0) Free(page, 1);
      }
    }
    const uint64_t before = Taken();
    Tick(kAll);
    for (int i = 0; i < 30; ++i) Tick(8 * kMiB);
    EXPECT_EQ(give_back_->asked_back_bytes(), 0);
    EXPECT_EQ(give_back_->share(), 0u);
    EXPECT_FALSE(give_back_->pressed());
    EXPECT_FALSE(store_.asks_back());
    if (mode == Mode::kOff) {
      EXPECT_EQ(Taken(), before);
      EXPECT_EQ(give_back_->compactor().counters().pages_moved, 0);
    } else {
      EXPECT_LT(Taken(), before - 20 * kMiB);
      EXPECT_GT(give_back_->given_back_bytes(), 20 * kMiB);
    }
    // The donor never takes more than before, in any mode.
    const uint64_t most = std::max(arena_->usage().ceiling_bytes, Taken());
    Store(4'000, nullptr, kRegion, 20'000);
    Tick(8 * kMiB);
    EXPECT_LE(arena_->usage().ceiling_bytes, most + kExtent);
  }
}

// A client that takes all free memory between two ticks gets no more than the allowance in all.
TEST_F(GiveBackTest, TheCeilingDoesNotCreepWhileItAsks) {
  for (const bool reserves : {false, true}) {
    Store(4'000);
    if (reserves) {
      ASSERT_TRUE(arena_->Reserve(1, &lease_->reservation));
    }
    Tick(kAll);
    const uint64_t before = Taken();
    const uint64_t allowed = before - 8 * kMiB;
    Tick(allowed);
    const uint64_t ceiling = arena_->usage().ceiling_bytes;
    const auto other = Grant(reserves ? 21 : 20);
    uint64_t first = 0;
    for (int i = 0; i < 50; ++i) {
      first += Store(100'000, other.get(), RegionId{20}, first);
      Tick(allowed);
      ASSERT_LE(arena_->usage().ceiling_bytes, ceiling) << "tick " << i;
    }
    EXPECT_LE(Taken(), before + 16 * kMiB + 3 * kExtent);
    EXPECT_TRUE(store_.asks_back());
    ASSERT_EQ(store_.Destroy(other.get(), RegionId{20}, 1), Reason::kOk);
    for (int i = 0; i < 5; ++i) Tick(kAll);
    if (!reserves) Free(0, 4'000);
  }
}

// Remaining spans may grow, while the donor is short of memory and for half a minute more. New spans do not see that
// room: they would be asked back soon, and go round between the servers of a full pool.
TEST_F(GiveBackTest, TheAllowanceIsForWhatStaysAndEnds) {
  Store(8'000);
  Tick(kAll);
  const auto told = [&] { return give_back_->FreeForNew(arena_->usage().free_bytes); };
  EXPECT_EQ(told(), arena_->usage().free_bytes);
  const uint64_t allowed = Taken() - 10 * kMiB;
  Tick(allowed);
  ASSERT_TRUE(store_.asks_back());
  EXPECT_GT(arena_->usage().free_bytes, 12 * kMiB);
  EXPECT_EQ(told(), 0u);
  for (uint64_t page = 0; store_.asks_back() && page < 7'936; page += 256) {
    Free(page, 256);
    Tick(allowed);
  }
  ASSERT_FALSE(store_.asks_back());
  const int64_t given_ns = now_ns_;
  while (give_back_->pressed()) {
    // Less than two extents are not worth moving pages for.
    EXPECT_LE(Taken(), allowed + 2 * kExtent);
    EXPECT_GT(arena_->usage().free_bytes, 12 * kMiB);
    EXPECT_LE(told(), allowed - std::min(allowed, Taken()) + 2 * kExtent);
    ASSERT_LE(now_ns_, given_ns + 31 * kNsPerSecond);
    // The rest is given once a page more is freed here and there.
    if (Taken() > allowed) Free((now_ns_ / kNsPerMs / 100) % 31 * 256, 256);
    Tick(allowed);
  }
  Tick(allowed);
  EXPECT_EQ(arena_->usage().ceiling_bytes, allowed);
  EXPECT_EQ(told(), arena_->usage().free_bytes);
  // A little is not asked back, and may grow until it is.
  Tick(Taken() - kMiB);
  EXPECT_EQ(give_back_->asked_back_bytes(), 0);
  EXPECT_EQ(told(), 0u);
}

TEST_F(GiveBackTest, ReservationsStayUsableAtEveryMoment) {
  std::mt19937_64 random(TestSeed());
  uint64_t reserved = 0;
  uint64_t next = 0;
  std::vector<uint64_t> stored;
  for (int step = 0; step < 400; ++step) {
    const uint64_t pages = random() % 400;
    switch (random() % 4) {
      case 0:
        if (arena_->Reserve(pages, &lease_->reservation)) reserved += pages;
        break;
      case 1: {
        // Reserved memory can be used, now.
        const uint64_t count =
            std::min(pages, arena_->left_bytes(lease_->reservation) / (2 * kReservationBytesPerPage));
        for (uint64_t i = 0; i < count; ++i) {
          ASSERT_EQ(Write(RangeOf(next), Page(next)), Reason::kOk) << "step " << step << ", NRAM_SEED=" << TestSeed();
          stored.push_back(next++);
        }
        break;
      }
      case 2:
        for (uint64_t i = 0; i < pages && !stored.empty(); ++i) {
          std::swap(stored[random() % stored.size()], stored.back());
          Free(stored.back(), 1);
          stored.pop_back();
        }
        break;
      default:
        Tick(random() % 3 == 0 ? kAll : random() % (64 * kMiB));
    }
  }
  EXPECT_GT(reserved, 1'000u);
  for (const uint64_t page : stored) ASSERT_EQ(Read(RangeOf(page)), Page(page));
}

TEST_F(GiveBackTest, PressedLastsForHalfAMinuteAfterThat) {
  Store(8'000);
  Tick(kAll);
  const uint64_t allowed = Taken() - 10 * kMiB;
  Tick(allowed);
  EXPECT_TRUE(give_back_->pressed());
  const int64_t asked_ns = now_ns_;
  Tick(kAll);
  EXPECT_FALSE(store_.asks_back());
  EXPECT_EQ(give_back_->share(), 0u);
  while (now_ns_ + 100 * kNsPerMs < asked_ns + 30 * kNsPerSecond) {
    Tick(kAll);
    ASSERT_TRUE(give_back_->pressed());
  }
  Tick(kAll);
  EXPECT_FALSE(give_back_->pressed());
}

}  // namespace
}  // namespace nram
