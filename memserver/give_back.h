#ifndef NRAM_MEMSERVER_GIVE_BACK_H_
#define NRAM_MEMSERVER_GIVE_BACK_H_

// How a server gives memory back to its host (adr/0017): unused memory at once, and stored pages through their owners.
// Knows nothing of the host: the caller of Tick says how much the server may hold.

#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/units.h"
#include "memserver/asking.h"
#include "memserver/compactor.h"
#include "memserver/frame_arena.h"
#include "memserver/landing_frames.h"
#include "memserver/lease_table.h"
#include "memserver/page_store.h"
#include "memserver/spill.h"

namespace nram {

struct GiveBackOptions {
  enum class Mode {
    kOff,       // spare memory alone
    kIdle,      // unused memory, also where frames must move for it
    kPressure,  // stored pages, too
  };
  Mode mode = Mode::kPressure;
  // Regions without an owner may be destroyed when nothing else has helped.
  bool drops_orphans = false;
  // After that, pages go to the donor's swap.
  bool spills_to_swap = false;
  // After this time without progress, nothing else has helped. Clients do not try a server that refused a span for half
  // of it.
  int64_t patience_ns = 10 * kNsPerSecond;
  // The real time that a tick may spend on moving frames together.
  int64_t compact_ns = 50 * kNsPerMs;
};

// Tick is for one thread. The rest is thread-safe.
class GiveBack {
 public:
  // The pointers are not owned.
  GiveBack(const GiveBackOptions& options, FrameArena* arena, LeaseTable* leases, PageStore* store,
           LandingFrames* landing)
      : options_(options),
        arena_(arena),
        leases_(leases),
        store_(store),
        landing_(landing),
        compactor_(arena, store, landing),
        spill_(arena) {}
  GiveBack(const GiveBack&) = delete;

  // The server may hold so much in all. Call it every 100 ms or so; it takes compact_ns, and a little more. Appends
  // messages for people to `*remarks`. `now_ns`: of any clock, not 0.
  void Tick(uint64_t allowed_bytes, int64_t now_ns, std::vector<std::string>* remarks);
  // Nothing limits the server but its ceiling.
  void EndAsking(int64_t now_ns, std::vector<std::string>* remarks);

  // As Asking says.
  uint64_t asked_back_bytes() const { return asking_.AskedBytes(StoredBytes()); }
  uint32_t share() const { return asking_.Share(StoredBytes()); }
  bool pressed() const { return asking_.pressed(); }
  uint64_t asked_back_ms() const { return asking_.asked_ms(); }
  // The part of the free memory that new spans may take: the rest is for the growth of present ones.
  uint64_t FreeForNew(uint64_t free_bytes) const {
    const uint64_t beyond = beyond_bytes_;
    return share() > 0 || free_bytes <= beyond ? 0 : free_bytes - beyond;
  }
  // The memory that the host needed and has got back, since the start.
  uint64_t given_back_bytes() const { return given_back_bytes_; }
  uint64_t regions_given_up() const { return regions_given_up_; }
  const Compactor& compactor() const { return compactor_; }

 private:
  static constexpr uint64_t kCompactBytesMin = 4 * kMiB;
  // While more is asked than compaction could give, it waits for this time without progress.
  static constexpr int64_t kCompactAfterNs = 500 * kNsPerMs;
  // Compaction that is in vain pauses.
  static constexpr int64_t kCompactPauseMinNs = kNsPerSecond;
  static constexpr int64_t kCompactPauseMaxNs = 30 * kNsPerSecond;
  static constexpr int64_t kGiveUpAgainNs = kNsPerSecond;
  static constexpr uint64_t kCollectSteps = 64;  // of a lease that is given up, at once: some milliseconds
  static constexpr int64_t kSpillNs = 50 * kNsPerMs;  // in one tick

  // The bytes that clients could give back: all that they have here, without versions.
  uint64_t StoredBytes() const;
  void GiveUp(uint64_t bytes, int64_t now_ns, std::vector<std::string>* remarks);
  // The bytes that moving pages together could give; 0: it was in vain lately.
  uint64_t Gain(int64_t now_ns) const;
  void Compact(uint64_t bytes, int64_t now_ns);
  // Versions that keep `bytes` go, `held` ones too. Returns the bytes that this has freed.
  uint64_t Yield(uint64_t bytes, bool held, std::vector<std::string>* remarks);
  void SpillSome(uint64_t bytes, std::vector<std::string>* remarks);

  const GiveBackOptions options_;
  FrameArena* const arena_;
  LeaseTable* const leases_;
  PageStore* const store_;
  LandingFrames* const landing_;
  Compactor compactor_;
  Spill spill_;

  Asking asking_;
  std::atomic<uint64_t> beyond_bytes_{0};  // a part of the free memory; ~0: it has more than it may
  std::atomic<uint64_t> given_back_bytes_{0};
  std::atomic<uint64_t> regions_given_up_{0};

  // --- Tick's.
  int64_t compact_again_ns_ = 0;
  int64_t compact_pause_ns_ = kCompactPauseMinNs;
  uint64_t extent_bytes_ = 0;  // at the last tick
  bool told_stuck_ = false;
  bool spills_ = false;  // nothing else has helped
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_GIVE_BACK_H_
