// A file that replaces another gives no user more rights than that did, and as many as it may. Needs root, and file
// systems with ACLs at /dev/shm (tmpfs) and /var/tmp (a disk's).

#include "sort/output.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <string>
#include <vector>

#include "base/subprocess.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

constexpr char kAccess[] = "system.posix_acl_access";
constexpr char kDefault[] = "system.posix_acl_default";
constexpr uid_t kUser = 1000;    // replaces the file
constexpr uid_t kNamed = 65534;  // is named by ACLs
constexpr uid_t kOther = 2000;

struct Entry {
  uint16_t tag;
  uint16_t rights;
  uint32_t id = ~0u;
};

std::string Acl(const std::vector<Entry>& entries) {
  const uint32_t version = POSIX_ACL_XATTR_VERSION;
  std::string acl(reinterpret_cast<const char*>(&version), sizeof version);
  for (const Entry& entry : entries) acl.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  return acl;
}

std::string Xattr(const std::string& path, const char* name) {
  char value[1000];
  const ssize_t bytes = getxattr(path.c_str(), name, value, sizeof value);
  return bytes < 0 ? "none" : std::string(value, static_cast<size_t>(bytes));
}

// Runs `what` as a user of one group; its result, at most 255.
int RunAs(uid_t uid, gid_t gid, const std::function<int()>& what) {
  auto child = Subprocess::StartFunction([&] {
    const gid_t groups[] = {gid};
    if (setgroups(1, groups) != 0 || setresgid(gid, gid, gid) != 0 || setresuid(uid, uid, uid) != 0) return 255;
    return what();
  });
  EXPECT_TRUE(child.ok()) << child.status();
  const auto ended = child->WaitUntil(Subprocess::kNoDeadline);
  EXPECT_EQ(ended->signal, 0);
  return ended->code;
}

int Replace(const std::string& path) {
  auto output = Output::Open(path, {});
  if (!output.ok() || !output->Begin().ok() || write(output->fd(), "new\n", 4) != 4 || !output->Commit().ok()) return 1;
  return Output::WroteInPlace() ? 2 : 0;
}

class OutputTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_EQ(geteuid(), 0u) << "this test needs root";
    directory_ = std::string(GetParam()) + "/nram-output-XXXXXX";
    ASSERT_NE(mkdtemp(directory_.data()), nullptr);
    ASSERT_EQ(chmod(directory_.c_str(), 0777), 0);
    path_ = directory_ + "/file";
  }
  void TearDown() override {
    unlink(path_.c_str());
    EXPECT_EQ(rmdir(directory_.c_str()), 0) << "something is left in " << directory_;
  }

  void Make(uid_t uid, gid_t gid, mode_t mode, const std::string& acl = "") {
    const int fd = open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
    ASSERT_GE(fd, 0);
    ASSERT_EQ(fchown(fd, uid, gid), 0);
    ASSERT_EQ(fchmod(fd, mode), 0);
    if (!acl.empty()) {
      ASSERT_EQ(fsetxattr(fd, kAccess, acl.data(), acl.size(), 0), 0) << strerror(errno);
    }
    ASSERT_EQ(close(fd), 0);
  }
  mode_t Mode() const {
    struct stat attributes;
    EXPECT_EQ(stat(path_.c_str(), &attributes), 0);
    return attributes.st_mode & 07777;
  }
  // 4: may read, 2: may write.
  int RightsOf(uid_t uid, gid_t gid) const {
    return RunAs(uid, gid, [&] {
      return (access(path_.c_str(), R_OK) == 0 ? 4 : 0) | (access(path_.c_str(), W_OK) == 0 ? 2 : 0);
    });
  }

  std::string directory_;
  std::string path_;
};

TEST_P(OutputTest, AclAndAttributesAreHandedOn) {
  const std::string acl =
      Acl({{ACL_USER_OBJ, 6}, {ACL_USER, 4, kNamed}, {ACL_GROUP_OBJ, 0}, {ACL_MASK, 4}, {ACL_OTHER, 0}});
  for (const uid_t owner : {uid_t{0}, kUser}) {
    unlink(path_.c_str());
    Make(owner, owner, 0640, acl);
    ASSERT_EQ(setxattr(path_.c_str(), "user.note", "x", 1, 0), 0) << strerror(errno);
    // cap_net_raw; a right of the program in the former file.
    const uint32_t capability[] = {0x02000000, 1 << 13, 0, 0, 0};
    ASSERT_EQ(setxattr(path_.c_str(), "security.capability", capability, sizeof capability, 0), 0) << strerror(errno);
    EXPECT_EQ(RunAs(owner, owner, [&] { return Replace(path_); }), 0);
    EXPECT_EQ(Xattr(path_, kAccess), acl) << "owner " << owner;
    EXPECT_EQ(Mode(), 0640u);
    EXPECT_EQ(Xattr(path_, "user.note"), "x");
    EXPECT_EQ(Xattr(path_, "security.capability"), "none");
    EXPECT_EQ(RightsOf(kOther, owner == 0 ? 0 : kUser), 0) << "the group had no rights";
    EXPECT_EQ(RightsOf(kNamed, kNamed), 4);
  }
}

