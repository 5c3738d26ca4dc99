#ifndef NRAM_TESTS_UTIL_FREEZE_H_
#define NRAM_TESTS_UTIL_FREEZE_H_

#include <poll.h>
#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "gtest/gtest.h"

namespace nram {

// Stops a process (SIGCONT goes on) and returns when all its threads stand still. When kill returns, the signal is only
// sent, and on a busy machine a thread may still answer one more request.
inline void FreezeProcess(pid_t pid) {
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  const int64_t deadline_ns = DeadlineAfterMs(20'000);
  for (bool stopped = false; !stopped; poll(nullptr, 0, 1)) {
    ASSERT_LT(MonotonicNs(), deadline_ns) << "process " << pid << " does not stop";
    stopped = true;
    const std::vector<std::string> threads = ListDirectory(tasks);
    ASSERT_FALSE(threads.empty());
    for (const std::string& thread : threads) {
      const std::string stat = ReadLine(tasks + "/" + thread + "/stat");
      const size_t end = stat.rfind(')');
      if (end != std::string::npos && stat[end + 2] != 'T') stopped = false;
    }
  }
}

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_FREEZE_H_
