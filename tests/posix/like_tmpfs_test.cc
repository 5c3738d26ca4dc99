// Operations that random ones (diff_test) seldom meet, done to a tmpfs and to a mount: set-id bits, many extended
// attributes, file handles, writes past the page cache.

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/aio_abi.h>
#include <linux/falloc.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/host/host_memory.h"
#include "base/test_seed.h"
#include "base/units.h"
#include "tests/util/test_mount.h"

namespace nram {
namespace {

UniqueFd Open(const std::string& path, int flags = O_RDWR | O_CREAT) {
  return UniqueFd(open(path.c_str(), flags | O_CLOEXEC, 0644));
}

void DropInodes() {
  sync();
  const UniqueFd fd = Open("/proc/sys/vm/drop_caches", O_WRONLY);
  EXPECT_EQ(write(fd.get(), "3", 1), 1);
}

// "Tmpfs", "Nram" or "NramWithoutWriteback".
class LikeTmpfsTest : public ::testing::TestWithParam<const char*> {
 protected:
  LikeTmpfsTest() {
    if (!ours()) {
      tmpfs_ = std::make_unique<TmpfsMount>();
      return;
    }
    pool_ = std::make_unique<PoolForTest>();
    std::vector<std::string> flags = {"--pool=" + pool_->spec(), "--mode=777"};
    if (std::string(GetParam()) == "NramWithoutWriteback") flags.push_back("--no-writeback");
    mount_ = std::make_unique<NramMount>(flags);
  }
  bool ours() const { return std::string(GetParam()) != "Tmpfs"; }
  const std::string& root() const { return ours() ? mount_->path() : tmpfs_->path(); }
  std::string At(const std::string& name) const { return root() + "/" + name; }

