#ifndef NRAM_MEMSERVER_REGION_VERSIONS_H_
#define NRAM_MEMSERVER_REGION_VERSIONS_H_

// A region's versions at one server (adr/0019). The region's own index is the head. Each version has a delta: the
// entries that the head had when the version was sealed, and has displaced since. A frame has one entry, in the head or
// in one delta.
//
// A caller that changes the head does this, in this order, before it changes anything:
//   1. NoteGeneration, if a span's generation is to change.
//   2. PrepareKept for at most 64 pages of a span.
//   3. Keep for each of these pages, if Keeps says so of its entry. The frame then belongs to the version, and the
//      head's entry must get another one, or be erased. Else the head's frame is the caller's, as without versions.
//   4. The new entry is born at birth().
// None of these fails. Where there is no room, the oldest versions yield, until nothing has to be kept.
//
// The region's spans must have generations: their leaves stay, so each knows when it was born.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/container/btree_set.h"
#include "absl/functional/function_ref.h"
#include "base/units.h"
#include "memserver/frame_arena.h"
#include "memserver/page_index.h"
#include "memserver/seal_order.h"
#include "memserver/store_counters.h"
#include "memserver/versioned_regions.h"
#include "proto/wire.h"

namespace nram {

struct StoredVersion {
  VersionNumber number{};
  VersionKeep keep{};
  size_t holds = 0;
  uint64_t pages = 0;   // of its delta
  uint64_t chunks = 0;  // stored in these
};

// Not thread-safe: the lock of the region's shard guards it. Owns deltas, and the frames that they name. All memory is
// the account's. `head` is always the region's index.
class RegionVersions {
 public:
  struct Limits {
    size_t versions = 1024;  // those without a name included
    size_t holds = 4096;     // of a version
    uint16_t places = SealOrder::kPlacesMax;
  };
  // `server` and `tenant`, which may be null, get its totals, and outlive it. Null: there is no room.
  static std::unique_ptr<RegionVersions> Make(ArenaAccount* account, PageIndex::Pages pages, Limits limits,
                                              VersionTotals* server = nullptr, VersionTotals* tenant = nullptr);
  static std::unique_ptr<RegionVersions> Make(ArenaAccount* account, PageIndex::Pages pages,
                                              VersionTotals* server = nullptr, VersionTotals* tenant = nullptr) {
    return Make(account, pages, Limits(), server, tenant);
  }
  RegionVersions(const RegionVersions&) = delete;
  // FreeAll must have come to its end, unless the arena goes too.
  ~RegionVersions();

  // --- Changes of the head.
  uint16_t birth() const { return order_.birth(); }
  bool Keeps(const PageEntry& old) const;
  // Pages [page, page + pages) are of one span, at most 64. Until the next call, Keep of each has room.
  void PrepareKept(const PageIndex& head, uint64_t page, uint64_t pages);
  // `seal`: the page's, in a sealed region; else null.
  void Keep(uint64_t page, const PageEntry& old, const PageSeal* seal);
  // Takes the room that the head needs if `old` is kept: calls `take` until it returns true, or `old` need not be kept;
  // in between versions yield. True: it is kept, and `take` has returned true at last.
  bool KeepsWith(const PageEntry& old, absl::FunctionRef<bool()> take);
  // Before the generation of the page's span changes.
  void NoteGeneration(const PageIndex& head, uint64_t page);

  // --- Reading.
  bool Has(VersionNumber version) const { return FindNamed(version) != kNone; }
  // The version's entries and seals of at most 64 pages; those of holes are empty. `seals` may be null. False: there is
  // no such version.
  bool Resolve(VersionNumber version, const PageIndex& head, uint64_t first_page, uint64_t pages, PageEntry* entries,
               PageSeal* seals) const;
  // The generation that the page's span had; 0 if it was not there. nullopt: there is no such version.
  std::optional<SpanGeneration> GenerationAt(VersionNumber version, const PageIndex& head, uint64_t page) const;
  // The next two count *looks_left down, by one for each leaf that they look at, and end before the span for which it
  // does not suffice, but never before the first one. They return the span to go on from, or kNoSpan. The versions must
  // be there.
  //
  // Calls `visit` with each span of the version, and the generation that it had.
  uint64_t VisitSpans(VersionNumber version, const PageIndex& head, uint64_t from_span, uint64_t* looks_left,
                      absl::FunctionRef<void(uint64_t span, SpanGeneration generation)> visit) const;
  // Calls `visit` with each span in which `to` may differ from the older version `from`, and a bit for each page that
  // may.
  uint64_t VisitChanges(VersionNumber from, VersionNumber to, const PageIndex& head, uint64_t from_span,
                        uint64_t* looks_left,
                        absl::FunctionRef<void(uint64_t span, const PageIndex::SpanPages& pages)> visit) const;

