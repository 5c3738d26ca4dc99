// Names of kept regions, arbitrated by a real etcd: two clients that reach other servers, keys that outlive their
// regions, and etcd frozen meanwhile.

#include <algorithm>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/config.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/poll_until.h"
#include "client/transport/control_client.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "members/etcd/etcd_client.h"
#include "members/etcd/etcd_spec.h"
#include "members/etcd/region_record.h"
#include "members/etcd_names.h"
#include "tests/util/fake_members.h"
#include "tests/util/test_etcd.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

int64_t Soon() { return DeadlineAfterMs(20'000); }

template <typename Done>
bool Await(Done done) {
  return PollUntil(DeadlineAfterMs(120'000), 10, done);
}

// The test's own members, and etcd's names.
class MembersWithNames : public FakeMembers {
 public:
  MembersWithNames(const std::vector<Endpoint>& servers, const TestEtcd* etcd, int64_t patience_ms)
      : FakeMembers(servers), etcd_(etcd), patience_ms_(patience_ms) {}
  std::unique_ptr<NameArbiter> OpenNames() const override {
    const EtcdSpec spec = EtcdSpec::Parse(etcd_->Spec("test")).value();
    return NewEtcdNames(
        spec, [etcd = etcd_] { return etcd->Client(); }, patience_ms_);
  }

 private:
  const TestEtcd* const etcd_;
  const int64_t patience_ms_;
};

// Tests in which etcd is frozen use it. It is the time of an answer, and not much more, because the tests wait it out.
#ifdef ABSL_HAVE_THREAD_SANITIZER
constexpr int64_t kShortMs = 6'000;
#else
constexpr int64_t kShortMs = 1'500;
#endif

// No server listens there.
Endpoint Nobody() { return {"127.0.0.1", 1, ""}; }

class NamesTest : public ::testing::Test {
 protected:
  NamesTest() : servers_(3, 128 * kMiB, Clock::Real(), TestPool::Hosts::kPretended) {}

  Endpoint Server(size_t i) const { return servers_.Options().servers[i]; }
  std::unique_ptr<Pool> Open(const std::vector<Endpoint>& servers) {
    PoolOptions options = servers_.Options();
    options.servers = servers;
    options.members = members_ = std::make_shared<MembersWithNames>(servers, &etcd_, patience_ms_);
    options.open_timeout_ms = 60'000;
    options.ExpectCopies();
    // The pool does not wait for the address that refuses.
    if (std::find(servers.begin(), servers.end(), Nobody()) != servers.end()) options.open_timeout_ms = 1'000;
    return TestPool::Open(options);
  }
  EtcdClient::Entry Entry(const std::string& name) const {
    return etcd_.Client()->Get(EtcdSpec::Parse(etcd_.Spec("test"))->RegionKey("local", name), Soon()).value();
  }
  // The id that the name's key has; zero: there is no key, or it cannot be read.
  RegionId IdOf(const std::string& name) const {
    const auto record = RegionRecord::Decode(Entry(name).value);
    return RegionId{record.ok() ? record->id : 0};
  }
  std::vector<std::string> ServersOf(const std::string& name) const {
    const auto record = RegionRecord::Decode(Entry(name).value);
    return record.ok() ? record->servers : std::vector<std::string>();
  }
  void Put(const std::string& name, const std::string& value) {
    const std::string key = EtcdSpec::Parse(etcd_.Spec("test"))->RegionKey("local", name);
    ASSERT_TRUE(etcd_.Client()->Swap(key, Entry(name).revision, value, Soon())->done);
  }
  // `nram regions --destroy` does this; it knows of no key.
  void DestroyAtServers(RegionId id) {
    for (size_t i = 0; i < servers_.size(); ++i) {
      const auto control = ControlClient::Create(Server(i));
      ASSERT_TRUE(control->DestroyRegion(LeaseId{0}, id, /*force=*/true, Soon()).ok());
    }
  }

  // A busy machine's etcd may be slow, and then names are given without it.
  int64_t patience_ms_ = 20'000;
  TestEtcd etcd_;
  TestPool servers_;
  std::shared_ptr<MembersWithNames> members_;  // of the pool that was opened last
};

TEST_F(NamesTest, OfTwoSidesOfACutOneGivesTheName) {
  std::unique_ptr<Pool> pools[] = {Open({Server(0), Nobody()}), Open({Nobody(), Server(1)})};
  for (const std::string name : {"a", "b", "c"}) {
    absl::StatusOr<std::unique_ptr<Region>> made[] = {absl::UnknownError(""), absl::UnknownError("")};
    std::thread other([&] { made[1] = pools[1]->CreateRegion({.name = name}); });
    made[0] = pools[0]->CreateRegion({.name = name});
    other.join();
    ASSERT_NE(made[0].ok(), made[1].ok()) << made[0].status() << " " << made[1].status();
    const size_t winner = made[0].ok() ? 0 : 1;
    const absl::Status& refused = made[1 - winner].status();
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
    EXPECT_THAT(
        std::string(refused.message()),
        AllOf(HasSubstr("127.0.0.1:1"), HasSubstr(absl::StrCat("delete the key /nram/test/regions/local/", name))));
    EXPECT_EQ(IdOf(name), (*made[winner])->id());
    EXPECT_TRUE(absl::IsUnavailable(pools[1 - winner]->CreateRegion({.name = name}).status()));
    EXPECT_EQ(IdOf(name), (*made[winner])->id()) << "whoever was refused has harmed the key";
    EXPECT_EQ(Raw(servers_.server(1 - static_cast<int>(winner)).store().FindByName(0, name)), 0u);
    // After its destruction the other side may have the name.
    ASSERT_TRUE((*made[winner])->Destroy().ok());
    EXPECT_TRUE(pools[1 - winner]->CreateRegion({.name = name}).ok());
  }
}

TEST_F(NamesTest, DestroyDeletesTheKeyOfThatRegionAlone) {
  auto pool = Open({Server(0), Server(1)});
  auto region = pool->CreateRegion({.name = "x"}).value();
  EXPECT_EQ(IdOf("x"), region->id());
  EXPECT_THAT(ServersOf("x"), UnorderedElementsAre(Server(0).ToString(), Server(1).ToString()));
  EXPECT_TRUE(absl::IsAlreadyExists(pool->CreateRegion({.name = "x"}).status()));
  ASSERT_TRUE(region->Destroy().ok());
  EXPECT_EQ(Raw(IdOf("x")), 0u);
  region = pool->CreateRegion({.name = "x"}).value();
  Put("x", RegionRecord{7, {"127.0.0.1:1"}, 0, "", ""}.Encode());
  ASSERT_TRUE(region->Destroy().ok());
  EXPECT_EQ(IdOf("x"), RegionId{7}) << "the key of another region was deleted";
}

TEST_F(NamesTest, AKeyThatHasOutlivedItsRegionIsReplaced) {
  auto pool = Open({Server(0), Server(1)});
  auto region = pool->CreateRegion({.name = "x"}).value();
  DestroyAtServers(region->id());
  const RegionId former = region->id();
  ASSERT_EQ(IdOf("x"), former);
  region = pool->CreateRegion({.name = "x"}).value();
  EXPECT_EQ(IdOf("x"), region->id());
  EXPECT_NE(region->id(), former);
  // The address answers with another life, which is proof of the former one's end.
  const uint64_t life = pool->session(1)->incarnation();
  servers_.StopServer(1);
  servers_.StartServer(1);
  DestroyAtServers(region->id());
  ASSERT_TRUE(Await([&] { return pool->session(1)->up() && pool->session(1)->incarnation() != life; }));
  region = pool->CreateRegion({.name = "x"}).value();
  EXPECT_EQ(IdOf("x"), region->id());
}

TEST_F(NamesTest, AKeyWhoseServersDoNotAnswerStays) {
  auto pool = Open({Server(0)});
  Put("x", RegionRecord{7, {Server(1).ToString(), Nobody().ToString()}, 0, "", ""}.Encode());
  const absl::Status silent = pool->CreateRegion({.name = "x"}).status();
  EXPECT_TRUE(absl::IsUnavailable(silent)) << silent;
  EXPECT_THAT(std::string(silent.message()), HasSubstr("memory server 127.0.0.1:1 may have that region"));
  EXPECT_EQ(IdOf("x"), RegionId{7});
  Put("x", "{");
  const absl::Status unread = pool->CreateRegion({.name = "x"}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(unread)) << unread;
  EXPECT_THAT(std::string(unread.message()), HasSubstr("it is not a JSON object"));
  // A server that is not a member has it.
  auto other = Open({Server(1)});
  Put("x", RegionRecord{7, {Server(1).ToString()}, 0, "", ""}.Encode());
  auto region = other->CreateRegion({.name = "x"}).value();
  const absl::Status taken = pool->CreateRegion({.name = "x"}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  EXPECT_EQ(IdOf("x"), region->id());
}

// The region may be on servers that its key does not name: servers that etcd knows are asked, too.
TEST_F(NamesTest, AllMembersAreAskedBeforeAKeyIsReplaced) {
  auto holder = Open({Server(1)});
  auto region = holder->CreateRegion({.name = "x"}).value();
  Put("x", RegionRecord{Raw(region->id()), {Server(2).ToString()}, 0, "", ""}.Encode());
  const auto etcd = etcd_.Client();
  const int64_t lease = etcd->GrantLease(60, Soon()).value();
  const std::string address = Server(1).ToString();
  ASSERT_TRUE(etcd->Put(EtcdSpec::Parse(etcd_.Spec("test"))->KeyPrefix() + address,
                        absl::StrCat(R"({"address": ")", address, R"("})"), lease, Soon())
                  .ok());
  const absl::Status taken = Open({Server(0)})->CreateRegion({.name = "x"}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
}

TEST_F(NamesTest, OnlyKeptRegionsThatAreMadeHaveKeys) {
  auto pool = Open({Server(0)});
  auto collected = pool->CreateRegion({.gc = true, .name = "x"}).value();
  EXPECT_EQ(Entry("x").revision, 0);
  const absl::Status taken = pool->CreateRegion({.name = "x"}).status();
  EXPECT_TRUE(absl::IsAlreadyExists(taken)) << taken;
  EXPECT_EQ(Entry("x").revision, 0) << "a create that was undone has left its key";
  ASSERT_TRUE(collected->Destroy().ok());
  auto kept = pool->CreateRegion({.name = "a/b %\xC3\xA9"}).value();
  EXPECT_EQ(etcd_.Client()->Get("/nram/test/regions/local/a%2fb%20%25%c3%a9", Soon())->value,
            Entry(kept->name()).value);
  EXPECT_EQ(IdOf(kept->name()), kept->id());
}

// Without etcd two regions can get one name. When it returns, one of them has the key, and both remain.
TEST_F(NamesTest, AFrozenEtcdArbitratesLate) {
  patience_ms_ = kShortMs;
  std::unique_ptr<Pool> pools[] = {Open({Server(0), Nobody()}), Open({Nobody(), Server(1)})};
  etcd_.Freeze();
  auto one = pools[0]->CreateRegion({.name = "x"});
  auto two = pools[1]->CreateRegion({.name = "x"});
  auto alone = pools[1]->CreateRegion({.name = "alone"});
  ASSERT_TRUE(one.ok() && two.ok() && alone.ok()) << one.status() << two.status() << alone.status();
  ASSERT_TRUE(pools[0]->CreateRegion({.name = "gone"}).value()->Destroy().ok());
  etcd_.Thaw();
  ASSERT_TRUE(Await([&] { return IdOf("alone") == (*alone)->id() && Raw(IdOf("x")) != 0; }));
  EXPECT_TRUE(IdOf("x") == (*one)->id() || IdOf("x") == (*two)->id());
  const auto reader = Open({Server(0)});
  const auto attached = reader->AttachRegion("x", AttachMode::kReadOnly);
  ASSERT_TRUE(attached.ok()) << attached.status();
  EXPECT_EQ((*attached)->id(), (*one)->id());
}

// The servers that the key names can then answer for the region, wherever it has moved.
TEST_F(NamesTest, TheKeyFollowsTheServersOfARegionOfCopies) {
  patience_ms_ = kShortMs;
  auto pool = Open({Server(0), Server(1)});
  const auto region = pool->CreateRegion({.copies = 2, .name = "x"}).value();
  const auto are = [&](std::vector<size_t> numbers) {
    std::vector<std::string> names;
    for (const size_t i : numbers) names.push_back(Server(i).ToString());
    return ServersOf("x") == names;
  };
  members_->Set({Server(0), Server(1), Server(2)});
  ASSERT_TRUE(Await([&] { return are({0, 1, 2}); }));
  members_->Set({Server(1), Server(2)});
  ASSERT_TRUE(Await([&] { return are({1, 2}); }));
  etcd_.Freeze();
  members_->Set({Server(0), Server(1), Server(2)});
  ASSERT_TRUE(Await([&] {
    const auto info = ControlClient::Create(Server(0))->AttachRegion({.name = "x", .read_only = true}, Soon());
    return info.ok() && info->incarnations.size() == 3;
  })) << "a view waits for etcd for ever";
  etcd_.Thaw();
  ASSERT_TRUE(Await([&] { return are({0, 1, 2}); })) << "a list that is late";
  // The next owner's list counts, and not the former one's.
  Put("x", RegionRecord{Raw(region->id()), {"127.0.0.1:1"}, 0, "", ""}.Encode());
  auto later = Open({Server(0), Server(1), Server(2)});
  const auto taken = later->AttachRegion("x", AttachMode::kTakeOver);
  ASSERT_TRUE(taken.ok()) << taken.status();
  ASSERT_TRUE(Await([&] { return are({0, 1, 2}); }));
  const NamedRegion former{region->id(), {Server(0)}, "", Epoch{2}};
  const auto names = MembersWithNames({Server(0)}, &etcd_, /*patience_ms=*/20'000).OpenNames();
  EXPECT_TRUE(absl::IsNotFound(names->SetServers({"local", "x"}, former)));
}

// The rules that the pool client relies on.
TEST_F(NamesTest, ANameIsTheFirstOnesUntilItIsReleased) {
  const MembersWithNames members({Server(0)}, &etcd_, patience_ms_);
  const auto names = members.OpenNames();
  const KeptName name{"local", "x"};
  const NamedRegion one{RegionId{1}, {Server(0)}, "one"};
  const NamedRegion two{RegionId{2}, {Server(1), Server(2)}, "two"};
  const auto first = names->Claim(name, one, 0).value();
  ASSERT_TRUE(first.won);
  auto seen = names->Claim(name, two, 0).value();
  EXPECT_FALSE(seen.won);
  EXPECT_EQ(seen.revision, first.revision);
  EXPECT_EQ(seen.holder.id, one.id);
  EXPECT_EQ(seen.holder.client, "one");
  EXPECT_TRUE(names->Claim(name, one, 0)->won) << "its answer may have been lost";
  // A client that has seen the name before its confirmation does not get it.
  const auto confirmed = names->Claim(name, one, first.revision).value();
  ASSERT_TRUE(confirmed.won);
  EXPECT_GT(confirmed.revision, first.revision);
  EXPECT_FALSE(names->Claim(name, two, seen.revision)->won);
  EXPECT_TRUE(absl::IsNotFound(names->SetServers(name, two)));
  EXPECT_TRUE(names->SetServers(name, {one.id, two.servers, "one"}).ok());
  EXPECT_THAT(ServersOf("x"), UnorderedElementsAre(Server(1).ToString(), Server(2).ToString()));
  EXPECT_TRUE(names->Release(name, two.id).ok());
  EXPECT_EQ(IdOf("x"), one.id);
  EXPECT_TRUE(names->Release(name, one.id).ok());
  EXPECT_EQ(Entry("x").revision, 0);
  EXPECT_EQ(names->Claim(name, two, confirmed.revision)->revision, 0) << "it is nobody's";
  EXPECT_TRUE(names->Claim(name, two, 0)->won);
}

}  // namespace
}  // namespace nram
