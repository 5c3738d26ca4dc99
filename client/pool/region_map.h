#ifndef NRAM_CLIENT_POOL_REGION_MAP_H_
#define NRAM_CLIENT_POOL_REGION_MAP_H_

// Where one region is: the server of each span, the lives of servers that know the region, and its reserved room there.
// It asks no server. Operations look here, and note here their results.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/pool/copy_map.h"
#include "client/pool/placement.h"
#include "client/pool/region_room.h"
#include "client/pool/room.h"
#include "client/pool/span_table.h"
#include "client/seal/region_seal.h"

namespace nram {

// How a client that is not the owner reads a region of copies.
enum class CopiesReader : uint8_t {
  kNo,
  kPinned,    // no client owned it; changes of another owner begin with another epoch
  kConfirms,  // its owner changes it: a copy that it does not reach any more must not be believed alone
  kVersion,   // a version of it, which does not change
};

// A region as servers know it. Does not change.
struct RegionKey {
  RegionId id{};
  Epoch epoch{};
  bool gc = false;
  bool named = false;  // it is only on the servers that it was created on
  PlacementPolicy placement = PlacementPolicy::kStriped;
  uint8_t copies = 1;  // of each page; 2 or more, or sealed: the spans are in RegionMap::copies
  CopiesReader reader = CopiesReader::kNo;
  bool moves = false;       // its spans are to be able to move (adr/0017), so they are in RegionMap::copies too
  bool versioned = false;   // it may have versions (adr/0019), so they are there too
  VersionNumber version{};  // kVersion: which
};

// Versions that a server is to drop when it answers again: its part of them is in no record.
struct VersionDebt {
  CopyMap::Life life;
  VersionNumber first{}, last{};
  uint8_t force = 1;  // also held ones
};

// Thread-safe. Nothing blocks. Every `room` argument is the client's room at that server.
class RegionMap {
 public:
  struct Release {
    void operator()(RegionMap* map) const { map->Drop(); }
  };
  // Its region has it, and the repairer for as long as it is at work there.
  using Ref = std::unique_ptr<RegionMap, Release>;

  // `seal`: of a sealed region; else null.
  static Ref Make(const RegionKey& key, std::unique_ptr<RegionSeal> seal = nullptr) {
    return Ref(new RegionMap(key, std::move(seal)));
  }
  Ref Share() {
    references_.fetch_add(1, std::memory_order_relaxed);
    return Ref(this);
  }

  using Known = CopyMap::Known;
  struct Target {
    uint16_t server = kNoServer;  // kNoServer: the span is nowhere
    Known known = Known::kNothing;
    uint64_t incarnation = 0;  // in which life of the server, unless kNothing
    bool paid_for = false;     // room for the region itself was used there, or is reserved

    bool placed() const { return server != kNoServer; }
  };

  const RegionKey& key() const { return key_; }
  // Where the spans of a region with several copies, or that is sealed, moves or has versions, are; else null. Then
  // this map has no spans, and knows no lives of servers.
  CopyMap* copies() const { return copied_ == nullptr ? nullptr : &copied_->map; }
  // Null: the region is plain.
  RegionSeal* seal() const { return copied_ == nullptr ? nullptr : copied_->seal.get(); }
  // --- Of the owner of a region with versions.
  // The next number, which was never used; 0: they are used up.
  VersionNumber TakeVersionNumber();
  // Numbers begin above it.
  void NoteVersion(VersionNumber number);
  // The highest number that was taken or noted.
  VersionNumber newest_version() const;
  // A life of a server that has called two numbers old, the second one above its former word.
  void NoteRefuser(uint64_t incarnation);
  bool IsRefuser(uint64_t incarnation) const;
  // The most that are remembered; beyond, the oldest are forgotten, and are freed with a later drop or with the region.
  static constexpr size_t kVersionDebtsMax = 256;
  void AddVersionDebt(const VersionDebt& debt);
  std::vector<VersionDebt> TakeVersionDebts();

  // Its region closes: no work with it begins any more.
  void NoteClosing() { closing_ = true; }
  bool is_closing() const { return closing_; }
  uint32_t references() const { return references_.load(std::memory_order_acquire); }
  // The place among the pool's regions of copies: CopiedRegions guards it.
  struct Link {
    RegionMap* next = nullptr;
    RegionMap* previous = nullptr;
  };
  Link* link() { return &copied_->link; }

  // FAILED_PRECONDITION: the region was destroyed, or another client has taken it over.
  absl::Status CheckUsable() const;
  // Some server has said that another client owns it: this client's changes do not count any more.
  void NoteFenced() { fenced_ = true; }
  bool is_fenced() const { return fenced_; }
  absl::Status Find(uint64_t span, Target* target) const;
  // Places a span that is nowhere, and returns where it is: another thread may have placed it first.
  Target Place(uint64_t span, const SpanPlacement& placement);
  // Servers where the region was created, and in which life.
  std::vector<Target> Whereabouts() const;
  // The servers of these that a trim of the spans concerns: a server that does not answer must not delay a trim of
  // spans that it does not have. For long ranges, all of them.
  std::vector<Target> Whereabouts(uint64_t first_span, uint64_t end_span) const;

