#ifndef NRAM_CLIENT_POOL_REGION_H_
#define NRAM_CLIENT_POOL_REGION_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "client/pool/copied_regions.h"
#include "client/pool/environment.h"
#include "client/pool/io.h"
#include "client/pool/options.h"
#include "client/pool/region_map.h"
#include "client/pool/reservation.h"
#include "client/pool/sessions.h"
#include "client/pool/sweep.h"
#include "client/pool/version_seal.h"

namespace nram {

// Hears of named regions. Both functions may block for seconds, and log their failures.
class RegionKeeper {
 public:
  // An owner's handle of a region with views (of copies, or sealed) ends. After a failure the next owner asks for more
  // servers.
  virtual void Leave(const IoPlace& place) = 0;
  // A kept region was destroyed on all servers.
  virtual void NoteDestroyed(const std::string& name, RegionId id) = 0;

 protected:
  ~RegionKeeper() = default;
};

// Parts that regions share. They outlive the regions.
struct RegionHome {
  Sessions* sessions = nullptr;
  Environment* environment = nullptr;
  const PoolOptions* options = nullptr;
  CopiedRegions* copied = nullptr;
  RegionKeeper* keeper = nullptr;
};

// A sparse array of bytes in the pool, up to 2^62. Holes read as zeros. Offsets and lengths are bytes, in multiples of
// 512 (a chunk), in a sealed region of 4096 (a page). They may cross spans.
//
// Thread-safe, without order: operations that overlap and are under way at the same time leave each chunk as one of
// them made it. Operations that start later see each operation that has returned.
//
// Errors of all operations:
//   INVALID_ARGUMENT     offset or length is no multiple of unit_bytes(), or beyond 2^62
//   RESOURCE_EXHAUSTED   the pool is full (writes); each chunk of the range is old or as written
//   DATA_LOSS            a server that held part of the range lost it: it restarted, or collected it after the lease
//                        ended, or its memory of a page has changed (which a write of that whole page mends)
//   UNAVAILABLE          a server does not answer; after a write the range may have old or new chunks
//   DEADLINE_EXCEEDED    likewise, and the operation's time ran out waiting for it
//   FAILED_PRECONDITION  another client has taken the region over; or it was attached read-only
// After an error of a read the buffer is unspecified. No operation exceeds its timeout by more than a few milliseconds.
class Region {
 public:
  // Gives up the handle. The region remains: for ever, or until the lease ends if it is a GC region.
  ~Region();

  // Blocking, by traffic on the calling thread. They do not allocate once the region's spans are placed (in a sealed
  // region: once its pages were written or reserved, while few messages are under way).
  absl::Status Read(uint64_t offset, absl::Span<std::byte> to, const IoOptions& options = {});
  absl::Status Write(uint64_t offset, absl::Span<const std::byte> from, const IoOptions& options = {});
  // Writes only the chunks of the range that `masks` selects, one mask for each page that the range touches.
  absl::Status WriteChunks(uint64_t offset, absl::Span<const std::byte> from, absl::Span<const ChunkMask> masks,
                           const IoOptions& options = {});
  // Makes a hole. Its memory is free when this returns or, with kKeep, reserved for this region again.
  enum class TrimRoom { kFree, kKeep };
  absl::Status Trim(uint64_t offset, uint64_t length, const IoOptions& options = {}, TrimRoom room = TrimRoom::kFree);

  // Asynchronous: they return at once. `io` and the buffer must live until `callback` has run (on any thread of the
  // pool's or its users'; it must not block; it may start operations with this or another Io) or, with a null callback,
  // until io->Wait() has returned, which gives the result.
  void StartRead(Io* io, uint64_t offset, absl::Span<std::byte> to, const IoOptions& options = {},
                 void (*callback)(Io*, void*) = nullptr, void* context = nullptr);
  void StartWrite(Io* io, uint64_t offset, absl::Span<const std::byte> from, const IoOptions& options = {},
                  void (*callback)(Io*, void*) = nullptr, void* context = nullptr);
  // `masks` must live as long as the buffer.
  void StartWriteChunks(Io* io, uint64_t offset, absl::Span<const std::byte> from, absl::Span<const ChunkMask> masks,
                        const IoOptions& options = {}, void (*callback)(Io*, void*) = nullptr, void* context = nullptr);

  // Places the range's spans and reserves room for all of its pages, so that later writes there do not fail for lack of
  // room (unless the lease ends, or writes elsewhere in this region have used it). RESOURCE_EXHAUSTED: the pool has
  // less room; this call has reserved nothing.
  absl::Status Reserve(uint64_t offset, uint64_t length, const IoOptions& options = {});

  // Gives back the room of pages that Reserve has reserved and no write has used, on each copy. The caller knows these
  // pages: for others, room of the rest of the region would go. Does not block.
  void Unreserve(uint64_t offset, uint64_t length);
  // Gives back all of the region's unused room, wherever it was reserved. Does not block.
  void UnreserveAll();

