// The lists of regions by lease and by tenant, and the end of leases. Its cost is that of the regions of the lease, and
// a tick of it is bounded.

#include <atomic>
#include <cstdint>
#include <limits>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "memserver/page_store_fixture.h"
#include "memserver/server_core.h"

namespace nram {
namespace {

constexpr int64_t kEver = std::numeric_limits<int64_t>::max();

using LeaseEndTest = PageStoreTest;

TEST_F(LeaseEndTest, EndingALeaseLooksAtItsOwnRegionsOnly) {
  constexpr uint64_t kOthers = 20'000;
  constexpr uint64_t kLeases = 100;
  for (uint64_t id = 1; id <= kOthers; ++id) {
    ASSERT_EQ(store_.Create(lease_.get(), RegionId{id << 20}, 1, /*gc=*/true), Reason::kOk);
  }
  std::vector<std::shared_ptr<Lease>> leases;
  for (uint64_t id = 2; id < 2 + kLeases; ++id) {
    leases.push_back(Grant(id));
    ASSERT_EQ(store_.Create(leases.back().get(), RegionId{id}, 1, /*gc=*/id % 2 == 0), Reason::kOk);
  }
  const uint64_t before = store_.looked_at();
  for (const auto& lease : leases) {
    EXPECT_EQ(store_.StoredBytes(*lease), 0u);
    ASSERT_NE(leases_.End(lease->id), nullptr);
    store_.CollectLease(*lease);
  }
  EXPECT_EQ(store_.CountOrphans(), kLeases / 2);
  EXPECT_EQ(store_.List(0, 0, 2 * kLeases, /*orphans_only=*/true, false).size(), kLeases / 2);
  EXPECT_EQ(store_.DropOrphans(1).regions, kLeases / 2) << "they hold nothing";
  EXPECT_LE(store_.looked_at() - before, 6 * kLeases);
  EXPECT_TRUE(store_.FreeSome(kEver));
  EXPECT_EQ(store_.counters().regions, kOthers);
}

TEST_F(LeaseEndTest, APageOfAListLooksAtWhatItAnswers) {
  constexpr uint64_t kRegions = 5'000;
  for (uint64_t id = 1; id <= kRegions; ++id) {
    ASSERT_EQ(store_.Create(lease_.get(), RegionId{id}, 1, /*gc=*/true), Reason::kOk);
  }
  const uint64_t before = store_.looked_at();
  uint64_t listed = 0;
  for (uint64_t from = 0, next = 1; next != 0; from = next)
    listed += store_.List(0, from, 10, false, false, &next).size();
  EXPECT_EQ(listed, kRegions);
  EXPECT_LE(store_.looked_at() - before, kRegions);
}

// Freeing goes on in the next tick, however small the regions are.
TEST_F(LeaseEndTest, FreeingIsBoundedAlsoForSmallRegions) {
  for (uint64_t id = 1; id <= 100; ++id) {
    ASSERT_EQ(store_.Create(lease_.get(), RegionId{id}, 1, /*gc=*/true), Reason::kOk);
  }
  ASSERT_NE(leases_.End(LeaseId{1}), nullptr);
  store_.CollectLease(*lease_);
  EXPECT_FALSE(store_.FreeSome(/*until_ns=*/0));
  EXPECT_EQ(store_.counters().regions, 99);
  EXPECT_TRUE(store_.FreeSome(kEver));
  EXPECT_EQ(store_.counters().regions, 0);
}

// The lists on all paths, against a model.
class LeaseListsTest : public PageStoreTest {
 protected:
  static constexpr uint64_t kLeases = 8;
  static constexpr uint64_t kRegions = 40;
  struct Modelled {
    uint64_t lease = 0;
    uint32_t epoch = 1;
    bool gc = false, named = false;
    uint64_t bytes = 0;
  };
  using Key = std::pair<TenantNumber, uint64_t>;

  LeaseListsTest() {
    for (uint64_t id = 0; id < kLeases; ++id) held_.push_back(GrantTo(id));
  }
  std::shared_ptr<Lease> GrantTo(uint64_t at) {
    return leases_.Grant({.tenant = at % 2 == 0 ? &tenant_ : &other_, .id = LeaseId{100 + at}}).value();
  }
  uint64_t Random(uint64_t below) { return random_() % below; }
  Lease* AnyLease() { return held_[Random(kLeases)].get(); }
  bool IsOrphan(const Modelled& region) const { return !held_[region.lease - 100]->live(); }

