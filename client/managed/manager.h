#ifndef NRAM_CLIENT_MANAGED_MANAGER_H_
#define NRAM_CLIENT_MANAGED_MANAGER_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/base/attributes.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/event_count.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/managed/block.h"
#include "client/managed/extents.h"
#include "client/managed/fork_count.h"
#include "client/managed/local_memory.h"
#include "client/managed/runs.h"
#include "client/managed/store.h"
#include "client/managed/thread_records.h"

namespace nram {

struct ManagedOptions {
  static constexpr uint64_t kLeastBudgetBytes = kMiB;
  uint64_t budget_bytes = 256 * kMiB;
  // Whether a thread that finds no room waits for others to release guards; else it fails at once.
  bool waits = true;
  int64_t wait_ms = 60'000;     // the longest wait for room
  uint32_t ahead_percent = 10;  // of the budget, for blocks fetched ahead; 0: none are
};

// Since the beginning, unless it says "now".
struct ManagedCounters {
  uint64_t budget_bytes = 0;    // now
  uint64_t managed_bytes = 0;   // now: of all blocks
  uint64_t local_bytes = 0;     // now: blocks that are here or on their way, kept buffers, and bookkeeping
  uint64_t remote_bytes = 0;    // now: blocks that are in the store alone
  uint64_t metadata_bytes = 0;  // now: of the local bytes
  uint64_t misses = 0;          // times that a thread had to wait for a block
  uint64_t ahead_hits = 0;      // blocks fetched ahead that a thread came to
  uint64_t ahead_wasted = 0;    // and those evicted untouched
  uint64_t fetched_bytes = 0;
  uint64_t ahead_bytes = 0;  // of them: ahead
  uint64_t written_bytes = 0;
  uint64_t evictions = 0;
  uint64_t room_waits = 0;   // times that a thread had to wait for others' guards
  uint64_t over_budget = 0;  // requests that failed for lack of room
  uint64_t failed_reads = 0;
  uint64_t failed_writes = 0;
};

// Blocks of memory: a budget of them is in local memory, the others are in a store (adr/0020). Guards hold blocks here.
//
// Thread-safe. A guard taken by one thread may be released by another. Functions that take guards may block for the
// store's timeout, three times if blocks must be evicted first, and for `wait_ms` where other threads hold the room.
// After fork(2) a child has only the local blocks: other requests fail there with UNIMPLEMENTED, and nothing blocks.
class Manager {
 public:
  static constexpr uint64_t kPackBytes = 64 * kKiB;
  // Objects up to this size are packed, in the order of their construction.
  static constexpr uint64_t kSmallBytes = 8 * kKiB;
  // The most bytes of writes under way, not counting the last one, however much must be evicted.
  static constexpr uint64_t kLeavingBytesMax = 8 * kMiB;
  static constexpr uint64_t kObjectBytesMax = uint64_t{1} << 40;
  static constexpr uint64_t kAlignmentMax = 4096;

  // INVALID_ARGUMENT: the budget is less than kLeastBudgetBytes, or more than half of the address space.
  static absl::StatusOr<std::unique_ptr<Manager>> New(std::unique_ptr<ManagedStore> store,
                                                      const ManagedOptions& options);
  // All guards must be released. Objects become invalid. Waits for operations under way. In a child after fork(2) it
  // leaves the store as it is, which is the parent's.
  ~Manager();
  // Whether this is a child of the process that made it.
  bool is_parents() const { return ForkCount() != forks_; }

  // A part of a block. Plain data; the manager's until Delete.
  struct Object {
    Block* block = nullptr;
    uint64_t offset = 0;
  };
  struct Want {
    Block* block = nullptr;
    bool writes = false;
  };
  // How a thread that finds no room goes on.
  enum class Room { kBudget, kBeyondIfNeeded };

  // A new object with a guard of the calling thread for writing, whose release is the caller's. Its contents are
  // unspecified. `fixed`: it will always be at the same address. INVALID_ARGUMENT: size or alignment;
  // RESOURCE_EXHAUSTED: the store is full; OUT_OF_RANGE: no room in the budget.
  absl::StatusOr<Object> Create(uint64_t bytes, uint64_t alignment, bool fixed);
  // No thread may hold a guard of it. Blocks while an operation with its block is under way. In a child nothing
  // happens.
  void Delete(const Object& object);
  // The program ends, and the manager lives on: the store's End follows when the last object is deleted, or now if
  // there is none. In a child nothing happens.
  void EndWithLastObject();

