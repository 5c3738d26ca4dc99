#ifndef NRAM_MEMSERVER_PAGE_STORE_H_
#define NRAM_MEMSERVER_PAGE_STORE_H_

// The regions that this server holds and their pages. Knows nothing of sockets or gRPC.
//
// A page is stored as the chunks that are not zero. A write receives into landing frames first (Landing in
// proto/message_reader.h); once its checksum is right, whole pages are swapped in and parts are merged, under the lock
// of the region's shard, so that a chunk is seen whole or not at all. Reads copy out under the same lock.
//
// A page's checksum is kept as its sender made it and sent with it: memory that has changed since fails at the reader.
// Only writing the whole page mends it: parts are refused, and a trim of a part leaves it so.

#include <sys/uio.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/sync.h"
#include "base/units.h"
#include "memserver/frame_arena.h"
#include "memserver/lease_table.h"
#include "memserver/page_index.h"
#include "proto/message.h"

namespace nram {

struct StoreCounters {
  std::atomic<uint64_t> reads{0}, writes{0}, trims{0}, bytes_read{0}, bytes_written{0}, zero_chunks_elided{0};
  std::atomic<uint64_t> refused_full{0}, refused_stale{0}, regions_collected{0};
  std::atomic<int64_t> regions{0}, pages{0}, chunks{0};
};

// What a named region's creator wants those who attach later to know.
struct RegionManifest {
  std::string name;
  std::vector<uint64_t> incarnations;
  uint64_t size_bytes = 0;
};

struct RegionDescription {
  RegionId id{};
  LeaseId lease{};
  uint32_t epoch = 0;
  bool gc = false;
  bool orphan = false;
  std::string owner;
  uint64_t stored_bytes = 0;
  uint64_t spans = 0;
  RegionManifest manifest;
};

// Thread-safe. Reasons are those of the wire; control-plane calls return Status.
class PageStore {
 public:
  // Pointers are not owned and must outlive the store.
  PageStore(FrameArena* arena, LeaseTable* leases) : arena_(arena), leases_(leases) {}
  ~PageStore();

  Reason Create(Lease* lease, RegionId id, uint32_t epoch, bool gc, uint64_t* paid_bytes);
  // ALREADY_EXISTS (id or name), RESOURCE_EXHAUSTED, FAILED_PRECONDITION (lease ended).
  absl::Status CreateNamed(Lease* lease, RegionId id, uint32_t epoch, bool gc, RegionManifest manifest);

  // Stores the chunks of `range` that `masks` selects (all if empty) from `landed`, one whole frame for each page of
  // the range, each chunk at its own offset. Frames it keeps are replaced in `landed`. `page_crcs` are the chunks', as
  // for PayloadCrc. `promise` (the lease's, or null) pays, `limit_bytes` at most; *paid_bytes says how much. After
  // kFull each chunk is old or new. A region that is not there is created first if `absent` says so. A page's frame has
  // room for the chunks that it has, or for all that it may get: then it stays there, and what is written over it needs
  // no room. `term`: the lease's when this was sent; 0: not looked at.
  enum class IfAbsent { kRefuse, kCreate, kCreateGc };
  enum class Frames { kFitted, kWhole };
  Reason Write(Lease* lease, ArenaPromise* promise, RegionId id, uint32_t epoch, const ChunkRange& range,
               absl::Span<const ChunkMask> masks, absl::Span<const uint32_t> page_crcs, IfAbsent absent,
               FrameLoc* landed, uint64_t* paid_bytes, Frames frames = Frames::kFitted,
               uint64_t limit_bytes = ~uint64_t{0}, uint64_t term = 0);

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

  // Makes the range a hole. Long ranges are done in steps, others get their turn between them. What whole pages freed
  // is added to `promise` (may be null), if it is room for whole pages; *kept_bytes is set to how much was, by all such
  // trims in this term of the lease: so that the answer to one tells what an earlier one did that has no answer, or
  // was cut off between two steps.
  Reason Trim(Lease* lease, RegionId id, uint32_t epoch, const ChunkRange& range, ArenaPromise* promise = nullptr,
              uint64_t* kept_bytes = nullptr, Frames frames = Frames::kFitted);

  // One of those steps: of 64 spans with pages at most. *page is the first one to trim (the range's at the beginning),
  // and then where to go on; the trim is complete when that is at the range's end, or when it fails.
  Reason TrimStep(Lease* lease, RegionId id, uint32_t epoch, const ChunkRange& range, ArenaPromise* promise,
                  uint64_t* kept_bytes, Frames frames, uint64_t* page);

  // The region and all it holds. kUnknownRegion if it is not there.
  Reason Destroy(Lease* lease, RegionId id, uint32_t epoch);
  // The same in two: the region is there no more, but its memory is still taken, until FreeStep has said that it is
  // free (true), or whoever has no time for that gives it to FreeLater. A step is 64 spans at most.
  struct Region;
  using Doomed = std::unique_ptr<Region>;
  Reason Unlink(Lease* lease, RegionId id, uint32_t epoch, Doomed* doomed);
  bool FreeStep(Doomed* doomed);
  void FreeLater(Doomed doomed);
  // Frees what FreeLater was given. True if nothing is left; false if it came to `until_ns`. One thread at a time.
  bool FreeSome(int64_t until_ns);
  // The same for the control plane; `force` asks neither owner nor lease. True if it was there.
  absl::StatusOr<bool> DestroyByControl(LeaseId lease, RegionId id, bool force);

