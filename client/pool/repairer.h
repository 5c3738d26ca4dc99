#ifndef NRAM_CLIENT_POOL_REPAIRER_H_
#define NRAM_CLIENT_POOL_REPAIRER_H_

// Gives spans the copies that they lack, and moves those of servers that leave (adr/0014).

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/pool/copied_regions.h"
#include "client/pool/copy_map.h"
#include "client/pool/io.h"
#include "client/pool/region.h"
#include "client/pool/server_session.h"
#include "client/transport/control_client.h"

namespace nram {

// A machine without a thread: the edge tells it of the time, and it goes on where the answers to its messages arrive.
// It walks over all spans, and has a few *slots*: each copies one span at a time. Thread-safe.
class Repairer : public PoolEdge::Ticked {
 public:
  // `home` outlives it.
  explicit Repairer(const RegionHome* home);
  ~Repairer() override;

  void Tick(int64_t now_ns) override;
  // As of the last walk over all spans.
  CopiesReport report() const;
  // Begins nothing any more.
  void BeginStop() { stopping_ = true; }
  // Blocks until nothing is under way. The sessions must have stopped.
  void AwaitStopped();

 private:
  static constexpr size_t kSlots = 2;
  static constexpr size_t kParts = 8;      // of a slot's operation
  static constexpr size_t kTodoMax = 256;  // spans
  static constexpr size_t kLeftoversMax = 65'536;
  static constexpr size_t kFreedAtATime = 64;
  static constexpr size_t kSpansATick = 4096;
  static constexpr size_t kRegionsATick = 512;
  static constexpr int64_t kPassNs = kNsPerSecond;       // from one walk to the next
  static constexpr int64_t kAvoidNs = 5 * kNsPerSecond;  // a server that was no good
  static constexpr int64_t kRestNs = 20 * kNsPerMs;      // shorter ones are saved up
  static constexpr int64_t kTellNs = kNsPerSecond;       // servers are told at most so often
  static constexpr int64_t kRoomNs = 2 * kNsPerSecond;   // to wait for room

  // Work that a walk has found.
  struct Todo {
    RegionMap::Ref map;
    uint64_t span = 0;
    bool mends = false;  // `span` is the number of a block with a damaged page
  };
  struct Slot {
    enum class State : uint8_t { kFree, kBusy, kResting };
    Repairer* repairer = nullptr;
    // Written by whoever has the slot: kFree and kResting, a tick; kBusy, its operation's end.
    std::atomic<State> state{State::kFree};
    int64_t until_ns = 0;  // kResting
    int64_t owed_ns = 0;   // of rest
    int64_t began_ns = 0;

    RegionMap::Ref map;
    uint64_t span = 0;
    ServerSession* target = nullptr;
    uint64_t incarnation = 0;  // the target's
    std::optional<uint16_t> joining;
    uint64_t reserved_pages = 0;
    uint64_t reserved_bytes = 0;  // of the region's room at the target, for this span
    uint64_t page = 0;            // to be copied next, one by one; kPagesPerSpan: none
    absl::InlinedVector<uint16_t, SpanCopies::kMost> leaves;
    Waiter waiter;
    std::unique_ptr<Io> io;
    std::unique_ptr<std::byte[]> bytes;
    std::array<ChunkMask, kPagesPerSpan> found{};
  };
  struct Free {
    RegionMap::Ref map;
    uint64_t span = 0;
    CopyMap::Leftover leftover;
  };
  struct Freeing {
    Repairer* repairer = nullptr;
    std::atomic<bool> busy{false};
    Call call;
    Free what;
  };

  int64_t NowNs() const { return home_->environment->NowNs(); }
  std::vector<CopyMap::Donor> LookAtDonors() const;
  void Walk(int64_t now_ns);
  void EndPass(int64_t now_ns);
  void Tell(int64_t now_ns);
  void LogHealth(const CopiesReport& before, const CopiesReport& now) const;
  std::optional<Todo> TakeTodo();
  bool IsAvoided(uint16_t server, int64_t now_ns) const;
  void Avoid(uint16_t server);

  // --- A slot's way; each leaves it busy, resting or free.
  void FindWork(Slot* slot);
  bool Begin(Slot* slot, Todo todo);
  ServerSession* ChooseTarget(const Slot& slot, const CopyMap::Plan& plan) const;
  bool BeginJoin(Slot* slot);
  void OnRoom(Slot* slot);
  void Join(Slot* slot, Room::Grant grant);
  void Copy(Slot* slot);
  void OnCopied(Slot* slot, const absl::Status& status);
  void OnPageCopied(Slot* slot, const absl::Status& status);
  void Flip(Slot* slot);
  void OnFlipped(Slot* slot, const absl::Status& status);
  void Start(Slot* slot, const IoRequest& request, Io::Callback callback);
  void Fail(Slot* slot, bool avoid);
  void Rest(Slot* slot);
  void DestroyAgain(const RegionMap& map);
  void ReleaseReserved(Slot* slot, uint64_t pages);

  void AddLeftover(RegionMap* map, uint64_t span, const CopyMap::Leftover& leftover);
  void FreeLeftovers();
  void OnFreed(Freeing* freeing);

  const RegionHome* const home_;
  std::atomic<bool> stopping_{false};
  std::array<Slot, kSlots> slots_;
  std::array<Freeing, kFreedAtATime> freeing_;

  // --- The walk's: ticks come one at a time.
  RegionMap::Ref at_map_;
  uint64_t at_span_ = 0;
  int64_t next_pass_ns_ = 0;
  bool found_work_ = false;
  CopiesReport counting_;
  uint64_t client_ = 0;  // this one's number, once there is something to tell
  int64_t told_ns_ = 0;
  uint64_t told_made_ = 0;
  uint64_t made_before_ = 0;  // the walk
  CopiesReport logged_;

  mutable Mutex mu_;
  std::deque<Todo> todo_ ABSL_GUARDED_BY(mu_);
  std::deque<Free> leftovers_ ABSL_GUARDED_BY(mu_);
  std::vector<int64_t> avoided_until_ns_ ABSL_GUARDED_BY(mu_);  // by server
  CopiesReport report_ ABSL_GUARDED_BY(mu_);
  std::atomic<uint64_t> made_{0};
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_REPAIRER_H_
