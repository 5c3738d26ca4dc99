#ifndef NRAM_MEMSERVER_FRAME_ARENA_H_
#define NRAM_MEMSERVER_FRAME_ARENA_H_

// The memory for pages, and the one account of all memory that the server may take.
//
// The memory consists of 2 MiB extents (transparent huge pages) of one address range, cut into 64 KiB slabs, each cut
// into frames of one size: 1 to 8 chunks. A page takes a frame of as many chunks as it has, so a half-written page
// costs half a page. An extent whose slabs are all free is spare. It goes back to the host when it has not been needed
// for a while (ReleaseIdle), or at once if the ceiling is needed for something else, or if it is wanted (ReleaseSpare).
//
// Freed frames leave holes in extents. A caller that knows where all frames are named can move them (compactor.h):
// the arena marks extents as evacuating and gives no more memory from them, until they are empty.
//
// The ceiling covers extents, index, reservations and the process itself. A reservation is memory that a client has
// reserved and not used yet. The arena gives it to no other client, so an allocation that a reservation pays for cannot
// fail.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/mapping.h"
#include "base/sync.h"
#include "base/units.h"
#include "memserver/payment.h"
#include "proto/price.h"

namespace nram {

// A frame's place, in units of 512 bytes from the start of the arena. 40 bits address 512 TiB.
using FrameLoc = uint64_t;
inline constexpr FrameLoc kNoFrame = ~FrameLoc{0};

class FrameArena;

// The memory that a tenant takes of an arena: frames, index and reservations, of all its leases and regions. Memory
// that a reservation pays for moves within the account. Regions take memory by their tenant's account alone.
// Thread-safe.
class ArenaAccount {
 public:
  static constexpr uint64_t kNoLimit = ~uint64_t{0};

  // `arena` is not owned and must outlive the account.
  explicit ArenaAccount(FrameArena* arena) : arena_(arena) {}
  ArenaAccount(const ArenaAccount&) = delete;

  // As the arena's functions of the same names; beyond the limit there is no memory either.
  FrameLoc Allocate(int chunks, Payment* payment = nullptr);
  void Free(FrameLoc frame, Refund* refund = nullptr);
  int ChunksIn(FrameLoc frame) const;
  bool ChargeIndex(uint64_t bytes, Payment* payment = nullptr);
  void ReleaseIndex(uint64_t bytes, Refund* refund = nullptr);
  void ReturnIndex(uint64_t bytes, Payment* payment);

  // A limit below the taken bytes takes nothing away, and nothing is added.
  void SetLimit(uint64_t bytes);
  uint64_t bytes() const;
  uint64_t limit_bytes() const;
  // The bytes that the limit still allows.
  uint64_t left_bytes() const;

 private:
  friend class FrameArena;

  FrameArena* const arena_;
  // The arena's lock guards them.
  uint64_t bytes_ = 0;
  uint64_t limit_bytes_ = kNoLimit;
};

struct ArenaUsage {
  uint64_t ceiling_bytes = 0;
  uint64_t fixed_bytes = 0;  // the process itself and its buffers
  uint64_t frame_bytes = 0;  // frames in use
  uint64_t index_bytes = 0;
  uint64_t reserved_bytes = 0;  // all reservations
  uint64_t free_bytes = 0;      // could be reserved now
  uint64_t extent_bytes = 0;    // backed by memory, in use or not
};

// Thread-safe. `account`: whose memory it is; null: the server's own.
class FrameArena {
 public:
  // `ceiling_bytes` bounds everything; `fixed_bytes` of it are taken from the start. INVALID_ARGUMENT if nothing would
  // be left; RESOURCE_EXHAUSTED if the address space cannot be had.
  static absl::StatusOr<std::unique_ptr<FrameArena>> Create(uint64_t ceiling_bytes, uint64_t fixed_bytes);

