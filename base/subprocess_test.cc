#include "base/subprocess.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "base/clock.h"
#include "base/file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kLongMs = 20'000;

// The shell script's standard output.
std::string OutputOf(const std::string& script, SubprocessOptions options = {}) {
  int ends[2];
  EXPECT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  options.out = to.get();
  auto child = Subprocess::Start({"sh", "-c", script}, options);
  EXPECT_TRUE(child.ok()) << child.status();
  to.reset();
  std::string said;
  char buffer[512];
  for (ssize_t n; (n = read(from.get(), buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<size_t>(n));
  EXPECT_TRUE(child->WaitUntil(DeadlineAfterMs(kLongMs))->ok());
  return said;
}

TEST(SubprocessTest, SaysHowAProgramEnded) {
  auto exits = Subprocess::Start({"sh", "-c", "exit 3"});
  ASSERT_TRUE(exits.ok()) << exits.status();
  EXPECT_EQ(exits->WaitUntil(DeadlineAfterMs(kLongMs))->code, 3);
  EXPECT_EQ(exits->WaitUntil(0)->code, 3);
  auto dies = Subprocess::Start({"sh", "-c", "kill -TERM $$"});
  ASSERT_TRUE(dies.ok()) << dies.status();
  const auto ended = dies->WaitUntil(Subprocess::kNoDeadline);
  EXPECT_EQ(ended->signal, SIGTERM);
  EXPECT_FALSE(ended->ok());
}

TEST(SubprocessTest, AProgramThatIsNotThereExitsSo) {
  auto child = Subprocess::Start({"/no/such/program"});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(child->WaitUntil(DeadlineAfterMs(kLongMs))->code, Subprocess::kCannotRun);
}

TEST(SubprocessTest, AFunctionsResultIsTheExitCode) {
  const pid_t parent = getpid();
  auto child = Subprocess::StartFunction([parent] { return getppid() == parent ? 7 : 1; });
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_EQ(child->WaitUntil(DeadlineAfterMs(kLongMs))->code, 7);
}

TEST(SubprocessTest, TheDeadlineEndsTheWaitAndNotTheChild) {
  auto child = Subprocess::Start({"sleep", "1000"});
  ASSERT_TRUE(child.ok()) << child.status();
  EXPECT_FALSE(child->WaitUntil(DeadlineAfterMs(10)).has_value());
  EXPECT_EQ(kill(child->pid(), 0), 0);
  child->Signal(SIGTERM);
  EXPECT_EQ(child->WaitUntil(DeadlineAfterMs(kLongMs))->signal, SIGTERM);
}

TEST(SubprocessTest, TheOwnerTakesTheChildAlong) {
  pid_t pid = -1;
  {
    auto child = Subprocess::Start({"sleep", "1000"});
    ASSERT_TRUE(child.ok()) << child.status();
    pid = child->pid();
    Subprocess owner;
    owner = *std::move(child);
    EXPECT_EQ(owner.pid(), pid);
  }
  EXPECT_EQ(kill(pid, 0), -1);
  EXPECT_EQ(errno, ESRCH);
}

TEST(SubprocessTest, TheEndOfAnyProcessCanBeAwaited) {
  auto child = Subprocess::Start({"sleep", "1000"});
  ASSERT_TRUE(child.ok()) << child.status();
  const UniqueFd process = OpenProcess(child->pid());
  ASSERT_TRUE(process.valid());
  EXPECT_FALSE(AwaitEnd(process.get(), DeadlineAfterMs(10)));
  child->Signal(SIGTERM);
  EXPECT_TRUE(AwaitEnd(process.get(), DeadlineAfterMs(kLongMs)));
  child->Kill();
  EXPECT_FALSE(OpenProcess(child->pid()).valid());
}

TEST(SubprocessTest, AReleasedChildGoesOn) {
  pid_t pid = -1;
  {
    auto child = Subprocess::Start({"sleep", "1000"});
    ASSERT_TRUE(child.ok()) << child.status();
    pid = child->Release();
    EXPECT_EQ(child->pid(), -1);
  }
  EXPECT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_EQ(waitpid(pid, nullptr, 0), pid);
}

TEST(SubprocessTest, TheChildGetsItsStreamsAndNothingElse) {
  const UniqueFd inherited(open("/dev/null", O_RDONLY));  // not closed by execve
  const std::string at = std::to_string(inherited.get());
  SubprocessOptions options;
  const std::string look = "[ -e /proc/self/fd/" + at + " ] && echo open || echo closed";
  EXPECT_EQ(OutputOf(look, options), "open\n");
  options.close_others = true;
  EXPECT_EQ(OutputOf(look, options), "closed\n");
}

TEST(SubprocessTest, ASessionAndAProcessorOfItsOwn) {
  SubprocessOptions options;
  options.new_session = true;
  options.processor = 0;
  // The sixth word of its line is its session.
  EXPECT_EQ(OutputOf("set -- $(cat /proc/$$/stat); [ $6 = $$ ] && echo own", options), "own\n");
  EXPECT_EQ(OutputOf("grep Cpus_allowed_list /proc/self/status", options), "Cpus_allowed_list:\t0\n");
}

TEST(SubprocessTest, DiesWithItsParent) {
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_CLOEXEC), 0);
  const UniqueFd from(ends[0]);
  UniqueFd to(ends[1]);
  // The grandchild keeps the pipe open for as long as it lives.
  auto parent = Subprocess::StartFunction([] {
    SubprocessOptions options;
    options.death_signal = SIGKILL;
    auto child = Subprocess::StartFunction(
        [] {
          while (true) pause();
          return 0;
        },
        options);
    child->Release();
    return 0;
  });
  ASSERT_TRUE(parent.ok()) << parent.status();
  to.reset();
  EXPECT_TRUE(parent->WaitUntil(DeadlineAfterMs(kLongMs))->ok());
  char byte;
  EXPECT_EQ(read(from.get(), &byte, 1), 0);
}

