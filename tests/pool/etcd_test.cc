// Members in a real etcd: servers register, pools watch, and etcd is killed, frozen and compacted meanwhile.

#include <atomic>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/poll_until.h"
#include "base/tls/test_certificates.h"
#include "client/pool/pool_spec.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "members/etcd/etcd_client.h"
#include "members/etcd/etcd_spec.h"
#include "members/etcd_members.h"
#include "members/find_members.h"
#include "memserver/registration.h"
#include "tests/util/region_io.h"
#include "tests/util/test_etcd.h"
#include "tests/util/test_pool.h"

namespace nram {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

int64_t Soon() { return DeadlineAfterMs(20'000); }

template <typename Done>
bool Await(Done done) {
  return PollUntil(DeadlineAfterMs(60'000), 10, done);
}

std::unique_ptr<Registration> Register(
    const TestEtcd& etcd, const std::string& address, int64_t ttl_s = 10,
    std::function<std::string()> state = [] { return "serves"; }) {
  Registration::Options options;
  options.spec = EtcdSpec::Parse(etcd.Spec("test")).value();
  options.record.address = address;
  options.state = std::move(state);
  options.ttl_s = ttl_s;
  return std::make_unique<Registration>(std::move(options), etcd.Client());
}

std::unique_ptr<MemberSource> Members(const TestEtcd& etcd, const EtcdTimes& times = {}) {
  return NewEtcdMembers(EtcdSpec::Parse(etcd.Spec("test")).value(), etcd.Client(), times);
}

std::vector<std::string> Names(MemberSource* source) {
  const auto members = source->Look(Soon());
  if (!members.ok()) return {std::string(members.status().message())};
  std::vector<std::string> names;
  for (const Member& member : *members) names.push_back(member.endpoint.ToString());
  return names;
}

TEST(EtcdTest, ServersRegisterAndAreFound) {
  const TestEtcd etcd;
  ASSERT_TRUE(etcd.runs());
  const auto source = Members(etcd);
  EXPECT_THAT(Names(source.get()),
              ElementsAre(HasSubstr("no server is registered there; start some with --register=")));
  auto one = Register(etcd, "node1:7070");
  std::atomic<bool> leaves{false};
  auto two = Register(etcd, "node2:7070", 10, [&] { return leaves ? "leaves" : "serves"; });
  ASSERT_TRUE(Await([&] { return Names(source.get()) == std::vector<std::string>{"node1:7070", "node2:7070"}; }));
  leaves = true;
  EXPECT_TRUE(Await([&] { return source->Look(Soon())->at(1).leaves; }));
  one.reset();
  EXPECT_TRUE(Await([&] { return Names(source.get()) == std::vector<std::string>{"node2:7070"}; }))
      << "a server that ends takes its key away";
}

TEST(EtcdTest, BadValuesHarmNobody) {
  const TestEtcd etcd;
  const auto one = Register(etcd, "node1:7070");
  const auto client = etcd.Client();
  const int64_t lease = client->GrantLease(60, Soon()).value();
  const std::string prefix = EtcdSpec::Parse(etcd.Spec("test"))->KeyPrefix();
  ASSERT_TRUE(client->Put(prefix + "x", "{", lease, Soon()).ok());
  ASSERT_TRUE(client->Put(prefix + "y\xff", std::string(100'000, 'y'), lease, Soon()).ok());
  const auto source = Members(etcd);
  ASSERT_TRUE(Await([&] { return Names(source.get()) == std::vector<std::string>{"node1:7070"}; }));
  ASSERT_TRUE(client->Put(prefix + "z", R"({"address": "unix:/etc/passwd"})", lease, Soon()).ok());
  ASSERT_TRUE(client->Put(prefix + "node2", R"({"address": "node2:7070"})", lease, Soon()).ok());
  EXPECT_TRUE(Await([&] { return Names(source.get()) == std::vector<std::string>{"node1:7070", "node2:7070"}; }));
}

TEST(EtcdTest, AKeyThatIsDeletedOrALeaseThatEndsComesBack) {
  const TestEtcd etcd;
  const auto one = Register(etcd, "node1:7070", /*ttl_s=*/2);
  const auto source = Members(etcd);
  ASSERT_TRUE(Await([&] { return Names(source.get()) == std::vector<std::string>{"node1:7070"}; }));
  const auto client = etcd.Client();
  EXPECT_TRUE(absl::IsNotFound(client->KeepAlive(12'345, Soon())));
  EXPECT_TRUE(absl::IsNotFound(client->Put("k", "v", 12'345, Soon())));
  // All leases end.
  etcd.EndAllLeases();
  ASSERT_TRUE(Await([&] { return absl::StrContains(Names(source.get()).at(0), "no server is registered"); }));
  EXPECT_TRUE(Await([&] { return Names(source.get()) == std::vector<std::string>{"node1:7070"}; }));
}

TEST(EtcdTest, CompactedChangesAreKnownAsSuch) {
  const TestEtcd etcd;
  const auto client = etcd.Client();
  const int64_t lease = client->GrantLease(60, Soon()).value();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(client->Put("k", absl::StrCat(i), lease, Soon()).ok());
  const int64_t revision = client->List("k", 1, Soon())->revision;
  ASSERT_EQ(etcd.Run(absl::StrCat("compact ", revision)), 0);
  const absl::Status status = client->Watch("k", 2, 10'000, [](const std::vector<EtcdClient::Change>& changes) {
    EXPECT_TRUE(changes.empty()) << "it has heard changes";
  });
  EXPECT_TRUE(absl::IsOutOfRange(status)) << status;
}

TEST(EtcdTest, AKeyIsSwappedOnlyIfItHasNotChanged) {
  const TestEtcd etcd;
  const auto client = etcd.Client();
  EXPECT_EQ(client->Get("k", Soon())->revision, 0);
  const auto first = client->Swap("k", 0, "one", Soon()).value();
  ASSERT_TRUE(first.done);
  EXPECT_EQ(client->Get("k", Soon())->revision, first.now.revision);
  const auto second = client->Swap("k", 0, "two", Soon()).value();
  EXPECT_FALSE(second.done);
  EXPECT_EQ(second.now.revision, first.now.revision);
  EXPECT_EQ(second.now.value, "one");
  ASSERT_TRUE(client->Swap("other", 0, "x", Soon())->done);
  const auto third = client->Swap("k", first.now.revision, "three", Soon()).value();
  ASSERT_TRUE(third.done) << "another key's change is none of this one";
  EXPECT_GT(third.now.revision, first.now.revision);
  EXPECT_FALSE(client->Swap("k", first.now.revision, std::nullopt, Soon())->done);
  EXPECT_EQ(client->Get("k", Soon())->value, "three");
  EXPECT_TRUE(client->Swap("k", third.now.revision, std::nullopt, Soon())->done);
  EXPECT_EQ(client->Get("k", Soon())->revision, 0);
  EXPECT_EQ(client->Swap("k", third.now.revision, "four", Soon())->now.revision, 0) << "it is gone";
}

TEST(EtcdTest, AKilledOrFrozenEtcdOnlyEndsTheNews) {
  TestEtcd etcd;
  const auto one = Register(etcd, "node1:7070");
  const auto source = Members(etcd, {.list_ms = 2'000, .silence_ms = 900, .fresh_ms = 1'500, .again_max_ms = 200});
  const auto is_there = [&] { return Names(source.get()) == std::vector<std::string>{"node1:7070"}; };
  ASSERT_TRUE(Await(is_there));
  etcd.Freeze();
  EXPECT_TRUE(Await([&] { return !source->Look(Soon()).ok(); }));
  etcd.Thaw();
  EXPECT_TRUE(Await(is_there));
  etcd.Kill();
  EXPECT_TRUE(Await([&] { return !source->Look(Soon()).ok(); }));
  etcd.Start();
  ASSERT_TRUE(etcd.runs());
  EXPECT_TRUE(Await(is_there));
}

TEST(EtcdTest, StopEndsAWatchOfAFrozenEtcd) {
  TestEtcd etcd;
  auto source = Members(etcd);
  (void)source->Look(DeadlineAfterMs(100));
  etcd.Freeze();
  source.reset();  // or this test does not end
  etcd.Thaw();
}

TEST(EtcdTest, WithCertificates) {
  const TestCertificates certificates("etcd-tls");
  const std::string& dir = certificates.directory();
  const TestEtcd etcd(
      {absl::StrCat("--cert-file=", dir, "/server.pem"), absl::StrCat("--key-file=", dir, "/server.key"),
       absl::StrCat("--trusted-ca-file=", dir, "/ca.pem"), "--client-cert-auth"},
      "https", dir);
  ASSERT_TRUE(etcd.runs());
  const auto one = Register(etcd, "node1:7070");
  const auto source = Members(etcd);
  EXPECT_TRUE(Await([&] { return Names(source.get()) == std::vector<std::string>{"node1:7070"}; }));
  EXPECT_FALSE(EtcdClient::Create({etcd.host()}, "")->List("x", 1, DeadlineAfterMs(2'000)).ok());
  const auto missing = EtcdClient::Create({etcd.host()}, "/nowhere")->List("x", 1, Soon()).status();
  EXPECT_THAT(std::string(missing.message()), HasSubstr("/nowhere"));
}

// A pool, opened as the doors open it.
class EtcdPoolTest : public ::testing::Test {
 protected:
  EtcdPoolTest() : servers_(3, 128 * kMiB, Clock::Real(), TestPool::Hosts::kPretended) {
    setenv("XDG_CACHE_HOME", absl::StrCat(::testing::TempDir(), "/cache.", getpid()).c_str(), 1);
  }
  std::unique_ptr<Registration> RegisterServer(size_t i) {
    return Register(etcd_, servers_.Options().servers[i].ToString(), /*ttl_s=*/3);
  }
  std::unique_ptr<Pool> Open() {
    PoolOptions options = servers_.Options();
    options.ExpectCopies();
    options.io_timeout_ms = 30'000;
    const absl::Status status = UsePool(etcd_.Spec("test"), &options);
    EXPECT_TRUE(status.ok()) << status;
    return status.ok() ? TestPool::Open(options) : nullptr;
  }
  static void WriteAndCheck(Region* region, uint64_t seed) {
    for (uint64_t span = 0; span < 8; ++span) {
      const absl::Status status = region->Write(span * kMiB, Bytes(Pattern(kMiB, seed + span)));
      ASSERT_TRUE(status.ok()) << status;
    }
    for (uint64_t span = 0; span < 8; ++span) {
      const auto back = Read(region, span * kMiB, kMiB);
      ASSERT_TRUE(back.ok()) << back.status();
      ASSERT_TRUE(*back == Pattern(kMiB, seed + span)) << "wrong bytes in span " << span;
    }
  }

  TestEtcd etcd_;
  TestPool servers_;
};

TEST_F(EtcdPoolTest, ServersJoinWhileEtcdComesAndGoes) {
  auto one = RegisterServer(0);
  auto two = RegisterServer(1);
  ASSERT_TRUE(Await([&] { return FindPool(etcd_.Spec("test")).ok(); }));
  auto pool = Open();
  ASSERT_NE(pool, nullptr);
  ASSERT_TRUE(Await([&] { return pool->server_count() == 2 && pool->session(0)->up() && pool->session(1)->up(); }));
  EXPECT_TRUE(pool->seals()) << "other machines may join";
  auto region = pool->CreateRegion({.gc = true, .copies = 2}).value();
  ASSERT_NO_FATAL_FAILURE(WriteAndCheck(region.get(), 1));
  etcd_.Freeze();
  for (uint64_t round = 2; round < 10; ++round) ASSERT_NO_FATAL_FAILURE(WriteAndCheck(region.get(), 100 * round));
  etcd_.Thaw();
  auto three = RegisterServer(2);
  ASSERT_TRUE(Await([&] { return pool->server_count() == 3 && pool->session(2)->usable(); }));
  etcd_.Kill();
  ASSERT_NO_FATAL_FAILURE(WriteAndCheck(region.get(), 1'000));
  // A new client uses the cache of an earlier one.
  const auto found = FindPool(etcd_.Spec("test"));
  ASSERT_TRUE(found.ok()) << found.status();
  EXPECT_TRUE(found->from_cache);
  EXPECT_GE(found->servers.size(), 2u);
  auto later = Open();
  ASSERT_NE(later, nullptr);
  auto other = later->CreateRegion({.gc = true}).value();
  ASSERT_NO_FATAL_FAILURE(WriteAndCheck(other.get(), 2'000));
  for (size_t i = 0; i < pool->server_count(); ++i) EXPECT_FALSE(pool->session(i)->removed()) << i;
}

}  // namespace
}  // namespace nram
