#ifndef NRAM_CLIENT_MEMORY_RESIDENCY_H_
#define NRAM_CLIENT_MEMORY_RESIDENCY_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/sync.h"
#include "client/memory/eviction_queue.h"
#include "client/memory/ghost_filter.h"
#include "client/memory/segment.h"

namespace nram {

// The resident set: how many pages may be here, which are, and the order of their eviction. Thread-safe.
class Residency {
 public:
  // At most `limit_pages` are here at a time. The limit may be changed later, up to `most_pages`. When the queue is
  // full, `index` tells which of its pages are not here any more.
  static absl::StatusOr<std::unique_ptr<Residency>> New(Policy policy, uint64_t limit_pages, uint64_t window_pages,
                                                        uint64_t most_pages, const SegmentIndex* index);

  // From now on `limit_pages` may be here. Does not wait: while more are here, the evictor evicts them, and an eighth
  // of the evicted pages make room for faults. So faults wait, but not until the last page is evicted.
  void SetLimit(uint64_t limit_pages, uint64_t window_pages);
  // Gives back bookkeeping that the present limit does not need.
  void Trim();

  // Takes budget for pages that are about to become resident. Blocks while the evictor frees some. RESOURCE_EXHAUSTED:
  // it could not before `deadline_ns`; the message has the reason that it reported.
  absl::Status TakeBudget(uint64_t pages, int64_t deadline_ns);
  void ReturnBudget(uint64_t pages);
  // Pages [first, first + count) of the segment have become resident: they queue up for eviction.
  void Enter(const Segment& segment, uint64_t first, uint64_t count);

  // The evictor's: how many pages should be on their way out, so that faults to come find free budget.
  uint64_t Wanted() const;
  // Sleeps while Wanted() is 0, until `deadline_ns` or Interrupt().
  void AwaitWanted(int64_t deadline_ns);
  void Interrupt();
  // The next pages to evict, out of the queue.
  size_t Take(uintptr_t* pages, size_t max);
  // Whether a page that has been taken out of the queue should have another round (kSecondChance).
  bool SecondChance(PageWord* word) const {
    return policy_ == Policy::kSecondChance && word->Clear(PageWord::kReferenced);
  }
  // A page was evicted. If it is fetched again before as many others as fit in memory were evicted, it should remain
  // longer.
  void NoteLeft(uintptr_t page);
  bool LeftLately(uintptr_t page) const;
  // Why no budget becomes free, for messages; OK when eviction works.
  void Report(const absl::Status& status);

  // Forgets the segment's pages.
  void Remove(const Segment& segment);

  uint64_t limit_pages() const { return goal_.load(std::memory_order_relaxed); }
  // Whether a thread waits for budget.
  bool IsAwaited() const {
    MutexLock lock(&mu_);
    return waiters_ > 0;
  }
  uint64_t resident_pages() const { return resident_.load(std::memory_order_relaxed); }
  uint64_t metadata_bytes() const;

 private:
  Residency(Policy policy, uint64_t limit_pages, uint64_t window_pages, uint64_t most_pages, const SegmentIndex* index);
  // Lowers the limit of pages here while more are here than should be: lets faults have an eighth of `left` pages.
  void LowerLimit(uint64_t left, uint64_t resident) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t WantedLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Policy policy_;
  // How many pages may be here. Changed under mu_. Faults keep to `limit_`, which is above `goal_` while too many pages
  // are here.
  std::atomic<uint64_t> goal_;
  std::atomic<uint64_t> limit_;
  // With less free budget than this, the evictor begins; it goes on until there is twice as much.
  std::atomic<uint64_t> low_;
  const SegmentIndex* const index_;
  std::atomic<uint64_t> resident_{0};
  std::atomic<bool> evicting_{false};

  mutable Mutex mu_;
  CondVar returned_;  // a thread waits for budget
  CondVar pressure_;  // the evictor waits for work
  uint32_t waiters_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t missing_ ABSL_GUARDED_BY(mu_) = 0;  // pages that waiters want
  bool interrupted_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status reported_ ABSL_GUARDED_BY(mu_);
  uint64_t left_ ABSL_GUARDED_BY(mu_) = 0;  // pages, of which faults have not had their part

  mutable Mutex queue_mu_;
  std::unique_ptr<EvictionQueue> queue_ ABSL_GUARDED_BY(queue_mu_);
  // At this number of entries, those of evicted pages are taken out.
  size_t sweep_at_ ABSL_GUARDED_BY(queue_mu_) = 0;
  GhostFilter ghosts_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_RESIDENCY_H_
