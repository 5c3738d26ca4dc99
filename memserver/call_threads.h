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
// long list or a large destruction. Tenants take turns, and no tenant has all threads or all places to wait.
// Thread-safe.
class CallThreads {
 public:
  static constexpr int kThreads = 8;
  static constexpr int kSlowMax = 4;
  static constexpr int kTenantMax = 6;  // threads that run calls of one tenant
  // How many calls of each pace may wait. Each holds some 10 KiB in gRPC. A tenant has three times as many as are left
  // at most, and its first one while any is left.
  static constexpr size_t kQuickWaitingMax = 256;
  static constexpr size_t kSlowWaitingMax = 64;

  enum class Pace { kQuick, kSlow };

  CallThreads();
  // Runs the calls that wait, and joins the threads.
  ~CallThreads();

  // `tenant`: any number that stands for it. False: too many wait already.
  bool Post(Pace pace, uint32_t tenant, std::function<void()> call);

 private:
  // Calls of one pace that wait, by tenant. The next one is of the first tenant after `turn` that has one.
  struct Waiting {
    absl::btree_map<uint32_t, std::deque<std::function<void()>>> calls;
    size_t count = 0;
    uint32_t turn = 0;
  };

  void Run();
  // Takes the next call whose tenant has less than kTenantMax threads; `turn` is that tenant then. Null: there is none.
  std::function<void()> TakeLocked(Waiting* from) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Mutex mu_;
  CondVar changed_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  Waiting quick_ ABSL_GUARDED_BY(mu_);
  Waiting slow_ ABSL_GUARDED_BY(mu_);
  int slow_running_ ABSL_GUARDED_BY(mu_) = 0;
  absl::btree_map<uint32_t, int> running_ ABSL_GUARDED_BY(mu_);  // by tenant; none is 0
  std::vector<std::thread> threads_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_CALL_THREADS_H_
