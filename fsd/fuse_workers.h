#ifndef NRAM_FSD_FUSE_WORKERS_H_
#define NRAM_FSD_FUSE_WORKERS_H_

#include <array>
#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "base/fd.h"
#include "base/host/wake_latency.h"
#include "base/poller.h"
#include "base/sync.h"
#include "fsd/fuse_adapter.h"

namespace nram {

// The threads that serve a mount. One of them leads: it waits for requests and for the memory servers' answers at once,
// and handles both as they come, so a small read or write wakes no other thread. A request that may make its thread
// wait costs it the lead: another thread takes over, and the first comes back when the request is done. The other
// threads are parked.
class FuseWorkers {
 public:
  // All three must outlive it. `poller` may be null: there are no servers.
  FuseWorkers(FuseAdapter* adapter, fuse_session* session, FastWake fast_wake, Poller* poller);
  // Ends the wait for requests, and waits for those in hand.
  ~FuseWorkers();

  // Once. RESOURCE_EXHAUSTED: the kernel watches no more descriptors for this user.
  absl::Status Start(int threads);

  // Readable once the kernel has ended the connection: the mount is unmounted.
  int ended_fd() const { return ended_.get(); }

 private:
  struct Thread : FuseWorker {
    void BeforeWaiting() override { owner->PassLead(this); }
    FuseWorkers* owner = nullptr;
    std::atomic<uint32_t> parked{0};
    std::atomic<bool> leads{false};
    std::thread thread;
  };
  enum class Got { kRequest, kNothing, kEnd };

  static constexpr uint32_t kOpcodesMax = 64;

  void Run(Thread* self);
  // Serves requests until the lead is passed. False: the mount has ended.
  bool Lead(Thread* self);
  Got Read(Thread* self, size_t* bytes);
  void Handle(Thread* self, size_t bytes);
  // Returns when `self` leads, or when the mount has ended.
  void AwaitLead(Thread* self) ABSL_LOCKS_EXCLUDED(park_mu_);
  // Does nothing if `self` does not lead.
  void PassLead(Thread* self) ABSL_LOCKS_EXCLUDED(park_mu_);

  FuseAdapter* const adapter_;
  fuse_session* const session_;
  const int fd_;
  WakeLatency wake_latency_;
  const std::unique_ptr<Poller> owned_poller_;
  Poller* const poller_;
  UniqueFd ended_;  // eventfd
  std::atomic<bool> stopping_{false};
  std::atomic<uint32_t> serving_{0};  // threads in Run; a futex
  std::array<std::atomic<uint64_t>, kOpcodesMax> requests_{};

  Mutex park_mu_;
  bool led_ ABSL_GUARDED_BY(park_mu_) = false;
  std::vector<Thread*> parked_ ABSL_GUARDED_BY(park_mu_);
  std::vector<std::unique_ptr<Thread>> threads_;
};

}  // namespace nram

#endif  // NRAM_FSD_FUSE_WORKERS_H_
