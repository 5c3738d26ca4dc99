#ifndef NRAM_CLIENT_MEMORY_STDERR_LINES_H_
#define NRAM_CLIENT_MEMORY_STDERR_LINES_H_

#include <deque>
#include <string>

#include "base/sync.h"

namespace nram {

// Lines for stderr, which a thread of their own writes. A thread that answers faults must not write them itself: a
// program that waits for a page within write(2) holds the lock of its pipe, which may be stderr's.
//
// There is one object, made when it is first asked for. It never ends: its thread may be in write(2) for ever.
// Thread-safe.
class StderrLines {
 public:
  static StderrLines& Get();

  // Returns when the line is written, or after a tenth of a second; at once if other lines wait before it. The line may
  // then come later, or not at all if many wait.
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
