// The parts of the supervisor that need no other process: the filter and the reading of maps.

#include <fcntl.h>
#include <linux/audit.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/shm.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "client/run/call_filter.h"
#include "client/run/helper_code.h"
#include "client/run/inject.h"
#include "client/run/pass_fd.h"
#include "client/run/start_message.h"
#include "client/run/task_maps.h"
#include "client/run/untraced_start.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

constexpr uint32_t kTell = SECCOMP_RET_USER_NOTIF;
constexpr uint32_t kPass = SECCOMP_RET_ALLOW;

uint32_t Ask(long number, std::initializer_list<uint64_t> arguments = {}, uint64_t pointer = 0x401000) {
  static const std::vector<sock_filter> filter = MakeCallFilter();
  seccomp_data data = {};
  data.nr = static_cast<int>(number);
  data.arch = AUDIT_ARCH_X86_64;
  data.instruction_pointer = pointer;
  size_t i = 0;
  for (const uint64_t argument : arguments) data.args[i++] = argument;
  return RunCallFilter(filter, data);
}

TEST(CallFilterTest, TellsOfLargePrivateMappings) {
  constexpr uint64_t kFlags = MAP_PRIVATE | MAP_ANONYMOUS;
  EXPECT_EQ(Ask(SYS_mmap, {0, kRemoteBytesMin, PROT_READ, kFlags}), kTell);
  EXPECT_EQ(Ask(SYS_mmap, {0, kRemoteBytesMin - 1, PROT_READ, kFlags}), kPass);
  // Sizes of which the lower half is small.
  EXPECT_EQ(Ask(SYS_mmap, {0, uint64_t{1} << 32, PROT_READ, kFlags}), kTell);
  EXPECT_EQ(Ask(SYS_mmap, {0, kRemoteBytesMin, PROT_READ, kFlags | MAP_STACK}), kPass);
  EXPECT_EQ(Ask(SYS_mmap, {0, kRemoteBytesMin, PROT_READ, kFlags | MAP_HUGETLB}), kPass);
  EXPECT_EQ(Ask(SYS_mmap, {0, kRemoteBytesMin, PROT_READ, MAP_SHARED | MAP_ANONYMOUS}), kPass);
  EXPECT_EQ(Ask(SYS_mmap, {0, kRemoteBytesMin, PROT_READ, MAP_PRIVATE}), kPass);
  // Any mapping over an address that may be remote.
  EXPECT_EQ(Ask(SYS_mmap, {4096, 4096, PROT_READ, MAP_SHARED | MAP_FIXED}), kTell);
}

TEST(CallFilterTest, TellsOfWhatChangesMemoryAndOfProcesses) {
  for (const long number : {SYS_brk, SYS_munmap, SYS_mremap, SYS_fork, SYS_execve, SYS_execveat, SYS_set_tid_address,
                            SYS_set_robust_list, SYS_mlock, SYS_mlock2, SYS_mlockall}) {
    EXPECT_EQ(Ask(number), kTell) << number;
  }
  for (const long number :
       {SYS_read, SYS_write, SYS_mprotect, SYS_futex, SYS_vfork, SYS_rt_sigreturn, SYS_exit_group}) {
    EXPECT_EQ(Ask(number), kPass) << number;
  }
  EXPECT_EQ(Ask(SYS_madvise, {0, 4096, MADV_DONTNEED}), kTell);
  EXPECT_EQ(Ask(SYS_madvise, {0, 4096, MADV_FREE}), kTell);
  EXPECT_EQ(Ask(SYS_madvise, {0, 4096, MADV_RANDOM}), kTell);
  EXPECT_EQ(Ask(SYS_madvise, {0, 4096, MADV_NORMAL}), kTell);
  EXPECT_EQ(Ask(SYS_madvise, {0, 4096, MADV_WILLNEED}), kPass);
  EXPECT_EQ(Ask(SYS_clone, {SIGCHLD}), kTell);
  EXPECT_EQ(Ask(SYS_clone, {CLONE_VM | CLONE_THREAD | CLONE_CHILD_CLEARTID}), kTell);
  EXPECT_EQ(Ask(SYS_clone, {CLONE_VM | CLONE_THREAD}), kTell);
  EXPECT_EQ(Ask(SYS_clone, {CLONE_VM | CLONE_VFORK | SIGCHLD}), kPass);
  EXPECT_EQ(Ask(SYS_clone3), SECCOMP_RET_ERRNO | ENOSYS);
  EXPECT_EQ(Ask(SYS_prctl, {PR_SET_DUMPABLE, 0}), kTell);
  EXPECT_EQ(Ask(SYS_prctl, {PR_SET_NAME, 0}), kPass);
  EXPECT_EQ(Ask(SYS_shmat, {0, 4096, SHM_REMAP}), SECCOMP_RET_ERRNO | EINVAL);
  EXPECT_EQ(Ask(SYS_shmat, {0, 4096, SHM_RDONLY}), kPass);
  EXPECT_EQ(Ask(SYS_process_madvise), SECCOMP_RET_ERRNO | ENOSYS);
}

