#ifndef NRAM_CLIENT_MEMORY_PAGE_IN_H_
#define NRAM_CLIENT_MEMORY_PAGE_IN_H_

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mapping.h"
#include "client/memory/ahead_windows.h"
#include "client/memory/bound_copies.h"
#include "client/memory/chunk_sums.h"
#include "client/memory/counters.h"
#include "client/memory/page_placer.h"
#include "client/memory/residency.h"
#include "client/memory/segment.h"
#include "client/memory/streams.h"
#include "client/memory/userfault.h"

namespace nram {

struct PageInOptions {
  size_t page_bytes = kPageBytes;
  uint64_t window_pages = 256;  // the most that is fetched at once, now and ever
  uint64_t most_window_pages = 256;
  size_t buffers = 16;  // of a window each
  int64_t timeout_ms = 10'000;
  OnLoss on_loss;
};

// Answers faults: fills pages with zeros or from their servers, and lets first writes through. Thread-safe.
class PageIn {
 public:
  static absl::StatusOr<std::unique_ptr<PageIn>> New(PageInOptions options, PublishGate* gate, Userfault* userfault,
                                                     SegmentIndex* index, Residency* residency, ChunkSums* sums,
                                                     BoundCopies* copies, Counters* counters);
  // Blocks until the fault is answered, or another thread is going to answer it; at most for the timeout. `buffer`: of
  // a page.
  void Handle(const Userfault::Fault& fault, std::byte* buffer);

  // Lost pages are to be tried again.
  void Retry(const SegmentRef& segment, uint64_t first, uint64_t count);
  // From now on the segment's pages are not read ahead; waits until none of them is in a buffer. It must not be found
  // in the index any more.
  void Forget(Segment* segment);
  // The segment, which remains mapped, has another region now: waits until no page of the former one is in a buffer.
  void ForgetAhead(Segment* segment);

  // From now on at most `window_pages` are fetched at once.
  void SetWindow(uint64_t window_pages);

  AheadWindows* ahead() { return ahead_.get(); }
  uint64_t buffer_bytes() const { return ahead_->buffer_bytes(); }

 private:
  PageIn(const PageInOptions& options, PublishGate* gate, Userfault* userfault, SegmentIndex* index,
         Residency* residency, ChunkSums* sums, BoundCopies* copies, Counters* counters);

  // Each answers a fault, or returns false if the page's state has changed meanwhile.
  bool FillZeros(const SegmentRef& segment, uint64_t page, bool write, int64_t deadline_ns);
  bool Fetch(const SegmentRef& segment, uint64_t page, bool write, std::byte* page_buffer, int64_t deadline_ns);
  bool LetWrite(const SegmentRef& segment, uint64_t page);

  // Lets writes through to the first pages of the run, which are `was`, one of the clean states. Returns how many.
  uint64_t OpenClean(const SegmentRef& segment, const Run& run, PageState was, bool note);

  // Reads claimed pages and takes budget for them. A window is given up sooner than a page.
  absl::Status Read(const SegmentRef& segment, const Run& run, std::byte* to, int64_t deadline_ns);

  const size_t page_bytes_;
  const int64_t timeout_ms_;
  Userfault* const userfault_;
  SegmentIndex* const index_;
  Residency* const residency_;
  ChunkSums* const sums_;
  BoundCopies* const copies_;
  Counters* const counters_;
  Streams streams_;
  PagePlacer placer_;
  Mapping zeros_;  // a window
  std::unique_ptr<AheadWindows> ahead_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_PAGE_IN_H_
