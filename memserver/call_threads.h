#ifndef NRAM_MEMSERVER_CALL_THREADS_H_
#define NRAM_MEMSERVER_CALL_THREADS_H_

#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "base/sync.h"

namespace nram {

// The threads that run the control plane's calls. Slow calls never have all threads, so a renewal does not wait for a
// long list or a large destruction. Thread-safe.
class CallThreads {
 public:
  static constexpr int kThreads = 8;
  static constexpr int kSlowMax = 4;
  // How many calls of each pace may wait. Each holds some 10 KiB in gRPC.
  static constexpr size_t kQuickWaitingMax = 256;
  static constexpr size_t kSlowWaitingMax = 64;

  enum class Pace { kQuick, kSlow };

  CallThreads();
  // Runs the calls that wait, and joins the threads.
  ~CallThreads();

  // False: too many wait already.
  bool Post(Pace pace, std::function<void()> call);

 private:
  void Run();

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> quick_ ABSL_GUARDED_BY(mu_);
  std::deque<std::function<void()>> slow_ ABSL_GUARDED_BY(mu_);
  int slow_running_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::thread> threads_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_CALL_THREADS_H_
