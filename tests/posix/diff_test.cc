// Several processes run the same random operations on a tmpfs and on a mount. Results, data read and the files
// afterwards must be the same. NRAM_OPS sets how many operations (default 40000), NRAM_SEED replays.

#include <errno.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/xattr.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <random>

#include "absl/base/config.h"
#include "base/host/host_memory.h"
#include "base/test_seed.h"
#include "base/units.h"
#include "tests/util/test_mount.h"

namespace nram {
namespace {

constexpr uint64_t kFileBytesMax = 3 << 20;
constexpr int kProcesses = 4;
#ifdef ABSL_HAVE_THREAD_SANITIZER
constexpr int kOperations = 8'000;
#else
constexpr int kOperations = 40'000;
#endif

// An operation's outcome: its result or -errno, and the data that it read.
struct Outcome {
  int64_t result = 0;
  std::string data;
  friend bool operator==(const Outcome&, const Outcome&) = default;
};

Outcome Of(int64_t result) { return {result < 0 ? -errno : result, ""}; }

// One process's operations on both sides.
class Exerciser {
 public:
  Exerciser(std::string tmpfs, std::string nram, uint64_t seed) : random_(seed) {
    root_[0] = std::move(tmpfs);
    root_[1] = std::move(nram);
    for (const auto& root : root_) {
      if (mkdir(root.c_str(), 0755) != 0) abort();
    }
  }
  ~Exerciser() {
    for (auto& file : open_) {
      close(file.fd[0]);
      close(file.fd[1]);
    }
  }

  // Returns the first difference; empty if there is none.
  std::string Run(int operations) {
    for (int i = 0; i < operations && failure_.empty(); ++i) {
      Step();
      if (i % 2000 == 1999 || i + 1 == operations) CompareTree("");
      if (!failure_.empty()) failure_ = absl::StrCat("operation ", i, ": ", failure_);
    }
    return failure_;
  }

 private:
  struct OpenFile {
    int fd[2];
    int flags;
  };

  uint64_t Random(uint64_t below) { return random_() % below; }
  template <typename T>
  T Pick(std::initializer_list<T> from) {
    return *(from.begin() + Random(from.size()));
  }

  // Runs `act` on both sides and compares.
  void Both(const std::string& what, const std::function<Outcome(int side)>& act) {
    Outcome outcomes[2];
    for (int side = 0; side < 2; ++side) {
      const int64_t began_ns = MonotonicNs();
      outcomes[side] = act(side);
      // The time is not checked. The line hints at a hidden wait that ends by its deadline.
      if (const int64_t took_ms = (MonotonicNs() - began_ns) / kNsPerMs; took_ms > 1'000) {
        std::cerr << what << " took " << took_ms << " ms on " << root_[side] << std::endl;
      }
    }
    if (outcomes[0] == outcomes[1]) return;
    size_t differs = 0;
    while (differs < std::min(outcomes[0].data.size(), outcomes[1].data.size()) &&
           outcomes[0].data[differs] == outcomes[1].data[differs]) {
      ++differs;
    }
    failure_ = absl::StrCat(what, ": tmpfs ", outcomes[0].result, " with ", outcomes[0].data.size(), " bytes, nram ",
                            outcomes[1].result, " with ", outcomes[1].data.size(), " bytes, data differ at ", differs,
                            outcomes[0].data.size() < 300 ? "\n" + outcomes[0].data + "\n" + outcomes[1].data : "");
  }

  std::string RandomDirectory() { return Pick<std::string>({"", "a/", "b/", "a/c/", "b/d/"}); }
  std::string RandomPath() {
    const std::string name =
        absl::StrCat(Pick<std::string>({"f", "g", "long-name-that-does-not-fit-inline-"}), Random(8));
    return RandomDirectory() + (Random(12) == 0 ? Pick<std::string>({"a", "b", "c", "d", "."}) : name);
  }
  std::string At(int side, const std::string& path) { return absl::StrCat(root_[side], "/", path); }

