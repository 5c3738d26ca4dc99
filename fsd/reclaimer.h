#ifndef NRAM_FSD_RECLAIMER_H_
#define NRAM_FSD_RECLAIMER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <thread>
#include <vector>

#include "base/sync.h"
#include "fsd/block_file.h"

namespace nram {

// Frees the stored bytes of deleted files, in the background and many at once, and knows the waiters for the room that
// this makes. It has two threads: one frees, the other calls the waiters, because a server that does not answer holds
// the first for as long as an operation may take. Thread-safe.
class Reclaimer {
 public:
  // An operation that waits for room without a thread.
  class Waiter {
   public:
    virtual ~Waiter() = default;
    // All that was deleted before CallWhenFreed is freed, or two seconds are over. Runs once for each CallWhenFreed, on
    // the reclaimer's second thread. It may take as long as an operation of the store. The reclaimer does not touch the
    // waiter afterwards.
    virtual void OnFreed() = 0;

   private:
    friend class Reclaimer;
    uint64_t when_freed_ = 0;  // under the reclaimer's lock while the waiter is in waiters_
    int64_t at_ns_ = 0;        // likewise
  };

  // `blocks` must outlive it.
  explicit Reclaimer(BlockStore* blocks);
  // Frees the files that are still to be freed, and calls all waiters.
  ~Reclaimer();

  // Takes a file that is not in use any more. Does not block.
  void Free(std::unique_ptr<BlockFile> file);
  // From now on Free leaves the bytes in the store.
  void StopFreeing() { frees_ = false; }
  bool frees() const { return frees_; }

  // How many files have been freed, ever.
  uint64_t Freed();
  // Waits until all that was deleted so far is freed, for at most two seconds. True if anything may have been freed
  // since Freed() was `freed_before`. False, at once: there was nothing to wait for.
  bool AwaitFreed(uint64_t freed_before);
  // The same without a thread. `waiter` must stay until OnFreed has begun.
  void CallWhenFreed(Waiter* waiter);

 private:
  static constexpr size_t kFreeAtOnce = 256;

  void RunFreeing();
  // Waits for the next file, and gives the heap's spare memory back when that takes long.
  void AwaitWorkLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The files to free next; waits a moment so that there are many.
  std::vector<std::unique_ptr<BlockFile>> TakeBatchLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RunWaiters();
  // The waiters whose turn has come leave waiters_. If there is none, *next_ns is when to look again.
  std::vector<Waiter*> TakeDueLocked(int64_t* next_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  BlockStore* const blocks_;
  std::atomic<bool> frees_{true};

  // No other lock is taken while this one is held.
  Mutex mu_;
  CondVar work_;         // for the freeing thread
  CondVar freed_;        // for AwaitFreed
  CondVar waiters_due_;  // for the second thread
  std::deque<std::unique_ptr<BlockFile>> to_free_ ABSL_GUARDED_BY(mu_);
  std::vector<Waiter*> waiters_ ABSL_GUARDED_BY(mu_);
  uint64_t given_ ABSL_GUARDED_BY(mu_) = 0;       // files to be freed, ever
  uint64_t done_ ABSL_GUARDED_BY(mu_) = 0;        // of them, freed
  uint64_t trimmed_at_ ABSL_GUARDED_BY(mu_) = 0;  // done_ when the heap was trimmed last
  bool hurry_ ABSL_GUARDED_BY(mu_) = false;       // a thread is in AwaitFreed
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  std::thread freeing_thread_;  // last: the threads use all of the above
  std::thread waiters_thread_;
};

}  // namespace nram

#endif  // NRAM_FSD_RECLAIMER_H_