  // A guard for each, all or none. OUT_OF_RANGE: they do not fit beside the held blocks. It fails at once if the
  // calling thread alone holds those, or if all threads that hold some wait too; else after wait_ms. DATA_LOSS,
  // UNAVAILABLE, DEADLINE_EXCEEDED: the store's.
  absl::Status Hold(absl::Span<const Want> wants, Room room = Room::kBudget);
  absl::Status Hold(Block* block, bool writes, Room room = Room::kBudget) {
    ThreadRecord* const me = records_.Mine();
    if (HoldIfHere(block, writes, me)) return absl::OkStatus();
    const Want want{block, writes};
    return HoldSlowly({&want, 1}, room, me);
  }
  // The same without waiting: false if the block is not here. `me`: Taker().
  bool HoldIfHere(Block* block, bool writes, ThreadRecord* me);
  // `taker`: the record of the thread that took the guard (Taker).
  void Release(Block* block, ThreadRecord* taker);
  ThreadRecord* Taker() { return records_.Mine(); }
  // Begins to fetch it if there is room, or room can be made without waiting.
  void Start(Block* block);
  // Where the object is, for a thread that holds a guard.
  static std::byte* AddressOf(const Object& object) { return object.block->data + object.offset; }

  // Return at once; blocks beyond a smaller budget are evicted as guards and the store allow.
  absl::Status SetBudget(uint64_t bytes);
  void SetWaits(bool waits);
  absl::Status SetAhead(uint32_t percent);
  // Not in a child, where the lock may be held for ever.
  ManagedCounters counters() const;

 private:
  // A thread's request for guards, on its stack.
  struct Request {
    absl::Span<const Want> wants;
    Room room;
    ThreadRecord* me;
    int64_t deadline_ns = 0;
    uint64_t write_failures = 0;  // before it began
    bool queued = false;
    bool missed = false;
    bool counted_wait = false;
    std::vector<Block*> loads;  // which it is to read
    bool own_failed = false;    // one of these reads
    bool counted_room = false;  // in wanting_
    absl::Status status;
  };
  enum class Outcome { kHeld, kWait, kFailed };
  // Operations to start when the lock is released.
  struct Actions {
    std::vector<Block*> reads;
    std::vector<Block*> writes;
  };
  struct Pending;  // an operation with a callback

  Manager(std::unique_ptr<ManagedStore> store, const ManagedOptions& options);

  // UNIMPLEMENTED in a child.
  absl::Status CheckMine() const;