  // Offsets and lengths, often at or near edges.
  uint64_t RandomOffset() {
    const uint64_t base =
        Pick<uint64_t>({0, 1, 511, 512, 513, 4095, 4096, 4097, 65536, 262144, kSpanBytes, 2 * kSpanBytes});
    return Random(3) == 0 ? Random(kFileBytesMax) : base + Random(3) * Pick<uint64_t>({0, 1, 512, 4096});
  }
  uint64_t RandomLength() {
    return Random(8) == 0 ? Random(600'000)
                          : Pick<uint64_t>({1, 100, 511, 512, 513, 4095, 4096, 4097, 8192, 65536, 70'000});
  }
  std::string RandomData(uint64_t bytes) {
    std::string data(bytes, '\0');
    if (Random(6) == 0) return data;  // zeros
    const uint64_t word = random_();
    for (size_t i = 0; i < bytes; ++i) data[i] = static_cast<char>((word >> (i % 7 * 8)) + i / 97);
    return data;
  }

  void Step() {
    const uint64_t choice = Random(100);
    if (choice < 12) return OpenOne();
    if (choice < 16) return CloseOne();
    if (choice < 58) {
      if (open_.empty()) return OpenOne();
      return OnOpenFile(choice);
    }
    OnName(choice);
  }

  void OpenOne() {
    if (open_.size() >= 12) return CloseOne();
    const std::string path = RandomPath();
    int flags = Pick<int>({O_RDONLY, O_WRONLY, O_RDWR, O_RDWR, O_RDWR}) | O_CLOEXEC;
    if (Random(3) > 0) flags |= O_CREAT;
    if (Random(6) == 0) flags |= O_EXCL;
    if (Random(6) == 0) flags |= O_TRUNC;
    if (Random(6) == 0) flags |= O_APPEND;
    if (Random(10) == 0) flags |= O_NOFOLLOW;
    if (Random(12) == 0) flags |= O_DIRECTORY;
    if ((flags & O_DIRECTORY) != 0) flags &= ~(O_CREAT | O_EXCL);
    flags |= O_NONBLOCK;  // FIFOs have no process at the other end
    const bool unnamed = Random(25) == 0;
    if (unnamed) flags = O_TMPFILE | O_RDWR | O_CLOEXEC;
    const mode_t mode = Pick<mode_t>({0644, 0600, 0755, 04755, 02711});
    OpenFile file{{-1, -1}, flags};
    Both(absl::StrCat("open ", path, " flags ", flags), [&](int side) {
      const std::string target = unnamed ? At(side, RandomDirectoryOf(path)) : At(side, path);
      file.fd[side] = open(target.c_str(), flags, mode);
      return Of(file.fd[side] < 0 ? -1 : 0);
    });
    if (file.fd[0] >= 0 && file.fd[1] >= 0) open_.push_back(file);
  }
  static std::string RandomDirectoryOf(const std::string& path) { return path.substr(0, path.rfind('/') + 1); }

  void CloseOne() {
    if (open_.empty()) return;
    const size_t which = Random(open_.size());
    Both("close", [&](int side) { return Of(close(open_[which].fd[side])); });
    open_.erase(open_.begin() + static_cast<ptrdiff_t>(which));
  }

  void OnOpenFile(uint64_t choice) {
    OpenFile& file = open_[Random(open_.size())];
    const uint64_t offset = RandomOffset();
    const uint64_t length = RandomLength();
    if (choice < 28) {
      const std::string data = RandomData(length);
      Both(absl::StrCat("pwrite ", offset, "+", length),
           [&](int side) { return Of(pwrite(file.fd[side], data.data(), data.size(), static_cast<off_t>(offset))); });
    } else if (choice < 40) {
      Both(absl::StrCat("pread ", offset, "+", length), [&](int side) {
        std::string data(length, 'x');
        const ssize_t n = pread(file.fd[side], data.data(), length, static_cast<off_t>(offset));
        Outcome outcome = Of(n);
        outcome.data = data.substr(0, static_cast<size_t>(std::max<ssize_t>(n, 0)));
        return outcome;
      });
    } else if (choice < 43) {
      const std::string data = RandomData(length % 5000);
      Both("write", [&](int side) { return Of(write(file.fd[side], data.data(), data.size())); });
    } else if (choice < 45) {
      Both(absl::StrCat("ftruncate ", offset),
           [&](int side) { return Of(ftruncate(file.fd[side], static_cast<off_t>(offset))); });
    } else if (choice < 48) {
      const int mode = Pick<int>({0, FALLOC_FL_KEEP_SIZE, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE,
                                  FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE});
      Both(absl::StrCat("fallocate mode ", mode, " ", offset, "+", length), [&](int side) {
        return Of(fallocate(file.fd[side], mode, static_cast<off_t>(offset), static_cast<off_t>(length)));
      });
    } else if (choice < 50) {
      Both("fsync", [&](int side) { return Of(fsync(file.fd[side])); });
    } else if (choice < 53) {
      Mapped(file, offset, length % 70'000);
    } else if (choice < 55) {
      OpenFile& to = open_[Random(open_.size())];
      const uint64_t to_offset = RandomOffset();
      Both("copy_file_range", [&](int side) {
        // Short copies are allowed: go on to the end.
        off64_t from_at = static_cast<off64_t>(offset), to_at = static_cast<off64_t>(to_offset);
        int64_t sum = 0;
        while (sum < static_cast<int64_t>(length)) {
          const ssize_t n =
              copy_file_range(file.fd[side], &from_at, to.fd[side], &to_at, length - static_cast<uint64_t>(sum), 0);
          if (n < 0 && sum == 0) return Of(-1);
          if (n <= 0) break;
          sum += n;
        }
        return Of(sum);
      });
    } else if (choice < 56) {
      Direct(file);
    } else if (choice < 57) {
      Seek(file);
    } else {
      Both("fstat", [&](int side) { return Stat(fstatat64Of(file.fd[side])); });
    }
  }

  static std::function<int(struct stat*)> fstatat64Of(int fd) {
    return [fd](struct stat* attr) { return fstat(fd, attr); };
  }

  void Mapped(const OpenFile& file, uint64_t offset, uint64_t length) {
    if ((file.flags & O_ACCMODE) != O_RDWR || (file.flags & O_DIRECTORY) != 0 || length == 0) return;
    const uint64_t start = offset / 4096 * 4096;
    const std::string data = RandomData(length);
    Both(absl::StrCat("mmap ", start, "+", length), [&](int side) -> Outcome {
      struct stat attr;
      if (fstat(file.fd[side], &attr) != 0) return Of(-1);
      if (!S_ISREG(attr.st_mode) || static_cast<uint64_t>(attr.st_size) < start + length) return {0, "too short"};
      void* at = mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, file.fd[side], static_cast<off_t>(start));
      if (at == MAP_FAILED) return Of(-1);
      Outcome outcome{0, std::string(static_cast<char*>(at), length)};
      memcpy(at, data.data(), length);
      if (length % 2 == 0) outcome.result = msync(at, length, MS_SYNC);
      munmap(at, length);
      return outcome;
    });
  }

  // O_DIRECT by a second descriptor, beside the page cache's data.
  void Direct(const OpenFile& file) {
    if ((file.flags & O_ACCMODE) != O_RDWR) return;
    const uint64_t offset = Random(64) * 4096;
    const uint64_t length = (1 + Random(16)) * 4096;
    const bool writes = Random(2) == 0;
    const std::string data = RandomData(length);
    Both(absl::StrCat(writes ? "direct write " : "direct read ", offset, "+", length), [&](int side) -> Outcome {
      const int fd = open(absl::StrCat("/proc/self/fd/", file.fd[side]).c_str(), O_RDWR | O_DIRECT | O_CLOEXEC);
      if (fd < 0) return Of(-1);
      void* buffer = nullptr;
      if (posix_memalign(&buffer, 4096, length) != 0) abort();
      memcpy(buffer, data.data(), length);
      const ssize_t n = writes ? pwrite(fd, buffer, length, static_cast<off_t>(offset))
                               : pread(fd, buffer, length, static_cast<off_t>(offset));
      Outcome outcome = Of(n);
      if (!writes && n > 0) outcome.data.assign(static_cast<char*>(buffer), static_cast<size_t>(n));
      free(buffer);
      close(fd);
      return outcome;
    });
  }

  // The filesystem chooses where holes are. But its holes must read as zeros, and the seeks must end.
  void Seek(const OpenFile& file) {
    if ((file.flags & O_ACCMODE) == O_WRONLY || (file.flags & O_DIRECTORY) != 0) return;
    struct stat attr;
    if (fstat(file.fd[1], &attr) != 0 || !S_ISREG(attr.st_mode)) return;
    off_t at = 0;
    while (at < attr.st_size) {
      const off_t data = lseek(file.fd[1], at, SEEK_DATA);
      const off_t hole_end = data < 0 ? attr.st_size : data;
      if (data < 0 && errno != ENXIO) failure_ = "SEEK_DATA fails";
      std::string hole(static_cast<size_t>(hole_end - at), 'x');
      if (pread(file.fd[1], hole.data(), hole.size(), at) != static_cast<ssize_t>(hole.size()) ||
          hole.find_first_not_of('\0') != std::string::npos) {
        failure_ = absl::StrCat("SEEK_DATA calls ", at, " to ", hole_end, " a hole, and it is not");
      }
      if (data < 0 || !failure_.empty()) break;
      at = lseek(file.fd[1], data, SEEK_HOLE);
      if (at <= data) failure_ = absl::StrCat("SEEK_HOLE at ", data, " says ", at);
      if (!failure_.empty()) break;
    }
    // The seeks moved the position; put both where they are the same.
    for (const int fd : file.fd) lseek(fd, 0, SEEK_SET);
  }

  static Outcome Stat(const std::function<int(struct stat*)>& get) {
    struct stat attr;
    if (get(&attr) != 0) return Of(-1);
    const bool directory = S_ISDIR(attr.st_mode);
    return {0, absl::StrCat(attr.st_mode, " links ", attr.st_nlink, " owner ", attr.st_uid, ":", attr.st_gid, " size ",
                            directory ? 0 : attr.st_size, " rdev ", attr.st_rdev)};
  }

  void OnName(uint64_t choice) {
    const std::string path = RandomPath();
    const std::string other = RandomPath();
    const auto on_path = [&](const char* what, const std::function<int64_t(const char*)>& act) {
      Both(absl::StrCat(what, " ", path), [&](int side) { return Of(act(At(side, path).c_str())); });
    };
    if (choice < 62) {
      Both("stat " + path,
           [&](int side) { return Stat([&](struct stat* attr) { return lstat(At(side, path).c_str(), attr); }); });
    } else if (choice < 66) {
      on_path("unlink", [](const char* at) { return unlink(at); });
    } else if (choice < 72) {
      const unsigned flags = Pick<unsigned>({0, 0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE});
      Both(absl::StrCat("rename ", path, " to ", other, " flags ", flags), [&](int side) {
        return Of(renameat2(AT_FDCWD, At(side, path).c_str(), AT_FDCWD, At(side, other).c_str(), flags));
      });
    } else if (choice < 75) {
      Both(absl::StrCat("link ", path, " to ", other),
           [&](int side) { return Of(link(At(side, path).c_str(), At(side, other).c_str())); });
    } else if (choice < 77) {
      Both("symlink " + path, [&](int side) { return Of(symlink(other.c_str(), At(side, path).c_str())); });
    } else if (choice < 78) {
      Both("readlink " + path, [&](int side) {
        char target[4096];
        const ssize_t n = readlink(At(side, path).c_str(), target, sizeof target);
        Outcome outcome = Of(n);
        if (n > 0) outcome.data.assign(target, static_cast<size_t>(n));
        return outcome;
      });
    } else if (choice < 82) {
      const std::string directory = Pick<std::string>({"a", "b", "a/c", "b/d", path});
      Both("mkdir " + directory, [&](int side) { return Of(mkdir(At(side, directory).c_str(), 0750)); });
    } else if (choice < 83) {
      const std::string directory = Pick<std::string>({"a", "b", "a/c", "b/d", path});
      Both("rmdir " + directory, [&](int side) { return Of(rmdir(At(side, directory).c_str())); });
    } else if (choice < 85) {
      const mode_t mode = Random(010000);
      on_path("chmod", [&](const char* at) { return chmod(at, mode); });
    } else if (choice < 86) {
      const uid_t uid = Pick<uid_t>({0, 1000, static_cast<uid_t>(-1)});
      on_path("chown", [&](const char* at) { return lchown(at, uid, 100); });
    } else if (choice < 88) {
      const timespec times[2] = {{static_cast<time_t>(Random(1u << 31)), 123'456'789}, {-5, 1}};
      on_path("utimensat", [&](const char* at) { return utimensat(AT_FDCWD, at, times, AT_SYMLINK_NOFOLLOW); });
      Both("times of " + path, [&](int side) {
        struct stat attr;
        if (lstat(At(side, path).c_str(), &attr) != 0) return Of(-1);
        return Outcome{0, absl::StrCat(attr.st_atim.tv_sec, ".", attr.st_atim.tv_nsec, " ", attr.st_mtim.tv_sec, ".",
                                       attr.st_mtim.tv_nsec)};
      });
    } else if (choice < 90) {
      const uint64_t size = RandomOffset();
      on_path("truncate", [&](const char* at) { return truncate(at, static_cast<off_t>(size)); });
    } else if (choice < 94) {
      Xattrs(path);
    } else if (choice < 96) {
      const mode_t type = Pick<mode_t>({S_IFIFO, S_IFSOCK, S_IFCHR, S_IFREG, S_IFBLK});
      on_path("mknod", [&](const char* at) { return mknod(at, type | 0640, makedev(1, 3)); });
    } else if (choice < 97) {
      // Data that is not cached must be the same too.
      for (const auto& file : open_) (void)!posix_fadvise(file.fd[1], 0, 0, POSIX_FADV_DONTNEED);
    } else {
      CompareDirectory(RandomDirectory());
    }
  }

  void Xattrs(const std::string& path) {
    const std::string name = absl::StrCat(Pick<std::string>({"user.", "trusted.", "security."}), "x", Random(3));
    const uint64_t what = Random(4);
    const std::string value = RandomData(Random(200));
    const int flags = Pick<int>({0, 0, XATTR_CREATE, XATTR_REPLACE});
    Both(absl::StrCat("xattr ", what, " ", name, " of ", path), [&](int side) {
      const std::string at = At(side, path);
      if (what == 0) return Of(lsetxattr(at.c_str(), name.c_str(), value.data(), value.size(), flags));
      if (what == 1) return Of(lremovexattr(at.c_str(), name.c_str()));
      char buffer[4096];
      const ssize_t n = what == 2 ? lgetxattr(at.c_str(), name.c_str(), buffer, sizeof buffer)
                                  : llistxattr(at.c_str(), buffer, sizeof buffer);
      Outcome outcome = Of(n);
      if (n > 0 && what == 2) outcome.data.assign(buffer, static_cast<size_t>(n));
      return outcome;
    });
  }

  std::vector<std::string> List(int side, const std::string& path) {
    std::vector<std::string> names;
    DIR* const directory = opendir(At(side, path).c_str());
    if (directory == nullptr) return {absl::StrCat("errno ", errno)};
    while (const dirent* entry = readdir(directory)) names.push_back(absl::StrCat(entry->d_name, " ", entry->d_type));
    closedir(directory);
    std::sort(names.begin(), names.end());
    return names;
  }

  void CompareDirectory(const std::string& path) {
    Both("readdir " + path, [&](int side) {
      Outcome outcome;
      for (const std::string& name : List(side, path)) absl::StrAppend(&outcome.data, name, "\n");
      return outcome;
    });
  }

  void CompareTree(const std::string& path) {
    CompareDirectory(path);
    for (const std::string& entry : List(0, path)) {
      const std::string name = path + entry.substr(0, entry.rfind(' '));
      if (name.back() == '.' || !failure_.empty()) continue;
      Both("stat " + name,
           [&](int side) { return Stat([&](struct stat* attr) { return lstat(At(side, name).c_str(), attr); }); });
      struct stat attr;
      if (lstat(At(0, name).c_str(), &attr) != 0) continue;
      if (S_ISDIR(attr.st_mode)) CompareTree(name + "/");
      if (!S_ISREG(attr.st_mode)) continue;
      Both("content of " + name, [&](int side) {
        const auto text = ReadFile(At(side, name));
        return Outcome{text.ok() ? 0 : -1, text.value_or("")};
      });
    }
  }

  std::string root_[2];
  std::mt19937_64 random_;
  std::vector<OpenFile> open_;
  std::string failure_;
};

void RunBoth(const std::vector<std::string>& flags) {
  const uint64_t seed = TestSeed();
  const char* given = std::getenv("NRAM_OPS");
  const int operations = given != nullptr ? atoi(given) : kOperations;
  TmpfsMount tmpfs;
  NramMount nram(flags);
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      umask(022);
      signal(SIGPIPE, SIG_IGN);
      std::string failure;
      {
        Exerciser exerciser(absl::StrCat(tmpfs.path(), "/p", i), absl::StrCat(nram.path(), "/p", i), seed + i);
        failure = exerciser.Run(operations / kProcesses);
      }
      if (!failure.empty()) std::cerr << "process " << i << ", " << failure << std::endl;
      _exit(failure.empty() ? 0 : 1);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    EXPECT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST(DiffTest, OnThePool) {
  PoolForTest pool;
  RunBoth({"--pool=" + pool.spec()});
}

TEST(DiffTest, WithoutWriteback) {
  PoolForTest pool;
  RunBoth({"--pool=" + pool.spec(), "--no-writeback"});
}

TEST(DiffTest, InMemory) { RunBoth({"--backend=memory", "--size=1G"}); }

}  // namespace
}  // namespace nram
