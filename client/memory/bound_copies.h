#ifndef NRAM_CLIENT_MEMORY_BOUND_COPIES_H_
#define NRAM_CLIENT_MEMORY_BOUND_COPIES_H_

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mapping.h"
#include "base/sync.h"
#include "client/memory/chunk_sums.h"
#include "client/memory/counters.h"
#include "client/memory/publish_gate.h"
#include "client/memory/residency.h"
#include "client/memory/segment.h"
#include "client/memory/streams.h"
#include "client/memory/userfault.h"
#include "client/pool/io.h"

namespace nram {

// Copies of bound pages to which the program writes before servers have them: it goes on with the page (kDirtyCopied),
// and the copy is sent in its place. They take budget, as pages do, and are a sixteenth of it at most. Thread-safe, but
// the publisher's thread alone sends.
class BoundCopies {
 public:
  static constexpr uint64_t kShare = 16;  // of the budget

  // `most_pages`: that may ever be here.
  static absl::StatusOr<std::unique_ptr<BoundCopies>> New(size_t page_bytes, uint64_t most_pages, PublishGate* gate,
                                                          Userfault* userfault, Residency* residency, ChunkSums* sums,
                                                          Counters* counters);
  // Nothing may be under way.
  ~BoundCopies();

  // Copies the run's first pages, up to the first that is not bound, and lets writes through. Returns how many: fewer
  // if there is no room for more copies now. `note`: some may not be written after all, so the copies are noted in
  // ChunkSums when servers have them.
  uint64_t Copy(const SegmentRef& segment, const Run& run, bool note);

  // --- The publisher's thread's.
  // Ends the sends that servers have answered, and starts new ones in free lanes. Does not wait. The first error.
  absl::Status Pump();
  bool HasDone() const;  // there is something for Pump to do
  bool idle() const;     // nothing is under way, and nothing waits to be sent
  // The version is given up: waits for the sends under way, and forgets the other copies. The pages are dirty.
  void GiveUp();
  // Nothing is under way: gives back the memory, at once or when late threads have released their slots.
  void Trim();

 private:
  static constexpr size_t kLanes = 16;
  struct Waiting {
    SegmentRef segment;
    uint64_t page = 0;
    PageState was{};
    uint32_t slot = 0;
    bool note = false;
  };
  struct Lane {
    Lane() : io(4) {}
    Io io;
    BoundCopies* owner = nullptr;
    Waiting copy;
    std::vector<ChunkMask> masks;
    bool busy = false;
    std::atomic<bool> done{false};
  };

  BoundCopies(size_t page_bytes, uint64_t slots, PublishGate* gate, Userfault* userfault, Residency* residency,
              ChunkSums* sums, Counters* counters);
  std::byte* data(uint32_t slot) const { return memory_.data() + slot * page_bytes_; }
  // As many as there are, up to `most`.
  std::vector<uint32_t> TakeSlots(uint64_t most);
  void ReturnSlots(absl::Span<const uint32_t> slots);
  void ReturnSlotsLocked(absl::Span<const uint32_t> slots) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void TrimLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void FindMasks(Lane* lane);
  void Send(Lane* lane);
  absl::Status EndDone();
  // Servers have it (`sent`), or it is dropped.
  void End(Waiting* copy, bool sent);

  const size_t page_bytes_;
  const uint64_t slots_;
  PublishGate* const gate_;
  Userfault* const userfault_;
  Residency* const residency_;
  ChunkSums* const sums_;
  Counters* const counters_;
  Mapping memory_;
  std::vector<std::unique_ptr<Lane>> lanes_;  // the publisher's thread's

  mutable Mutex mu_;
  CondVar ended_;
  std::deque<Waiting> waiting_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> free_ ABSL_GUARDED_BY(mu_);  // used before
  uint32_t fresh_ ABSL_GUARDED_BY(mu_) = 0;          // the first slot that was not used since Trim
  uint64_t used_ ABSL_GUARDED_BY(mu_) = 0;
  bool trims_ ABSL_GUARDED_BY(mu_) = false;  // when none is used
};

}  // namespace nram

#endif  // NRAM_CLIENT_MEMORY_BOUND_COPIES_H_