  // See control.proto. `lease` null: read-only.
  absl::StatusOr<RegionDescription> Attach(Lease* lease, RegionId id, uint32_t epoch, bool force);
  // Zero if no region has this name.
  RegionId FindByName(const std::string& name) const;
  // The first `limit` regions with an id of at least `from`, in order; fewer if some go away meanwhile. Without their
  // incarnations, which are long. *next: from where there are more; 0: there are none.
  std::vector<RegionDescription> List(uint64_t from, size_t limit, bool orphans_only, bool named_only,
                                      uint64_t* next = nullptr) const;
  absl::StatusOr<std::vector<uint64_t>> ListSpans(RegionId id, uint64_t from_span, size_t limit) const;

  // While draining, nothing new is taken that no promise pays for: kDraining.
  void SetDraining(bool draining) { draining_ = draining; }

  // Frees the GC regions of a lease that has ended.
  void CollectLease(const Lease& lease);
  // Tables that have become far too large are made anew.
  void ShrinkTables();
  // Regions that stay although their lease has ended.
  size_t CountOrphans() const;

  FrameArena* arena() const { return arena_; }
  const StoreCounters& counters() const { return counters_; }

 private:
  static constexpr size_t kShards = 256;
  // What a region costs beyond its pages: itself, its slot in the shard's table, the allocator's words.
  static constexpr uint64_t kRegionBytes = 184;
  static_assert(kRegionBytes <= kPromiseBytesPerRegion);
  static constexpr uint64_t kTrimSpansPerStep = 64;
  static constexpr uint64_t kReadPagesPerLock = 16;

  struct alignas(64) Shard {
    mutable SharedMutex mu;
    absl::flat_hash_map<uint64_t, std::unique_ptr<Region>> regions ABSL_GUARDED_BY(mu);
  };

  std::vector<uint64_t> FirstIds(uint64_t from, size_t limit, bool orphans_only, bool named_only) const;
  Shard& shard(RegionId id) const { return shards_[Raw(id) * 0x9E3779B97F4A7C15u >> 56]; }
  Reason CreateLocked(Shard* at, Lease* lease, ArenaPromise* promise, RegionId id, uint32_t epoch, bool gc, bool named,
                      uint64_t* paid_bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(at->mu);
  Reason CheckOwner(const Region& region, const Lease& lease, uint32_t epoch);
  // What a write has for one page. `nonzero`: which of the `written` chunks hold anything.
  struct PageWrite {
    ChunkMask written;
    ChunkMask nonzero;
    uint32_t crc;  // of the latter
  };
  Reason WritePage(Region* region, ArenaPromise* promise, uint64_t page, const PageWrite& write, Frames frames,
                   FrameLoc* landed, uint64_t* paid_bytes);
  // Whether the page's memory is no longer what was written to it.
  bool IsDamaged(const PageEntry& entry) const;
  uint32_t StoredCrc(FrameLoc frame, ChunkMask stored) const;
  // The checksum of some of the page's chunks, to be sent.
  uint32_t CrcOf(const PageEntry& entry, ChunkMask wanted) const;
  // What this frees is added to `promise` (may be null); returns how much was.
  uint64_t DropPages(Region* region, uint64_t begin_page, uint64_t end_page, ArenaPromise* promise);
  void TrimPart(Region* region, uint64_t page, ChunkMask trimmed, Frames frames);
  // Frees what the region holds, a step at a time; it is in no table any more.
  void Free(Doomed doomed);
  void ForgetName(RegionId id);
  RegionDescription Describe(RegionId id, const Region& region, bool with_incarnations) const;

  FrameArena* const arena_;
  LeaseTable* const leases_;
  StoreCounters counters_;
  std::atomic<bool> draining_{false};
  mutable std::array<Shard, kShards> shards_;

  mutable Mutex names_mu_;  // taken after a shard's, never before
  absl::flat_hash_map<std::string, uint64_t> names_ ABSL_GUARDED_BY(names_mu_);
  absl::flat_hash_map<uint64_t, RegionManifest> manifests_ ABSL_GUARDED_BY(names_mu_);

  Mutex free_some_mu_;  // taken before doomed_mu_
  Mutex doomed_mu_;
  std::vector<Doomed> doomed_ ABSL_GUARDED_BY(doomed_mu_);
};

struct PageStore::Region {
  explicit Region(FrameArena* arena) : index(arena) {}
  LeaseId lease{};
  uint32_t epoch = 0;
  bool gc = false;
  bool named = false;
  uint64_t chunks = 0;
  uint64_t kept_bytes = 0;  // freed by trims, promised to the owner again
  uint64_t kept_term = 0;   // of its lease
  PageIndex index;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_PAGE_STORE_H_
