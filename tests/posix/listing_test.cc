// Directories that change while they are read, on a tmpfs and on a mount: a listing ends, and on a mount it has all
// entries that remain.

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/test_seed.h"
#include "tests/util/test_mount.h"

namespace nram {
namespace {

struct Dirent64 {
  uint64_t inode;
  int64_t offset;
  uint16_t length;
  uint8_t type;
  char name[1];
};

// Reads `directory` through a small buffer and calls `between` after each read. Returns the names in the order of their
// arrival, or nothing if the listing does not end after `entries_max`.
std::optional<std::vector<std::string>> ListBetween(const std::string& directory, size_t entries_max,
                                                    const std::function<void(const std::string& last)>& between) {
  const UniqueFd fd(open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  EXPECT_TRUE(fd.valid()) << strerror(errno);
  std::vector<std::string> names;
  alignas(8) char buffer[200];
  while (names.size() <= entries_max) {
    const long n = syscall(SYS_getdents64, fd.get(), buffer, sizeof buffer);
    EXPECT_GE(n, 0) << strerror(errno);
    if (n <= 0) return names;
    for (long at = 0; at < n;) {
      const auto* const entry = reinterpret_cast<const Dirent64*>(buffer + at);
      const std::string name = entry->name;
      if (name != "." && name != "..") names.push_back(name);
      at += entry->length;
    }
    between(names.empty() ? "" : names.back());
  }
  return std::nullopt;
}

void Make(const std::string& path) { EXPECT_TRUE(UniqueFd(open(path.c_str(), O_CREAT | O_WRONLY, 0644)).valid()); }

class ListingTest : public ::testing::TestWithParam<const char*> {
 protected:
  ListingTest() {
    if (ours()) {
      mount_ = std::make_unique<NramMount>(std::vector<std::string>{"--backend=memory"});
    } else {
      tmpfs_ = std::make_unique<TmpfsMount>();
    }
    directory_ = (ours() ? mount_->path() : tmpfs_->path()) + "/d";
    EXPECT_EQ(mkdir(directory_.c_str(), 0755), 0);
  }
  bool ours() const { return std::string(GetParam()) == "Nram"; }
  std::string At(const std::string& name) const { return directory_ + "/" + name; }

  std::unique_ptr<NramMount> mount_;
  std::unique_ptr<TmpfsMount> tmpfs_;
  std::string directory_;
};
INSTANTIATE_TEST_SUITE_P(All, ListingTest, ::testing::Values("Tmpfs", "Nram"),
                         [](const auto& info) { return info.param; });

TEST_P(ListingTest, EndsWhenWhatItFindsIsRenamed) {
  constexpr int kFiles = 2'000;
  for (int i = 0; i < kFiles; ++i) Make(At(absl::StrCat("f", i)));
  int renamed = 0;
  const auto names = ListBetween(directory_, 4 * kFiles, [&](const std::string& last) {
    EXPECT_EQ(rename(At(last).c_str(), At(absl::StrCat("r", renamed++)).c_str()), 0);
  });
  ASSERT_TRUE(names.has_value()) << "it does not end";
  if (ours()) {
    EXPECT_EQ(names->size(), static_cast<size_t>(kFiles));
  }
}

TEST_P(ListingTest, EndsWhenWhatItFindsIsMadeAnew) {
  constexpr int kFiles = 2'000;
  for (int i = 0; i < kFiles; ++i) Make(At(absl::StrCat("f", i)));
  int made = 0;
  const auto names = ListBetween(directory_, 4 * kFiles, [&](const std::string& last) {
    EXPECT_EQ(link(At(last).c_str(), At(absl::StrCat("n", made++)).c_str()), 0);
    EXPECT_EQ(unlink(At(last).c_str()), 0);
  });
  EXPECT_TRUE(names.has_value()) << "it does not end";
}

// At random, names are added, removed and changed, move out and in, and replace each other. The listing ends
// everywhere. On a mount, it has an untouched entry once (tmpfs of Linux 6.18 gives some twice). So it has an entry
// whose name changes, and a name that gets another file.
TEST_P(ListingTest, SeesWhatStaysOnce) {
  std::mt19937_64 random(TestSeed());
  const auto pick = [&](uint64_t below) { return static_cast<int>(random() % below); };
  const std::string other = directory_ + "-other";
  ASSERT_EQ(mkdir(other.c_str(), 0755), 0);
  constexpr int kOfAKind = 150;
  int next = 0;
  for (int round = 0; round < 20; ++round) {
    std::map<int, std::string> wanders;  // by the prefix of its names
    std::set<std::string> goes;
    for (int i = 0; i < kOfAKind; ++i) {
      Make(At(absl::StrCat("stays", i)));
      Make(At(absl::StrCat("target", i)));
      wanders[i] = absl::StrCat("w", i, "-", next++);
      Make(At(wanders[i]));
      Make(At(*goes.insert(absl::StrCat("goes", next++)).first));
    }
    const auto change = [&] {
      const int which = pick(kOfAKind);
      switch (pick(7)) {
        case 0:
        case 1: {
          const std::string name = absl::StrCat("w", which, "-", next++);
          ASSERT_EQ(rename(At(wanders[which]).c_str(), At(name).c_str()), 0);
          wanders[which] = name;
          return;
        }
        case 2: {
          const std::string from = absl::StrCat("new", next++);
          Make(At(from));
          ASSERT_EQ(rename(At(from).c_str(), At(absl::StrCat("target", which)).c_str()), 0);
          return;
        }
        case 3:
          ASSERT_EQ(renameat2(AT_FDCWD, At(absl::StrCat("target", which)).c_str(), AT_FDCWD,
                              At(absl::StrCat("target", (which + 1) % kOfAKind)).c_str(), RENAME_EXCHANGE),
                    0);
          return;
        case 4:
          Make(At(*goes.insert(absl::StrCat("goes", next++)).first));
          return;
        case 5: {
          const auto it = goes.lower_bound(absl::StrCat("goes", pick(static_cast<uint64_t>(next))));
          if (it == goes.end()) return;
          ASSERT_EQ(unlink(At(*it).c_str()), 0);
          goes.erase(it);
          return;
        }
        default: {
          if (goes.empty()) return;
          const std::string out = other + "/out";
          ASSERT_EQ(rename(At(*goes.begin()).c_str(), out.c_str()), 0);
          ASSERT_EQ(rename(out.c_str(), At(*goes.begin()).c_str()), 0);
        }
      }
    };
    const auto names = ListBetween(directory_, 100 * kOfAKind, [&](const std::string&) {
      for (int i = pick(4); i > 0; --i) change();
    });
    ASSERT_TRUE(names.has_value()) << "it does not end";
    std::map<std::string, int> seen;
    for (const std::string& name : *names) ++seen[name.substr(0, name.find('-'))];
    for (int i = 0; ours() && i < kOfAKind; ++i) {
      EXPECT_EQ(seen[absl::StrCat("stays", i)], 1) << i;
      EXPECT_EQ(seen[absl::StrCat("target", i)], 1) << i;
      EXPECT_EQ(seen[absl::StrCat("w", i)], 1) << i;
    }
    ASSERT_EQ(system(absl::StrCat("rm -r ", directory_, " && mkdir ", directory_).c_str()), 0);
  }
}

}  // namespace
}  // namespace nram