  // --- Versions.
  enum class Sealed {
    kOk,       // also if it is the newest already, and still there
    kOld,      // the number is not above all that were sealed here
    kTooMany,  // Limits::versions
    kNoRoom,   // not even with all other versions gone
    kBusy,     // places are being renumbered: Step goes on with that
  };
  Sealed Seal(PageIndex* head, VersionNumber number, VersionKeep keep);
  struct Dropped {
    size_t dropped = 0, held = 0;
  };
  // Takes the names of versions in [first, last]; of held ones only by `force`, or when the last hold goes. Step frees
  // the frames that only they have.
  Dropped Drop(VersionNumber first, VersionNumber last, bool force);
  enum class Held { kOk, kUnknown, kTooMany, kNoRoom };
  // A lease has a version's hold once.
  Held Hold(VersionNumber version, LeaseId lease);
  void Release(VersionNumber version, LeaseId lease);
  void ReleaseAll(LeaseId lease);
  bool Holds(LeaseId lease) const;
  // The region has no living owner at `now_ns`. Drops the versions that do not outlive one and are not held. True:
  // some are left. Has the region woken when the time of the next one is over.
  bool EndOwner(int64_t now_ns);
  // It has one, again: the versions' seconds without one begin anew when that one ends.
  void HasOwner() { alone_since_ns_ = 0; }

  // Works for at most kSpansPerStep spans: frees dropped versions, or renumbers. True: nothing is left to do, or it
  // cannot be done for want of room.
  static constexpr uint64_t kSpansPerStep = 64;
  bool Step(PageIndex* head);
  bool has_work() const { return !unlinked_.empty() || nameless_ > 0 || order_.renumbers(); }
  // Frees a part of the oldest version's own frames; the version is gone. False: no version is left, nor anything to
  // free. Not `held`: nor is a version that is not held and has no older one that is.
  bool YieldStep(bool held = true);
  // The stamp of the version that YieldStep would free; its turn is after all lower stamps, in this region or another.
  // 0: it has no name any more. nullopt: it would free nothing.
  std::optional<uint64_t> StampToYield(bool held) const;
  // The region's places among those of the server, which are kept up to date. It is woken when there is work for Step,
  // and when a version has gone or is not held any more.
  VersionedRegions::Place* place() { return &place_; }
  // Unlinks all versions, and frees as one Step. True: all is free.
  bool FreeAll();
  // The highest version that has yielded; 0: none.
  VersionNumber yielded() const { return yielded_; }

  // --- For the compactor. Moves frames of deltas, as PageIndex::MoveFrames. True: it has seen all deltas. Else the
  // cursor is where to go on; a fresh one is the beginning. Frames that were dropped and not freed yet are not moved.
  struct DeltaCursor {
    VersionNumber number{};
    uint64_t page = 0;
  };
  bool MoveFrames(DeltaCursor* cursor, uint64_t* looks_left,
                  absl::FunctionRef<FrameLoc(FrameLoc frame, ChunkMask mask)> move);

  // Oldest first.
  std::vector<StoredVersion> List() const;
  VersionNumber newest() const { return NewestNamed() ? NewestNamed()->number : VersionNumber{}; }  // 0: none
  VersionNumber oldest() const;                                                                     // 0: none
  VersionNumber highest() const { return highest_; }  // of all that were ever sealed
  // The pages of deltas, also of those that are to be freed.
  uint64_t pages() const { return pages_; }
  uint64_t chunks() const { return chunks_; }
  // The bytes of all of them, as VersionTotals has it.
  uint64_t bytes() const { return static_cast<uint64_t>(bytes_); }

