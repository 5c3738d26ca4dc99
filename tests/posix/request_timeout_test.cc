// A site that limits the requests of FUSE mounts (fs.fuse.default_request_timeout): the kernel ends a mount with a
// request that takes longer. The sysctl is the whole machine's, so no other test may run beside this one.

#include <errno.h>
#include <fcntl.h>
#include <linux/fuse.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "base/fd.h"
#include "base/poll_until.h"
#include "base/units.h"
#include "tests/util/freeze.h"
#include "tests/util/test_mount.h"

namespace nram {
namespace {

const char* const kSysctl = "/proc/sys/fs/fuse/default_request_timeout";
// The kernel takes no shorter limit. It looks at the requests once in this time, so it ends a mount with a request of
// twice this time for certain.
constexpr int kLimitS = 15;

bool SetLimit(const std::string& value) {
  const UniqueFd fd(open(kSysctl, O_WRONLY | O_CLOEXEC));
  return fd.valid() && write(fd.get(), value.data(), value.size()) == static_cast<ssize_t>(value.size());
}

// Sets the limit, and puts the former one back by a process that also does so when this one is killed. It is made
// before there are threads.
class SiteLimit {
 public:
  SiteLimit() : former_(ReadLine(kSysctl)) {
    int ends[2];
    EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
    const UniqueFd end(ends[0]);
    alive_ = UniqueFd(ends[1]);
    keeper_ = fork();
    EXPECT_GE(keeper_, 0);
    if (keeper_ == 0) {
      alive_.reset();
      setsid();  // signals to the test's process group do not reach it
      char byte = 0;
      while (read(end.get(), &byte, 1) < 0 && errno == EINTR) {
      }
      _exit(SetLimit(former_) ? 0 : 1);
    }
    EXPECT_TRUE(SetLimit(std::to_string(kLimitS)));
  }
  ~SiteLimit() {
    alive_.reset();
    int status = -1;
    EXPECT_EQ(waitpid(keeper_, &status, 0), keeper_);
    EXPECT_EQ(status, 0);
    EXPECT_EQ(ReadLine(kSysctl), former_);
  }

 private:
  const std::string former_;
  pid_t keeper_ = -1;
  UniqueFd alive_;
};

// A mount whose daemon asks the kernel for nothing and answers no request: it shows that the kernel keeps the limit.
class SilentMount {
 public:
  SilentMount() : device_(open("/dev/fuse", O_RDWR | O_CLOEXEC)) {
    const std::string data = absl::StrCat("fd=", device_.get(), ",rootmode=40000,user_id=0,group_id=0");
    EXPECT_EQ(mount("nram-test", path().c_str(), "fuse", 0, data.c_str()), 0) << strerror(errno);
    char request[FUSE_MIN_READ_BUFFER * 2];
    EXPECT_GT(read(device_.get(), request, sizeof request), 0);
    struct {
      fuse_out_header header{};
      fuse_init_out init{};
    } reply;
    reply.header.len = sizeof reply;
    reply.header.unique = reinterpret_cast<const fuse_in_header*>(request)->unique;
    reply.init.major = FUSE_KERNEL_VERSION;
    reply.init.minor = FUSE_KERNEL_MINOR_VERSION;
    reply.init.max_write = kPageBytes;
    EXPECT_EQ(write(device_.get(), &reply, sizeof reply), static_cast<ssize_t>(sizeof reply)) << strerror(errno);
  }
  ~SilentMount() {
    device_.reset();
    EXPECT_EQ(umount2(path().c_str(), MNT_DETACH), 0);
  }
  const std::string& path() const { return dir_.path(); }
  // All its requests end.
  void End() { device_.reset(); }

 private:
  TempDir dir_;
  UniqueFd device_;
};

// A system call in a thread, which may take long.
class Call {
 public:
  explicit Call(std::function<int()> call)
      : thread_([this, call = std::move(call)] { error_ = call() < 0 ? errno : 0; }) {}
  ~Call() { thread_.join(); }
  bool under_way() const { return error_ == kUnderWay; }
  // The call's errno, 0 if it succeeded; kUnderWay if it has not ended at the deadline.
  int Await(int64_t deadline_ns) const {
    PollUntil(deadline_ns, 50, [this] { return !under_way(); });
    return error_;
  }
  static constexpr int kUnderWay = -1;

 private:
  std::atomic<int> error_{kUnderWay};
  std::thread thread_;
};

// For the kernel, a server or a repair that takes long is the same as this frozen daemon: a request without an answer.
// A lock that blocks is no request.
TEST(RequestTimeoutTest, AMountOutlivesASitesLimit) {
  if (geteuid() != 0 || access(kSysctl, W_OK) != 0) {
    GTEST_SKIP() << "fs.fuse.default_request_timeout needs root and Linux 6.15";
  }
  const SiteLimit limit;
  SilentMount silent;
  NramMount mount({"--backend=memory"});
  const std::string path = mount.path() + "/f";
  const UniqueFd owner(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644));
  const UniqueFd waiter(open(path.c_str(), O_RDWR | O_CLOEXEC));
  struct flock lock {};
  lock.l_type = F_WRLCK;
  ASSERT_EQ(fcntl(owner.get(), F_OFD_SETLK, &lock), 0);
  FreezeProcess(mount.daemon());
  {
    const int64_t begun_ns = MonotonicNs();
    const Call slow([&] { return access((mount.path() + "/slow").c_str(), F_OK); });
    const Call blocked([&] { return fcntl(waiter.get(), F_OFD_SETLKW, &lock); });
    const Call control([&] { return access((silent.path() + "/none").c_str(), F_OK); });
    // Nothing in this block returns early: all calls end.
    EXPECT_EQ(control.Await(begun_ns + 60 * kNsPerSecond), ECONNABORTED) << "the kernel has no such limit";
    silent.End();
    EXPECT_EQ(slow.Await(begun_ns + (2 * kLimitS + 1) * kNsPerSecond), Call::kUnderWay) << "the mount has ended";
    EXPECT_TRUE(blocked.under_way());
    EXPECT_EQ(kill(mount.daemon(), SIGCONT), 0);
    EXPECT_EQ(slow.Await(DeadlineAfterMs(60'000)), ENOENT);
    struct flock unlock {};
    unlock.l_type = F_UNLCK;
    EXPECT_EQ(fcntl(owner.get(), F_OFD_SETLK, &unlock), 0);
    EXPECT_EQ(blocked.Await(DeadlineAfterMs(60'000)), 0);
  }
  EXPECT_EQ(access(path.c_str(), F_OK), 0) << strerror(errno);
}

}  // namespace
}  // namespace nram
