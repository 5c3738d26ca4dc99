#ifndef NRAM_CLIENT_MEMORY_PAGE_IN_H_
#define NRAM_CLIENT_MEMORY_PAGE_IN_H_

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/fd.h"
#include "base/mapping.h"
#include "base/sync.h"
#include "client/memory/chunk_sums.h"
#include "client/memory/counters.h"
#include "client/memory/residency.h"
#include "client/memory/segment.h"
#include "client/memory/streams.h"
#include "client/memory/userfault.h"
#include "client/pool/io.h"

namespace nram {

struct PageInOptions {
  size_t page_bytes = kPageBytes;
  uint64_t window_pages = 256;  // the most that is fetched at once
  size_t buffers = 16;          // of a window each
  int64_t timeout_ms = 10'000;
  // Before the threads that wait for a page that cannot be had get SIGBUS.
  std::function<void(void* address, size_t length, const std::string& reason)> on_loss;
};

// Answers faults: fills pages with zeros or from their servers, reads ahead, and lets first writes through. Any number
// of threads may call it at the same time.
class PageIn {
 public:
  static absl::StatusOr<std::unique_ptr<PageIn>> New(PageInOptions options, Userfault* userfault, SegmentIndex* index,
                                                     Residency* residency, ChunkSums* sums, Counters* counters);
  // Nothing may be under way.
  ~PageIn();

  // Blocks until the fault is answered, or somebody else is going to answer it. `buffer`: of a page.
  void Handle(const Userfault::Fault& fault, std::byte* buffer);
  // Readable while there are windows that have arrived and are waited for; then HandleArrived() is to be called.
  int arrived_fd() const { return arrived_fd_.get(); }
  void HandleArrived();

  // Starts fetching the pages that are on servers; blocks only while no buffer is free.
  void Prefetch(const SegmentRef& segment, uint64_t first, uint64_t count);
  // Lost pages are to be tried again.
  void Retry(const SegmentRef& segment, uint64_t first, uint64_t count);
  // Gives up what was read ahead of these pages and waits for nobody, so that they are not kBusy for long.
  void CancelAhead(const Segment& segment, uint64_t first, uint64_t count);
  // Waits until nothing of this segment is in a buffer; it must not be found in the index any more.
  void Forget(const Segment& segment);

  uint64_t buffer_bytes() const { return buffers_.size() * options_.window_pages * options_.page_bytes; }

 private:
  // A window that is read ahead: its pages are kBusy until it is installed or given up.
  struct Buffer {
    enum class State { kFree, kReading, kReady, kInstalling };
    Buffer() : io(8) {}
    State state = State::kFree;
    bool wanted = false;  // somebody waits for it
    bool used = false;    // the next window was started because of it
    SegmentRef segment;
    Run run;
    bool writable = false;
    uint64_t stamp = 0;
    std::byte* data = nullptr;
    Io io;
    PageIn* owner = nullptr;
  };

  PageIn(PageInOptions options, Userfault* userfault, SegmentIndex* index, Residency* residency, ChunkSums* sums,
         Counters* counters);

  bool FillZeros(const SegmentRef& segment, uint64_t page, bool write, int64_t deadline_ns);
  bool Fetch(const SegmentRef& segment, uint64_t page, bool write, std::byte* page_buffer, int64_t deadline_ns);
  // Reads claimed pages and makes room for them. A window is given up sooner than a page.
  absl::Status Read(const SegmentRef& segment, const Run& run, std::byte* to, int64_t deadline_ns);
  absl::Status TakeRoom(uint64_t pages, int64_t deadline_ns);
  bool Join(const SegmentRef& segment, uint64_t page);
  bool LetWrite(const SegmentRef& segment, uint64_t page);

  // How many of the run's pages could be taken from `from` to kBusy, from its first on without a gap.
  uint64_t Claim(const Segment& segment, const Run& run, PageState from);
  void Unclaim(const SegmentRef& segment, const Run& run, PageState to);
  void StartAhead(const SegmentRef& segment, const Run& run, bool writable, bool wanted);
  Buffer* FreeBufferLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Buffer* TakeBuffer();
  void Release(Buffer* buffer);
  void GiveUpLocked(Buffer* buffer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnRead(Buffer* buffer);
  void InstallBuffer(Buffer* buffer);
  // Puts claimed pages in place from `data`; theirs must be the room. Ends kBusy. A page that comes alone to be written
  // to is noted: little of it may change, while streams write all of theirs.
  void Install(const SegmentRef& segment, uint64_t lowest, uint64_t count, const std::byte* data, bool writable,
               bool empty);
  void Lose(const SegmentRef& segment, uint64_t page, const std::string& reason);

  const PageInOptions options_;
  Userfault* const userfault_;
  SegmentIndex* const index_;
  Residency* const residency_;
  ChunkSums* const sums_;
  Counters* const counters_;
  Streams streams_;
  Mapping memory_;  // the buffers', then a window of zeros
  UniqueFd arrived_fd_;

  Mutex mu_;
  CondVar freed_;
  std::vector<std::unique_ptr<Buffer>> buffers_;  // their fields under mu_, but for io and data
  uint64_t clock_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_PAGE_IN_H_