 private:
  struct Version {
    Version(VersionNumber its_number, uint16_t its_place, VersionKeep its_keep, uint64_t its_stamp,
            ArenaAccount* account, PageIndex::Pages pages)
        : number(its_number), place(its_place), keep(its_keep), stamp(its_stamp), delta(account, pages) {}

    const VersionNumber number;
    uint16_t place;
    const VersionKeep keep;
    bool named = true;
    bool ends = false;     // was dropped, and goes with its last hold
    const uint64_t stamp;  // of all seals of the server
    uint64_t chunks = 0;
    absl::btree_set<LeaseId> holds;
    PageIndex delta;
  };
  using VersionPtr = std::unique_ptr<Version>;
  static constexpr size_t kNone = ~size_t{0};
  // With the allocator's words. A version has its places in two lists that double when they grow, and one in the table
  // of places.
  static constexpr uint64_t kBytes = 448;  // and its places among the server's regions
  static constexpr uint64_t kVersionBytes = 240;
  static constexpr uint64_t kHoldBytes = 16;
  static constexpr uint64_t kPagesEnd = kRegionChunksMax / kChunksPerPage;
  // A write frees by itself no more than these steps, then all versions are unlinked: some 16,000 frames, 3 ms.
  static constexpr uint64_t kSpansPerYield = 4;
  static constexpr int kYieldStepsMax = 16;

  RegionVersions(ArenaAccount* account, PageIndex::Pages pages, Limits limits, VersionTotals* server,
                 VersionTotals* tenant)
      : account_(account),
        pages_are_(pages),
        limits_(limits),
        server_totals_(server),
        tenant_totals_(tenant),
        order_(limits.places) {}

  uint64_t BytesOfVersion() const { return kVersionBytes + PageIndex::PrepaidBytes(pages_are_); }
  size_t FindNamed(VersionNumber version) const;
  // The newest one that has a name; null: there is none.
  Version* NewestNamed() const;
  void ReleaseOne(Version* version, LeaseId lease);
  void Unname(Version* version);
  void NoteYield(VersionNumber number);
  // The oldest version may be another one, or held, or not held any more.
  void NoteAge();
  void AddTotals(int64_t versions, int64_t bytes);
  void Free(Version* version, const PageEntry& entry);
  // Has the oldest `count` versions freed, named and held ones too.
  void Unlink(size_t count);
  void UnlinkOldestNamed();
  // Calls `prepare` until it returns true, or no version has a name any more; in between versions yield.
  void UntilRoom(absl::FunctionRef<bool(Version* newest)> prepare);
  // Frees some of the unlinked versions. True: nothing is left.
  bool FreeStep(uint64_t spans_max);
  // Hands the entries of the oldest nameless version to its predecessor. True: there is none, or no room.
  bool MergeStep(const PageIndex& head);
  // Up to 64 pages. False: there is no room.
  bool MergeBlock(Version* from, Version* to, uint64_t first_page);
  bool MergeNote(const PageIndex& head, Version* from, Version* to, uint64_t page);
  bool RenumberStep(PageIndex* head);
  // Finds entries for pages first_page + i of *wanted, as the versions from `at` on have them, and their seals.
  void FindFrom(size_t at, const PageIndex& head, uint64_t first_page, uint64_t* wanted, PageEntry* entries,
                PageSeal* seals) const;
  SpanGeneration GenerationFrom(size_t at, const PageIndex& head, uint64_t page) const;

  ArenaAccount* const account_;
  const PageIndex::Pages pages_are_;
  const Limits limits_;
  VersionTotals* const server_totals_;
  VersionTotals* const tenant_totals_;
  SealOrder order_;
  VersionNumber highest_{};     // of all that were ever sealed
  int64_t alone_since_ns_ = 0;  // without a living owner; 0: it has one
  VersionNumber yielded_{};
  uint64_t pages_ = 0;
  uint64_t chunks_ = 0;
  int64_t bytes_ = 0;
  bool is_barred_ = false;            // its oldest version is held
  size_t nameless_ = 0;               // of versions_
  std::vector<VersionPtr> versions_;  // the oldest first
  std::vector<VersionPtr> unlinked_;
  // While the order renumbers: deltas up to renumber_end_ are looked at first, then the head.
  DeltaCursor renumber_at_;
  VersionNumber renumber_end_{};
  VersionedRegions::Place place_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_REGION_VERSIONS_H_
