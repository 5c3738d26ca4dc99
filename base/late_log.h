#ifndef NRAM_BASE_LATE_LOG_H_
#define NRAM_BASE_LATE_LOG_H_

// A log for lines that peers cause. It writes a few lines a second (or a minute) at most, on a thread of its own, so
// that no worker waits for the log's reader.

#include <cstdint>
#include <deque>
#include <functional>
#include <string>
#include <thread>

#include "base/sync.h"

namespace nram {

// Thread-safe.
class LateLog {
 public:
  static constexpr int kLinesPerPeriod = 5;
  static constexpr int64_t kPeriodMs = 1'000;
  // The period of lines that strangers can cause as often as they like: a flood of them is a few lines a minute.
  static constexpr int64_t kRefusalPeriodMs = 60'000;

  // `write` is called on the log's thread. Null: each line goes to glog.
  explicit LateLog(std::function<void(const std::string& line)> write = nullptr, int64_t period_ms = kPeriodMs);
  // Writes the lines that wait.
  ~LateLog();

  // Never blocks for long. The first kLinesPerPeriod lines of a period are written. At its end the log says how many
  // others there were.
  void Post(std::string line);

 private:
  void Run();

  const std::function<void(const std::string& line)> write_;
  const int64_t period_ns_;
  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::string> lines_ ABSL_GUARDED_BY(mu_);
  int in_period_ ABSL_GUARDED_BY(mu_) = 0;  // lines taken since period_began_ns_
  int64_t period_began_ns_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t skipped_ ABSL_GUARDED_BY(mu_) = 0;
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_BASE_LATE_LOG_H_