TEST(CallFilterTest, DoesNotSeeTheHelper) {
  EXPECT_EQ(Ask(SYS_munmap, {}, HelperPlace::kBase + 100), kPass);
  EXPECT_EQ(Ask(SYS_munmap, {}, HelperPlace::kBase - 100), kTell);
  EXPECT_EQ(Ask(SYS_mmap, {HelperPlace::kBase, HelperPlace::kBytes, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS}), kPass);
}

TEST(CallFilterTest, LeavesOtherMachinesAlone) {
  static const std::vector<sock_filter> filter = MakeCallFilter();
  seccomp_data data = {};
  data.nr = SYS_munmap;
  data.arch = AUDIT_ARCH_I386;
  EXPECT_EQ(RunCallFilter(filter, data), kPass);
  EXPECT_EQ(Ask(SYS_munmap | 0x40000000), kPass);
  EXPECT_FALSE(IsForeign({.nr = SYS_munmap, .arch = AUDIT_ARCH_X86_64, .instruction_pointer = 0, .args = {}}));
}

TEST(CallFilterTest, TellsOfForksOfOtherMachines) {
  static const std::vector<sock_filter> filter = MakeCallFilter();
  seccomp_data fork = {};
  fork.nr = 2;
  fork.arch = AUDIT_ARCH_I386;
  EXPECT_EQ(RunCallFilter(filter, fork), kTell);
  EXPECT_TRUE(IsForeign(fork));
  fork.nr = 120;
  fork.args[0] = SIGCHLD;
  EXPECT_EQ(RunCallFilter(filter, fork), kTell);
  fork.args[0] = CLONE_VM | CLONE_VFORK;
  EXPECT_EQ(RunCallFilter(filter, fork), kPass);
  // x32, whose numbers have a bit more.
  constexpr long kX32 = 0x40000000;
  EXPECT_EQ(Ask(kX32 | SYS_fork), kTell);
  EXPECT_EQ(Ask(kX32 | SYS_clone, {SIGCHLD}), kTell);
  EXPECT_EQ(Ask(kX32 | SYS_clone, {CLONE_VM}), kPass);
  EXPECT_TRUE(IsForeign({.nr = kX32 | SYS_fork, .arch = AUDIT_ARCH_X86_64, .instruction_pointer = 0, .args = {}}));
}

TEST(TaskMapsTest, FindsWhatMayBeRemote) {
  const auto runs = FindRemotable(
      "00400000-00401000 r-xp 00000000 fe:00 1234 /usr/bin/x\n"
      "00600000-00700000 rw-p 00000000 00:00 0 \n"          // .bss
      "01000000-01002000 rw-p 00000000 00:00 0 [heap]\n"    // small
      "6e72616d0000-6e72616e2000 rw-p 00000000 00:00 0 \n"  // the helper's
      "7f0000000000-7f0000010000 rw-p 00000000 00:00 0 \n"  // too small
      "7f0000100000-7f0000200000 ---p 00000000 00:00 0 \n"  // reserved
      "7f0000300000-7f0000400000 rw-s 00000000 00:01 5 /dev/zero (deleted)\n"
      "7f0000500000-7f0000600000 rwxp 00000000 00:00 0 \n"
      "7f0000700000-7f0000800000 rw-p 00000000 00:00 0 [anon: glibc: malloc arena]\n"
      "7f0000900000-7f0000a00000 rw-p 00001000 fe:00 77 /lib/libx.so\n"
      "7fff00000000-7fff00200000 rw-p 00000000 00:00 0 [stack]\n");
  ASSERT_EQ(runs.size(), 4u);
  EXPECT_EQ(runs[0].begin, 0x600000u);
  EXPECT_EQ(runs[0].pages, 256u);
  EXPECT_EQ(runs[1].begin, 0x1000000u);
  EXPECT_EQ(runs[1].pages, 2u);
  EXPECT_EQ(runs[2].begin, 0x7f0000100000u);
  EXPECT_EQ(runs[3].begin, 0x7f0000700000u);
}

