#ifndef NRAM_CLIENT_POOL_REPAIRER_H_
#define NRAM_CLIENT_POOL_REPAIRER_H_

// Gives spans the copies that they lack, moves copies away from servers that are about to go (adr/0014), and sheds
// copies from servers that ask for memory (adr/0017).

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/hash/hash.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/pool/bounded.h"
#include "client/pool/copied_regions.h"
#include "client/pool/copy_map.h"
#include "client/pool/io.h"
#include "client/pool/placement.h"
#include "client/pool/region.h"
#include "client/pool/repair_pace.h"
#include "client/pool/server_session.h"
#include "client/pool/shedding.h"
#include "client/transport/control_client.h"

namespace nram {

// A machine without a thread: the edge tells it the time, and it goes on in the threads that bring the answers to its
// messages. It walks over all spans, and has a few *slots*: each copies one span at a time. Thread-safe.
class Repairer : public PoolEdge::Ticked {
 public:
  // `home` outlives it.
  explicit Repairer(const RegionHome* home);
  ~Repairer() override;

  void Tick(int64_t now_ns) override;
  // As of the last walk over all spans.
  CopiesReport report() const;
  // Begins nothing with a map that is closing. Its earlier work with the map may still be under way.
  void Forget(const RegionMap& map);
  // Begins nothing any more.
  void BeginStop() { stopping_ = true; }
  // Blocks until nothing is under way. The sessions must have stopped.
  void AwaitStopped();

 private:
  static constexpr size_t kSlots = 6;
  static constexpr size_t kRepairSlots = 2;                // of these, for work that is not urgent
  static constexpr size_t kParts = 8;                      // of a slot's operation
  static constexpr size_t kTodoMax = 1024;                 // spans
  static constexpr size_t kShedsMax = 1024;                // spans that are to be shed
  static constexpr size_t kMendsMax = 64;                  // blocks, beside them
  static constexpr size_t kTriedMax = 65'536;              // spans
  static constexpr uint64_t kMendBit = uint64_t{1} << 63;  // of a Place that is a block
  static constexpr int kInlineMax = 64;                    // spans in a row, as each may end before it returns
  static constexpr size_t kLeftoversMax = 65'536;
  static constexpr size_t kFreedAtATime = 64;
  static constexpr size_t kLooksMax = 256;              // at leftovers, at a time
  static constexpr int64_t kCoolNs = 5 * kNsPerSecond;  // of a span's heat, a degree
  static constexpr size_t kSpansATick = 4096;
  static constexpr size_t kRegionsATick = 512;
  static constexpr size_t kRegionsATickAsked = 4096;    // while a server asks for memory
  static constexpr int64_t kPassNs = kNsPerSecond;      // from one walk to the next, at most
  static constexpr int64_t kRestNs = 20 * kNsPerMs;     // shorter ones are saved up
  static constexpr int64_t kTellNs = kNsPerSecond / 4;  // between messages to servers, at least
  static constexpr int64_t kRoomNs = 2 * kNsPerSecond;  // to wait for room
  static constexpr int64_t kShedNs = kNsPerSecond;      // the same, for spans to be shed: there are others
  static constexpr int64_t kSpanNs = 2 * kNsPerSecond;  // of an operation that has the whole span in the gate
  static constexpr int64_t kCopyNs = 5 * kNsPerSecond;  // of one that has a block or some

  using Place = std::pair<const RegionMap*, uint64_t>;  // a span
  using Donors = std::vector<CopyMap::Donor>;           // by number
  // Work that a walk has found.
  struct Todo {
    RegionMap::Ref map;
    uint64_t span = 0;
    bool mends = false;          // `span` is the number of a block with a damaged page
    uint16_t sheds = kNoServer;  // the server that sheds the span's copy
  };
  struct Slot {
    enum class State : uint8_t { kFree, kBusy, kResting };
    Repairer* repairer = nullptr;
    // Written by the thread that has the slot: a tick if kFree or kResting, the operation's end if kBusy.
    std::atomic<State> state{State::kFree};
    int64_t until_ns = 0;  // kResting
    int64_t owed_ns = 0;   // of rest
    int64_t began_ns = 0;
    int in_a_row = 0;  // spans since a tick

    RegionMap::Ref map;
    uint64_t span = 0;
    ServerSession* target = nullptr;
    uint64_t incarnation = 0;  // the target's
    std::optional<uint16_t> joining;
    bool is_back = false;        // the target had a copy, which has missed something
    bool mends = false;          // `span` is the number of a block with a damaged page
    uint16_t sheds = kNoServer;  // as Todo has it
    bool is_urgent = false;      // no pause after it
    uint64_t reserved_pages = 0;
    uint64_t reserved_bytes = 0;  // of the region's room at the target, for this span
    uint64_t used_bytes = 0;      // the room that the copied pages have used there
    uint64_t page = 0;            // to be copied next, one by one
    uint64_t end_page = 0;
    absl::InlinedVector<uint16_t, SpanCopies::kMost> leaves;
    Waiter waiter;
    std::unique_ptr<Io> io;
    std::unique_ptr<std::byte[]> bytes;
    std::array<ChunkMask, kPagesPerSpan> found{};
    Donors donors;                               // as of its last look
    std::vector<PlacementCandidate> candidates;  // likewise
  };
  struct Free {
    RegionMap::Ref map;
    uint64_t span = 0;
    CopyMap::Leftover leftover;
  };
  struct Freeing {
    Repairer* repairer = nullptr;
    std::atomic<bool> busy{false};
    int in_a_row = 0;  // since a tick
    Call call;
    Free what;
  };

