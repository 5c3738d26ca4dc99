#ifndef NRAM_CLIENT_MEMORY_EVICTOR_H_
#define NRAM_CLIENT_MEMORY_EVICTOR_H_

#include <cstdint>
#include <functional>
#include <thread>

#include "base/sync.h"
#include "client/memory/page_out.h"
#include "client/memory/residency.h"
#include "client/memory/segment.h"

namespace nram {

// A thread that keeps budget free for faults to come. It writes back and drops pages before the budget is used up, so
// that faults need not wait.
class Evictor {
 public:
  // The thread calls `at_rest` when no page is to be evicted, once a second or so; it must not block.
  Evictor(PublishGate* gate, Userfault* userfault, Residency* residency, ChunkSums* sums, SegmentIndex* index,
          Counters* counters, std::function<void()> at_rest);
  // Ends the thread, after the writes that it has under way.
  ~Evictor();

 private:
  void Run();
  bool IsStopping();
  // Sleeps for `ms`, or until the end: nothing can be done now, and no event will tell when it can.
  void Pause(int64_t ms);
  // Takes about `pages` pages out of the queue and sends them on their way.
  void Evict(uint64_t pages);

  Residency* const residency_;
  SegmentIndex* const index_;
  const std::function<void()> at_rest_;
  PageOut out_;
  Mutex mu_;
  CondVar stop_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_EVICTOR_H_