  // Frees everything on every server, now. The region is unusable afterwards. Servers that do not answer keep their
  // part until they are back. If this client has ended by then, a GC region is collected with the lease, and another
  // one is an orphan in `nram regions`. The error names one such server. FAILED_PRECONDITION: another client has taken
  // the region over, or is about to: nothing is freed. For a kept region whose name etcd has (adr/0023), it blocks for
  // up to three seconds more.
  absl::Status Destroy(const IoOptions& options = {});

  // --- Versions (adr/0019), for regions of several copies, sealed ones, and those that were created for it; of those
  // without a name, only for regions that outlive a lease.
  // Makes the region's present state its next version, which Pool::OpenVersion reads. It has all changes that have
  // returned; of a change that is under way it has each message wholly or not at all. Changes wait meanwhile: a round
  // trip, 250 ms if a server does not answer.
  // FAILED_PRECONDITION: it is not such a region, or was attached read-only, or another client has taken it over, or it
  // is still empty. DATA_LOSS: a part of it is lost, and was not written anew. RESOURCE_EXHAUSTED: it has too many
  // versions. UNAVAILABLE, DEADLINE_EXCEEDED: too few servers answer, or copies cannot be made alike.
  absl::StatusOr<SealedVersion> Snapshot(VersionKeep keep, const IoOptions& options = {});
  // Without blocking: `seal` is used once, and must live until the callback or seal->Wait().
  void StartSeal(VersionSeal* seal, VersionKeep keep, const IoOptions& options = {},
                 VersionSeal::Callback callback = nullptr, void* context = nullptr);
  // Drops versions with these numbers, the bounds included, that were sealed before. Held versions are dropped with
  // their last hold, or at once by `force`. Numbers without a version are ignored.
  absl::StatusOr<DroppedVersions> DropVersions(VersionNumber first, VersionNumber last, bool force,
                                               const IoOptions& options = {});

  // The same without blocking, as StartRead. `sweep` and `reservation` are used once. StartDestroy leaves the region's
  // name in etcd: the next creator replaces it.
  void StartTrim(Sweep* sweep, uint64_t offset, uint64_t length, const IoOptions& options = {},
                 TrimRoom room = TrimRoom::kFree, Sweep::Callback callback = nullptr, void* context = nullptr);
  void StartDestroy(Sweep* sweep, const IoOptions& options = {}, Sweep::Callback callback = nullptr,
                    void* context = nullptr);
  void StartReserve(Reservation* reservation, uint64_t offset, uint64_t length, const IoOptions& options = {},
                    Reservation::Callback callback = nullptr, void* context = nullptr);

  // Destroys many regions, with all requests under way together: far faster than one after the other. Null pointers are
  // not allowed. Returns the first error.
  static absl::Status DestroyAll(absl::Span<const std::unique_ptr<Region>> regions);

  RegionId id() const { return map_->key().id; }
  std::string name() const { return described_ == nullptr ? "" : described_->name; }
  bool read_only() const { return read_only_; }
  // Donors see only ciphertext of it. Offsets and lengths are then multiples of a page, and WriteChunks writes all
  // chunks of a page if it selects some.
  bool sealed() const { return map_->seal() != nullptr; }
  uint64_t unit_bytes() const { return sealed() ? kPageBytes : kChunkBytes; }
  // The version's number, for a handle by Pool::OpenVersion; else 0.
  VersionNumber version() const { return map_->key().version; }
  uint64_t size_bytes() const { return described_ == nullptr ? 0 : described_->size_bytes; }
  // The servers that get a write of the byte, one for each copy, by their numbers in the pool; none before its span is
  // placed. Does not allocate.
  using Servers = CopyMap::Servers;
  Servers ServersOf(uint64_t offset) const;
  // Client memory that the region takes, this object included.
  size_t memory_bytes() const { return sizeof *this + sizeof *map_ + map_->memory_bytes(); }

  // --- For Pool, which makes regions. `home` outlives the region. The region releases `held` when it ends.
  Region(const RegionHome* home, const RegionKey& key, const RegionOptions& options, bool read_only,
         std::unique_ptr<RegionSeal> seal = nullptr, std::shared_ptr<const void> held = nullptr);
  // Begins to repair its copies. To be called once, when the places of all copies are known.
  void BeginRepair();
  RegionMap* map() const { return map_.get(); }

 private:
  absl::Status CheckRange(uint64_t offset, uint64_t length) const;
  absl::StatusOr<IoRequest> MakeRequest(Op op, uint64_t offset, uint64_t length, const IoOptions& options) const;
  absl::StatusOr<IoRequest> MakeChunksRequest(uint64_t offset, absl::Span<const std::byte> from,
                                              absl::Span<const ChunkMask> masks, const IoOptions& options) const;
  absl::Status CheckVersioned() const;
  int64_t DeadlineOf(const IoOptions& options) const;
  void Release(uint16_t server, uint64_t most_bytes);
  IoPlace place() const { return {home_->sessions, map_.get(), home_->environment, home_->sessions->gate()}; }

  const RegionHome* const home_;
  const bool read_only_;
  bool is_repaired_ = false;
  // For regions with a name or a size; the many others need no memory for them.
  struct Described {
    std::string name;
    uint64_t size_bytes;
    std::shared_ptr<const void> held;
  };
  const std::unique_ptr<const Described> described_;
  const RegionMap::Ref map_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_REGION_H_