TEST(TaskMapsTest, WhatIsToldTwiceIsFoundOnce) {
  const auto runs = FindRemotable(
      "7f0000100000-7f0000200000 rw-p 00000000 00:00 0 \n"
      "7f0000180000-7f0000300000 rw-p 00000000 00:00 0 \n"
      "7f0000200000-7f0000300000 rw-p 00000000 00:00 0 \n");
  ASSERT_EQ(runs.size(), 2u);
  EXPECT_EQ(runs[0].begin + runs[0].pages * 4096, runs[1].begin);
  EXPECT_EQ(runs[1].begin + runs[1].pages * 4096, 0x7f0000300000u);
}

TEST(TaskMapsTest, CountsTheMappingsOfARun) {
  void* const at = mmap(nullptr, 4 * 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(at, MAP_FAILED);
  const auto begin = reinterpret_cast<uint64_t>(at);
  ASSERT_EQ(mprotect(at, 2 * 4096, PROT_READ), 0);
  EXPECT_EQ(CountMappings(getpid(), {begin, 4}).value_or(0), 2u);
  EXPECT_EQ(CountMappings(getpid(), {begin, 2}).value_or(0), 1u);
  EXPECT_EQ(CountMappings(getpid(), {begin + 4096, 2}).value_or(0), 2u);
  munmap(at, 4 * 4096);
  EXPECT_EQ(CountMappings(getpid(), {begin, 4}).value_or(9), 0u);
}

TEST(AwaitStopTest, TakesStopsAndLeavesEnds) {
  const pid_t child = fork();
  if (child == 0) {
    ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
    raise(SIGSTOP);
    _exit(3);
  }
  const absl::StatusOr<int> stop = AwaitStop(child);
  ASSERT_TRUE(stop.ok()) << stop.status();
  EXPECT_TRUE(WIFSTOPPED(*stop));
  EXPECT_EQ(WSTOPSIG(*stop), SIGSTOP);
  ASSERT_EQ(ptrace(PTRACE_CONT, child, nullptr, nullptr), 0);
  EXPECT_TRUE(absl::IsUnavailable(AwaitStop(child).status()));
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child) << "its end is there still";
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 3) << status;
}

TEST(HelperCodeTest, FitsIntoItsPage) {
  EXPECT_GT(HelperCode().size(), 64u);
  EXPECT_LT(HelperCode().size(), 4096u);
  EXPECT_EQ(HelperPlace::kBase % 4096, 0u);
  EXPECT_LE(HelperCode().size(), StartOrder::kCodeMax);
  EXPECT_EQ(HelperEntry(), 8u) << "behind syscall, test, jz and int3";
}

TEST(TaskMapsTest, KnowsMemoryWithAHelper) {
  constexpr char kOthers[] =
      "00400000-00401000 r-xp 00000000 fe:00 1234 /usr/bin/x\n"
      "7fff00000000-7fff00200000 rw-p 00000000 00:00 0 [stack]\n";
  EXPECT_FALSE(HasHelperPages(kOthers));
  EXPECT_TRUE(HasHelperPages(absl::StrCat(kOthers, "6e72616d0000-6e72616d1000 r-xp 00000000 00:00 0 \n")));
  EXPECT_FALSE(HasHelperPages(absl::StrCat(kOthers, "6e72616cf000-6e72616d0000 r-xp 00000000 00:00 0 \n")));
  EXPECT_FALSE(HasHelperPages(absl::StrCat(kOthers, "568000000000-720000000000 ---p 00000000 00:00 0 \n")))
      << "what a sanitizer reserves";
}