  // A frame for `chunks` (1..8) chunks, uninitialised; kNoFrame if that would go over the ceiling or into
  // others' reservations. `payment` (may be null) pays first.
  FrameLoc Allocate(int chunks, Payment* payment = nullptr, ArenaAccount* account = nullptr);
  // `refund` (may be null) keeps the frame's bytes, in the same step, unless they may be no room for whole pages.
  void Free(FrameLoc frame, Refund* refund = nullptr, ArenaAccount* account = nullptr);
  // How many chunks a frame in use has room for: at least as many as it was asked for.
  int ChunksIn(FrameLoc frame) const { return slab(static_cast<uint32_t>(frame / kChunksPerSlab)).chunks; }
  std::byte* Data(FrameLoc frame) const { return data_.data() + frame * kChunkBytes; }

  // Accounts for memory that the index takes from malloc. False (and nothing changes) if it does not fit.
  bool ChargeIndex(uint64_t bytes, Payment* payment = nullptr, ArenaAccount* account = nullptr);
  // `refund` (may be null) keeps the bytes, in the same step.
  void ReleaseIndex(uint64_t bytes, Refund* refund = nullptr, ArenaAccount* account = nullptr);
  // Releases bytes that the request of `payment` (may be null) has charged and does not need. If its reservation has
  // paid for them, they go back to it and count as not paid.
  void ReturnIndex(uint64_t bytes, Payment* payment, ArenaAccount* account = nullptr);
  // The same for buffers of connections.
  bool ChargeFixed(uint64_t bytes);
  void ReleaseFixed(uint64_t bytes);

  // Reserves memory for `pages` more pages. False, and nothing changes: there is not that much, or the account's limit
  // does not allow it, or it is closed.
  bool Reserve(uint64_t pages, ArenaReservation* reservation);
  // Reserves as much as the frame takes, and a refund of it would give. The bytes; 0 if it is closed; nullopt, and
  // nothing changes: there is not that much, or the account's limit does not allow it.
  std::optional<uint64_t> ReserveLike(FrameLoc frame, ArenaReservation* reservation);
  // Frees all of the reservation. Until it is opened again, nothing is added to it.
  void CloseReservation(ArenaReservation* reservation);
  void OpenReservation(ArenaReservation* reservation);
  // Frees `pages` pages of the reservation, or all of it if it has fewer.
  void Unreserve(uint64_t pages, ArenaReservation* reservation);
  uint64_t left_bytes(const ArenaReservation& reservation) const;

  // Moves the ceiling: never below the memory in use, never above Create's ceiling. Spare extents beyond it go back to
  // the host, 1 GiB a call at most. Call it again and again. Returns how much is taken or reserved beyond `bytes`. The
  // ceiling may be above `bytes`, as CeilingFor (memserver/asking.h) says.
  uint64_t SetCeiling(uint64_t bytes, uint64_t allowance_bytes = 0, bool is_pressed = false);
  // Call it often, and with `period_ends` now and then. Extents that were spare for a whole period go back to the
  // host, 1 GiB a call at most, so that the caller has time for other things. Memory that is freed and soon taken
  // again, as by a program's temporary files, need not be cleared and mapped again.
  void ReleaseIdle(bool period_ends);
  // Gives spare extents back to the host at once: `bytes` rounded up, or until `deadline_ns` on the monotonic clock.
  // Others get the lock every 16 MiB. Returns the bytes given back.
  uint64_t ReleaseSpare(uint64_t bytes, int64_t deadline_ns);

  // To empty extents. One caller at a time (compactor.h); others use the arena meanwhile. The memory that is free in
  // evacuating extents counts as taken, so reservations hold as ever. If a reservation needs it nevertheless, the
  // arena gives the evacuation up by itself.