  void Create(Lease* lease, uint64_t id) {
    const Key key{lease->tenant->number, id};
    const bool gc = Random(2) == 0;
    const uint64_t how = Random(3);
    const bool is_new = model_.count(key) == 0;
    bool done = false;
    if (how == 0) {
      done = store_.Create(lease, RegionId{id}, 1, gc) == Reason::kOk;
    } else if (how == 1) {
      done = store_.CreateNamed(lease, RegionId{id}, 1, gc, {"name" + std::to_string(id), {}, 1}).ok();
    } else if (is_new) {
      absent_ = gc ? PageStore::IfAbsent::kCreateGc : PageStore::IfAbsent::kCreate;
      done = Write({0, 1}, std::string(kChunkBytes, 'x'), {}, 1, lease, RegionId{id}) == Reason::kOk;
    } else {
      return;
    }
    ASSERT_EQ(done, is_new && lease->live());
    if (done) model_[key] = {Raw(lease->id), 1, gc, how == 1, how == 2 ? kChunkBytes : 0};
  }
  void Attach(Lease* lease, uint64_t id) {
    const auto it = model_.find({lease->tenant->number, id});
    if (it == model_.end()) return;
    Modelled* const region = &it->second;
    const bool force = Random(2) == 0;
    const uint32_t epoch = region->epoch + static_cast<uint32_t>(Random(2));
    const bool done = store_.Attach(lease, {RegionId{id}, lease->tenant->number}, epoch, force).ok();
    const bool is_free = force || IsOrphan(*region) || region->lease == Raw(lease->id);
    ASSERT_EQ(done, lease->live() && is_free && epoch > region->epoch);
    if (!done) return;
    region->lease = Raw(lease->id);
    region->epoch = epoch;
  }
  void Destroy(Lease* lease, uint64_t id) {
    const auto it = model_.find({lease->tenant->number, id});
    if (it == model_.end()) return;
    bool done = false;
    if (Random(2) == 0) {
      done = store_.Destroy(lease, RegionId{id}, it->second.epoch) == Reason::kOk;
      ASSERT_EQ(done, it->second.lease == Raw(lease->id) && lease->live());
    } else {
      done = store_.DestroyByControl(LeaseId{0}, {RegionId{id}, lease->tenant->number}, /*force=*/true).value();
      ASSERT_TRUE(done);
    }
    if (done) model_.erase(it);
  }
  void End(uint64_t at) {
    const std::shared_ptr<Lease> lease = held_[at];
    if (leases_.End(lease->id) == nullptr) {
      held_[at] = GrantTo(at);
      return;
    }
    const uint64_t how = Random(4);
    const bool all = how == 0;
    if (how == 1) {
      store_.CollectLease(*lease);
    } else {
      store_.CollectLater(lease, all);
      // A lease that is granted anew keeps its regions.
      if (how == 2) held_[at] = GrantTo(at);
      while (!store_.CollectSome(WorkBound(), 1)) {
      }
    }
    if (how == 2) return;
    std::erase_if(model_,
                  [&](const auto& entry) { return entry.second.lease == Raw(lease->id) && (all || entry.second.gc); });
  }
  void DropOrphans() {
    const RegionTable::Dropped dropped = store_.DropOrphans(std::numeric_limits<uint64_t>::max());
    uint64_t bytes = 0;
    const size_t gone = std::erase_if(model_, [&](const auto& entry) {
      bytes += IsOrphan(entry.second) ? entry.second.bytes : 0;
      return IsOrphan(entry.second);
    });
    ASSERT_EQ(dropped.regions, gone);
    ASSERT_EQ(dropped.bytes, bytes);
  }

  void CheckLists(TenantNumber tenant, bool orphans, bool named) {
    std::vector<uint64_t> wanted;
    for (const auto& [key, region] : model_) {
      if (key.first != tenant || (orphans && !IsOrphan(region)) || (named && !region.named)) continue;
      wanted.push_back(key.second);
    }
    std::vector<uint64_t> listed;
    uint64_t from = 0;
    do {
      const auto page = store_.List(tenant, from, 1 + Random(9), orphans, named, &from);
      ASSERT_TRUE(!page.empty() || from == 0);
      for (const RegionDescription& region : page) listed.push_back(Raw(region.id));
    } while (from != 0);
    ASSERT_EQ(listed, wanted) << "tenant " << tenant << " orphans " << orphans << " named " << named;
  }
  void CheckAll() {
    std::map<uint64_t, uint64_t> bytes;
    size_t orphans = 0;
    for (const auto& [key, region] : model_) {
      bytes[region.lease] += region.bytes;
      orphans += IsOrphan(region) ? 1 : 0;
    }
    for (const auto& lease : held_) ASSERT_EQ(store_.StoredBytes(*lease), bytes[Raw(lease->id)]);
    ASSERT_EQ(store_.CountOrphans(), orphans);
    for (const TenantNumber tenant : {0, 1}) {
      for (const int which : {0, 1, 2}) CheckLists(tenant, which == 1, which == 2);
    }
  }

