// Names and attributes: directories that change while they are listed, links, renames, ACLs, and when things are freed.

#include "fsd/namespace.h"

#include <fcntl.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <stdio.h>
#include <sys/xattr.h>

#include <map>
#include <random>
#include <set>

#include "absl/strings/str_cat.h"
#include "base/test_seed.h"
#include "fsd/acl.h"
#include "fsd/directory.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

TEST(DirectoryTest, RandomChangesAgainstAModel) {
  std::mt19937_64 random(TestSeed());
  Directory directory;
  std::map<std::string, InodeNumber> model;
  for (int step = 0; step < 20'000; ++step) {
    const std::string name = absl::StrCat("n", random() % 500);
    const InodeNumber inode = 1 + random() % 1'000;
    if (model.count(name) == 0) {
      directory.Insert(name, inode);
      model[name] = inode;
    } else if (random() % 3 == 0) {
      directory.Replace(name, inode);
      model[name] = inode;
    } else if (random() % 3 == 0) {
      const std::string new_name = absl::StrCat("n", random() % 500);
      if (model.count(new_name) > 0) continue;
      directory.Rename(name, new_name);
      model[new_name] = model[name];
      model.erase(name);
    } else {
      directory.Erase(name);
      model.erase(name);
    }
    ASSERT_EQ(directory.size(), model.size());
    const std::string other = absl::StrCat("n", random() % 500);
    ASSERT_EQ(directory.Find(other), model.count(other) > 0 ? model[other] : 0);
  }
  std::map<std::string, InodeNumber> listed;
  Directory::Entry entry{0, 0, {}};
  for (uint64_t before = UINT64_MAX; directory.Next(entry.cookie, &entry); before = entry.cookie) {
    EXPECT_LT(entry.cookie, before);
    EXPECT_GE(entry.cookie, Directory::kFirstCookie);
    listed[std::string(entry.name)] = entry.inode;
  }
  EXPECT_EQ(listed, model);
}

