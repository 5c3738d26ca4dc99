#ifndef NRAM_CLIENT_POOL_CHANGE_GATE_H_
#define NRAM_CLIENT_POOL_CHANGE_GATE_H_

// The order of changes that overlap, in regions with several copies (adr/0014): such changes reach all copies in the
// order in which they came here. Changes of different chunks never wait for each other.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/sync.h"
#include "base/units.h"

namespace nram {

// A place in the gate. Its memory is its owner's, and must be valid until it has left or was cancelled.
struct GatePlace {
  // Conflict depends on the values.
  enum class Kind : uint8_t {
    kChange = 0,  // waits for every earlier place that overlaps
    kLook = 1,    // waits for earlier changes only
    kSeal = 3,    // of a version: changes and other seals wait for it, and it for them; looks do not see it
  };
  enum class Outcome : uint8_t {
    kIn,    // the place is in the gate: its owner must leave
    kLate,  // the deadline has passed: the place is not in the gate
  };

  // --- Set by the owner.
  Kind kind = Kind::kChange;
  RegionId region{};
  ChunkRange range;
  int64_t deadline_ns = 0;
  // Runs once if Enter was false, with no lock held, on any thread of the pool; must not block. It may enter and leave
  // other places.
  void (*resume)(GatePlace* place) = nullptr;
  void* context = nullptr;

  // --- Set before `resume` runs.
  Outcome outcome = Outcome::kIn;

 private:
  friend class ChangeGate;
  enum class State : uint8_t { kOut, kWaiting, kIn };
  State state_ = State::kOut;
  uint32_t blockers_ = 0;  // earlier places that it waits for
  GatePlace* next_ = nullptr;
  GatePlace* previous_ = nullptr;
  GatePlace* next_resumed_ = nullptr;
};

// Thread-safe. Allocates nothing; nothing blocks. A call takes time in proportion to the places of a sixteenth of the
// regions: some ten nanoseconds each.
class ChangeGate {
 public:
  ChangeGate() = default;
  ~ChangeGate();  // CHECKs that it is empty
  ChangeGate(const ChangeGate&) = delete;
  ChangeGate& operator=(const ChangeGate&) = delete;

  // True: the place is in the gate. False: it waits, behind earlier ones that overlap and those that wait like it, and
  // will be resumed once.
  bool Enter(GatePlace* place);
  // Ends a place that is in the gate, and resumes those that waited for it alone.
  void Leave(GatePlace* place);
  // True: the place waited, and will not be resumed. False: it was resumed, or is just being resumed.
  bool Cancel(GatePlace* place);
  // Whether a change of any of these chunks is in the gate, or waits.
  bool IsChanging(RegionId region, const ChunkRange& range) const;
  // Resumes the places whose deadline has passed. To be called every 20 ms or so.
  void Tick(int64_t now_ns);

 private:
  static constexpr size_t kShards = 16;

  // In the order of their coming.
  struct Shard {
    mutable Mutex mu;
    GatePlace* first ABSL_GUARDED_BY(mu) = nullptr;
    GatePlace* last ABSL_GUARDED_BY(mu) = nullptr;
    // To be resumed, in order. One thread does it, so that a chain of short changes does not become a deep stack.
    GatePlace* resumed_first ABSL_GUARDED_BY(mu) = nullptr;
    GatePlace* resumed_last ABSL_GUARDED_BY(mu) = nullptr;
    bool is_resuming ABSL_GUARDED_BY(mu) = false;
    std::atomic<uint32_t> places{0};  // written under mu
  };

  static bool Conflict(const GatePlace& a, const GatePlace& b);
  static void RemoveLocked(Shard* shard, GatePlace* place) ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->mu);
  static void ResumeLaterLocked(Shard* shard, GatePlace* place, GatePlace::Outcome outcome)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(shard->mu);
  static void ResumeAll(Shard* shard);
  Shard& shard(RegionId region) { return shards_[Raw(region) % kShards]; }
  const Shard& shard(RegionId region) const { return shards_[Raw(region) % kShards]; }

  std::array<Shard, kShards> shards_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_CHANGE_GATE_H_
