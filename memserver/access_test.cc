#include "memserver/access.h"

#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

std::string Mistake(const std::string& text) { return std::string(ParseAccessRules(text).status().message()); }

Role RoleOf(const Access& access, const std::string& identity) { return access.Judge(identity).role; }

class AccessFileTest : public ::testing::Test {
 protected:
  void Write(const std::string& text) { std::ofstream(path_, std::ios::trunc) << text; }
  std::unique_ptr<Access> Make() {
    auto access = Access::Create({.file = path_, .uid = 1000});
    EXPECT_TRUE(access.ok()) << access.status();
    return *std::move(access);
  }
  const std::string path_ = ::testing::TempDir() + "/access." + std::to_string(getpid());
};

TEST(AccessTest, WithoutRulesTheServersUserIsOperatorAndHoldersOfCertificatesAreUsers) {
  const auto access = Access::Create({.file = "", .uid = 1000}).value();
  EXPECT_EQ(RoleOf(*access, "uid:1000"), Role::kOperator);
  EXPECT_EQ(RoleOf(*access, "uid:0"), Role::kOperator);
  EXPECT_EQ(RoleOf(*access, "cn:sorter"), Role::kUser);
  EXPECT_EQ(RoleOf(*access, "spiffe://site/ci"), Role::kUser);
  EXPECT_EQ(access->Judge("uid:1000").tenant, access->Judge("cn:sorter").tenant) << "one client may be both";
  for (const std::string nobody : {"uid:1001", "uid:10000", "uid:65534", "anyone", ""}) {
    EXPECT_EQ(RoleOf(*access, nobody), Role::kNobody) << nobody;
  }
}

TEST(AccessTest, AnyoneIsLetInOnlyIfToldSo) {
  const auto access = Access::Create({.file = "", .uid = 1000, .lets_anyone_in = true}).value();
  EXPECT_EQ(RoleOf(*access, "anyone"), Role::kOperator);
  EXPECT_EQ(RoleOf(*access, "uid:1001"), Role::kOperator);
  EXPECT_EQ(RoleOf(*access, ""), Role::kNobody);
}

TEST(AccessTest, RolesAreLevels) {
  const auto may = [](Role role, Action action) { return Access::Check({"cn:a", 0, role}, action).ok(); };
  EXPECT_TRUE(may(Role::kMonitor, Action::kHello) && may(Role::kMonitor, Action::kStatistics));
  EXPECT_FALSE(may(Role::kMonitor, Action::kLease) || may(Role::kMonitor, Action::kRegion));
  EXPECT_TRUE(may(Role::kUser, Action::kLease) && may(Role::kUser, Action::kRegion));
  EXPECT_FALSE(may(Role::kUser, Action::kAllRegions) || may(Role::kUser, Action::kDrain));
  EXPECT_TRUE(may(Role::kOperator, Action::kAllRegions) && may(Role::kOperator, Action::kDrain));
  EXPECT_FALSE(may(Role::kNobody, Action::kHello));
  EXPECT_TRUE(absl::IsUnauthenticated(Access::Check({}, Action::kHello)));
  EXPECT_TRUE(absl::IsPermissionDenied(Access::Check({"cn:a"}, Action::kHello)));
}

TEST(AccessTest, MistakesAreNamedWithTheirLine) {
  EXPECT_THAT(Mistake("# all well\ncn:a t user\ncn:b t\n"), HasSubstr("line 3"));
  EXPECT_THAT(Mistake("alice t user"), HasSubstr("not an identity"));
  EXPECT_THAT(Mistake("uid:bob t user"), HasSubstr("not an identity"));
  EXPECT_THAT(Mistake("cn:a t admin"), HasSubstr("not a role"));
  EXPECT_THAT(Mistake("cn:a t/u user"), HasSubstr("tenant's name"));
  EXPECT_THAT(Mistake("cn:a - user"), HasSubstr("need a tenant"));
  EXPECT_THAT(Mistake("cn:a t user quota=much"), HasSubstr("line 1"));
  EXPECT_THAT(Mistake("cn:a t user leases=0"), HasSubstr("not a limit"));
  EXPECT_THAT(Mistake("cn:a t user quota=1G\ncn:b t user quota=2G"), HasSubstr("other limits above"));
  EXPECT_THAT(Mistake("spiffe://site/ci* t user"), HasSubstr("must follow"));
  EXPECT_THAT(Mistake("# nobody yet\n"), HasSubstr("no rule"));
  EXPECT_TRUE(ParseAccessRules("spiffe://site/ci/* t user").ok());
  EXPECT_TRUE(ParseAccessRules("cn:a t user quota=1G # one\ncn:b t user\r\n\n").ok());
}

TEST_F(AccessFileTest, TheFirstRuleThatFitsDecides) {
  Write(
      "cn:batch-7 ops operator\ncn:batch-* batch user quota=1G leases=3\ncn:watch - monitor\ncn:stolen - none\n* "
      "guests user\n");
  const auto access = Make();
  EXPECT_EQ(RoleOf(*access, "cn:batch-7"), Role::kOperator);
  const Principal batch = access->Judge("cn:batch-8");
  EXPECT_EQ(access->TenantName(batch.tenant), "batch");
  EXPECT_EQ(access->limits(batch.tenant).bytes, uint64_t{1} << 30);
  EXPECT_EQ(access->limits(batch.tenant).leases, 3u);
  EXPECT_EQ(access->limits(batch.tenant).regions, TenantLimits::kNone);
  EXPECT_EQ(RoleOf(*access, "cn:watch"), Role::kMonitor);
  EXPECT_EQ(RoleOf(*access, "cn:stolen"), Role::kNobody) << "a later rule must not let it in";
  EXPECT_EQ(access->TenantName(access->Judge("uid:5").tenant), "guests");
  EXPECT_EQ(RoleOf(*access, ""), Role::kNobody) << "whoever is not known fits no rule";
}

TEST_F(AccessFileTest, ChangesAreTakenAndMistakesAreNot) {
  Write("cn:a t user\ncn:b u user\n");
  const auto access = Make();
  const TenantNumber before = access->Judge("cn:b").tenant;
  uint64_t version = access->version();
  access->Reload();
  EXPECT_EQ(access->version(), version) << "nothing has changed";
  const auto look_twice = [&] {
    access->Reload();
    access->Reload();
  };
  Write("cn:b u user\ncn:c t boss\n");
  look_twice();
  EXPECT_EQ(access->version(), version);
  EXPECT_EQ(RoleOf(*access, "cn:a"), Role::kUser);
  Write("");
  look_twice();
  EXPECT_EQ(RoleOf(*access, "cn:a"), Role::kUser) << "it is being written";
  Write("cn:b u user\n");
  access->Reload();
  EXPECT_EQ(access->version(), version) << "it may be half of what it is to be";
  access->Reload();
  EXPECT_GT(access->version(), version);
  EXPECT_EQ(RoleOf(*access, "cn:a"), Role::kNobody);
  EXPECT_EQ(access->Judge("cn:b").tenant, before) << "a tenant keeps its number";
}

TEST_F(AccessFileTest, AFileThatCannotBeUsedIsRefusedAtStart) {
  EXPECT_FALSE(Access::Create({.file = path_ + ".none"}).ok());
  Write("cn:a t\n");
  const auto access = Access::Create({.file = path_});
  EXPECT_THAT(std::string(access.status().message()), HasSubstr(path_ + ": line 1"));
}

}  // namespace
}  // namespace nram
