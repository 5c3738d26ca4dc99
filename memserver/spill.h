#ifndef NRAM_MEMSERVER_SPILL_H_
#define NRAM_MEMSERVER_SPILL_H_

#include <cstdint>

#include "absl/status/statusor.h"
#include "base/sync.h"
#include "memserver/frame_arena.h"

namespace nram {

// Sends stored pages to the donor's swap (adr/0018): the last step of giving memory back, off by default. The kernel
// brings a page back when it is read or written. The arena counts it as taken all the time: only the resident set
// falls. Plain pages lie on the donor's disk in clear then. Thread-safe.
class Spill {
 public:
  // `arena` is not owned and must outlive the object.
  explicit Spill(FrameArena* arena) : arena_(arena) {}
  Spill(const Spill&) = delete;

  // Sends extents out, from where the last call has ended, until `want_bytes` have left memory, or until `deadline_ns`
  // on the monotonic clock and one extent more (2 MiB, which waits for the disk if swap is slow). Returns the bytes
  // that have left; fewer if swap is full, or if there is none. UNIMPLEMENTED: the kernel cannot (before Linux 5.4).
  absl::StatusOr<uint64_t> Run(uint64_t want_bytes, int64_t deadline_ns);

  // How much of an extent is in memory. For tests too.
  uint64_t ResidentBytes(uint32_t extent) const;

 private:
  // Swap is full if this many extents in a row stay in memory.
  static constexpr int kInVainMax = 8;

  FrameArena* const arena_;
  Mutex mu_;
  uint32_t next_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_SPILL_H_
