#ifndef NRAM_CLIENT_MEMORY_AHEAD_WINDOWS_H_
#define NRAM_CLIENT_MEMORY_AHEAD_WINDOWS_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/fd.h"
#include "base/mapping.h"
#include "base/sync.h"
#include "client/memory/counters.h"
#include "client/memory/page_placer.h"
#include "client/memory/segment.h"
#include "client/memory/streams.h"
#include "client/pool/io.h"

namespace nram {

struct AheadOptions {
  size_t page_bytes = kPageBytes;
  uint64_t window_pages = 256;  // that a window holds, and the most it may ever hold
  uint64_t most_window_pages = 256;
  size_t windows = 16;
  int64_t timeout_ms = 10'000;  // for taking the budget of a window that has arrived
};

// Windows of pages that are read before the program touches them. A window's pages are kBusy from Start until the
// window is placed, because a thread waits for one of them, or given up, because its buffer or its pages are needed. A
// fixed number of buffers bounds them. Thread-safe.
class AheadWindows {
 public:
  static absl::StatusOr<std::unique_ptr<AheadWindows>> New(const AheadOptions& options, PagePlacer* placer,
                                                           Streams* streams, Counters* counters);
  // Nothing may be under way.
  ~AheadWindows();

  // Readable while windows that a thread waits for have arrived; then any thread calls HandleArrived, which places one.
  int arrived_fd() const { return arrived_fd_.get(); }
  void HandleArrived();

  // Starts to read the run's pages, from its first up to the first that is not kRemote. Does nothing if all buffers are
  // in use, or if the segment is being unmapped. `writable`: as PagePlacer::Place. `wanted`: it is placed when it
  // arrives, though no thread waits yet.
  void Start(const SegmentRef& segment, const Run& run, bool writable, bool wanted);
  // A thread of the program waits for a page that is kBusy: if the page's window has arrived, places it, else notes
  // that it is wanted; and reads the window after it. False if the page is not kBusy any more. Blocks while
  // there is no budget for the window.
  bool Join(const SegmentRef& segment, uint64_t page);
  // Starts wanted windows for all kRemote pages of the range; blocks while all buffers are in use.
  void Prefetch(const SegmentRef& segment, uint64_t first, uint64_t count);
  // Gives up the windows of these pages that have arrived and that no thread waits for. Does not block.
  void Cancel(const Segment& segment, uint64_t first, uint64_t count);
  // From now on starts no windows of the segment; waits until none has any of its pages.
  void Forget(Segment* segment);

  // A buffer for the caller's own reads, until Return; nothing if all are in use.
  std::optional<size_t> Borrow();
  std::byte* data(size_t index) const { return buffers_[index]->data; }
  void Return(size_t index);

  // From now on windows are as large as this, up to the most.
  void SetWindow(uint64_t window_pages);
  uint64_t window_pages() const { return window_pages_.load(std::memory_order_relaxed); }
  // Gives back the parts of free buffers that smaller windows do not use. Does not block.
  void Trim();

  uint64_t buffer_bytes() const {
    return buffers_.size() * held_pages_.load(std::memory_order_relaxed) * options_.page_bytes;
  }

 private:
  enum class State { kFree, kReading, kReady, kPlacing };
  struct Window {
    State state = State::kFree;  // kPlacing: one thread's own, also a borrowed buffer
    bool wanted = false;         // a thread waits for it
    bool used = false;           // the next window was started because of it
    bool writable = false;
    SegmentRef segment;
    Run run;
    uint64_t stamp = 0;  // older windows have lower ones
  };
  // The part of a window that its read uses, without the lock.
  struct Buffer {
    Buffer() : io(8) {}
    std::byte* data = nullptr;
    Io io;
    AheadWindows* owner = nullptr;
    size_t index = 0;  // of its window
  };

  AheadWindows(const AheadOptions& options, PagePlacer* placer, Streams* streams, Counters* counters)
      : options_(options),
        placer_(placer),
        streams_(streams),
        counters_(counters),
        window_pages_(options.window_pages),
        held_pages_(options.window_pages) {}

  // A free buffer. If there is none, gives up the oldest window that no thread waits for.
  std::optional<size_t> FindFreeLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of a window that is kReady.
  void GiveUpLocked(size_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnRead(size_t index);
  // Of a window that is kPlacing.
  void Place(size_t index);

  const AheadOptions options_;
  PagePlacer* const placer_;
  Streams* const streams_;
  Counters* const counters_;
  std::atomic<uint64_t> window_pages_;
  std::atomic<uint64_t> held_pages_;  // the most that a window held since Trim
  Mapping memory_;                    // the buffers'
  UniqueFd arrived_fd_;
  std::vector<std::unique_ptr<Buffer>> buffers_;  // constant after New

  Mutex mu_;
  CondVar freed_;  // a window has become free, or can be given up
  std::vector<Window> windows_ ABSL_GUARDED_BY(mu_);
  uint64_t clock_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_AHEAD_WINDOWS_H_
