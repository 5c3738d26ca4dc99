#ifndef NRAM_CLIENT_MEMORY_STDERR_LINES_H_
#define NRAM_CLIENT_MEMORY_STDERR_LINES_H_

#include <deque>
#include <string>

#include "base/sync.h"

namespace nram {

// Lines for stderr, written by a thread of their own. A thread that faults wait for must not write them itself: who
// waits for a page within write(2) holds the lock of the pipe that he writes to, which may be stderr's.
//
// Thread-safe. There is one, which begins when it is first asked for and never ends: its thread may be in write(2) for
// ever.
class StderrLines {
 public:
  static StderrLines& Get();

  // Returns when the line is written, or after a tenth of a second; if others wait before it, at once. The line may
  // come later then, or not at all where many wait.
  void Write(std::string line);

 private:
  static constexpr size_t kLinesMax = 64;
  static constexpr int64_t kPatienceMs = 100;

  [[noreturn]] void Run();

  Mutex mu_;
  CondVar changed_;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mu_);  // the first one is being written
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_STDERR_LINES_H_