  // manager.cc: objects and blocks.
  absl::StatusOr<Block*> NewBlock(uint64_t bytes, bool fixed, bool is_pack);
  absl::StatusOr<uint64_t> TakeOffset(uint64_t bytes);
  absl::StatusOr<Object> CreateInPack(uint64_t bytes, uint64_t alignment, bool fixed);
  // True if no object is left in its block, which then is to be freed.
  bool LeaveBlock(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Until no operation with it is under way; then frees it.
  void FreeBlock(Block* block);
  Block* AddBlockLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Block* FindLocked(uint32_t number) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // hold.cc: guards.
  void NoteTouch(Block* block, ThreadRecord* me) {
    if (me->last.load(std::memory_order_relaxed) != block) NoteOther(block, me);
  }
  // That the thread comes from another block.
  void NoteOther(Block* block, ThreadRecord* me);
  absl::Status HoldSlowly(absl::Span<const Want> wants, Room room, ThreadRecord* me);
  Outcome TryHold(Request* request, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool Admit(Request* request, uint64_t need, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Whether it is to wait for room that it does not get now.
  Outcome Judge(Request* request, uint64_t need) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Outcome JudgeThreads(Request* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeaveQueue(Request* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool TakeBuffers(const Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountGuard(const Want& want, Request* request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void NoteAheadHit(const Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Reads its own blocks, and waits for blocks that others read.
  absl::Status AwaitHere(Request* request, Actions actions);
  void Undo(const Request& request);

  // room.cc: eviction, and fetching ahead.
  uint64_t Limit() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // For buffers that no block uses.
  uint64_t KeptLimit() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t AheadLimit() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // How much is fetched ahead at a time, so that neighbours are moved together.
  uint64_t AheadStep() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return std::min(kRunBytes, AheadLimit() / 4); }
  // Evicts blocks until so many bytes fit, or will fit when writes have ended; false if they do not fit now.
  bool MakeRoom(uint64_t need, const ThreadRecord* me, bool for_ahead, Actions* actions)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The next miss is not to wait for a write: starts some, if the next victims must be written.
  void MakeSpareRoom(const ThreadRecord* me, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Block* ChooseVictim(const ThreadRecord* me) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Evicts blocks beyond the budget, after a write that has ended well.
  void LeaveOn(Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False if a thread has taken a guard meanwhile.
  bool Evict(Block* block, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Drop(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DropAhead(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Buffers for blocks that are to come and are counted already, so that neighbours in the store are neighbours here.
  // False: no addresses are left, and nothing was taken.
  bool TakeData(std::vector<Block*> blocks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of the first ones of them; how many.
  size_t TakeDataOfRun(BlockRun blocks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GiveData(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MakeUsable(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Null if all are wanted just now.
  Block* OldestAhead() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Decay() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Begins to fetch the blocks that the thread needs next. `missed`: it has to wait for a block just now.
  void FetchAhead(ThreadRecord* me, bool missed, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void MarkAhead(Block* block) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Of marked ones.
  void BeginAhead(const std::vector<Block*>& blocks, Actions* actions) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // operations.cc: reads and writes.
  void Begin(Actions actions);
  // Counts it as under way.
  std::unique_ptr<Pending> TakePending(BlockRun run);
  static void OnRead(ManagedStore::Op* op, void* context);
  static void OnWritten(ManagedStore::Op* op, void* context);
  void EndReads(BlockRun run, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndWrites(BlockRun run, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndRead(Block* block, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndWrite(Block* block, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndPending(std::unique_ptr<Pending> pending, bool is_read);
  uint64_t MetadataBytes() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  std::unique_ptr<ManagedStore> store_;
  const int64_t wait_ms_;
  const uint32_t forks_;  // ForkCount() of the process that made it
  ThreadRecords records_;
  EventCount event_;                // a block or room may be had; see HoldSlowly
  std::atomic<uint64_t> clock_{0};  // bytes that have been fetched or made

  Mutex grow_mu_;  // held while the region grows; before mu_
  mutable Mutex mu_;
  std::deque<Block> blocks_ ABSL_GUARDED_BY(mu_);  // number n at n - 1
  std::vector<uint32_t> free_numbers_ ABSL_GUARDED_BY(mu_);
  Extents offsets_ ABSL_GUARDED_BY(mu_);
  uint64_t grown_ ABSL_GUARDED_BY(mu_) = 0;  // of the region
  LocalMemory memory_ ABSL_GUARDED_BY(mu_);
  Block* open_packs_[2] ABSL_GUARDED_BY(mu_) = {};   // for objects that may move, and for fixed ones
  BlockList here_ ABSL_GUARDED_BY(mu_);              // may be evicted, if no thread has a guard
  BlockList ahead_ ABSL_GUARDED_BY(mu_);             // untouched so far
  std::deque<Request*> queue_ ABSL_GUARDED_BY(mu_);  // that wait for room and whose threads hold none
  int wanting_ ABSL_GUARDED_BY(mu_) = 0;             // requests that wait for room, also of threads that hold some
  absl::flat_hash_map<Block*, absl::Status> read_errors_ ABSL_GUARDED_BY(mu_);
  absl::Status write_error_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<Pending>> pendings_ ABSL_GUARDED_BY(mu_);  // to be used again
  ThreadRecord* fetches_for_ ABSL_GUARDED_BY(mu_) = nullptr;

  uint64_t budget_ ABSL_GUARDED_BY(mu_);
  bool waits_ ABSL_GUARDED_BY(mu_);
  uint32_t ahead_percent_ ABSL_GUARDED_BY(mu_);
  uint64_t used_ ABSL_GUARDED_BY(mu_) = 0;         // of blocks that are here or on their way
  uint64_t leaving_ ABSL_GUARDED_BY(mu_) = 0;      // of them: by writes under way
  uint64_t ahead_used_ ABSL_GUARDED_BY(mu_) = 0;   // of them: fetched ahead and untouched
  uint64_t ahead_reads_ ABSL_GUARDED_BY(mu_) = 0;  // blocks on their way
  uint64_t objects_ ABSL_GUARDED_BY(mu_) = 0;      // alive
  bool ends_with_last_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t operations_ ABSL_GUARDED_BY(mu_) = 0;  // under way, with callbacks
  uint64_t touched_ ABSL_GUARDED_BY(mu_) = 0;     // blocks fetched ahead, since the last miss
  ManagedCounters counters_ ABSL_GUARDED_BY(mu_);
};

// The thread counts the guard as its own before the block does, and no longer than the block does. So a thread that
// finds a block held also finds a thread that holds it.
ABSL_ATTRIBUTE_ALWAYS_INLINE inline bool Manager::HoldIfHere(Block* block, bool writes, ThreadRecord* me) {
  uint64_t seen = block->word.load(std::memory_order_acquire);
  if ((seen & Block::kUsable) == 0) return false;
  me->NoteHeld();
  while ((seen & Block::kUsable) != 0) {
    if (block->word.compare_exchange_weak(seen, (seen + 1) | (writes ? Block::kDirty : 0))) {
      NoteTouch(block, me);
      return true;
    }
  }
  me->NoteReleased();
  return false;
}

inline void Manager::Release(Block* block, ThreadRecord* taker) {
  block->word.fetch_sub(1);
  if (taker == records_.Mine()) {
    taker->NoteReleased();
  } else {
    taker->released_elsewhere.fetch_add(1);
  }
  // Also when others hold the block still: waiting threads ask which threads hold which blocks.
  event_.Notify();
}

}  // namespace nram

#endif  // NRAM_CLIENT_MANAGED_MANAGER_H_
