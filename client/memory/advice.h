#ifndef NRAM_CLIENT_MEMORY_ADVICE_H_
#define NRAM_CLIENT_MEMORY_ADVICE_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/sync.h"
#include "client/memory/chunk_sums.h"
#include "client/memory/counters.h"
#include "client/memory/page_in.h"
#include "client/memory/page_state.h"
#include "client/memory/publish_gate.h"
#include "client/memory/residency.h"
#include "client/memory/segment.h"
#include "client/memory/userfault.h"

namespace nram {

// A range of pages of one segment.
struct Pages {
  SegmentRef segment;
  uint64_t first = 0;
  uint64_t count = 0;
  uint64_t end() const { return first + count; }
};

// Advice of callers about their memory, page by page: fetch it, evict it, keep it here, write it back, drop it. A call
// may have to wait for another thread's operation on the same pages, and then for its own: it ends within twice the
// pool's timeout. Thread-safe.
class Advice {
 public:
  Advice(int64_t io_timeout_ms, PublishGate* gate, Userfault* userfault, Residency* residency, ChunkSums* sums,
         PageIn* page_in, Counters* counters)
      : io_timeout_ms_(io_timeout_ms),
        gate_(gate),
        userfault_(userfault),
        residency_(residency),
        sums_(sums),
        page_in_(page_in),
        counters_(counters) {}

  // Starts to fetch the pages that are on servers, lost ones too. Does not begin more pages than half of the budget.
  absl::Status Prefetch(const Pages& pages);
  // Writes dirty pages back and drops all pages except pinned ones.
  absl::Status Evict(const Pages& pages);
  // Returns when servers have the pages' contents as of the call. After an error some pages may still be dirty.
  absl::Status Flush(const Pages& pages);
  // Fetches the pages and keeps them here until Unpin. OUT_OF_RANGE: more than half of the budget would be pinned.
  // After an error none of them is pinned that was not before. `asked_bytes`: for the message.
  absl::Status Pin(const Pages& pages, uint64_t asked_bytes);
  void Unpin(const Pages& pages);
  // Changes how many pages may be here (Residency::SetLimit). FAILED_PRECONDITION: more than half of that is pinned.
  absl::Status SetLimit(uint64_t limit_pages, uint64_t window_pages);
  uint64_t PinnedPages();
  // The pages become zeros, here and on servers. After an error each page is zeros or as it was.
  absl::Status Drop(const Pages& pages);
  // Waits until the fetches and evictions of the segment's pages that began before the call have ended; at most until
  // their deadlines.
  void AwaitSettled(const SegmentRef& segment);
  // Pages of a segment that is only read are to be had from servers again: drops those that are here, and lost ones.
  void Refresh(const Pages& pages);
  // The segment has been unmapped, with its pinned pages.
  void Forget(const Segment& segment);

 private:
  int64_t Deadline() const { return DeadlineAfterMs(2 * io_timeout_ms_); }
  // Waits until `moves` is false for the page's state. Gives up the read-ahead windows of [page, end), which no other
  // thread would end. DEADLINE_EXCEEDED with the message `late`.
  absl::Status Await(const Pages& pages, uint64_t page, bool (*moves)(PageState), int64_t deadline_ns,
                     const char* late);
  // Waits until no page is kBusy from before the call: a page whose state is about to change may have been written to
  // already, because the writing thread runs on before the handler has noted the new state.
  absl::Status Settle(const Pages& pages, int64_t deadline_ns);
  void UnpinPage(Segment* segment, uint64_t page);
  absl::Status DropSome(const Pages& pages, int64_t deadline_ns);
  // Makes a page kBusy, from any state; false if it is empty. *was: the former state.
  absl::StatusOr<bool> Seize(const Pages& pages, uint64_t page, PageState* was, int64_t deadline_ns);

  const int64_t io_timeout_ms_;
  PublishGate* const gate_;
  Userfault* const userfault_;
  Residency* const residency_;
  ChunkSums* const sums_;
  PageIn* const page_in_;
  Counters* const counters_;

  Mutex pin_mu_;  // pages' kPinned and segments' pinned_pages are changed under it
  uint64_t pinned_pages_ ABSL_GUARDED_BY(pin_mu_) = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_ADVICE_H_