TEST_P(OutputTest, RootHandsOnTrustedAttributesAndSetIdBits) {
  Make(kUser, kUser, 06755);
  ASSERT_EQ(setxattr(path_.c_str(), "trusted.note", "y", 1, 0), 0) << strerror(errno);
  EXPECT_EQ(Replace(path_), 0);
  EXPECT_EQ(Mode(), 06755u);
  EXPECT_EQ(Xattr(path_, "trusted.note"), "y");
}

// Whatever file a user replaces without owning it, no other user has more rights than before.
TEST_P(OutputTest, NobodyGainsRights) {
  const auto acl = [](uint16_t named, uint16_t group, uint16_t named_group, uint16_t mask, uint16_t other) {
    return Acl({{ACL_USER_OBJ, 6},
                {ACL_USER, 6, kUser},
                {ACL_USER, named, kNamed},
                {ACL_GROUP_OBJ, group},
                {ACL_GROUP, named_group, 3000},
                {ACL_MASK, mask},
                {ACL_OTHER, other}});
  };
  const std::vector<std::string> acls = {"",
                                         acl(0, 6, 6, 6, 6),
                                         acl(6, 0, 6, 6, 6),
                                         acl(6, 6, 0, 6, 6),
                                         acl(4, 4, 4, 6, 4),
                                         acl(6, 6, 6, 6, 0),
                                         acl(6, 6, 6, 2, 6)};
  for (const std::string& named : acls) {
    for (const mode_t mode : {0666, 0606, 0662, 0626}) {
      for (const gid_t group : {gid_t{4000}, gid_t{kUser}}) {
        SCOPED_TRACE(testing::Message() << std::oct << mode << ", group " << std::dec << group << ", ACL "
                                        << (&named - acls.data()));
        unlink(path_.c_str());
        Make(0, group, mode, named);
        // If the file has an ACL, this sets the mask.
        ASSERT_EQ(chmod(path_.c_str(), mode), 0);
        const std::string acl_before = Xattr(path_, kAccess);
        const std::vector<std::pair<uid_t, gid_t>> all = {{kOther, 4000},  {kOther, kUser},  {kOther, 3000},
                                                          {kOther, 5000},  {kNamed, kNamed}, {kNamed, 4000},
                                                          {kNamed, kUser}, {kNamed, 3000}};
        std::vector<int> before;
        for (const auto& [uid, gid] : all) before.push_back(RightsOf(uid, gid));
        const int may = RightsOf(kUser, kUser);
        const int replaced = RunAs(kUser, kUser, [&] { return Replace(path_); });
        EXPECT_EQ(replaced, (may & 2) != 0 ? 0 : 1);
        for (size_t i = 0; i < all.size(); ++i) {
          EXPECT_EQ(RightsOf(all[i].first, all[i].second) & ~before[i], 0)
              << "user " << all[i].first << " of group " << all[i].second << " had " << before[i];
        }
        // The group keeps the rights that it may have, if the user is of it.
        if (group == kUser && replaced == 0) {
          EXPECT_EQ(Xattr(path_, kAccess), acl_before);
        }
      }
    }
  }
}

TEST_P(OutputTest, ADirectorysDefaultAclLetsNobodyIntoWhatIsReplaced) {
  Make(0, 0, 0660);
  const std::string acl =
      Acl({{ACL_USER_OBJ, 7}, {ACL_USER, 7, kNamed}, {ACL_GROUP_OBJ, 5}, {ACL_MASK, 7}, {ACL_OTHER, 0}});
  ASSERT_EQ(setxattr(directory_.c_str(), kDefault, acl.data(), acl.size(), 0), 0) << strerror(errno);
  EXPECT_EQ(Replace(path_), 0);
  EXPECT_EQ(Xattr(path_, kAccess), "none");
  EXPECT_EQ(Mode(), 0660u);
  EXPECT_EQ(RightsOf(kNamed, kNamed), 0);
}

// With the umask, and with a default ACL, which stands in its place.
TEST_P(OutputTest, ANewFileIsLikeAnyOther) {
  const mode_t mask = umask(027);
  EXPECT_EQ(Replace(path_), 0);
  EXPECT_EQ(Mode(), 0640u);
  unlink(path_.c_str());
  const std::string acl =
      Acl({{ACL_USER_OBJ, 7}, {ACL_USER, 6, kNamed}, {ACL_GROUP_OBJ, 5}, {ACL_MASK, 7}, {ACL_OTHER, 0}});
  ASSERT_EQ(setxattr(directory_.c_str(), kDefault, acl.data(), acl.size(), 0), 0) << strerror(errno);
  ASSERT_EQ(close(open(path_.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0666)), 0);
  const std::string expected = Xattr(path_, kAccess);
  const mode_t expected_mode = Mode();
  unlink(path_.c_str());
  EXPECT_EQ(Replace(path_), 0);
  umask(mask);
  EXPECT_EQ(Xattr(path_, kAccess), expected);
  EXPECT_EQ(Mode(), expected_mode);
}

INSTANTIATE_TEST_SUITE_P(FileSystems, OutputTest, ::testing::Values("/dev/shm", "/var/tmp"),
                         [](const auto& info) { return info.index == 0 ? "Tmpfs" : "Disk"; });

}  // namespace
}  // namespace nram