  // How much would become spare if all frames moved together. Costs nothing; more than can really be had.
  uint64_t ScatteredBytes() const;
  uint64_t SpareBytes() const;
  // Up to `most` extents, those with the least in use first. Spare extents, full ones and evacuating ones are left out.
  std::vector<uint32_t> EmptiestExtents(size_t most) const;
  enum class Evacuation {
    kBegun,
    kPinned,  // it cannot be emptied now: it holds a slab that is not paid yet, or is none of the above any more
    kNoRoom,  // its frames do not fit into the rest, or only at the expense of reservations
  };
  Evacuation BeginEvacuation(uint32_t extent);
  struct Evacuated {
    size_t emptied = 0;          // since the first BeginEvacuation, or the last EndEvacuation
    std::vector<uint32_t> left;  // extents that were evacuating until now
  };
  // Gives up extents that are not empty yet. Extents that are in neither count were given up by the arena itself.
  Evacuated EndEvacuation();
  // May be out of date by the time the caller looks. But a frame that an index names under its shard's lock lies in an
  // extent that is not empty.
  bool IsEvacuating(FrameLoc frame) const {
    return is_evacuating_[frame / kChunksPerExtent].load(std::memory_order_relaxed);
  }
  size_t evacuating_extents() const { return evacuating_count_.load(std::memory_order_relaxed); }
  static uint32_t ExtentOf(FrameLoc frame) { return static_cast<uint32_t>(frame / kChunksPerExtent); }
  static constexpr uint64_t extent_size() { return kExtentBytes; }
  // A frame of the same size, in an extent that is in use already and not evacuating. kNoFrame: there is none that
  // reservations do not need. The caller copies, and frees `frame` without an account: the owner's account does not
  // change.
  FrameLoc AllocateElsewhere(FrameLoc frame);

  // Extents by their number, from 0 on; for spill.h.
  uint32_t extents() const { return static_cast<uint32_t>(data_.size() / kExtentBytes); }
  std::byte* ExtentData(uint32_t extent) const { return data_.data() + extent * kExtentBytes; }
  bool IsInUse(uint32_t extent) const;

  ArenaUsage usage() const;

 private:
  friend class ArenaAccount;

  static constexpr uint64_t kExtentBytes = 2 * kMiB;
  static constexpr uint64_t kSlabBytes = 64 * kKiB;
  static constexpr uint64_t kSlabsPerExtent = kExtentBytes / kSlabBytes;
  static constexpr uint64_t kChunksPerSlab = kSlabBytes / kChunkBytes;
  static constexpr uint64_t kChunksPerExtent = kExtentBytes / kChunkBytes;
  static constexpr int kClasses = static_cast<int>(kChunksPerPage);
  // Memory that is never reserved, nor given without a reservation: one extent for each of two reasons. A class's
  // newest slab is paid for frame by frame, so up to one slab a class is taken before it is paid. And an index that a
  // reservation pays for may cost that the end of an extent.
  static constexpr uint64_t kSlackBytes = 2 * kExtentBytes;
  static constexpr uint32_t kNone = ~uint32_t{0};
  // How many extents go back to the host before other threads get the lock, and how often a call takes the lock.
  static constexpr int kReleaseStep = 8;
  static constexpr int kReleaseStepsMax = 64;

  // 32 bytes for 64 KiB.
  struct Slab {
    uint64_t free_frames[2];  // bit i: frame i is free
    uint32_t prev, next;      // in the list of free slabs, or of its class's slabs that have free frames
    uint8_t chunks;           // the class; 0 when the slab is free
    uint8_t free_count;
  };

  FrameArena(uint64_t ceiling_bytes, uint64_t fixed_bytes, Mapping data, Mapping slabs);

  static constexpr int FramesPerSlab(int chunks) { return static_cast<int>(kChunksPerSlab) / chunks; }
  // The real cost of a frame of a class, with its share of the slab's odd end.
  static constexpr uint64_t FrameCost(int chunks) { return kSlabBytes / FramesPerSlab(chunks); }
  Slab& slab(uint32_t index) const { return reinterpret_cast<Slab*>(slabs_.data())[index]; }

