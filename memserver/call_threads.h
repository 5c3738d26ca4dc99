#ifndef NRAM_MEMSERVER_CALL_THREADS_H_
#define NRAM_MEMSERVER_CALL_THREADS_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <thread>
#include <vector>

#include "absl/container/btree_map.h"
#include "base/sync.h"

namespace nram {

// The threads that run the control plane's calls. Slow calls never have all threads, so a renewal does not wait for a
// long list or a large destruction. Tenants take turns with their slow calls. Thread-safe.
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

  // `tenant`: any number that stands for it. False: too many wait already.
  bool Post(Pace pace, uint32_t tenant, std::function<void()> call);

 private:
  void Run();
  std::function<void()> TakeSlowLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<std::function<void()>> quick_ ABSL_GUARDED_BY(mu_);
  // Slow calls by tenant. The next one is of the first tenant after `turn_` that has one.
  absl::btree_map<uint32_t, std::deque<std::function<void()>>> slow_ ABSL_GUARDED_BY(mu_);
  size_t slow_waiting_ ABSL_GUARDED_BY(mu_) = 0;
  uint32_t turn_ ABSL_GUARDED_BY(mu_) = 0;
  int slow_running_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::thread> threads_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_CALL_THREADS_H_
