#ifndef NRAM_MEMSERVER_PAGE_STORE_H_
#define NRAM_MEMSERVER_PAGE_STORE_H_

// The data of a server's regions. Knows nothing of sockets or gRPC.
//
// A page is stored as its chunks that are not zero. A write's payload first lands in landing frames (Landing in
// proto/message_reader.h). After its checksum was found right, whole pages are swapped in and parts are merged, under
// the lock of the region's shard. So a reader sees a chunk whole, old or new. Reads copy out under the same lock.
//
// A page is stored and sent with the checksum that its sender made. If the page's memory changes in between, the reader
// notices. Only a write of the whole page mends it. A write of a part is refused, and a trim of a part leaves the
// damage.

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "memserver/frame_arena.h"
#include "memserver/page_index.h"
#include "memserver/payment.h"
#include "memserver/region_table.h"
#include "proto/message_body.h"
#include "proto/wire.h"

namespace nram {

// The table of regions, and the data path to their pages. Thread-safe. Reasons are those of the wire.
class PageStore : public RegionTable {
 public:
  // Pointers are not owned and must outlive the store.
  PageStore(FrameArena* arena, LeaseTable* leases) : RegionTable(arena, leases) {}

  // The fate of a write to a region that does not exist.
  enum class IfAbsent { kRefuse, kCreate, kCreateGc };
  // kFitted: a page's frame has room for the chunks that the page has. kWhole: it has room for all eight. Then the page
  // never changes its frame, and writing over it needs no room.
  enum class Frames { kFitted, kWhole };

  struct WriteArgs {
    RegionId region{};
    uint32_t epoch = 0;
    ChunkRange range;
    absl::Span<const ChunkMask> masks;     // the written chunks of each page; empty: all of the range
    absl::Span<const uint32_t> page_crcs;  // the chunks', as for PayloadCrc
    FrameLoc* landed = nullptr;            // one whole frame for each page, with each chunk at its own offset
    IfAbsent absent = IfAbsent::kRefuse;
    Frames frames = Frames::kFitted;
    uint64_t term = 0;            // the lease's term when the write was sent; 0: not checked
    SpanGeneration generation{};  // of the range's span; 0: the region has none
    // Of a sealed region: one for each page of the range. Its pages are written whole, or not at all. Empty: the
    // region is plain.
    absl::Span<const PageSeal> seals = {};
  };
  // Stores chunks. Replaces the frames that it keeps in `landed`. `payment` pays for memory, and then says how much it
  // has paid. After kFull and kDamaged the first *stored_pages pages are as written and the others as they were.
  //
  // A write with seals to a plain region, or without them to a sealed one, is kNoSeals.
  //
  // A span with a generation (adr/0014) takes writes of that generation and of higher ones, which raise it, and refuses
  // others with kOtherGeneration. IfAbsent::kCreate and kCreateGc create the span too: one of a lower generation is
  // emptied first. A write without chunks only raises, and needs no memory unless it creates.
  //
  // Where there is no room, versions yield, and the rest is tried again; before it is refused as kFull. *yielded (may
  // be null): the highest version of the region that has ever done so.
  Reason Write(Lease* lease, const WriteArgs& args, Payment* payment, uint32_t* stored_pages = nullptr,
               VersionNumber* yielded = nullptr);

  struct ReadArgs {
    StoredKey region;
    uint32_t epoch = 0;  // 0: that of any owner
    ChunkRange range;
    std::optional<SpanGeneration> generation = SpanGeneration{};  // as WriteArgs has it; nullopt: not checked
    VersionNumber version{};  // 0: the present state. Else `generation` is the one that the span had.
  };
  // Appends the stored chunks of the range, in order, to `out` (room for range.bytes()). Sets masks[i] to the stored
  // chunks of the range's i-th page, and page_crcs[i] to their checksum. Other chunks are zeros. A span of another
  // generation is kOtherGeneration. Without such a version: kUnknownSnapshot.
  // *sealed: whether the region is; then the range must be whole pages (else kNoSeals), and seals[i] is set too.
  Reason Read(const ReadArgs& args, ChunkMask* masks, uint32_t* page_crcs, std::byte* out, size_t* out_bytes,
              PageSeal* seals = nullptr, bool* sealed = nullptr);

  // The same without the copy. Calls `send` with the places of the stored chunks, in order, under the shard's shared
  // lock, so that the chunks do not change. `send` must not block.
  struct Stored {
    absl::Span<const ChunkMask> masks;
    absl::Span<const uint32_t> page_crcs;
    absl::Span<const iovec> chunks;
    absl::Span<const PageSeal> seals;  // empty: the region is plain
  };
  Reason ReadInPlace(const ReadArgs& args, absl::FunctionRef<void(const Stored& stored)> send);

  struct TrimArgs {
    RegionId region{};
    uint32_t epoch = 0;
    ChunkRange range;
    Frames frames = Frames::kFitted;
    // Gets the memory of whole pages that the trim frees, if it is room for whole pages. Null: the memory is free for
    // all.
    ArenaReservation* reservation = nullptr;
    // For all spans of the range, those of a lower one are raised, and a higher one is kOtherGeneration.
    SpanGeneration generation{};
  };
  // Makes the range a hole. Long ranges are done in steps; other requests have their turn in between. With a
  // reservation, *kept_bytes is set to the sum that all such trims of the region have added to it in this term of the
  // lease. So one answer also counts earlier trims that have no answer, or were cut off between two steps.
  Reason Trim(Lease* lease, const TrimArgs& args, uint64_t* kept_bytes = nullptr);
  // One step: 64 spans with pages at most. *page is the first page to trim (at the beginning, the range's), and then
  // the page to go on from. The trim is complete when that is the range's end, or when a step fails.
  Reason TrimStep(Lease* lease, const TrimArgs& args, uint64_t* page, uint64_t* kept_bytes);

