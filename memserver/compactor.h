#ifndef NRAM_MEMSERVER_COMPACTOR_H_
#define NRAM_MEMSERVER_COMPACTOR_H_

// Moves pages together, so that memory that was freed here and there goes back to the host (adr/0018).
//
// The arena chooses the extents with the least in use, whose frames fit into the others, and takes nothing more from
// them. The compactor walks over all pages, in short steps under the lock of a shard, and moves those that lie there.
// An extent that is empty goes back to the host at once.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "base/sync.h"
#include "memserver/frame_arena.h"
#include "memserver/landing_frames.h"
#include "memserver/region_table.h"

namespace nram {

// Thread-safe; other threads use the arena and the regions meanwhile.
class Compactor {
 public:
  struct Counters {
    std::atomic<uint64_t> runs{0};  // that have moved something
    std::atomic<uint64_t> pages_moved{0}, bytes_moved{0}, extents_emptied{0};
    // A landing frame or a region that is being destroyed held them, or time or room was at its end.
    std::atomic<uint64_t> extents_given_up{0};
    std::atomic<uint64_t> bytes_given_back{0};  // to the host, spare extents included
  };

  // Pointers are not owned and must outlive the compactor. `landing` may be null.
  Compactor(FrameArena* arena, RegionTable* regions, LandingFrames* landing)
      : arena_(arena), regions_(regions), landing_(landing) {}
  Compactor(const Compactor&) = delete;

  // Gives `want_bytes` (rounded up to extents) back to the host if it can: first spare extents and the memory of
  // destroyed regions, then extents that become spare when pages move together. Ends at `deadline_ns` on the monotonic
  // clock, one step later at most (64 pages moved and 16 MiB given back), or when there is no more to gain. Returns the
  // bytes given back. Costs almost nothing if there is nothing to gain. One call at a time; others wait for it. The
  // next call does the rest.
  uint64_t Run(uint64_t want_bytes, int64_t deadline_ns);
  // The most that Run could give back. Costs nothing; not all of it can really be had.
  uint64_t GainBytes() const;

  const Counters& counters() const { return counters_; }

 private:
  // The bounds of a step, so that others wait for a shard's lock no longer than for a large read: some 20 us of
  // looking, and 60 us of copying.
  static constexpr uint64_t kLooksPerStep = 4096;
  static constexpr uint64_t kMovesPerStep = 64;
  // How often a call chooses anew, and how often it looks at all pages for one choice. A write whose frames were taken
  // before the choice may bring a page back into an extent that the walk has passed: the second walk finds it.
  static constexpr int kRoundsMax = 4;
  static constexpr int kWalksPerRound = 2;
  // How many of the chosen extents may be refused before the choice ends.
  static constexpr int kRefusalsMax = 16;

  struct Step {
    uint64_t looks_left = kLooksPerStep;
    uint64_t moves_left = kMovesPerStep;
    bool has_room = true;
  };
  // Marks extents to be emptied. Returns how many.
  size_t Choose(uint64_t want_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_mu_);
  // Looks at all pages once. False: time or room is at its end.
  bool Walk(uint64_t want_bytes, int64_t deadline_ns, uint64_t* given_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(run_mu_);
  // Returns where the page is now; kNoFrame: it has not moved, and the step ends.
  FrameLoc MovePage(FrameLoc frame, ChunkMask mask, Step* step);
  uint64_t Release(uint64_t bytes, int64_t deadline_ns);

  FrameArena* const arena_;
  RegionTable* const regions_;
  LandingFrames* const landing_;
  Counters counters_;

  Mutex run_mu_;  // taken before all others
  // Of this call: extents that could not be emptied.
  absl::flat_hash_set<uint32_t> pinned_ ABSL_GUARDED_BY(run_mu_);
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_COMPACTOR_H_