TEST(RunProgramTest, TheErrorIsWhatItSaid) {
  const int64_t deadline_ns = DeadlineAfterMs(kLongMs);
  EXPECT_TRUE(RunProgram({"sh", "-c", "echo noise"}, deadline_ns).ok());
  const absl::Status failed = RunProgram({"sh", "-c", "echo noise; echo why >&2; exit 1"}, deadline_ns);
  EXPECT_EQ(failed.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(failed.message(), "why");
  EXPECT_EQ(RunProgram({"false"}, deadline_ns).message(), "false failed");
  // More than a pipe holds, of which the first 64 KiB are kept.
  const absl::Status much = RunProgram({"sh", "-c", "head -c 300000 /dev/zero | tr '\\0' x >&2; exit 1"}, deadline_ns);
  EXPECT_EQ(much.message().size(), 64u << 10);
}

TEST(HearProgramTest, ItsEndAndItsWordsAreHeardInAnyCase) {
  const auto well = HearProgram({"sh", "-c", "echo noise; echo by the way >&2"}, Subprocess::kNoDeadline);
  ASSERT_TRUE(well.ok()) << well.status();
  EXPECT_TRUE(well->ended.ok());
  EXPECT_EQ(well->said, "by the way");
  const auto failed = HearProgram({"sh", "-c", "echo why >&2; exit 2"}, DeadlineAfterMs(kLongMs));
  ASSERT_TRUE(failed.ok()) << failed.status();
  EXPECT_EQ(failed->ended.code, 2);
  EXPECT_EQ(failed->said, "why");
  const auto killed = HearProgram({"sh", "-c", "kill -KILL $$"}, DeadlineAfterMs(kLongMs));
  ASSERT_TRUE(killed.ok()) << killed.status();
  EXPECT_EQ(killed->ended.signal, SIGKILL);
}

TEST(RunProgramTest, ADaemonThatItLeavesIsNotWaitedFor) {
  EXPECT_TRUE(
      RunProgram({"sh", "-c", "sleep 60 & echo $! > \"$0\"", ::testing::TempDir() + "/left"}, DeadlineAfterMs(kLongMs))
          .ok());
  EXPECT_EQ(kill(static_cast<pid_t>(ReadNumber(::testing::TempDir() + "/left").value_or(0)), SIGKILL), 0);
}

TEST(RunProgramTest, TheDeadlineKillsIt) {
  const absl::Status late = RunProgram({"sleep", "1000"}, DeadlineAfterMs(20));
  EXPECT_EQ(late.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(std::string(late.message()), HasSubstr("sleep took too long"));
}

}  // namespace
}  // namespace nram