TEST(TaskMapsTest, OpensRegularFilesAnewAndNoOthers) {
  const std::string path = absl::StrCat(testing::TempDir(), "/reopened");
  const UniqueFd file(open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  ASSERT_EQ(write(file.get(), "text", 4), 4);
  const UniqueFd again = ReopenFile(getpid(), file.get());
  ASSERT_TRUE(again.valid()) << strerror(errno);
  char text[5] = {};
  EXPECT_EQ(read(again.get(), text, 4), 4) << "a place of its own";
  EXPECT_EQ(write(again.get(), "s", 1), 1);
  const UniqueFd reader(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const UniqueFd read_only = ReopenFile(getpid(), reader.get());
  ASSERT_TRUE(read_only.valid()) << strerror(errno);
  EXPECT_LT(write(read_only.get(), "s", 1), 0) << "may only be read";
  const UniqueFd device(open("/dev/zero", O_RDWR | O_CLOEXEC));
  EXPECT_FALSE(ReopenFile(getpid(), device.get()).valid());
  EXPECT_EQ(errno, ENODEV);
  EXPECT_FALSE(ReopenFile(getpid(), 1 << 20).valid());
  EXPECT_EQ(errno, EBADF);
  unlink(path.c_str());
}

TEST(PassFdTest, PassesOneWithAMessageOrNone) {
  int ends[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const UniqueFd from(ends[0]);
  const UniqueFd to(ends[1]);
  const std::byte sent[3] = {std::byte{1}, std::byte{2}, std::byte{3}};
  ASSERT_TRUE(SendWithFd(from.get(), sent, to.get()));
  ASSERT_EQ(send(from.get(), sent, 2, 0), 2);
  std::byte got[8] = {};
  UniqueFd fd;
  ASSERT_EQ(ReceiveWithFd(to.get(), absl::MakeSpan(got), &fd), 3);
  EXPECT_EQ(got[2], std::byte{3});
  ASSERT_TRUE(fd.valid());
  EXPECT_NE(fd.get(), to.get());
  fd.reset();
  ASSERT_EQ(ReceiveWithFd(to.get(), absl::MakeSpan(got), &fd), 2);
  EXPECT_FALSE(fd.valid());
}

TEST(UntracedStartTest, KnowsWhatLoadsALibrary) {
  const std::string path = absl::StrCat(testing::TempDir(), "/script");
  const auto write_script = [&path](absl::string_view text) {
    const UniqueFd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0700));
    ASSERT_EQ(write(file.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
  };
  EXPECT_TRUE(CheckLoads("/bin/sh").ok()) << CheckLoads("/bin/sh");
  write_script("#!  /bin/sh -e\nexit 0\n");
  EXPECT_TRUE(CheckLoads(path).ok()) << CheckLoads(path);
  write_script(absl::StrCat("#!", path));
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckLoads(path))) << CheckLoads(path);
  write_script("#!/no/such/program\n");
  EXPECT_TRUE(absl::IsNotFound(CheckLoads(path))) << CheckLoads(path);
  write_script("");
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckLoads(path))) << CheckLoads(path);
  write_script("#! \n");
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckLoads(path))) << CheckLoads(path);
  write_script("neither");
  EXPECT_TRUE(absl::IsFailedPrecondition(CheckLoads(path))) << CheckLoads(path);
  unlink(path.c_str());
}

TEST(UntracedStartTest, PutsItselfBeforeOthersThatAreLoaded) {
  setenv("LD_PRELOAD", "one.so:two.so", 1);
  auto start = UntracedStart::Make("/proc/self/exe");
  unsetenv("LD_PRELOAD");
  ASSERT_TRUE(start.ok()) << start.status();
  EXPECT_THAT((*start)->environment(), testing::Contains("LD_PRELOAD=/proc/self/exe:one.so:two.so"));
  EXPECT_THAT((*start)->environment(), testing::Contains(testing::StartsWith("NRAM_RUN_START=")));
  const auto nothing = (*start)->TakeHelper();
  EXPECT_TRUE(nothing.ok() && *nothing == nullptr) << nothing.status();
  (*start)->CloseIts();
  EXPECT_TRUE(absl::IsUnavailable((*start)->TakeHelper().status())) << "nobody can report any more";
  EXPECT_TRUE(absl::IsFailedPrecondition(UntracedStart::Make("/a:b.so").status()));
}

}  // namespace
}  // namespace nram
