#ifndef NRAM_CLIENT_POOL_COPY_MAP_H_
#define NRAM_CLIENT_POOL_COPY_MAP_H_

// Where the copies of a region's spans are (adr/0014), and which lives of which servers have the region. It asks no
// server: operations look here, and note here their results.

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/container/flat_hash_set.h"
#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/pool/copied_change.h"
#include "client/pool/span_copies.h"
#include "proto/wire.h"

namespace nram {

// Thread-safe. Nothing blocks.
class CopyMap {
 public:
  // Whether one life of one server has the region, as far as is known.
  enum class Known : uint8_t {
    kNothing,  // nothing of it was ever sent there
    kPerhaps,  // a write that may have created it has no answer
    kCreated,
  };
  // One life of one server.
  struct Life {
    uint16_t server = kNoServer;
    uint64_t incarnation = 0;
    friend bool operator==(const Life&, const Life&) = default;
  };
  // Everything that a message to one copy of a span needs.
  struct Leg {
    Life life;
    uint16_t replica_host = 0;
    Known known = Known::kNothing;
    uint16_t placement = 0;  // the span's
    bool creates = false;    // it is not known that the server has the span
    SpanGeneration generation{};
  };
  using Legs = absl::InlinedVector<Leg, SpanCopies::kMost>;

  // `copies`: how many a span is to have. `named`: they are on members only.
  explicit CopyMap(int copies, bool named = false) : copies_(static_cast<uint8_t>(copies)), named_(named) {}

  int copies() const { return copies_; }

  // --- Regions with a name (copy_map_members.cc).
  // The region may have been created in that life: where it is destroyed, it is destroyed there too. False: it was in
  // too many lives of its servers, and can be in no more.
  bool NotePerhaps(const Life& life);
  // The region was created in that life, and spans may be there from now on.
  void NoteMember(const Life& life);
  // No span is placed there from now on. True: no span has anything there.
  bool EndMember(const Life& life);
  // Nothing of the region is left there.
  void Bury(const Life& life);
  // The region has nothing there, and never had, or not any more.
  bool IsGone(const Life& life) const;
  // Whether a span may be placed there. Regions without a name: anywhere.
  bool IsMember(const Life& life) const;
  // Something was lost, and was not written anew.
  bool HasLoss() const;
  // Loads a member's copy of a span, as its server lists it. False: the map would take more than `bytes_max`.
  bool Load(uint64_t span, const Life& life, SpanGeneration generation, size_t bytes_max);
  // All members have been listed. `doubtful`: it is unknown whether the copies of a span are alike. `loses`: not all
  // members are there, so a span without a copy may have had one.
  void EndLoad(bool doubtful, bool loses);
  // The fewest copies in sync in those lives that any span has; 0 if a span is lost, doubtful or unsettled. A map
  // without spans: as many as wanted, at most the number of lives.
  int LeastInSync(absl::Span<const Life> lives) const;
  // The first span at or after `span` that is doubtful or unsettled; UINT64_MAX if there is none.
  uint64_t NextToSettle(uint64_t span) const;

  enum class SpanState { kHole, kPlaced, kLost };
  // `lost`: the range has pages that are lost. In a span that is lost, all are that were not written since.
  SpanState Look(const ChunkRange& range, bool* lost) const;
  // Places a span that is a hole, or lost. False: it is placed already, or cannot be.
  bool Place(uint64_t span, absl::Span<const Life> lives);
  // Pages that a change covers entirely.
  struct WholePages {
    uint64_t first = 0;
    uint64_t end = 0;
  };
  // A change of the span: the step of CopiedChange::Next, and the messages that it asks for, in the order of the
  // servers' numbers. Once it is stored, none of `whole` is lost any more.
  CopiedChange::Step Next(uint64_t span, CopiedChange* change, bool in_time, const WholePages& whole, Legs* legs);
  // Updates the leg's knowledge of its server and copy: a message that is sent again may not have to create the span
  // any more.
  void Refresh(uint64_t span, Leg* leg) const;
  // The copy gets changes, of the leg's generation.
  bool IsPresent(uint64_t span, const Leg& leg) const;
  // Some copy of that replica host does, of any generation.
  bool GetsChanges(uint64_t span, uint16_t replica_host) const;
  // A trim of pages of a span that is lost. To be called in the gate.
  void NoteTrimmed(const WholePages& whole);
  // A trim in a span that is placed. True if the span holds nothing, and no server may have executed a change that
  // others have refused. Then it is a hole; where room is reserved for it, it keeps its place.
  bool Unplace(uint64_t span);
  // Unplace would be true, for a span with room reserved. Other changes of it that are under way would then begin anew,
  // without the room that their first messages have used: the trim has to wait for them.
  bool UnplacesReserved(uint64_t span) const;

