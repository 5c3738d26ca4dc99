#include "client/run/group_witness.h"

#include <signal.h>
#include <unistd.h>

#include "base/subprocess.h"
#include "gtest/gtest.h"

namespace nram {
namespace {

// Takes `signal`, which is blocked, from this process. Returns its sender; -1: it has not got it.
pid_t Take(int signal) {
  sigset_t one;
  sigemptyset(&one);
  sigaddset(&one, signal);
  const timespec soon = {.tv_sec = 30, .tv_nsec = 0};
  siginfo_t info = {};
  return sigtimedwait(&one, &info, &soon) == signal ? info.si_pid : -1;
}

// In a group of its own; the result is the number of the check that failed, or 0.
int TellApart() {
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, nullptr);
  GroupWitness witness;
  if (!witness.Start().ok()) return 1;
  const pid_t self = getpid();
  for (int round = 0; round < 20; ++round) {
    for (const int signal : {SIGUSR1, SIGTERM, SIGINT, SIGCONT}) {
      kill(0, signal);
      if (Take(signal) != self) return 2;
      if (!witness.HasGot(signal, self)) return 3;
      if (witness.HasGot(signal, self)) return 4;  // once
      kill(self, signal);
      if (Take(signal) != self) return 5;
      if (witness.HasGot(signal, self)) return 6;
    }
  }
  // An answer about one signal says nothing of others.
  kill(0, SIGUSR2);
  if (witness.HasGot(SIGUSR1, self)) return 7;
  if (!witness.HasGot(SIGUSR2, self)) return 8;
  if (Take(SIGUSR2) != self) return 9;
  // The witness has one that it was not asked about, as if it had come after the question.
  kill(0, SIGUSR1);
  if (Take(SIGUSR1) != self) return 10;
  const absl::StatusOr<Subprocess> other = Subprocess::StartFunction([self] { return kill(self, SIGUSR1); });
  if (!other.ok() || Take(SIGUSR1) != other->pid()) return 11;
  if (witness.HasGot(SIGUSR1, other->pid())) return 12;
  if (witness.HasGot(SIGUSR1, self)) return 13;  // it was forgotten
  // The kernel makes one signal of two: it is the group's. The next one is this process' own again.
  kill(0, SIGUSR1);
  kill(self, SIGUSR1);
  if (Take(SIGUSR1) != self) return 14;
  if (!witness.HasGot(SIGUSR1, self)) return 15;
  kill(self, SIGUSR1);
  if (Take(SIGUSR1) != self) return 16;
  if (witness.HasGot(SIGUSR1, self)) return 17;
  return 0;
}

TEST(GroupWitnessTest, TellsTheGroupsSignalsFromItsOwn) {
  absl::StatusOr<Subprocess> child = Subprocess::StartFunction(&TellApart, {.new_session = true});
  ASSERT_TRUE(child.ok()) << child.status();
  const auto ended = child->WaitUntil(Subprocess::kNoDeadline);
  EXPECT_EQ(ended->signal, 0);
  EXPECT_EQ(ended->code, 0);
}

// It was killed, or never started: signals are passed on as if it had not got them.
TEST(GroupWitnessTest, WithoutAWitnessNothingIsTheGroups) {
  GroupWitness witness;
  EXPECT_FALSE(witness.HasGot(SIGUSR1, getpid()));
}

}  // namespace
}  // namespace nram