  std::unique_ptr<PoolForTest> pool_;
  std::unique_ptr<NramMount> mount_;
  std::unique_ptr<TmpfsMount> tmpfs_;
};
INSTANTIATE_TEST_SUITE_P(All, LikeTmpfsTest, ::testing::Values("Tmpfs", "Nram", "NramWithoutWriteback"),
                         [](const auto& info) { return info.param; });

constexpr char kAccessAcl[] = "system.posix_acl_access";
constexpr gid_t kGroup = 100;
constexpr uid_t kUser = 1000;

std::string AclBytes(std::vector<std::pair<int, int>> entries) {
  const posix_acl_xattr_header header{POSIX_ACL_XATTR_VERSION};
  std::string bytes(reinterpret_cast<const char*>(&header), sizeof header);
  for (const auto& [tag, permissions] : entries) {
    const posix_acl_xattr_entry entry{static_cast<uint16_t>(tag), static_cast<uint16_t>(permissions), 1234};
    bytes.append(reinterpret_cast<const char*>(&entry), sizeof entry);
  }
  return bytes;
}

// Runs `what` on `path` as an unprivileged user, a member of kGroup if `member`; returns its errno.
int AsUser(bool member, const std::function<int(const char*)>& what, const std::string& path) {
  const pid_t child = fork();
  if (child == 0) {
    const gid_t groups[] = {77, kGroup};
    if (setgroups(member ? 2 : 1, groups) != 0 || setgid(kUser) != 0 || setuid(kUser) != 0) _exit(255);
    _exit(what(path.c_str()) < 0 ? errno : 0);
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status));
  return WEXITSTATUS(status);
}

TEST_P(LikeTmpfsTest, SetIdBitsGoWithWhatOthersChange) {
  const auto opened = [](auto change, int flags = O_RDWR) {
    return [change, flags](const char* path) -> int {
      const int fd = open(path, flags | O_CLOEXEC);
      return fd < 0 ? -1 : static_cast<int>(change(fd));
    };
  };
  alignas(4096) static char block[4096] = "direct";
  const std::string acl =
      AclBytes({{ACL_USER_OBJ, 6}, {ACL_USER, 6}, {ACL_GROUP_OBJ, 6}, {ACL_MASK, 6}, {ACL_OTHER, 6}});
  const std::string minimal = AclBytes({{ACL_USER_OBJ, 6}, {ACL_GROUP_OBJ, 6}, {ACL_OTHER, 6}});
  const std::vector<std::pair<std::string, std::function<int(const char*)>>> operations = {
      {"write", opened([](int fd) { return pwrite(fd, "x", 1, 10); })},
      {"append", opened([](int fd) { return write(fd, "x", 1); }, O_WRONLY | O_APPEND)},
      {"direct write", opened([](int fd) { return pwrite(fd, block, sizeof block, 0); }, O_WRONLY | O_DIRECT)},
      {"truncate", [](const char* path) { return truncate(path, 5); }},
      {"fallocate", opened([](int fd) { return fallocate(fd, 0, 0, 100'000); })},
      {"punch", opened([](int fd) { return fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4'096); })},
      {"copy", opened([](int fd) {
         off_t from = 0, to = 8'192;
         return copy_file_range(fd, &from, fd, &to, 4'096, 0);
       })},
      {"chgrp", [](const char* path) { return chown(path, -1, kUser); }},
      {"setfacl", [&](const char* path) { return setxattr(path, kAccessAcl, acl.data(), acl.size(), 0); }},
      {"setfacl minimal",
       [&](const char* path) { return setxattr(path, kAccessAcl, minimal.data(), minimal.size(), 0); }},
      {"setfacl -b", [](const char* path) { return removexattr(path, kAccessAcl); }},
      {"chmod", [](const char* path) { return chmod(path, 06666); }},
      {"zero", opened([](int fd) { return fallocate(fd, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, 4'096); })},
  };
  // The reference is a tmpfs that runs beside the mount (written on Linux 6.18).
  const TmpfsMount reference;
  const std::string data(16'384, 'a');
  for (const auto& [name, operation] : operations) {
    if (!ours() && name == "zero") continue;  // tmpfs does not have it; it should act like a hole
    for (const mode_t mode : {02666u, 02676u, 04666u, 06666u, 06777u, 0666u}) {
      for (const bool member : {true, false}) {
        for (const uid_t owner : {uid_t{0}, kUser}) {
          mode_t after[2];
          int error[2];
          for (const bool theirs : {true, false}) {
            const std::string path = (theirs ? reference.path() : root()) + "/f";
            EXPECT_EQ(chmod((theirs ? reference.path() : root()).c_str(), 0777), 0);
            {
              const UniqueFd fd = Open(path);
              EXPECT_EQ(write(fd.get(), data.data(), data.size()), static_cast<ssize_t>(data.size()));
            }
            EXPECT_EQ(chown(path.c_str(), owner, kGroup), 0);
            EXPECT_EQ(chmod(path.c_str(), mode), 0);
            const bool as_punch = theirs && name == "zero";
            error[theirs] = AsUser(member, as_punch ? operations[5].second : operation, path);
            struct stat attr {};
            EXPECT_EQ(stat(path.c_str(), &attr), 0);
            after[theirs] = attr.st_mode & 07777;
            EXPECT_EQ(unlink(path.c_str()), 0);
          }
          EXPECT_EQ(error[0], error[1]) << name;
          EXPECT_EQ(after[0], after[1]) << name << " of mode " << std::oct << mode << " by " << (member ? "" : "no ")
                                        << "member, owner " << std::dec << owner << ", errno " << error[1];
        }
      }
    }
  }
}

// Nothing is to be changed, and yet it is a chown.
TEST_P(LikeTmpfsTest, AChownToNobodyIsTheOwnersAndClearsSetIdBits) {
  const TmpfsMount reference;
  const bool tells_strangers = std::string(GetParam()) != "NramWithoutWriteback";  // docs/semantics.md
  for (const mode_t mode : {02666u, 02676u, 04666u, 06777u, 0666u}) {
    for (const bool member : {true, false}) {
      for (const uid_t owner : {uid_t{0}, kUser}) {
        if (owner != kUser && !tells_strangers) continue;
        mode_t after[2];
        int error[2];
        for (const bool theirs : {true, false}) {
          const std::string& directory = theirs ? reference.path() : root();
          EXPECT_EQ(chmod(directory.c_str(), 0777), 0);
          const std::string path = directory + "/f";
          EXPECT_TRUE(Open(path).valid());
          EXPECT_EQ(chown(path.c_str(), owner, kGroup), 0);
          EXPECT_EQ(chmod(path.c_str(), mode), 0);
          error[theirs] = AsUser(
              member, [](const char* it) { return chown(it, -1, -1); }, path);
          struct stat attr {};
          EXPECT_EQ(stat(path.c_str(), &attr), 0);
          after[theirs] = attr.st_mode & 07777;
          EXPECT_EQ(unlink(path.c_str()), 0);
        }
        EXPECT_EQ(error[0], error[1]) << "mode " << std::oct << mode << ", owner " << std::dec << owner;
        EXPECT_EQ(after[0], after[1]) << "mode " << std::oct << mode << ", owner " << std::dec << owner;
      }
    }
  }
}

// tar and older programs take a file without blocks for one hole, and do not read it.
TEST_P(LikeTmpfsTest, AFileWithDataHasBlocksAtOnce) {
  for (int i = 0; i < 50; ++i) {
    const std::string path = At("f");
    const UniqueFd fd = Open(path);
    EXPECT_EQ(ftruncate(fd.get(), i % 2 << 20), 0);
    const std::string data(1 + i * 997, 'd');
    EXPECT_EQ(pwrite(fd.get(), data.data(), data.size(), 5), static_cast<ssize_t>(data.size()));
    struct stat attr {};
    EXPECT_EQ(fstat(fd.get(), &attr), 0);
    EXPECT_GT(attr.st_blocks, 0) << "of " << data.size() << " bytes, by the descriptor";
    EXPECT_EQ(stat(path.c_str(), &attr), 0);
    EXPECT_GT(attr.st_blocks, 0) << "of " << data.size() << " bytes, by the name";
    EXPECT_EQ(unlink(path.c_str()), 0);
  }
}

// A log or table of a database: space is kept behind the end, then some of it is written, and the rest is given back.
TEST_P(LikeTmpfsTest, TruncationToThePresentSizeGivesBackWhatIsBehindTheEnd) {
  const std::string data(9'000, 'r');
  for (const bool synced : {true, false}) {
    const UniqueFd fd = Open(At("f"));
    ASSERT_EQ(fallocate(fd.get(), FALLOC_FL_KEEP_SIZE, 0, 4 << 20), 0);
    ASSERT_EQ(pwrite(fd.get(), data.data(), data.size(), 0), static_cast<ssize_t>(data.size()));
    ASSERT_TRUE(!synced || fsync(fd.get()) == 0);
    ASSERT_EQ(ftruncate(fd.get(), static_cast<off_t>(data.size())), 0);
    EXPECT_EQ(fsync(fd.get()), 0);
    struct stat attr {};
    EXPECT_EQ(fstat(fd.get(), &attr), 0);
    EXPECT_EQ(attr.st_size, static_cast<off_t>(data.size()));
    EXPECT_LE(attr.st_blocks * 512, 3 * 4096);
    EXPECT_EQ(unlink(At("f").c_str()), 0);
  }
}

TEST_P(LikeTmpfsTest, ThousandsOfXattrs) {
  const std::string path = At("f");
  ASSERT_TRUE(Open(path).valid());
  const auto set = [&](int i) { return setxattr(path.c_str(), absl::StrCat("user.number", i).c_str(), "value", 5, 0); };
  for (int i = 0; i < 3'000; ++i) ASSERT_EQ(set(i), 0) << i << ": " << strerror(errno);
  std::string names(64 * kKiB, '\0');
  const ssize_t listed = listxattr(path.c_str(), names.data(), names.size());
  ASSERT_GT(listed, 0) << strerror(errno);
  EXPECT_EQ(listxattr(path.c_str(), nullptr, 0), listed);
  names.resize(static_cast<size_t>(listed));
  EXPECT_EQ(std::count(names.begin(), names.end(), '\0'), 3'000);
  char value[10];
  EXPECT_EQ(getxattr(path.c_str(), "user.number2999", value, sizeof value), 5);
  EXPECT_EQ(listxattr(path.c_str(), names.data(), 100), -1);
  EXPECT_EQ(errno, ERANGE);
  // More names than the kernel lets listxattr return.
  for (int i = 3'000; i < 5'000; ++i) ASSERT_EQ(set(i), 0) << i << ": " << strerror(errno);
  names.resize(256 * kKiB);
  EXPECT_EQ(listxattr(path.c_str(), names.data(), names.size()), -1);
  EXPECT_EQ(errno, E2BIG);
  EXPECT_EQ(getxattr(path.c_str(), "user.number4999", value, sizeof value), 5);
  for (int i = 0; i < 5'000; ++i) {
    EXPECT_EQ(removexattr(path.c_str(), absl::StrCat("user.number", i).c_str()), 0);
  }
  EXPECT_EQ(listxattr(path.c_str(), nullptr, 0), 0);
}

struct Handle {
  alignas(file_handle) char bytes[sizeof(file_handle) + MAX_HANDLE_SZ];
  file_handle* get() { return reinterpret_cast<file_handle*>(bytes); }
};

Handle HandleOf(const std::string& path) {
  Handle handle{};
  handle.get()->handle_bytes = MAX_HANDLE_SZ;
  int mount_id = 0;
  EXPECT_EQ(name_to_handle_at(AT_FDCWD, path.c_str(), handle.get(), &mount_id, 0), 0) << strerror(errno);
  return handle;
}

std::string NameOf(int i) { return absl::StrCat("file", i); }

TEST_P(LikeTmpfsTest, HandlesOpenWhatTheKernelHasForgotten) {
  const UniqueFd root_fd = Open(root(), O_RDONLY | O_DIRECTORY);
  ASSERT_EQ(mkdir(At("a").c_str(), 0755), 0);
  ASSERT_EQ(mkdir(At("a/b").c_str(), 0755), 0);
  std::vector<Handle> handles;
  for (int i = 0; i < 100; ++i) {
    const UniqueFd fd = Open(At("a/b/" + NameOf(i)));
    const std::string text = absl::StrCat("text ", i);
    ASSERT_EQ(write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
    handles.push_back(HandleOf(At("a/b/" + NameOf(i))));
  }
  Handle directory = HandleOf(At("a/b"));
  Handle top = HandleOf(root());
  ASSERT_EQ(rename(At("a/b").c_str(), At("c").c_str()), 0);
  for (int round = 0; round < 2; ++round) {
    DropInodes();
    for (int i = 0; i < 100; ++i) {
      const UniqueFd fd(open_by_handle_at(root_fd.get(), handles[static_cast<size_t>(i)].get(), O_RDONLY | O_CLOEXEC));
      ASSERT_TRUE(fd.valid()) << i << ": " << strerror(errno);
      char text[20] = "";
      EXPECT_GT(pread(fd.get(), text, sizeof text - 1, 0), 0);
      EXPECT_EQ(text, absl::StrCat("text ", i));
    }
    DropInodes();
    const UniqueFd fd(open_by_handle_at(root_fd.get(), directory.get(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
    ASSERT_TRUE(fd.valid()) << strerror(errno);
    EXPECT_EQ(faccessat(fd.get(), "file7", R_OK, 0), 0);
    struct stat above {
    }, attr{};
    EXPECT_EQ(fstatat(fd.get(), "..", &above, 0), 0);
    EXPECT_EQ(fstat(root_fd.get(), &attr), 0);
    EXPECT_EQ(above.st_ino, attr.st_ino);
  }
  const UniqueFd again(open_by_handle_at(root_fd.get(), top.get(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_TRUE(again.valid()) << strerror(errno);
}

TEST_P(LikeTmpfsTest, HandlesOfDeletedFilesAreStale) {
  const UniqueFd root_fd = Open(root(), O_RDONLY | O_DIRECTORY);
  const auto open_handle = [&](Handle* handle) {
    const UniqueFd fd(open_by_handle_at(root_fd.get(), handle->get(), O_RDONLY | O_CLOEXEC));
    return fd.valid() ? 0 : errno;
  };
  for (const bool forgotten : {false, true}) {
    std::vector<Handle> handles;
    for (int i = 0; i < 50; ++i) {
      ASSERT_TRUE(Open(At(NameOf(i))).valid());
      handles.push_back(HandleOf(At(NameOf(i))));
    }
    if (forgotten) DropInodes();
    for (int i = 0; i < 50; ++i) ASSERT_EQ(unlink(At(NameOf(i)).c_str()), 0);
    for (Handle& handle : handles) EXPECT_EQ(open_handle(&handle), ESTALE);
    DropInodes();
    for (Handle& handle : handles) EXPECT_EQ(open_handle(&handle), ESTALE);
    // New files take their places, whether or not the kernel knows them.
    std::vector<Handle> others;
    for (int i = 0; i < 100; ++i) {
      ASSERT_TRUE(Open(At(NameOf(i))).valid());
      others.push_back(HandleOf(At(NameOf(i))));
    }
    for (int round = 0; round < 2; ++round) {
      for (Handle& handle : handles) EXPECT_EQ(open_handle(&handle), ESTALE);
      for (Handle& handle : others) EXPECT_EQ(open_handle(&handle), 0);
      DropInodes();
    }
    for (int i = 0; i < 100; ++i) ASSERT_EQ(unlink(At(NameOf(i)).c_str()), 0);
  }
}

// While a write past the page cache is under way, others read the same pages. When it has ended, reads return the new
// data. Linux drops the cached pages of the range before such a write, and after a write that a thread waits for.
TEST_P(LikeTmpfsTest, AsynchronousDirectWritesAreSeen) {
  constexpr int kPages = 8;
  const std::string path = At("f");
  const std::string empty(kPages * kPageBytes, '\0');
  {
    const UniqueFd fd = Open(path);
    ASSERT_EQ(write(fd.get(), empty.data(), empty.size()), static_cast<ssize_t>(empty.size()));
    ASSERT_EQ(fsync(fd.get()), 0);
  }
  const UniqueFd direct = Open(path, O_RDWR | O_DIRECT);
  ASSERT_TRUE(direct.valid()) << strerror(errno);
  const UniqueFd cached = Open(path, O_RDONLY);
  aio_context_t context = 0;
  ASSERT_EQ(syscall(SYS_io_setup, 4, &context), 0);
  std::atomic<bool> stop{false};
  std::vector<std::thread> readers;
  for (int t = 0; t < 2; ++t) {
    readers.emplace_back([&, t] {
      std::mt19937_64 random(TestSeed() + static_cast<uint64_t>(t));
      const UniqueFd own = Open(path, O_RDONLY);
      char page[kPageBytes];
      while (!stop) {
        EXPECT_EQ(pread(own.get(), page, sizeof page, static_cast<off_t>(random() % kPages * kPageBytes)),
                  static_cast<ssize_t>(sizeof page));
      }
    });
  }
  std::mt19937_64 random(TestSeed() + 99);
  alignas(kPageBytes) static char page[kPageBytes];
  char got[kPageBytes];
  int stale = 0;
  for (int i = 1; i <= 4'000; ++i) {
    const auto at = static_cast<off_t>(random() % kPages * kPageBytes);
    for (size_t word = 0; word < sizeof page; word += sizeof i) memcpy(page + word, &i, sizeof i);
    iocb write{};
    write.aio_lio_opcode = IOCB_CMD_PWRITE;
    write.aio_fildes = static_cast<uint32_t>(direct.get());
    write.aio_buf = reinterpret_cast<uint64_t>(page);
    write.aio_nbytes = sizeof page;
    write.aio_offset = at;
    iocb* list[] = {&write};
    ASSERT_EQ(syscall(SYS_io_submit, context, 1, list), 1) << strerror(errno);
    io_event event{};
    ASSERT_EQ(syscall(SYS_io_getevents, context, 1, 1, &event, nullptr), 1);
    ASSERT_EQ(event.res, static_cast<int64_t>(sizeof page));
    ASSERT_EQ(pread(cached.get(), got, sizeof got, at), static_cast<ssize_t>(sizeof got));
    stale += memcmp(got, page, sizeof page) != 0;
  }
  stop = true;
  for (auto& reader : readers) reader.join();
  syscall(SYS_io_destroy, context);
  EXPECT_EQ(stale, 0);
}

// The access time after a read that the kernel's cache cannot answer, of a file whose access time is old.
time_t AccessTimeAfterRead(const std::string& path, int flags) {
  {
    const UniqueFd fd = Open(path);
    EXPECT_EQ(write(fd.get(), "text", 4), 4);
    const timespec old[2] = {{1'000, 0}, {0, UTIME_NOW}};
    EXPECT_EQ(futimens(fd.get(), old), 0);
    EXPECT_EQ(fsync(fd.get()), 0);
  }
  DropInodes();
  const UniqueFd fd = Open(path, O_RDONLY | flags);
  EXPECT_TRUE(fd.valid()) << strerror(errno);
  char text[10];
  EXPECT_EQ(read(fd.get(), text, sizeof text), 4);
  struct stat attr {};
  // Makes the kernel forget the inode, so that stat asks the daemon.
  DropInodes();
  EXPECT_EQ(stat(path.c_str(), &attr), 0);
  return attr.st_atim.tv_sec;
}

TEST_P(LikeTmpfsTest, AccessTimes) {
  EXPECT_GT(AccessTimeAfterRead(At("f"), 0), 1'000);
  EXPECT_EQ(AccessTimeAfterRead(At("f"), O_NOATIME), 1'000);
}

TEST(AccessTimeTest, NoatimeAndNodiratimeHold) {
  for (const std::string& option : std::vector<std::string>{"noatime", "nodiratime"}) {
    NramMount mount({"--backend=memory", "--mount-options=" + option});
    const time_t after = AccessTimeAfterRead(mount.path() + "/f", 0);
    EXPECT_EQ(after == 1'000, option == "noatime");
    const std::string directory = mount.path() + "/d";
    ASSERT_EQ(mkdir(directory.c_str(), 0755), 0);
    const timespec old[2] = {{1'000, 0}, {0, UTIME_NOW}};
    ASSERT_EQ(utimensat(AT_FDCWD, directory.c_str(), old, 0), 0);
    DIR* const listing = opendir(directory.c_str());
    while (readdir(listing) != nullptr) {
    }
    closedir(listing);
    DropInodes();
    struct stat attr {};
    ASSERT_EQ(stat(directory.c_str(), &attr), 0);
    EXPECT_EQ(attr.st_atim.tv_sec, 1'000) << option;
  }
}

}  // namespace
}  // namespace nram
