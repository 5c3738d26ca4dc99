#ifndef NRAM_TESTS_UTIL_TEST_MOUNT_H_
#define NRAM_TESTS_UTIL_TEST_MOUNT_H_

// Real mounts for tests: nram-fsd as a process on a pool of its own, and a tmpfs to compare it with.

#include <dirent.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/host/programs.h"
#include "base/poll_until.h"
#include "base/subprocess.h"
#include "gtest/gtest.h"
#include "tools/nram/local_pool.h"

namespace nram {

// A directory of its own under /tmp, removed at the end.
class TempDir {
 public:
  TempDir() {
    char path[] = "/tmp/nram-test-XXXXXX";
    path_ = mkdtemp(path);
  }
  ~TempDir() { (void)!system(absl::StrCat("rm -rf --one-file-system ", path_).c_str()); }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Daemons run elsewhere, so the thread sanitizer's suppressions (.bazelrc) need their whole path in the environment.
inline void SuppressForChildren() {
  static const bool done = [] {
    const char* const present = std::getenv("TSAN_OPTIONS");
    char path[PATH_MAX];
    if (present == nullptr || realpath("third_party/system/tsan_suppressions.txt", path) == nullptr) return false;
    return setenv("TSAN_OPTIONS", absl::StrCat(present, ":suppressions=", path).c_str(), 1) == 0;
  }();
  (void)done;
}

class TmpfsMount {
 public:
  TmpfsMount() { EXPECT_EQ(mount("nram-test", dir_.path().c_str(), "tmpfs", 0, "size=2g"), 0); }
  ~TmpfsMount() { EXPECT_EQ(umount2(dir_.path().c_str(), 0), 0); }
  const std::string& path() const { return dir_.path(); }

 private:
  TempDir dir_;
};

// A local pool for a test, ended with it.
class PoolForTest {
 public:
  // A busy machine may keep a sanitized daemon from renewing its lease for this time.
  explicit PoolForTest(int servers = 2, const std::string& donate = "512M", int lease_ttl_ms = 6'000) {
    SuppressForChildren();
    options_.directory = dir_.path() + "/pool";
    options_.servers = servers;
    options_.server_flags = {absl::StrCat("--donate=", donate), absl::StrCat("--lease-ttl-ms=", lease_ttl_ms)};
    options_.die_with_parent = true;
    auto servers_started = StartLocalPool(options_);
    EXPECT_TRUE(servers_started.ok()) << servers_started.status();
    if (servers_started.ok()) servers_ = *servers_started;
  }
  ~PoolForTest() {
    for (const LocalServer& server : servers_) kill(server.pid, SIGCONT);
    EXPECT_TRUE(StopLocalPool(options_.directory, 5'000).ok());
  }
  std::string spec() const { return options_.directory + "/pool"; }
  const std::vector<LocalServer>& servers() const { return servers_; }

 private:
  TempDir dir_;
  LocalPoolOptions options_;
  std::vector<LocalServer> servers_;
};

// A mount by nram-fsd, which dies with the test.
class NramMount {
 public:
  explicit NramMount(std::vector<std::string> flags) {
    const auto program = FindProgram("nram-fsd", "fsd", "NRAM_FSD");
    EXPECT_TRUE(program.ok()) << program.status();
    SuppressForChildren();
    const std::string ready = log_.path() + "/pid";
    std::vector<std::string> words = {*program, dir_.path(), "--foreground", "--pid-file=" + ready};
    words.insert(words.end(), flags.begin(), flags.end());
    const UniqueFd log(open((log_.path() + "/log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
    SubprocessOptions how;
    how.err = log.get();
    how.death_signal = SIGKILL;
    auto daemon = Subprocess::Start(words, how);
    EXPECT_TRUE(daemon.ok()) << daemon.status();
    if (daemon.ok()) daemon_ = *std::move(daemon);
    PollUntil(DeadlineAfterMs(20'000), 2,
              [&] { return access(ready.c_str(), F_OK) == 0 || daemon_.WaitUntil(0).has_value(); });
    running_ = daemon_.pid() > 0 && !daemon_.WaitUntil(0).has_value();
    EXPECT_EQ(access(ready.c_str(), F_OK), 0) << Log();
  }
  ~NramMount() {
    if (running_) {
      EXPECT_EQ(umount2(dir_.path().c_str(), 0), 0) << strerror(errno);
      EXPECT_EQ(AwaitEnd(), 0) << Log();
    }
    umount2(dir_.path().c_str(), MNT_DETACH);
    if (::testing::Test::HasFailure()) std::cerr << Log();
  }
  const std::string& path() const { return dir_.path(); }
  pid_t daemon() const { return daemon_.pid(); }
  // The daemon's exit status; -1 if it had to be killed or was. Afterwards the mount remains untouched.
  int AwaitEnd() {
    const auto ended = daemon_.WaitUntil(DeadlineAfterMs(30'000));
    if (!ended.has_value()) ADD_FAILURE() << "the daemon does not end; does somebody else have its mount?";
    daemon_.Kill();
    running_ = false;
    return ended.has_value() && ended->signal == 0 ? ended->code : -1;
  }
  std::string Log() const { return ReadFile(log_.path() + "/log").value_or("no log"); }

 private:
  TempDir dir_;
  TempDir log_;
  Subprocess daemon_;
  bool running_ = false;  // false after AwaitEnd has seen its end
};

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_TEST_MOUNT_H_