  // For how long an unsuitable server, or a span that could not be repaired, is left alone.
  int64_t AvoidNs() const { return home_->options->replace_after_ms * kNsPerMs / 2; }
  int64_t NowNs() const { return home_->environment->NowNs(); }
  static uint64_t HashOf(const Place& place) { return absl::Hash<Place>()(place); }
  // Allocates all buffers and lists: the threads that bring ticks and answers may be those that free memory (swap).
  void Prepare();
  void LookAtDonors(Donors* donors) const;
  // A copy that was taken to be shed has ended.
  void NoteShed(uint16_t server, bool left);
  void Walk(int64_t now_ns);
  void ListWork(int64_t now_ns);
  void ListSheds() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void HearServers();
  void EndPass(int64_t now_ns);
  void Tell(int64_t now_ns);
  // For that slot, which has none.
  std::optional<Todo> TakeTodo(const Slot& slot);
  bool IsAvoided(uint16_t server, int64_t now_ns) const;
  void Avoid(uint16_t server);

  // --- A slot's way; each leaves it busy, resting or free.
  void FindWork(Slot* slot);
  bool Begin(Slot* slot, Todo todo);
  CopyMap::Plan PlanFor(Slot* slot) const;
  // The replica hosts of the plan whose copies are dropped now.
  absl::InlinedVector<uint16_t, SpanCopies::kMost> LeavesOf(const Slot& slot, const CopyMap::Plan& plan) const;
  ServerSession* ChooseTarget(Slot* slot, const CopyMap::Plan& plan) const;
  bool IsAtWork(const Todo& todo) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Mend(Slot* slot);
  bool BeginJoin(Slot* slot);
  void OnRoom(Slot* slot);
  void Join(Slot* slot, Room::Grant grant);
  void Open(Slot* slot);
  void Copy(Slot* slot);
  void BeginPages(Slot* slot, uint64_t first, uint64_t count);
  void OnCopied(Slot* slot, const absl::Status& status);
  void OnPageCopied(Slot* slot, const absl::Status& status);
  void Flip(Slot* slot);
  void OnFlipped(Slot* slot, const absl::Status& status);
  void Start(Slot* slot, const IoRequest& request, int64_t timeout_ns, Io::Callback callback);
  void Fail(Slot* slot, bool avoid);
  // The target could not be asked, or had no room: then it is avoided for a while.
  bool IsTargetToBlame(const Slot& slot) const;
  void GiveBackShare(RegionMap* map, uint16_t server);
  void Rest(Slot* slot);
  void DestroyAgain(const RegionMap& map);
  void ReleaseReserved(Slot* slot, uint64_t most_bytes);

  void AddLeftover(RegionMap* map, uint64_t span, const CopyMap::Leftover& leftover);
  void FreeLeftovers();
  // False: nothing is to be freed now.
  bool FreeNext(Freeing* freeing);
  void OnFreed(Freeing* freeing);

  const RegionHome* const home_;
  std::atomic<bool> stopping_{false};
  std::array<Slot, kSlots> slots_;
  std::array<Freeing, kFreedAtATime> freeing_;

  // --- The walk's: ticks come one at a time.
  RegionMap::Ref at_map_;
  uint64_t at_span_ = 0;
  int64_t next_pass_ns_ = 0;
  bool in_pass_ = false;  // it may be between two regions
  bool found_work_ = false;
  Donors donors_;
  std::vector<uint64_t> found_;                       // spans of one region
  std::vector<uint64_t> found_first_;                 // likewise: their only copy is on a server that is about to go
  std::vector<std::pair<uint64_t, uint16_t>> sheds_;  // likewise, and the servers that shed them
  int64_t next_cool_ns_ = 0;
  bool cools_ = false;
  Shedding shedding_;
  CopiesReport counting_;
  uint64_t client_ = 0;  // this one's number, once there is something to tell
  int64_t told_ns_ = 0;
  RepairPace pace_;
  CopiesReport told_;

  mutable Mutex mu_;
  std::array<Place, kSlots> at_work_ ABSL_GUARDED_BY(mu_){};  // by slot
  BoundedQueue<Todo> todo_ ABSL_GUARDED_BY(mu_);              // only the walk adds to it
  BoundedQueue<Todo> shed_todo_ ABSL_GUARDED_BY(mu_);         // before all that is in todo_
  BoundedHashSet listed_ ABSL_GUARDED_BY(mu_);                // in either
  // Nothing could be done there lately. A destroyed region is still here by its address, which may delay a new one by a
  // few seconds.
  BoundedHashSet tried_ ABSL_GUARDED_BY(mu_);
  int64_t try_again_ns_ ABSL_GUARDED_BY(mu_) = 0;
  BoundedQueue<Free> leftovers_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> avoided_until_ns_ ABSL_GUARDED_BY(mu_);  // by server
  CopiesReport report_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> made_{0};
  std::atomic<bool> some_are_urgent_{false};  // some servers are about to go
  std::atomic<size_t> misses_{0};             // of the list, in a row: nothing could be done
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_REPAIRER_H_