  std::mt19937_64 random_{TestSeed()};
  std::vector<std::shared_ptr<Lease>> held_;
  std::map<Key, Modelled> model_;
};

TEST_F(LeaseListsTest, RandomOperationsAgainstAModel) {
  for (int i = 0; i < 20'000; ++i) {
    const uint64_t id = 1 + Random(kRegions);
    switch (Random(10)) {
      case 0:
        Destroy(AnyLease(), id);
        break;
      case 1:
      case 2:
        Attach(AnyLease(), id);
        break;
      case 3:
        End(Random(kLeases));
        break;
      case 4:
        if (Random(20) == 0) DropOrphans();
        break;
      default:
        Create(AnyLease(), id);
    }
    if (Random(10) == 0) store_.FreeSome(kEver);
    if (i % 20 == 0) CheckAll();
    ASSERT_FALSE(HasFatalFailure()) << i;
  }
  for (const auto& lease : held_) {
    if (leases_.End(lease->id) != nullptr) store_.CollectLater(lease, /*all=*/true);
  }
  EXPECT_TRUE(store_.CollectSome(WorkBound()));
  store_.DropOrphans(std::numeric_limits<uint64_t>::max());
  EXPECT_TRUE(store_.FreeSome(kEver));
  EXPECT_EQ(store_.counters().regions, 0);
}

// Goes on by itself, a little with each look.
class SteppingClock : public Clock {
 public:
  int64_t NowNs() const override { return now_ns_.fetch_add(step_ns); }

  std::atomic<int64_t> step_ns{0};

 private:
  mutable std::atomic<int64_t> now_ns_{kNsPerSecond};
};

std::unique_ptr<ServerCore> MakeCore(const Clock* clock) {
  ServerCoreOptions options;
  options.incarnation = 1;
  options.ceiling_bytes = 64 * kMiB;
  options.fixed_bytes = kMiB;
  return ServerCore::Create(options, clock).value();
}

std::shared_ptr<Lease> GrantIn(ServerCore* core, uint64_t id) {
  Tenant* const tenant = core->tenants().Set(0, "local", {});
  return core->leases().Grant({.tenant = tenant, .id = LeaseId{id}}).value();
}

TEST(TickTest, LeasesEndInTurnsAndTheNextTickGoesOn) {
  constexpr uint64_t kMany = 40'000;
  SteppingClock clock;
  const auto core = MakeCore(&clock);
  const auto rich = GrantIn(core.get(), 1);
  for (uint64_t id = 1; id <= kMany; ++id) {
    ASSERT_EQ(core->store().Create(rich.get(), RegionId{id}, 1, /*gc=*/true), Reason::kOk);
  }
  const auto poor = GrantIn(core.get(), 2);
  ASSERT_EQ(core->store().Create(poor.get(), RegionId{kMany + 1}, 1, /*gc=*/true), Reason::kOk);
  clock.step_ns = kNsPerMs;
  const int64_t end_ns = 100 * kNsPerSecond;
  const uint64_t before = core->store().looked_at();
  EXPECT_EQ(core->Tick(end_ns, end_ns).size(), 2u);
  EXPECT_LE(core->store().looked_at() - before, 100 * RegionTable::kLooksPerStep) << "a millisecond for each step";
  EXPECT_TRUE(core->store().List(0, kMany + 1, 1, false, false).empty()) << "it does not wait for the other one";
  EXPECT_FALSE(core->store().List(0, 0, 1, false, false).empty());
  int ticks = 1;
  for (; !core->store().List(0, 0, 1, false, false).empty(); ++ticks) {
    ASSERT_LT(ticks, 100);
    EXPECT_TRUE(core->Tick(end_ns, end_ns).empty());
  }
  EXPECT_GT(ticks, 3);
  EXPECT_TRUE(core->store().FreeSome(kEver));
  EXPECT_EQ(core->store().counters().regions, 0);
}

// Ticks at once, and then each 100 ms; between the first two the server stands still, or the thread works. Returns the
// milliseconds after which the lease has ended.
int64_t EndAfterMs(int64_t still_ms, int64_t worked_ms) {
  FakeClock clock;
  const auto core = MakeCore(&clock);
  GrantIn(core.get(), 1);
  const int64_t began_ns = clock.NowNs();
  int64_t worked_ns = 0;
  int64_t now_ns = began_ns;
  core->Tick(now_ns, now_ns, worked_ns);
  clock.AdvanceMs(still_ms + worked_ms);
  worked_ns += worked_ms * kNsPerMs;
  for (int i = 0; i < 1'000; ++i) {
    now_ns = clock.NowNs();
    if (!core->Tick(now_ns, now_ns, worked_ns).empty()) return (now_ns - began_ns) / kNsPerMs;
    clock.AdvanceMs(ServerCore::kTickMs);
  }
  return -1;
}

TEST(TickTest, OwnWorkIsNoStop) {
  EXPECT_EQ(EndAfterMs(0, 0), 10'000);
  EXPECT_EQ(EndAfterMs(100, 3'000), 10'000) << "clients' renewals were read meanwhile";
  EXPECT_EQ(EndAfterMs(3'000, 0), 13'000);
  EXPECT_EQ(EndAfterMs(3'000, 2'000), 13'000) << "what it stood still";
  EXPECT_EQ(EndAfterMs(900, 0), 10'000) << "it is no stop";
}

}  // namespace
}  // namespace nram