  // False: it was created, and lost, in an earlier life of the server.
  bool NoteCreated(uint16_t server, uint64_t incarnation);
  void NotePerhapsCreated(uint16_t server, uint64_t incarnation);
  // From now on the region is unusable. False: it was already.
  bool NoteDestroyed();
  bool is_destroyed() const;

  // The region has reserved room at some time: its pages keep whole frames.
  bool has_reserved() const { return has_reserved_.load(std::memory_order_relaxed); }
  void NoteReserved() { has_reserved_ = true; }
  // The region may have room of its own: reserved, or kept by a trim.
  bool has_room() const { return has_room_.load(std::memory_order_relaxed); }
  // See RegionRoom.
  Room::Grant TakeReserved(uint16_t server, Room* room, uint64_t least_bytes, uint64_t most_bytes);
  void EndReserved(uint16_t server, Room* room, Room::Grant grant, uint64_t used_bytes);
  void EndUnknown(uint16_t server, Room* room, Room::Grant grant);
  // Whether more than `had_bytes` is reserved there now, or may be when writes and trims return their lent room.
  enum class Reserved : uint8_t { kNoMore, kMore, kLent };
  Reserved LookForReserved(uint16_t server, uint64_t had_bytes) const;
  bool AddReserved(uint16_t server, Room* room, Room::Grant grant);
  // Releases up to `most_bytes`; returns how many.
  uint64_t ReleaseReserved(uint16_t server, Room* room, uint64_t most_bytes);
  // The bytes reserved at that server, or everywhere.
  uint64_t reserved_bytes(std::optional<uint16_t> server = std::nullopt) const;
  // Some is reserved, or lent.
  bool holds_room() const;
  RegionRoom::Trim BeginTrim(uint16_t server, Room* room);
  void EndTrim(uint16_t server, Room* room, const RegionRoom::Trim& trim, const RegionRoom::TrimEnd& end);
  // Gives all room back. Afterwards nothing is reserved any more, and no grant may be under way. `room_of` returns the
  // client's room at a server.
  void CloseRooms(absl::FunctionRef<Room*(uint16_t)> room_of);
  // The servers that the map knows anything of.
  std::vector<uint16_t> servers() const;

  // Notes where a span of an attached region is. False: the table has become larger than `bytes_max`.
  bool Load(uint64_t span, uint16_t server, size_t bytes_max);
  // Client memory beyond sizeof.
  size_t memory_bytes() const;

 private:
  // A trim of more spans than this concerns all servers.
  static constexpr uint64_t kSpansLookedAt = 64;

  struct ReplicaHost {
    uint16_t server = kNoServer;
    bool unsure = false;       // whether it was: the write that would have created it has no answer
    uint64_t incarnation = 0;  // in which it was created there; 0: not yet
    RegionRoom room;           // reserved for this region alone
  };

  const ReplicaHost* FindReplicaHostLocked(uint16_t server) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  ReplicaHost* ReplicaHostLocked(uint16_t server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static Target TargetOf(const ReplicaHost& replica_host);
  Target TargetLocked(const SpanPlacement& placement) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  RegionMap(const RegionKey& key, std::unique_ptr<RegionSeal> seal)
      : key_(key),
        copied_(key.copies > 1 || key.moves || key.versioned || seal != nullptr
                    ? std::make_unique<Copied>(key.copies, key.named, std::move(seal))
                    : nullptr) {}
  void Drop() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  struct Versions {
    VersionNumber newest{};
    std::vector<VersionDebt> debts;
    std::vector<uint64_t> refusers;
  };
  Versions* VersionsLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  struct Copied {
    Copied(int copies, bool named, std::unique_ptr<RegionSeal> region_seal)
        : map(copies, named), seal(std::move(region_seal)) {}
    CopyMap map;
    const std::unique_ptr<RegionSeal> seal;
    Link link;
    std::unique_ptr<Versions> versions;  // most regions have none; guarded by mu_
  };

  const RegionKey key_;
  const std::unique_ptr<Copied> copied_;
  mutable SharedGate mu_;  // taken exclusively: a mutex in four bytes
  bool destroyed_ ABSL_GUARDED_BY(mu_) = false;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;  // its rooms are
  std::atomic<bool> has_reserved_{false};
  std::atomic<bool> has_room_{false};
  std::atomic<uint32_t> references_{1};
  std::atomic<bool> closing_{false};
  std::atomic<bool> fenced_{false};
  SpanTable spans_ ABSL_GUARDED_BY(mu_);
  absl::InlinedVector<ReplicaHost, 1> replica_hosts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_REGION_MAP_H_
