#include "client/memory/stderr_lines.h"

#include <pthread.h>
#include <unistd.h>

#include <thread>
#include <utility>

#include "base/clock.h"
#include "base/signals.h"

namespace nram {

StderrLines& StderrLines::Get() {
  static auto* const lines = [] {
    auto* const made = new StderrLines();
    const SignalsBlocked quiet;
    std::thread([made] { made->Run(); }).detach();
    return made;
  }();
  return *lines;
}

void StderrLines::Write(std::string line) {
  const int64_t deadline_ns = DeadlineAfterMs(kPatienceMs);
  line += '\n';
  MutexLock lock(&mu_);
  const bool others_wait = !lines_.empty();
  if (lines_.size() < kLinesMax) lines_.push_back(std::move(line));
  changed_.SignalAll();
  while (!others_wait && !lines_.empty() && changed_.WaitUntil(&mu_, deadline_ns)) {
  }
}

void StderrLines::Run() {
  pthread_setname_np(pthread_self(), "nram-lines");
  MutexLock lock(&mu_);
  while (true) {
    while (lines_.empty()) changed_.WaitUntil(&mu_, DeadlineAfterMs(60'000));
    const std::string& line = lines_.front();
    mu_.Unlock();
    // Not by stdio, whose lock others may hold. An error cannot be reported.
    (void)!write(STDERR_FILENO, line.data(), line.size());
    mu_.Lock();
    lines_.pop_front();
    changed_.SignalAll();
  }
}

}  // namespace nram
