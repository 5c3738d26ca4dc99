#ifndef NRAM_MEMSERVER_PAGE_STORE_H_
#define NRAM_MEMSERVER_PAGE_STORE_H_

// What the pages of a server's regions hold. Knows nothing of sockets or gRPC.
//
// A page is stored as the chunks that are not zero. A write receives into landing frames first (Landing in
// proto/message_reader.h); once its checksum is right, whole pages are swapped in and parts are merged, under the lock
// of the region's shard, so that a chunk is seen whole or not at all. Reads copy out under the same lock.
//
// A page's checksum is kept as its sender made it and sent with it: memory that has changed since fails at the reader.
// Only writing the whole page mends it: parts are refused, and a trim of a part leaves it so.

#include <sys/uio.h>

#include <array>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "memserver/frame_arena.h"
#include "memserver/page_index.h"
#include "memserver/payment.h"
#include "memserver/region_table.h"
#include "proto/wire.h"

namespace nram {

// The table of regions, and the data path: what is written to their pages and read from them. Thread-safe. Reasons are
// those of the wire.
class PageStore : public RegionTable {
 public:
  // Pointers are not owned and must outlive the store.
  PageStore(FrameArena* arena, LeaseTable* leases) : RegionTable(arena, leases) {}

  // What becomes of a write to a region that is not there.
  enum class IfAbsent { kRefuse, kCreate, kCreateGc };
  // A page's frame has room for the chunks that it has, or for all that it may get: then it stays there, and what is
  // written over it needs no room.
  enum class Frames { kFitted, kWhole };

  struct WriteArgs {
    RegionId region{};
    uint32_t epoch = 0;
    ChunkRange range;
    absl::Span<const ChunkMask> masks;     // which chunks of each page are written; empty: all of the range
    absl::Span<const uint32_t> page_crcs;  // the chunks', as for PayloadCrc
    FrameLoc* landed = nullptr;            // one whole frame for each page, each chunk at its own offset
    IfAbsent absent = IfAbsent::kRefuse;
    Frames frames = Frames::kFitted;
    uint64_t term = 0;  // the lease's when this was sent; 0: not looked at
  };
  // Stores chunks. Frames that it keeps are replaced in `landed`. `payment` pays for room, and says how much it paid.
  // After kFull and kDamaged each chunk is old or new.
  Reason Write(Lease* lease, const WriteArgs& args, Payment* payment);

  // Appends the chunks of `range` that are stored, in order, to `out` (room for range.bytes()), and sets masks[i] to
  // which of the range's i-th page those are and page_crcs[i] to their checksum; chunks that are not there are zeros.
  // `epoch` 0 reads whoever owns the region.
  Reason Read(RegionId id, uint32_t epoch, const ChunkRange& range, ChunkMask* masks, uint32_t* page_crcs,
              std::byte* out, size_t* out_bytes);

  // The same without the copy: calls `send` with the places of the stored chunks, in order, while the shard's lock is
  // held shared, so that they do not change. `send` must not block.
  struct Stored {
    absl::Span<const ChunkMask> masks;
    absl::Span<const uint32_t> page_crcs;
    absl::Span<const iovec> chunks;
  };
  Reason ReadInPlace(RegionId id, uint32_t epoch, const ChunkRange& range,
                     absl::FunctionRef<void(const Stored& stored)> send);

  struct TrimArgs {
    RegionId region{};
    uint32_t epoch = 0;
    ChunkRange range;
    Frames frames = Frames::kFitted;
    ArenaReservation* reservation =
        nullptr;  // gets what whole pages free, if that is room for whole pages; null: it is free
  };
  // Makes the range a hole. Long ranges are done in steps, others get their turn between them. With a reservation,
  // *kept_bytes is set to how much all such trims of the region have added to it in this term of the lease: so that the
  // answer to one tells what an earlier one did that has no answer, or was cut off between two steps.
  Reason Trim(Lease* lease, const TrimArgs& args, uint64_t* kept_bytes = nullptr);
  // One of those steps: of 64 spans with pages at most. *page is the first one to trim (the range's at the beginning),
  // and then where to go on; the trim is complete when that is at the range's end, or when it fails.
  Reason TrimStep(Lease* lease, const TrimArgs& args, uint64_t* page, uint64_t* kept_bytes);

 private:
  static constexpr uint64_t kReadPagesPerLock = 16;

  // What a write has for one page.
  struct PageWrite {
    uint64_t page;
    ChunkMask written;
    ChunkMask nonzero;  // which of these hold anything
    uint32_t crc;       // of the latter
    FrameLoc* landed;
  };
  using PageWrites = std::array<PageWrite, kPagesPerMessage>;

  // Looks at what has landed. Sets `writes` for each page of the range; returns how many chunks are written, and how
  // many of them are zeros.
  struct ChunkCounts {
    uint64_t written = 0;
    uint64_t zeros = 0;
  };
  ChunkCounts LookAt(const WriteArgs& args, PageWrites* writes) const;
  Reason WritePages(StoredRegion* region, absl::Span<const PageWrite> writes, Frames frames, Payment* payment);
  Reason WritePage(StoredRegion* region, const PageWrite& write, Frames frames, Payment* payment);
  // Whether the page's memory is no longer what was written to it.
  bool IsDamaged(const PageEntry& entry) const;
  uint32_t StoredCrc(FrameLoc frame, ChunkMask stored) const;
  // The checksum of some of the page's chunks, to be sent.
  uint32_t CrcOf(const PageEntry& entry, ChunkMask wanted) const;
  void DropPages(StoredRegion* region, uint64_t begin_page, uint64_t end_page, Refund* refund) {
    region->DropPages(begin_page, end_page, arena(), mutable_counters(), refund);
  }
  void TrimPart(StoredRegion* region, uint64_t page, ChunkMask trimmed, Frames frames);
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_PAGE_STORE_H_
