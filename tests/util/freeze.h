#ifndef NRAM_TESTS_UTIL_FREEZE_H_
#define NRAM_TESTS_UTIL_FREEZE_H_

#include <signal.h>
#include <sys/types.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/file.h"
#include "base/poll_until.h"
#include "gtest/gtest.h"

namespace nram {

// Stops a process (SIGCONT goes on) and returns when all its threads stand still. When kill returns, the signal is only
// sent, and on a busy machine a thread may still answer one more request.
inline void FreezeProcess(pid_t pid) {
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  const std::string tasks = "/proc/" + std::to_string(pid) + "/task";
  const bool stopped = PollUntil(DeadlineAfterMs(20'000), 1, [&] {
    const std::vector<std::string> threads = ListDirectory(tasks);
    return !threads.empty() && std::all_of(threads.begin(), threads.end(), [&](const std::string& thread) {
      // "": the thread has ended.
      const std::string stat = ReadLine(tasks + "/" + thread + "/stat");
      const size_t name_end = stat.rfind(')');
      return name_end == std::string::npos || stat[name_end + 2] == 'T';
    });
  });
  ASSERT_TRUE(stopped) << "process " << pid << " does not stop";
}

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_FREEZE_H_
