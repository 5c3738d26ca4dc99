#ifndef NRAM_CLIENT_MEMORY_STREAMS_H_
#define NRAM_CLIENT_MEMORY_STREAMS_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/sync.h"
#include "base/units.h"

namespace nram {

enum class ReadAhead : uint8_t { kNormal, kSequential, kNever };

// Numbered pages that streams go through. No stream leads from one area into another.
struct StreamArea {
  explicit StreamArea(uint64_t pages, size_t page_bytes = kPageBytes) : page_bytes(page_bytes), area_pages(pages) {}

  const size_t page_bytes;
  const uint64_t area_pages;
  std::atomic<ReadAhead> read_ahead{ReadAhead::kNormal};
};

// A run of pages in one direction: `count` pages from `first` on, up (step 1) or down (step -1).
struct Run {
  uint64_t first = 0;
  uint64_t count = 0;
  int step = 1;

  uint64_t lowest() const { return step > 0 ? first : first + 1 - count; }
  // All but the first.
  Run rest() const { return {at(1), count - 1, step}; }
  uint64_t at(uint64_t i) const { return step > 0 ? first + i : first - i; }
};

// The plan for a fault.
struct StreamPlan {
  Run demand;             // starts with the page that is missing
  Run ahead;              // to be fetched besides, count 0 for nothing
  bool writable = false;  // the pages of `demand` are going to be written
};

// The pages that a first write lets through.
struct WritePlan {
  Run run;            // from the written page on
  bool sure = false;  // all of it is going to be written; else pages of it may remain unwritten
};

// Recognises, by their faults, threads that go through memory in order, up or down, and tells how far to read ahead:
// four times as many pages at each fault that continues a stream, up to a window; then the next window while this one
// is used. The growing window is that of Linux's readahead. First writes to pages that are here have streams of their
// own, which double, and may leave pages out. Thread-safe.
class Streams {
 public:
  explicit Streams(uint64_t window_pages) : window_(window_pages) {}
  // From now on.
  void SetWindow(uint64_t window_pages) { window_.store(window_pages, std::memory_order_relaxed); }

  // A page is missing.
  StreamPlan OnFault(const StreamArea& area, uint64_t page, bool write);
  // A thread waits for a window that was read ahead: returns the run to read next.
  StreamPlan OnAheadUsed(const StreamArea& area, const Run& window);
  // A page that is here is written for the first time: the pages from this one on that are likely to be written next,
  // the page alone if it belongs to no stream. Not all of them may be protected.
  WritePlan OnFirstWrite(const StreamArea& area, uint64_t page);
  void Forget(const StreamArea& area);

 private:
  struct Stream {
    const StreamArea* area = nullptr;
    uint64_t next = 0;    // the page whose fault continues it
    uint64_t degree = 0;  // pages that its last fault brought
    int step = 0;         // 0: not known yet
    bool writes = false;
    uint32_t windows = 0;  // brought so far
    uint64_t stamp = 0;
  };

  // Of first writes.
  struct Writer {
    const StreamArea* area = nullptr;
    uint64_t next = 0;      // the page whose first write continues it
    uint64_t degree = 0;    // pages that its last fault let through
    int step = 0;           // 0: not known yet
    uint64_t straight = 0;  // faults in a row that left no page out
    uint64_t stamp = 0;
  };

  // The stream that the first write continues, or null.
  Writer* FindWriter(const StreamArea& area, uint64_t page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  WritePlan Continue(Writer* writer, const StreamArea& area, uint64_t page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // The place of the stream with the least is given to a new one.
  static uint64_t KeptUntil(const Stream& stream);
  // Whether the pages that are about to be brought are going to be written.
  static bool Writable(Stream* stream);
  Run Clip(const StreamArea& area, uint64_t first, uint64_t count, int step) const;

  uint64_t most_pages() const { return window_.load(std::memory_order_relaxed); }

  std::atomic<uint64_t> window_;
  Mutex mu_;
  std::array<Stream, 16> streams_ ABSL_GUARDED_BY(mu_);
  uint64_t clock_ ABSL_GUARDED_BY(mu_) = 0;
  std::array<Writer, 16> writers_ ABSL_GUARDED_BY(mu_);
  uint64_t writers_clock_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_STREAMS_H_
