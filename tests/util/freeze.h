#ifndef NRAM_TESTS_UTIL_FREEZE_H_
#define NRAM_TESTS_UTIL_FREEZE_H_

#include <dirent.h>
#include <poll.h>
#include <signal.h>
#include <sys/types.h>

#include <cstdio>
#include <string>

#include "base/clock.h"
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
    DIR* const directory = opendir(tasks.c_str());
    ASSERT_NE(directory, nullptr);
    while (const dirent* entry = readdir(directory)) {
      if (entry->d_name[0] == '.') continue;
      char line[512] = "";
      if (FILE* const file = fopen((tasks + "/" + entry->d_name + "/stat").c_str(), "r")) {
        if (fgets(line, sizeof line, file) == nullptr) line[0] = 0;
        fclose(file);
      }
      const std::string text = line;
      const size_t end = text.rfind(')');
      if (end != std::string::npos && text[end + 2] != 'T') stopped = false;
    }
    closedir(directory);
  }
}

}  // namespace nram

#endif  // NRAM_TESTS_UTIL_FREEZE_H_
