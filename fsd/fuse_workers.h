#ifndef NRAM_FSD_FUSE_WORKERS_H_
#define NRAM_FSD_FUSE_WORKERS_H_

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "base/fd.h"
#include "base/sync.h"
#include "base/wake_latency.h"
#include "fsd/fuse_adapter.h"

namespace nram {

// The threads that serve a mount: each reads a request from /dev/fuse, handles it and replies.
//
// Few of them wait in read at a time, the others are parked: the kernel wakes readers in turn, and two that take turns
// have warmer caches than sixteen. A reader whose request may wait for a server sees to it that another one reads.
class FuseWorkers {
 public:
  // `adapter` and `session` must outlive it.
  FuseWorkers(FuseAdapter* adapter, fuse_session* session, int threads, FastWake fast_wake);
  // Ends reads that wait, and waits for requests that are being handled.
  ~FuseWorkers();

  // Readable once the kernel has ended the connection: unmounted.
  int ended_fd() const { return ended_.get(); }

 private:
  struct Thread {
    FuseWorker worker;
    std::atomic<uint32_t> parked{0};
    std::thread thread;
  };
  static constexpr int kReadersMax = 2;  // that wait in read when there is nothing to do

  static constexpr uint32_t kOpcodesMax = 64;

  void Run(Thread* self);
  // False when it is over.
  bool Read(Thread* self, size_t* bytes);
  void Park(Thread* self);
  void WakeOne();

  FuseAdapter* const adapter_;
  fuse_session* const session_;
  WakeLatency wake_latency_;
  UniqueFd ended_;  // eventfd
  std::atomic<bool> stopping_{false};
  std::atomic<int> serving_{0};
  std::atomic<int> reading_{0};
  std::array<std::atomic<uint64_t>, kOpcodesMax> requests_{};

  Mutex park_mu_;
  std::vector<Thread*> parked_ ABSL_GUARDED_BY(park_mu_);
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace nram

#endif  // NRAM_FSD_FUSE_WORKERS_H_