  // A read of a range in one span.
  enum class ReadState {
    kHole,
    kLost,      // a page is
    kDoubtful,  // the span must be settled first
    kPlaced,
  };
  // kPlaced: the copies in sync. `unsettled`: a copy that refuses may be right.
  // `uses`: the caller uses the span, and does not only repair it.
  ReadState LookForRead(const ChunkRange& range, Legs* legs, bool* unsettled, bool uses = true) const;
  // Called at a read's end. True: the data from `leg` counts.
  bool Confirms(uint64_t span, const Leg& leg) const;

  // A copy has answered a change: its server has the span, if that has its place still.
  void NoteAnswered(uint64_t span, const Leg& leg);
  // A message that may have created the region there was sent and has no answer.
  void NotePerhaps(uint16_t replica_host);
  // Nothing of the region is left there: another life of the server has begun, or it was collected.
  void Bury(uint16_t replica_host);

  // The lives of servers where the region may be: also those that are over, and those that have lost it, since there it
  // may have come again.
  struct Whereabout {
    Life life;
    Known known;
  };
  std::vector<Whereabout> Whereabouts() const;
  // The servers of the copies in sync.
  using Servers = absl::InlinedVector<uint16_t, SpanCopies::kMost>;
  Servers ServersOf(uint64_t span) const;
  // Those of the copies that catch up, too.
  Servers ChangedServersOf(uint64_t span) const;

  // --- Reserved room. How many pages of the span have room on each of its copies; never less than there are.
  void NoteReserved(uint64_t span, uint64_t pages);
  // Nothing is reserved any more.
  void ClearReserved();
  uint64_t ReservedPages(uint64_t span) const;
  uint64_t AllReservedPages() const;
  // The room that the spans with a copy there have reserved at the most, used or not.
  uint64_t ReservedBytesAt(uint16_t server) const;
  // Whether the region is there, or room for it was paid.
  bool IsCreated(const Life& life) const;

  // --- Repair (copy_map_repair.cc).
  static constexpr uint64_t kSpansPerTableBlock = 64;
  // A server as repair sees it.
  struct Donor {
    enum class Standing : uint8_t {
      kStays,
      kAsks,    // it asks for memory (adr/0017): some of its copies are to be moved
      kAway,    // it has been away too long: its copies are to be replaced
      kLeaves,  // its copies are to be moved
    };
    Standing standing = Standing::kStays;
    bool is_there = true;  // it can be asked now
  };
  // By the server's number.
  using Donors = absl::Span<const Donor>;
  enum class Health : uint8_t {
    kInSync,     // as many copies as wanted can be asked
    kDegraded,   // fewer
    kRepairing,  // a copy is catching up
    kLost,       // no copy is left of the stored data
  };
  enum class Need : uint8_t {
    kNothing,
    kJoin,   // another copy
    kLeave,  // drops copies on servers that are about to go, and stale ones
  };
  struct Plan {
    Need need = Need::kNothing;
    bool moves = false;        // a copy in sync is on a server that is about to go
    int heat = 0;              // SpanCopies'
    bool has_sibling = false;  // a copy in sync is on a server that remains and does not ask
    absl::InlinedVector<uint16_t, SpanCopies::kMost> asked;  // servers that ask, of copies in sync
    absl::InlinedVector<Life, SpanCopies::kMost> stay;       // of remaining copies that are or will be in sync
    absl::InlinedVector<Life, SpanCopies::kMost> stale;      // of copies that have missed something
    absl::InlinedVector<uint16_t, SpanCopies::kMost> leave;  // replica hosts of the copies to be dropped
  };
  // Visits up to `most` spans that are placed or lost, and then fewer than kSpansPerTableBlock more, from `span` on,
  // which is 0 or the result of the last Walk. Returns where to go on; UINT64_MAX: at the end. `visit` runs under the
  // map's lock. Copies of former lives of their servers die: `incarnation_of` tells the present ones (0: not known),
  // and is called under the lock, so that its answer is not older than the map. `cools`: the spans' heat falls.
  uint64_t Walk(uint64_t span, size_t most, Donors donors, absl::FunctionRef<uint64_t(uint16_t server)> incarnation_of,
                absl::FunctionRef<void(uint64_t span, Health health, const Plan& plan)> visit, bool cools = false);
  Plan PlanFor(uint64_t span, Donors donors) const;
  // The data that a server still has of a span that was moved away: a trim with that generation frees it, and nothing
  // else.
  struct Leftover {
    Life life;
    SpanGeneration generation{};
  };
  // A copy of the span is to join there: kOpen, kCopy and kJoin do that. Returns its replica host. `leftover`: of the
  // copy whose place it takes. Nothing: it has no place for one more, or none to catch up with.
  std::optional<uint16_t> Join(uint64_t span, const Life& life, std::optional<Leftover>* leftover);
  bool IsJoining(uint64_t span, uint16_t replica_host) const;
  bool IsInSync(uint64_t span, uint16_t replica_host) const;
  // It does not catch up any more.
  void EndJoining(uint64_t span, uint16_t replica_host);
  // Nothing if the span still has a copy there.
  std::optional<Leftover> LeftoverOf(uint64_t span, uint16_t replica_host) const;
  Life LifeOf(uint16_t replica_host) const;
  // Whether some span has a copy there.
  bool IsUsed(uint16_t server) const;
  // No copy has the page: it is lost. To be called in the gate.
  void NoteLostPage(uint64_t page);
  // A copy of some page of the block (of 64 pages) is damaged, and another is not.
  void NoteDamaged(uint64_t block);
  bool TakeDamaged(uint64_t* block);
  // The first span at or after `span` that was ever placed; UINT64_MAX if there is none.
  uint64_t NextSpan(uint64_t span) const;
  // Client memory, this object included.
  size_t memory_bytes() const;