  // The memory that would be taken if all reservations and so much more were used; ~0 if there is not so much.
  uint64_t DemandLocked(uint64_t extra_data_bytes, uint64_t extra_index_bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether all data and reservations still fit with one spare extent less.
  bool CanSpareLocked(uint64_t extra_data_bytes) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether all reservations and so much more fit. Gives spare extents back to the host if that is needed.
  bool MakeRoomLocked(uint64_t extra_data_bytes, uint64_t extra_index_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t FreeBytesLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t TakenLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the payment's reservation pays in this step and has so much left.
  static bool CanPay(const Payment* payment, uint64_t bytes);
  // Takes bytes from the reservation, which its account has counted already.
  void PayLocked(uint64_t bytes, Payment* payment, const ArenaAccount* account) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds released bytes to `reservation`. False, and nothing changes: it is null or closed.
  bool ReserveReleasedLocked(uint64_t bytes, ArenaReservation* reservation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static bool Allows(const ArenaAccount* account, uint64_t bytes) {
    return account == nullptr ||
           (account->bytes_ <= account->limit_bytes_ && bytes <= account->limit_bytes_ - account->bytes_);
  }
  static void Count(ArenaAccount* account, uint64_t bytes) {
    if (account != nullptr) account->bytes_ += bytes;
  }
  static void Uncount(ArenaAccount* account, uint64_t bytes);
  // Returns the frame's cost.
  uint64_t FreeLocked(FrameLoc frame) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint32_t SlabForLocked(int chunks, bool reserved) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether an allocation that no reservation pays for may take of the class's first slab.
  bool MayTakeUnpaidLocked(int chunks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Cuts the first free slab into frames. There must be one.
  uint32_t OpenSlabLocked(int chunks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes a frame of a slab that has a free one.
  FrameLoc TakeFrameLocked(uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MapExtentLocked(bool reserved) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Makes a spare extent's slabs free to take, or gives its memory back to the host. There must be one.
  void OpenSpareLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ReleaseSpareLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void PushLocked(uint32_t* head, uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RemoveLocked(uint32_t* head, uint32_t index) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsEvacuatingLocked(uint32_t extent) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return is_evacuating_[extent].load(std::memory_order_relaxed);
  }
  void SetEvacuatingLocked(uint32_t extent, bool evacuating) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Takes the free slabs and frames of an extent out of the lists and counts, or puts them back.
  void HideLocked(uint32_t extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ShowLocked(uint32_t extent) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether the frames in evacuating extents fit into the others, and reservations too.
  bool EvacuationFitsLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Free memory in evacuating extents is free for all again. Returns how many extents that were.
  size_t GiveUpEvacuationLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint64_t ceiling_max_bytes_;
  const Mapping data_;
  const Mapping slabs_;

  mutable Mutex mu_;
  uint64_t ceiling_bytes_ ABSL_GUARDED_BY(mu_);
  uint64_t fixed_bytes_ ABSL_GUARDED_BY(mu_);
  uint64_t index_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t frame_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t reserved_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  // Free frames of each class, and free slabs, also of spare extents, but not of evacuating ones.
  std::array<uint64_t, kClasses + 1> frames_free_ ABSL_GUARDED_BY(mu_){};
  uint64_t slabs_free_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t extents_backed_ ABSL_GUARDED_BY(mu_) = 0;
  // Backed extents whose slabs are all free, and not in free_slabs_. New pages are put into extents that are in use
  // already, so that a little data does not keep many extents from the host.
  std::vector<uint32_t> spare_extents_ ABSL_GUARDED_BY(mu_);
  size_t spare_min_ ABSL_GUARDED_BY(mu_) = 0;  // the fewest spare ones in this period
  size_t idle_ ABSL_GUARDED_BY(mu_) = 0;       // were spare for the whole last period: they go back to the host
  uint32_t free_slabs_ ABSL_GUARDED_BY(mu_) = kNone;
  std::array<uint32_t, kClasses + 1> partial_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> unbacked_extents_ ABSL_GUARDED_BY(mu_);
  std::vector<uint8_t> extent_free_slabs_ ABSL_GUARDED_BY(mu_);
  std::vector<uint32_t> extent_used_bytes_ ABSL_GUARDED_BY(mu_);  // of frames
  // Per class, the slab that a reservation has opened and that is paid for in part, if there is one: see kSlackBytes.
  std::array<uint32_t, kClasses + 1> unpaid_slab_ ABSL_GUARDED_BY(mu_);

  // Written under mu_.
  const std::unique_ptr<std::atomic<bool>[]> is_evacuating_;
  std::atomic<size_t> evacuating_count_{0};
  size_t emptied_ ABSL_GUARDED_BY(mu_) = 0;  // in this evacuation
  // All extents of this evacuation, also if they are empty meanwhile.
  std::vector<uint32_t> evacuating_ ABSL_GUARDED_BY(mu_);
  std::array<uint64_t, kClasses + 1> frames_to_move_ ABSL_GUARDED_BY(mu_){};
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_FRAME_ARENA_H_