TEST(DirectoryTest, AListingSeesWhatStaysExactlyOnce) {
  std::mt19937_64 random(TestSeed());
  Directory directory;
  for (int i = 0; i < 1'000; ++i) directory.Insert(absl::StrCat("stays", i), 1);
  for (int i = 0; i < 3'000; ++i) directory.Insert(absl::StrCat("goes", i), 2);
  std::multiset<std::string> seen;
  int gone = 0;
  Directory::Entry entry{0, 0, {}};
  while (directory.Next(entry.cookie, &entry)) {
    if (entry.inode == 1) seen.insert(std::string(entry.name));
    // Other names are added and removed meanwhile, enough for the places to be closed up.
    if (gone < 3'000) directory.Erase(absl::StrCat("goes", gone++));
    if (seen.size() % 7 == 0) directory.Insert(absl::StrCat("came", random()), 3);
    ASSERT_LT(directory.size(), 20'000u);
  }
  EXPECT_EQ(seen.size(), 1'000u);
  EXPECT_EQ(std::set<std::string>(seen.begin(), seen.end()).size(), 1'000u);
}

TEST(DirectoryTest, AListingOfFilesThatAreRenamedEnds) {
  Directory directory;
  for (InodeNumber i = 1; i <= 5'000; ++i) directory.Insert(absl::StrCat("f", i), i);
  std::multiset<InodeNumber> seen;
  Directory::Entry entry{0, 0, {}};
  for (int step = 0; directory.Next(entry.cookie, &entry); ++step) {
    ASSERT_LT(step, 20'000) << "a listing without end";
    seen.insert(entry.inode);
    directory.Rename(std::string(entry.name), absl::StrCat("g", step));
    // And as programs do that know no rename: a new name for the same file.
    const std::string other = absl::StrCat("f", entry.inode % 5'000 + 1);
    if (const InodeNumber inode = directory.Find(other); inode != 0 && step % 10 == 0) {
      directory.Erase(other);
      directory.Insert(other, inode + 10'000);
    }
  }
  for (InodeNumber i = 1; i <= 5'000; ++i) EXPECT_LE(seen.count(i), 1u);
  EXPECT_GE(seen.size(), 4'000u);
}

TEST(DirectoryTest, EmptyingIsNotQuadratic) {
  for (const bool newest_first : {true, false}) {
    Directory directory;
    for (int i = 0; i < 200'000; ++i) directory.Insert(absl::StrCat("f", i), 1);
    Directory::Entry entry;
    for (int i = 0; i < 200'000; ++i) {
      ASSERT_TRUE(directory.Next(0, &entry));
      directory.Erase(newest_first ? std::string(entry.name) : absl::StrCat("f", i));
    }
    EXPECT_FALSE(directory.Next(0, &entry));
  }
}

class CountedBody : public FileBody {
 public:
  explicit CountedBody(int* alive) : alive_(alive) { ++*alive_; }
  ~CountedBody() override { --*alive_; }
  uint64_t size() const override { return 5'000; }
  uint64_t blocks() const override { return 16; }

 private:
  int* const alive_;
};

class NamespaceTest : public ::testing::Test {
 protected:
  NamespaceTest() { names_ = NewLocalNamespace(Options()); }

  LocalNamespaceOptions Options() {
    LocalNamespaceOptions options;
    options.inodes_max = 100;
    options.now = [this] { return timespec{now_++, 7}; };
    options.make_body = [this] { return std::make_unique<CountedBody>(&bodies_); };
    return options;
  }
  InodeNumber Make(InodeNumber parent, const std::string& name, mode_t mode = S_IFREG | 0644,
                   const Caller& caller = {1000, 1000, 022}) {
    InodeAttr attr;
    EXPECT_EQ(names_->Create(parent, name, mode, 0, caller, &attr), Errno::kOk) << name;
    return attr.st_ino;
  }
  InodeAttr Get(InodeNumber inode) {
    InodeAttr attr;
    EXPECT_EQ(names_->GetAttr(inode, &attr), Errno::kOk);
    return attr;
  }
  Errno Find(InodeNumber parent, const std::string& name, InodeNumber* inode = nullptr) {
    InodeAttr attr;
    const Errno error = names_->Lookup(parent, name, &attr);
    if (Ok(error)) names_->Forget(attr.st_ino, 1);
    if (inode != nullptr) *inode = attr.st_ino;
    return error;
  }

  time_t now_ = 1'000;
  int bodies_ = 0;
  std::unique_ptr<Namespace> names_;
};

TEST_F(NamespaceTest, AnUnlinkedFileLivesWhileItIsKnown) {
  const InodeNumber file = Make(kRootInode, "f");
  FileBody* body = nullptr;
  ASSERT_EQ(names_->Body(file, &body), Errno::kOk);
  EXPECT_EQ(Get(file).st_size, 5'000);
  EXPECT_EQ(names_->Unlink(kRootInode, "f"), Errno::kOk);
  EXPECT_EQ(Find(kRootInode, "f"), Err(ENOENT));
  EXPECT_EQ(Get(file).st_nlink, 0u);
  EXPECT_EQ(bodies_, 1);
  names_->Forget(file, 1);
  EXPECT_EQ(bodies_, 0);
  InodeAttr attr;
  EXPECT_EQ(names_->GetAttr(file, &attr), Err(ESTALE));
  EXPECT_EQ(names_->Usage().inodes, 1u);
}

TEST_F(NamespaceTest, LookupsAreCounted) {
  const InodeNumber file = Make(kRootInode, "f");
  InodeAttr attr;
  ASSERT_EQ(names_->Lookup(kRootInode, "f", &attr), Errno::kOk);
  EXPECT_EQ(names_->Unlink(kRootInode, "f"), Errno::kOk);
  names_->Forget(file, 1);
  EXPECT_EQ(names_->GetAttr(file, &attr), Errno::kOk);
  names_->Forget(file, 1);
  EXPECT_EQ(names_->GetAttr(file, &attr), Err(ESTALE));
}

TEST_F(NamespaceTest, AnUnnamedFileCanBeGivenAName) {
  InodeAttr attr;
  ASSERT_EQ(names_->CreateUnnamed(kRootInode, 0600, {5, 6, 0}, &attr), Errno::kOk);
  EXPECT_EQ(attr.st_nlink, 0u);
  const InodeNumber file = attr.st_ino;
  EXPECT_EQ(names_->Link(file, kRootInode, "named", &attr), Errno::kOk);
  EXPECT_EQ(attr.st_nlink, 1u);
  names_->Forget(file, 2);
  EXPECT_EQ(Find(kRootInode, "named"), Errno::kOk);
}

TEST_F(NamespaceTest, DirectoriesCountTheirLinks) {
  const InodeNumber a = Make(kRootInode, "a", S_IFDIR | 0755);
  const InodeNumber b = Make(a, "b", S_IFDIR | 0755);
  EXPECT_EQ(Get(kRootInode).st_nlink, 3u);
  EXPECT_EQ(Get(a).st_nlink, 3u);
  EXPECT_EQ(names_->RemoveDirectory(kRootInode, "a"), Err(ENOTEMPTY));
  EXPECT_EQ(names_->Unlink(kRootInode, "a"), Err(EISDIR));
  EXPECT_EQ(names_->Rename(a, "b", kRootInode, "b", 0), Errno::kOk);
  EXPECT_EQ(Get(a).st_nlink, 2u);
  EXPECT_EQ(Get(kRootInode).st_nlink, 4u);
  EXPECT_EQ(names_->Rename(kRootInode, "a", b, "in", 0), Errno::kOk);
  EXPECT_EQ(names_->Rename(kRootInode, "b", a, "loop", 0), Err(EINVAL)) << "into itself";
  EXPECT_EQ(names_->RemoveDirectory(b, "in"), Errno::kOk);
  InodeAttr attr;
  EXPECT_EQ(names_->Create(a, "x", S_IFREG, 0, {}, &attr), Err(ENOENT)) << "in a directory that was removed";
}

TEST_F(NamespaceTest, ListingARemovedDirectoryWhoseParentIsGoneToo) {
  const InodeNumber a = Make(kRootInode, "a", S_IFDIR | 0755);
  const InodeNumber b = Make(a, "b", S_IFDIR | 0755);
  EXPECT_EQ(names_->RemoveDirectory(a, "b"), Errno::kOk);
  EXPECT_EQ(names_->RemoveDirectory(kRootInode, "a"), Errno::kOk);
  names_->Forget(a, 1);
  int entries = 0;
  EXPECT_EQ(names_->List(b, 0, false, [&](absl::string_view, const InodeAttr&, uint64_t) { return ++entries < 10; }),
            Errno::kOk);
  EXPECT_EQ(entries, 2);
}

TEST_F(NamespaceTest, RenameReplacesExchangesAndRefuses) {
  const InodeNumber f = Make(kRootInode, "f");
  const InodeNumber g = Make(kRootInode, "g");
  const InodeNumber d = Make(kRootInode, "d", S_IFDIR | 0755);
  EXPECT_EQ(names_->Rename(kRootInode, "f", kRootInode, "g", RENAME_NOREPLACE), Err(EEXIST));
  EXPECT_EQ(names_->Rename(kRootInode, "f", kRootInode, "h", RENAME_EXCHANGE), Err(ENOENT));
  EXPECT_EQ(names_->Rename(kRootInode, "f", kRootInode, "d", 0), Err(EISDIR));
  EXPECT_EQ(names_->Rename(kRootInode, "d", kRootInode, "f", 0), Err(ENOTDIR));
  EXPECT_EQ(names_->Rename(kRootInode, "f", kRootInode, "g", 1u << 2), Err(EINVAL)) << "whiteouts";
  EXPECT_EQ(names_->Rename(kRootInode, "f", kRootInode, "", 0), Err(ENOENT)) << "no name; no kernel asks for that";
  InodeNumber found = 0;
  EXPECT_EQ(names_->Rename(kRootInode, "f", d, "f", 0), Errno::kOk);
  EXPECT_EQ(names_->Rename(d, "f", kRootInode, "g", RENAME_EXCHANGE), Errno::kOk);
  EXPECT_EQ(Find(kRootInode, "g", &found), Errno::kOk);
  EXPECT_EQ(found, f);
  EXPECT_EQ(names_->Rename(d, "f", kRootInode, "g", 0), Errno::kOk);
  EXPECT_EQ(Find(kRootInode, "g", &found), Errno::kOk);
  EXPECT_EQ(found, g);
  EXPECT_EQ(Get(f).st_nlink, 0u);
}

TEST_F(NamespaceTest, NamesAndLimits) {
  InodeAttr attr;
  EXPECT_EQ(names_->Create(kRootInode, std::string(256, 'x'), S_IFREG, 0, {}, &attr), Err(ENAMETOOLONG));
  Make(kRootInode, std::string(255, 'x'));
  EXPECT_EQ(names_->Lookup(kRootInode, std::string(256, 'x'), &attr), Err(ENAMETOOLONG));
  for (int i = 0; names_->Usage().inodes < 100; ++i) Make(kRootInode, absl::StrCat(i));
  EXPECT_EQ(names_->Create(kRootInode, "one more", S_IFREG, 0, {}, &attr), Err(ENOSPC));
  EXPECT_EQ(names_->GetAttr(12'345, &attr), Err(ESTALE));
  EXPECT_EQ(names_->Lookup(0, "x", &attr), Err(ESTALE));
}

TEST_F(NamespaceTest, TheSetGroupIdOfADirectoryIsInherited) {
  const InodeNumber d = Make(kRootInode, "d", S_IFDIR | 02775, {1000, 50, 0});
  const InodeNumber file = Make(d, "f");
  const InodeNumber below = Make(d, "e", S_IFDIR | 0755);
  EXPECT_EQ(Get(file).st_gid, 50u);
  EXPECT_EQ(Get(file).st_mode & 07777, 0644u);
  EXPECT_EQ(Get(below).st_mode & 07777, 02755u);
}

TEST_F(NamespaceTest, SetIdBitsGo) {
  const InodeNumber file = Make(kRootInode, "f", S_IFREG | 06755, {0, 0, 0});
  EXPECT_TRUE(names_->TouchData(file, SetIdBits::kDropByMember));
  EXPECT_FALSE(names_->TouchData(file, SetIdBits::kDropByMember)) << "there are none any more";
  EXPECT_EQ(Get(file).st_mode & 07777, 0755u);
  AttrChange change;
  change.mode = 06744;  // without the group's x the bit means mandatory locking, and stays
  InodeAttr attr;
  EXPECT_EQ(names_->SetAttr(file, change, &attr), Errno::kOk);
  change = {};
  change.set_id = SetIdBits::kDropByMember;
  EXPECT_EQ(names_->SetAttr(file, change, &attr), Errno::kOk);
  EXPECT_EQ(attr.st_mode & 07777, 02744u);
  EXPECT_TRUE(names_->TouchData(file, SetIdBits::kDropByStranger));
  EXPECT_EQ(Get(file).st_mode & 07777, 0744u) << "but not for who is not in the group";
}

TEST_F(NamespaceTest, TimesFollowWhatHappens) {
  const InodeNumber file = Make(kRootInode, "f");
  const struct stat made = Get(file);
  names_->TouchAccess(file);  // relatime: the access is not older than the change
  const struct stat read = Get(file);
  EXPECT_GE(read.st_atim.tv_sec, made.st_atim.tv_sec);
  EXPECT_FALSE(names_->TouchData(file, SetIdBits::kKeep));
  EXPECT_GT(Get(file).st_mtim.tv_sec, read.st_mtim.tv_sec);
  names_->TouchAccess(file);
  const time_t access = Get(file).st_atim.tv_sec;
  EXPECT_GT(access, Get(file).st_mtim.tv_sec);
  names_->TouchAccess(file);
  EXPECT_EQ(Get(file).st_atim.tv_sec, access) << "once is enough";
  AttrChange change;
  change.mtime = timespec{-1, 999'999'999};
  InodeAttr attr;
  EXPECT_EQ(names_->SetAttr(file, change, &attr), Errno::kOk);
  EXPECT_EQ(attr.st_mtim.tv_sec, -1);
  EXPECT_EQ(attr.st_mtim.tv_nsec, 999'999'999);
}

TEST_F(NamespaceTest, AccessTimesCanBeLeftAlone) {
  LocalNamespaceOptions options = Options();
  options.touch_files = options.touch_directories = false;
  names_ = NewLocalNamespace(std::move(options));
  const InodeNumber file = Make(kRootInode, "f");
  const auto list = [&] {
    EXPECT_EQ(names_->List(kRootInode, 0, false, [](auto, const auto&, auto) { return true; }), Errno::kOk);
  };
  const time_t made = Get(file).st_atim.tv_sec;
  const time_t root = Get(kRootInode).st_atim.tv_sec;
  names_->TouchAccess(file);
  list();
  EXPECT_EQ(Get(file).st_atim.tv_sec, made);
  EXPECT_EQ(Get(kRootInode).st_atim.tv_sec, root);
  options = Options();
  options.touch_directories = false;
  names_ = NewLocalNamespace(std::move(options));
  const InodeNumber other = Make(kRootInode, "f");
  const time_t before = Get(other).st_atim.tv_sec;
  names_->TouchAccess(other);
  EXPECT_GT(Get(other).st_atim.tv_sec, before);
  const time_t root_before = Get(kRootInode).st_atim.tv_sec;
  list();
  EXPECT_EQ(Get(kRootInode).st_atim.tv_sec, root_before);
}

TEST_F(NamespaceTest, Xattrs) {
  const InodeNumber file = Make(kRootInode, "f");
  std::string value;
  EXPECT_EQ(names_->GetXattr(file, "user.a", &value), Err(ENODATA));
  EXPECT_EQ(names_->SetXattr(file, "user.a", "1", XATTR_REPLACE, false), Err(ENODATA));
  EXPECT_EQ(names_->SetXattr(file, "user.a", "1", XATTR_CREATE, false), Errno::kOk);
  EXPECT_EQ(names_->SetXattr(file, "user.a", "2", XATTR_CREATE, false), Err(EEXIST));
  EXPECT_EQ(names_->SetXattr(file, "user.b", "", 0, false), Errno::kOk);
  EXPECT_EQ(names_->SetXattr(file, "user.big", std::string(Namespace::kXattrBytesMax, 'x'), 0, false), Err(ENOSPC));
  EXPECT_EQ(names_->SetXattr(file, "system.other", "1", 0, false), Err(EOPNOTSUPP));
  EXPECT_EQ(names_->ListXattr(file, &value), Errno::kOk);
  EXPECT_EQ(value, std::string("user.a\0user.b\0", 14));
  EXPECT_EQ(names_->RemoveXattr(file, "user.a", false), Errno::kOk);
  EXPECT_EQ(names_->RemoveXattr(file, "user.a", false), Err(ENODATA));
}

TEST_F(NamespaceTest, AnInodeHoldsMoreXattrsThanCanBeListed) {
  LocalNamespaceOptions options = Options();
  options.inodes_max = 10'000;
  names_ = NewLocalNamespace(std::move(options));
  const InodeNumber file = Make(kRootInode, "f");
  const auto name = [](int i) { return absl::StrCat("user.attribute", i); };
  constexpr int kMany = 4'000;  // 75 KiB of names
  for (int i = 0; i < kMany; ++i) ASSERT_EQ(names_->SetXattr(file, name(i), "value", 0, false), Errno::kOk) << i;
  std::string names;
  EXPECT_EQ(names_->ListXattr(file, &names), Errno::kOk);
  EXPECT_GT(names.size(), 64u << 10);
  // A name that is taken away is room again, and one that is replaced is counted once.
  for (int round = 0; round < 3; ++round) {
    for (int i = 0; i < kMany; ++i) ASSERT_EQ(names_->SetXattr(file, name(i), "other", 0, false), Errno::kOk);
    for (int i = 0; i < kMany; i += 2) ASSERT_EQ(names_->RemoveXattr(file, name(i), false), Errno::kOk);
  }
  int held = 0;
  while (Ok(names_->SetXattr(file, absl::StrCat("user.more", held), std::string(1'000, 'x'), 0, false))) ++held;
  EXPECT_GT(held, 500);
  EXPECT_LT(held, 1'000) << "a MiB";
}

TEST_F(NamespaceTest, TheKernelFindsAgainWhatItHasForgotten) {
  const InodeNumber directory = Make(kRootInode, "d", S_IFDIR | 0755);
  const InodeNumber file = Make(directory, "f");
  InodeAttr attr;
  const uint32_t generation = [&] {
    EXPECT_EQ(names_->GetAttr(file, &attr), Errno::kOk);
    return attr.generation;
  }();
  names_->Forget(file, 1);
  EXPECT_EQ(names_->Lookup(file, ".", &attr), Errno::kOk);
  EXPECT_EQ(attr.st_ino, file);
  EXPECT_EQ(attr.generation, generation);
  EXPECT_EQ(names_->Lookup(file, "..", &attr), Err(ENOTDIR));
  EXPECT_EQ(names_->Lookup(directory, "..", &attr), Errno::kOk);
  EXPECT_EQ(attr.st_ino, kRootInode);
  EXPECT_EQ(attr.generation, 0u) << "the kernel wants it so of the root";
  EXPECT_EQ(names_->Unlink(directory, "f"), Errno::kOk);
  EXPECT_EQ(names_->GetAttr(file, &attr), Errno::kOk) << "that lookup counted";
  EXPECT_EQ(names_->Lookup(file, ".", &attr), Err(ESTALE)) << "deleted";
  names_->Forget(file, 1);
  EXPECT_EQ(names_->Lookup(file, ".", &attr), Err(ESTALE));
  EXPECT_EQ(names_->Lookup(12'345, ".", &attr), Err(ESTALE));
  ASSERT_EQ(Make(directory, "g"), file) << "the number has come to a new file";
  EXPECT_EQ(names_->Lookup(file, ".", &attr), Errno::kOk);
  EXPECT_NE(attr.generation, generation);
  const InodeNumber below = Make(directory, "e", S_IFDIR | 0755);
  EXPECT_EQ(names_->RemoveDirectory(directory, "e"), Errno::kOk);
  EXPECT_EQ(names_->Lookup(below, "..", &attr), Err(ESTALE));
}

TEST_F(NamespaceTest, GenerationsAreNotTheSameInTheNextDaemon) {
  std::set<uint32_t> seen;
  for (int i = 0; i < 4; ++i) {
    names_ = NewLocalNamespace(Options());
    seen.insert(Get(Make(kRootInode, "f")).generation);
  }
  EXPECT_GT(seen.size(), 1u);
}

// As on tmpfs, no user takes all of the machine's memory by names alone.
TEST_F(NamespaceTest, NamesAndTextAreLimited) {
  const InodeNumber file = Make(kRootInode, "f");
  InodeAttr attr;
  int links = 0;
  while (Ok(names_->Link(file, kRootInode, absl::StrCat("link", links), &attr))) ++links;
  EXPECT_EQ(links, 98) << "the root and the file are two of the hundred";
  for (int i = 0; i < links; ++i) EXPECT_EQ(names_->Unlink(kRootInode, absl::StrCat("link", i)), Errno::kOk);
  EXPECT_EQ(names_->Usage().inodes, 2u);
  for (int round = 0; round < 3; ++round) {
    int targets = 0;
    while (Ok(names_->Symlink(kRootInode, absl::StrCat("s", targets), std::string(4'000, 't'), {}, &attr))) ++targets;
    EXPECT_EQ(targets, 24) << "a KiB for each inode that there may be";
    EXPECT_EQ(names_->SetXattr(file, "user.a", std::string(4'000, 'x'), 0, false), Err(ENOSPC));
    EXPECT_EQ(names_->SetXattr(file, "user.a", "1", 0, false), Errno::kOk);
    for (int i = 0; i < targets; ++i) {
      InodeNumber number = 0;
      EXPECT_EQ(Find(kRootInode, absl::StrCat("s", i), &number), Errno::kOk);
      names_->Forget(number, 1);
      EXPECT_EQ(names_->Unlink(kRootInode, absl::StrCat("s", i)), Errno::kOk);
    }
    for (int i = 0; i < 100; ++i) {
      EXPECT_EQ(names_->SetXattr(file, "user.a", std::string(90'000 + i, 'x'), 0, false), Errno::kOk) << "not a sum";
    }
    EXPECT_EQ(names_->RemoveXattr(file, "user.a", false), Errno::kOk);
  }
}

std::string AclBytes(std::vector<std::pair<int, int>> entries) {
  const posix_acl_xattr_header header{POSIX_ACL_XATTR_VERSION};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  for (const auto& [tag, permissions] : entries) {
    const posix_acl_xattr_entry entry{static_cast<uint16_t>(tag), static_cast<uint16_t>(permissions), 1234};
    bytes.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  }
  return bytes;
}

TEST_F(NamespaceTest, AnAccessAclIsTheMode) {
  const InodeNumber file = Make(kRootInode, "f");
  const std::string acl =
      AclBytes({{ACL_USER_OBJ, 7}, {ACL_USER, 6}, {ACL_GROUP_OBJ, 4}, {ACL_MASK, 6}, {ACL_OTHER, 0}});
  EXPECT_EQ(names_->SetXattr(file, kAccessAclName, acl, 0, false), Errno::kOk);
  EXPECT_EQ(Get(file).st_mode & 0777, 0760u);
  AttrChange change;
  change.mode = 0640;
  InodeAttr attr;
  EXPECT_EQ(names_->SetAttr(file, change, &attr), Errno::kOk);
  std::string stored;
  EXPECT_EQ(names_->GetXattr(file, kAccessAclName, &stored), Errno::kOk);
  EXPECT_EQ(Acl::Parse(stored)->PermissionBits(), 0640u) << "chmod changes the mask";
  const std::string minimal = AclBytes({{ACL_USER_OBJ, 6}, {ACL_GROUP_OBJ, 4}, {ACL_OTHER, 4}});
  EXPECT_EQ(names_->SetXattr(file, kAccessAclName, minimal, 0, false), Errno::kOk);
  EXPECT_EQ(names_->GetXattr(file, kAccessAclName, &stored), Err(ENODATA)) << "the mode says as much";
  EXPECT_EQ(Get(file).st_mode & 0777, 0644u);
  EXPECT_EQ(names_->SetXattr(file, kDefaultAclName, minimal, 0, false), Err(EACCES)) << "not a directory";
}

TEST_F(NamespaceTest, AnAclThatIsRefusedChangesNothing) {
  const InodeNumber file = Make(kRootInode, "f", S_IFREG | 0644);
  ASSERT_EQ(names_->SetXattr(file, "user.full", std::string(100'000, 'x'), 0, false), Errno::kOk);
  const InodeNumber other = Make(kRootInode, "g");
  int i = 0;
  while (Ok(names_->SetXattr(other, absl::StrCat("user.", i++), std::string(20, 'x'), 0, false))) {
  }
  const std::string acl =
      AclBytes({{ACL_USER_OBJ, 7}, {ACL_USER, 6}, {ACL_GROUP_OBJ, 4}, {ACL_MASK, 6}, {ACL_OTHER, 0}});
  EXPECT_EQ(names_->SetXattr(file, kAccessAclName, acl, 0, false), Err(ENOSPC));
  EXPECT_EQ(Get(file).st_mode & 0777, 0644u);
}

TEST_F(NamespaceTest, ADefaultAclReplacesTheUmask) {
  const InodeNumber d = Make(kRootInode, "d", S_IFDIR | 0777);
  const std::string acl =
      AclBytes({{ACL_USER_OBJ, 7}, {ACL_USER, 7}, {ACL_GROUP_OBJ, 7}, {ACL_MASK, 7}, {ACL_OTHER, 5}});
  EXPECT_EQ(names_->SetXattr(d, kDefaultAclName, acl, 0, false), Errno::kOk);
  const InodeNumber file = Make(d, "f", S_IFREG | 0666, {1000, 1000, 077});
  EXPECT_EQ(Get(file).st_mode & 0777, 0664u);
  std::string stored;
  EXPECT_EQ(names_->GetXattr(file, kAccessAclName, &stored), Errno::kOk);
  EXPECT_EQ(names_->GetXattr(file, kDefaultAclName, &stored), Err(ENODATA));
  const InodeNumber below = Make(d, "e", S_IFDIR | 0777, {1000, 1000, 077});
  EXPECT_EQ(names_->GetXattr(below, kDefaultAclName, &stored), Errno::kOk);
  EXPECT_EQ(stored, acl);
}

TEST(AclTest, RefusesWhatIsNone) {
  EXPECT_FALSE(Acl::Parse(""));
  EXPECT_FALSE(Acl::Parse("nonsense"));
  EXPECT_FALSE(Acl::Parse(AclBytes({{ACL_USER_OBJ, 7}, {ACL_OTHER, 0}}))) << "no group";
  EXPECT_FALSE(Acl::Parse(AclBytes({{ACL_USER_OBJ, 8}, {ACL_GROUP_OBJ, 0}, {ACL_OTHER, 0}}))) << "no such permission";
  EXPECT_FALSE(Acl::Parse(AclBytes({{ACL_OTHER, 0}, {ACL_GROUP_OBJ, 0}, {ACL_USER_OBJ, 7}}))) << "out of order";
  EXPECT_FALSE(Acl::Parse(AclBytes({{ACL_USER_OBJ, 7}, {ACL_USER, 7}, {ACL_GROUP_OBJ, 0}, {ACL_OTHER, 0}})))
      << "names without a mask";
}

}  // namespace
}  // namespace nram
