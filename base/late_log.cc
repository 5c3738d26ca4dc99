#include "base/late_log.h"

#include <glog/logging.h>
#include <pthread.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/signals.h"

namespace nram {

LateLog::LateLog(std::function<void(const std::string& line)> write, int64_t period_ms)
    : write_(write != nullptr ? std::move(write) : [](const std::string& line) { LOG(WARNING) << line; }),
      period_ns_(period_ms * kNsPerMs) {
  const SignalsBlocked quiet;  // they are for the program's threads
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "nram-log");
}

LateLog::~LateLog() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
  }
  thread_.join();
}

void LateLog::Post(std::string line) {
  const int64_t now_ns = MonotonicNs();
  MutexLock lock(&mu_);
  // The period does not end before the number of skipped lines has been written.
  if (skipped_ == 0 && now_ns - period_began_ns_ >= period_ns_) {
    period_began_ns_ = now_ns;
    in_period_ = 0;
  }
  if (in_period_ == kLinesPerPeriod || lines_.size() >= kLinesPerPeriod) {
    ++skipped_;
  } else {
    ++in_period_;
    lines_.push_back(std::move(line));
  }
  changed_.Signal();
}

void LateLog::Run() {
  MutexLock lock(&mu_);
  while (true) {
    const int64_t now_ns = MonotonicNs();
    const int64_t period_ends_ns = period_began_ns_ + period_ns_;
    std::string line;
    if (!lines_.empty()) {
      line = std::move(lines_.front());
      lines_.pop_front();
    } else if (skipped_ > 0 && (stopping_ || now_ns >= period_ends_ns)) {
      const int64_t seconds = (now_ns - period_began_ns_ + kNsPerSecond - 1) / kNsPerSecond;
      line = absl::StrCat("and ", std::exchange(skipped_, 0), " more such lines in the last ", seconds, " s");
    } else if (stopping_) {
      return;
    } else {
      changed_.WaitUntil(&mu_, skipped_ > 0 ? period_ends_ns : now_ns + 60 * kNsPerSecond);
      continue;
    }
    mu_.Unlock();
    write_(line);
    mu_.Lock();
  }
}

}  // namespace nram
