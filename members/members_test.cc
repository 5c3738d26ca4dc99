// The members of a pool, as their sources tell them: changing words, files, names, caches. No network.

#include <sys/stat.h>
#include <unistd.h>
#include <utime.h>

#include <cstdlib>
#include <ctime>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "members/dns.h"
#include "members/etcd_table.h"
#include "members/find_members.h"
#include "members/host_file.h"
#include "members/member_cache.h"
#include "members/roster.h"

namespace nram {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

std::vector<Member> Named(const std::vector<std::string>& names) {
  std::vector<Member> members;
  for (const std::string& name : names) members.push_back({{name, 7070, ""}});
  return members;
}

std::vector<Endpoint> Hosts(const std::vector<std::string>& names) {
  std::vector<Endpoint> endpoints;
  for (const std::string& name : names) endpoints.push_back({name, 7070, ""});
  return endpoints;
}

class Directory {
 public:
  Directory() {
    char name[] = "/tmp/nram-members-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Directory() { (void)!system(absl::StrCat("rm -rf ", path_).c_str()); }
  std::string operator/(const std::string& name) const { return absl::StrCat(path_, "/", name); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

TEST(RosterTest, ANewNameJoinsAtOnce) {
  Roster roster(Hosts({"a", "b"}), 10);
  EXPECT_TRUE(roster.Hear(Named({"a", "b"}), true).empty());
  const Roster::Step step = roster.Hear(Named({"c", "b", "a"}), false);
  ASSERT_THAT(step.joins, SizeIs(1));
  EXPECT_EQ(step.joins[0].host, "c");
  EXPECT_EQ(roster.size(), 3);
  EXPECT_TRUE(roster.Hear(Named({"a", "b", "c"}), true).empty());
}

TEST(RosterTest, AMemberLeavesAfterThreeAbsencesInARow) {
  Roster roster(Hosts({"a", "b", "c"}), 10);
  EXPECT_TRUE(roster.Hear(Named({"a", "b"}), true).empty());
  EXPECT_TRUE(roster.Hear(Named({"a", "b"}), true).empty());
  EXPECT_FALSE(roster.is_listed(2));
  EXPECT_THAT(roster.Hear(Named({"a", "b"}), true).leaves, ElementsAre(2));
  EXPECT_TRUE(roster.Hear(Named({"a", "b"}), true).empty()) << "it leaves once";
  EXPECT_THAT(roster.Hear(Named({"a", "b", "c"}), true).returns, ElementsAre(2));
  EXPECT_FALSE(roster.has_left(2));
  EXPECT_EQ(roster.size(), 3) << "it has its number again";
}

TEST(RosterTest, ANameThatFlapsStays) {
  Roster roster(Hosts({"a", "b", "c"}), 10);
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(roster.Hear(Named({"a", "b"}), true).empty());
    EXPECT_TRUE(roster.Hear(Named({"a", "b"}), true).empty());
    EXPECT_TRUE(roster.Hear(Named({"a", "b", "c"}), true).empty());
  }
}

TEST(RosterTest, WordsWithinAPeriodCountOnce) {
  Roster roster(Hosts({"a", "b", "c"}), 10);
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(roster.Hear(Named({"a", "b"}), false).empty());
  EXPECT_TRUE(roster.Hear(Named({"a", "b"}), true).empty());
  EXPECT_TRUE(roster.Hear(Named({"a", "b"}), true).empty());
  EXPECT_THAT(roster.Hear(Named({"a", "b"}), true).leaves, SizeIs(1));
}

TEST(RosterTest, WhenMostAreGoneAtOnceTheSourceIsNotBelievedSoSoon) {
  Roster roster(Hosts({"a", "b", "c"}), 10);
  for (int i = 1; i < Roster::kAbsencesOfMany; ++i) EXPECT_TRUE(roster.Hear(Named({"a"}), true).empty()) << i;
  EXPECT_THAT(roster.Hear(Named({"a"}), true).leaves, ElementsAre(1, 2));
}

TEST(RosterTest, WhenMostAreBackTheOthersAreCountedFromTheBeginning) {
  Roster roster(Hosts({"a", "b", "c"}), 10);
  for (int i = 1; i < Roster::kAbsencesOfMany; ++i) EXPECT_TRUE(roster.Hear(Named({"a"}), true).empty()) << i;
  EXPECT_TRUE(roster.Hear(Named({"a", "b"}), true).empty()) << "the source is just recovering";
  EXPECT_TRUE(roster.Hear(Named({"a", "b"}), true).empty());
  EXPECT_THAT(roster.Hear(Named({"a", "b"}), true).leaves, ElementsAre(2));
}

TEST(RosterTest, MembersThatAreAllReplacedLeaveAsUsual) {
  Roster roster(Hosts({"a", "b"}), 10);
  EXPECT_THAT(roster.Hear(Named({"c", "d"}), true).joins, SizeIs(2));
  EXPECT_TRUE(roster.Hear(Named({"c", "d"}), true).empty());
  EXPECT_THAT(roster.Hear(Named({"c", "d"}), true).leaves, ElementsAre(0, 1));
}

TEST(RosterTest, NumbersAreBounded) {
  Roster roster(Hosts({"a"}), 3);
  const Roster::Step step = roster.Hear(Named({"a", "b", "c", "d", "e"}), true);
  EXPECT_THAT(step.joins, SizeIs(2));
  EXPECT_EQ(step.refused, 2);
  EXPECT_EQ(roster.size(), 3);
}

TEST(HostFileTest, IsReadAgainWhenItHasChanged) {
  const Directory directory;
  const std::string path = directory / "hosts";
  ASSERT_TRUE(WriteFileAtomically(path, "a:1\nb # here\n").ok());
  const auto file = NewHostFile(path);
  EXPECT_THAT(file->Look(0).value(), SizeIs(2));
  ASSERT_TRUE(WriteFileAtomically(path, "a:1\nb\nc:3\n").ok());
  EXPECT_EQ(file->Look(0).value().at(2).endpoint.ToString(), "c:3");
  ASSERT_TRUE(WriteFileAtomically(path, "a:1\nb:x\n").ok());
  EXPECT_THAT(std::string(file->Look(0).status().message()), HasSubstr("line 2"));
  ASSERT_TRUE(WriteFileAtomically(path, "# all gone\n").ok());
  EXPECT_FALSE(file->Look(0).ok());
  unlink(path.c_str());
  EXPECT_TRUE(absl::IsNotFound(file->Look(0).status()));
  ASSERT_TRUE(WriteFileAtomically(path, "a:1\n").ok());
  EXPECT_THAT(file->Look(0).value(), SizeIs(1));
}

// A name that has become a pipe, or a device, would block its reader.
TEST(HostFileTest, WhatIsNoFileAnyMoreIsAnError) {
  const Directory directory;
  const std::string path = directory / "hosts";
  ASSERT_TRUE(WriteFileAtomically(path, "a:1\n").ok());
  const auto file = NewHostFile(path);
  EXPECT_THAT(file->Look(0).value(), SizeIs(1));
  unlink(path.c_str());
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_THAT(std::string(file->Look(0).status().message()), HasSubstr("not a regular file"));
}

TEST(DnsTest, NamesAreParsed) {
  EXPECT_EQ(ParseDnsSpec("dns:nram.default")->ToString(), "nram.default:7070");
  EXPECT_EQ(ParseDnsSpec("dns:nram:71")->ToString(), "nram:71");
  for (const char* bad : {"dns:", "dns:a,b", "dns:a/b", "dns:a:x", "dns:unix:/x", "nram"}) {
    EXPECT_THAT(std::string(ParseDnsSpec(bad).status().message()), HasSubstr("expected dns:NAME")) << bad;
  }
}

TEST(DnsTest, AddressesAreSortedAndEachIsThereOnce) {
  absl::StatusOr<DnsAnswer> answer = DnsAnswer{{"10.0.0.2", "fd00::1", "10.0.0.1", "10.0.0.2"}, 0};
  const auto dns = NewDns({"nram", 71, ""}, [&](const std::string& name, int64_t) {
    EXPECT_EQ(name, "nram");
    return answer;
  });
  std::vector<std::string> names;
  const std::vector<Member> members = dns->Look(0).value();
  for (const Member& member : members) names.push_back(member.endpoint.ToString());
  EXPECT_THAT(names, ElementsAre("10.0.0.1:71", "10.0.0.2:71", "[fd00::1]:71"));
  EXPECT_EQ(dns->period_ms(), kDnsMinMs);
  answer->ttl_s = 3'600;
  ASSERT_TRUE(dns->Look(0).ok());
  EXPECT_EQ(dns->period_ms(), kDnsMaxMs);
  answer->addresses.clear();
  EXPECT_TRUE(absl::IsNotFound(dns->Look(0).status()));
  answer = absl::UnavailableError("silence");
  EXPECT_THAT(std::string(dns->Look(0).status().message()), HasSubstr("dns:nram:71: silence"));
}

TEST(DnsTest, AFlappingNameMovesNothing) {
  bool is_short = false;
  const auto dns = NewDns({"nram", 7070, ""}, [&](const std::string&, int64_t) -> absl::StatusOr<DnsAnswer> {
    is_short = !is_short;
    if (is_short) return DnsAnswer{{"10.0.0.1"}, 0};
    return DnsAnswer{{"10.0.0.1", "10.0.0.2", "10.0.0.3"}, 0};
  });
  Roster roster(Hosts({"10.0.0.1", "10.0.0.2", "10.0.0.3"}), 10);
  for (int i = 0; i < 200; ++i) EXPECT_TRUE(roster.Hear(dns->Look(0).value(), true).empty());
}

TEST(EtcdTableTest, BadValuesArePassedOverWithALineEach) {
  EtcdTable table;
  EXPECT_EQ(table.Put("k1", R"({"address": "a:1"})"), "");
  EXPECT_THAT(table.Put("k2", "\x01 nonsense"), HasSubstr("k2 is ignored: it is not a JSON object"));
  EXPECT_EQ(table.Put("k2", "nonsense of another kind"), "") << "the same trouble";
  EXPECT_THAT(table.Put("k2", R"({"address": "unix:/x"})"), HasSubstr("not a host and port"));
  EXPECT_THAT(table.Put("k3\n", R"({"address": 7})"), HasSubstr("is not a string"));
  EXPECT_THAT(table.Members(), SizeIs(1));
  EXPECT_EQ(table.Put("k2", R"({"address": "b:2", "state": "leaves"})"), "");
  EXPECT_EQ(table.Put("k4", R"({"address": "b:2"})"), "");
  ASSERT_THAT(table.Members(), SizeIs(2)) << "two keys have the same address";
  EXPECT_TRUE(table.Members()[1].leaves);
  EXPECT_NE(table.Put("k1", "now it is wrong"), "");
  EXPECT_THAT(table.Members(), SizeIs(1)) << "what was right counts no more";
  table.Erase("k2");
  table.Erase("k4");
  EXPECT_THAT(table.Members(), IsEmpty());
}

TEST(EtcdTableTest, LinesAreBounded) {
  EtcdTable table;
  size_t lines = 0;
  for (int i = 0; i < 10'000; ++i) lines += table.Put(absl::StrCat("key", i), "?").empty() ? 0 : 1;
  EXPECT_EQ(lines, EtcdTable::kRemarksMax + 1);
}

TEST(MemberCacheTest, KeepsWhatWasKnownForAWeek) {
  const Directory directory;
  const MemberCache cache("etcd:a:2379/x", directory / "deep/nram");
  EXPECT_TRUE(absl::IsNotFound(cache.Read().status()));
  const std::vector<Endpoint> servers = {{"a", 1, ""}, {"::1", 2, ""}};
  ASSERT_TRUE(cache.Write(servers).ok());
  EXPECT_EQ(cache.Read()->servers, servers);
  EXPECT_NE(MemberCache("etcd:a:2379/y").path(), MemberCache("etcd:a:2379_y").path());
  const utimbuf old{time(nullptr) - MemberCache::kAgeMaxS - 60, time(nullptr) - MemberCache::kAgeMaxS - 60};
  ASSERT_EQ(utime(cache.path().c_str(), &old), 0);
  EXPECT_TRUE(absl::IsNotFound(cache.Read().status()));
}

TEST(MemberCacheTest, IsNotBelievedWhenOthersMayWriteOrItIsStrange) {
  const Directory directory;
  const MemberCache cache("etcd:a:2379/x", directory / "nram");
  ASSERT_TRUE(cache.Write({{"a", 1, ""}}).ok());
  ASSERT_EQ(chmod((directory / "nram").c_str(), 0777), 0);
  EXPECT_TRUE(absl::IsPermissionDenied(cache.Read().status()));
  ASSERT_EQ(chmod((directory / "nram").c_str(), 0755), 0);
  ASSERT_TRUE(WriteFileAtomically(cache.path(), "a:1\n").ok());
  EXPECT_THAT(std::string(cache.Read().status().message()), HasSubstr("belongs to another pool"));
  ASSERT_TRUE(WriteFileAtomically(cache.path(), std::string(MemberCache::kBytesMax + 1, '#')).ok());
  EXPECT_FALSE(cache.Read().ok());
}

TEST(FindMembersTest, WhatWasKnownCountsWhileTheSourceIsAway) {
  const Directory directory;
  absl::StatusOr<DnsAnswer> answer = absl::UnavailableError("silence");
  const std::shared_ptr<MemberSource> source =
      NewDns({"nram", 7070, ""}, [&](const std::string&, int64_t) { return answer; });
  EXPECT_TRUE(absl::IsUnavailable(FindMembers(source, directory / "nram").status()));
  answer = DnsAnswer{{"10.0.0.1"}, 1};
  auto found = FindMembers(source, directory / "nram");
  EXPECT_FALSE(found->from_cache);
  EXPECT_THAT(found->Describe(), HasSubstr("heard of just now"));
  answer = absl::UnavailableError("silence");
  found = FindMembers(source, directory / "nram");
  ASSERT_TRUE(found.ok());
  EXPECT_TRUE(found->from_cache);
  EXPECT_THAT(found->servers, SizeIs(1));
  EXPECT_THAT(found->Describe(), HasSubstr("silence"));
}

}  // namespace
}  // namespace nram