 private:
  static constexpr size_t kDamagedMax = 256;
  // Lives of servers, and losses in them, that a region can have gone through. Beyond, no span is placed any more.
  static constexpr size_t kReplicaHostsMax = 60'000;
  struct Block {
    std::array<SpanCopies, kSpansPerTableBlock> spans;
    std::unique_ptr<std::array<uint8_t, kSpansPerTableBlock>> reserved;  // see only_reserved_
  };
  using Blocks = absl::btree_map<uint64_t, std::unique_ptr<Block>>;
  using LostPages = std::bitset<kPagesPerSpan>;
  // Most regions never have any of it.
  struct Rare {
    absl::flat_hash_map<uint64_t, LostPages> lost_pages;  // by span, of those that were lost and placed anew
    absl::flat_hash_set<uint64_t> damaged;                // blocks
    // Only while the region is attached: the highest odd generation of each span that has one.
    absl::flat_hash_map<uint64_t, SpanGeneration> above;
  };

  struct ReplicaHost {
    uint64_t incarnation = 0;
    uint16_t server = kNoServer;
    Known known = Known::kNothing;
    bool dead = false;
    bool is_member = false;
  };

  ReplicaHost* FindReplicaHostLocked(const Life& life) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool MayHaveLocked(const Life& life) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Calls `visit` for each span from `span` on until it returns false; spans that were never placed, too.
  void VisitLocked(uint64_t span, absl::FunctionRef<bool(uint64_t span, SpanCopies* copies)> visit) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsUsedLocked(absl::FunctionRef<bool(const ReplicaHost&)> is_it) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasPlaceLocked(size_t lives) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint16_t ReplicaHostLocked(const Life& life) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The span as it is now, without dead copies. Null: a hole.
  SpanCopies* FindLocked(uint64_t span) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BuryDeadLocked(uint64_t span, SpanCopies* copies) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  uint64_t ReservedLocked(uint64_t span) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The span's place of that replica host; -1: none.
  static int PlaceOf(const SpanCopies& copies, uint16_t replica_host);
  void LookLocked(const SpanCopies& copies, Donors donors, Health* health, Plan* plan) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SpanCopies* SlotLocked(uint64_t span) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasLostLocked(const ChunkRange& range) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void UnloseLocked(const WholePages& whole) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Leg LegOf(const SpanCopies& copies, int copy) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Servers ServersLocked(const SpanCopies* copies, CopySet of) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LegsOf(const SpanCopies& copies, CopySet of, Legs* legs) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Rare& RareLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (rare_ == nullptr) rare_ = std::make_unique<Rare>();
    return *rare_;
  }
  bool HasLostPagesLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return rare_ != nullptr && !rare_->lost_pages.empty();
  }

  // A small file has a map of its own, so every byte counts.
  mutable SharedGate mu_;  // taken exclusively: a mutex in four bytes
  const uint8_t copies_;
  const bool named_;
  uint8_t only_reserved_ ABSL_GUARDED_BY(mu_) = 0;  // pages; 255: all
  // A region of one span needs no table.
  mutable uint64_t only_span_ ABSL_GUARDED_BY(mu_) = 0;
  mutable SpanCopies only_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<Blocks> blocks_ ABSL_GUARDED_BY(mu_);
  mutable std::unique_ptr<Rare> rare_ ABSL_GUARDED_BY(mu_);
  mutable absl::InlinedVector<ReplicaHost, 2> replica_hosts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_COPY_MAP_H_