  // Makes the region's present state its version of that number (adr/0019). The newest one is sealed again by doing
  // nothing. The region's spans have generations, or it is empty; else kOtherGeneration. kOldVersion: the number is not
  // above all former ones. kUnknownSnapshot: it is the newest one's, which has yielded or was dropped. kFull: no room,
  // or too many versions. *reply (may be null) is set if the region is the lease's.
  struct VersionSeal {
    RegionId region{};
    uint32_t epoch = 0;
    VersionNumber version{};
    VersionKeep keep{};
  };
  Reason SealVersion(Lease* lease, const VersionSeal& seal, SealReply* reply = nullptr);
  // Takes versions in [first, last] away, held ones only by `force`. Frees in steps the frames that only they have.
  struct VersionDrop {
    RegionId region{};
    uint32_t epoch = 0;
    VersionNumber first{}, last{};
    bool force = false;
  };
  Reason DropVersions(Lease* lease, const VersionDrop& drop, RegionVersions::Dropped* dropped = nullptr);
  // One step. The first one (`is_first`) takes their names, and must be followed by others until *done; StepVersions
  // does the rest. *reply counts the work of all steps.
  Reason DropVersionsStep(Lease* lease, const VersionDrop& drop, bool is_first, bool* done, DropVersionReply* reply);

 private:
  static constexpr uint64_t kReadPagesPerLock = 16;

  // A write's part for one page.
  struct PageWrite {
    uint64_t page;
    ChunkMask written;
    ChunkMask nonzero;  // those of the written chunks that are not all zeros
    uint32_t crc;       // of these
    FrameLoc* landed;
    const PageSeal* seal;  // null in a plain region
  };
  using PageWrites = std::array<PageWrite, kPagesPerMessage>;

  // Looks at the landed chunks. Sets `writes` for each page of the range. Returns how many chunks are written, and how
  // many of them are zeros.
  struct ChunkCounts {
    uint64_t written = 0;
    uint64_t zeros = 0;
  };
  ChunkCounts LookAt(const WriteArgs& args, PageWrites* writes) const;
  // Makes the span's generation the write's, or refuses.
  Reason EnterGeneration(StoredRegion* region, const WriteArgs& args, Payment* payment);
  Reason CheckRead(const StoredRegion& region, const ReadArgs& args);
  // Entries and, of a sealed region, seals of at most 64 pages, at the version that is read.
  static void FindToRead(const StoredRegion& region, const ReadArgs& args, uint64_t first_page, uint64_t pages,
                         PageEntry* entries, PageSeal* seals);
  // Whether the region's pages may be asked for so: of a sealed one, whole pages.
  static bool FitsSeals(const StoredRegion& region, const ChunkRange& range) {
    return !region.index.sealed() || (range.first % kChunksPerPage == 0 && range.count % kChunksPerPage == 0);
  }
  // *may_help: as for WriteRest.
  Reason SealOnce(Lease* lease, const VersionSeal& seal, SealReply* reply, bool* may_help);
  // A write's part under the lock; `chunks` are all of it, `writes` the pages that are not stored yet. Adds to *stored
  // the pages that are now. *may_help is set to false if it is full of something that versions cannot free.
  Reason WriteRest(Lease* lease, const WriteArgs& args, const ChunkCounts& chunks, absl::Span<const PageWrite> writes,
                   Payment* payment, uint32_t* stored, VersionNumber* yielded, bool* may_help);
  Reason WritePages(StoredRegion* region, absl::Span<const PageWrite> writes, Frames frames, Payment* payment,
                    uint32_t* stored_pages);
  Reason WritePage(StoredRegion* region, const PageWrite& write, Frames frames, Payment* payment);
  bool HasWholeFrame(const PageEntry& entry) const {
    return entry.mask != 0 && arena()->ChunksIn(entry.frame) == int{kChunksPerPage};
  }
  void CountChunks(StoredRegion* region, int64_t change);
  void MakeHole(StoredRegion* region, uint64_t page, const PageEntry& old);
  // Whether the page's memory has changed since it was written.
  bool IsDamaged(const PageEntry& entry) const;
  uint32_t StoredCrc(FrameLoc frame, ChunkMask stored) const;
  // The checksum to send with some of the page's chunks.
  uint32_t CrcOf(const PageEntry& entry, ChunkMask wanted) const;
  // Whether a page's landed chunks are all that is stored of it, and the same.
  bool IsSame(const PageEntry& old, const PageWrite& write) const;
  // `reservation` (may be null) gets as much as the frames take that versions keep; returns how much.
  uint64_t DropPages(StoredRegion* region, uint64_t begin_page, uint64_t end_page, Refund* refund,
                     ArenaReservation* reservation = nullptr) {
    uint64_t reserved_bytes = 0;
    region->KeepPages(arena(), begin_page, end_page, mutable_counters(), reservation, &reserved_bytes);
    region->DropPages(begin_page, end_page, mutable_counters(), refund);
    return reserved_bytes;
  }
  // Raises the generations of the spans that have these pages. False, and nothing is raised: one is higher.
  bool EnterTrim(StoredRegion* region, uint64_t begin_page, uint64_t end_page, SpanGeneration generation);
  void TrimPart(StoredRegion* region, uint64_t page, ChunkMask trimmed, Frames frames);
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_PAGE_STORE_H_
