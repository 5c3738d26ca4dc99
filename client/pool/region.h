#ifndef NRAM_CLIENT_POOL_REGION_H_
#define NRAM_CLIENT_POOL_REGION_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/pool/io.h"
#include "client/pool/options.h"
#include "client/pool/placement.h"
#include "client/pool/region_room.h"
#include "client/pool/span_table.h"

namespace nram {

class Pool;
class ServerLink;

// A sparse array of bytes in the pool, up to 2^62. What was never written reads as zeros. Offsets and lengths are
// multiples of 512 (a chunk); pages and spans need not be minded.
//
// Thread-safe, without order: operations that overlap and are under way at the same time leave each chunk as one of
// them made it. An operation that has returned is seen by all that start later.
//
// Errors of all operations:
//   INVALID_ARGUMENT     offset or length is no multiple of 512, or beyond 2^62
//   RESOURCE_EXHAUSTED   the pool is full (writes); each chunk of the range is as it was or as written
//   DATA_LOSS            a server that held part of the range lost it: it restarted, or collected it after the lease
//                        ended, or its memory of a page has changed (which a write of that whole page mends)
//   UNAVAILABLE          a server does not answer; nothing is known about the range if it was a write
//   DEADLINE_EXCEEDED    likewise, and the operation's time ran out waiting for it
//   FAILED_PRECONDITION  another client has taken the region over; or it was attached read-only
// After an error of a read the buffer is unspecified. No operation takes longer than its timeout, but for a few
// milliseconds; and an asynchronous one whose server has stopped answering, for the seconds that the link takes to find
// out whether it still does not.
class Region {
 public:
  // Gives up the handle; the region stays (for ever, or until the lease ends if it is a GC region).
  ~Region();

  // Blocking. They use the calling thread for the traffic and do not allocate once the region's spans are placed.
  absl::Status Read(uint64_t offset, absl::Span<std::byte> to, const IoOptions& options = {});
  absl::Status Write(uint64_t offset, absl::Span<const std::byte> from, const IoOptions& options = {});
  // Writes of the range only the chunks that `masks` selects, one mask for each page that the range touches.
  absl::Status WriteChunks(uint64_t offset, absl::Span<const std::byte> from, absl::Span<const ChunkMask> masks,
                           const IoOptions& options = {});
  // Makes a hole; its memory is free when this returns, or, with kKeep, reserved for this region again.
  enum class TrimRoom { kFree, kKeep };
  absl::Status Trim(uint64_t offset, uint64_t length, const IoOptions& options = {}, TrimRoom room = TrimRoom::kFree);

  // Asynchronous: return at once (a write to a new place may first wait to reserve room, within its timeout). `io` and
  // the buffer must stay until `callback` has run (on any of the pool's or its users' threads; it must not block; it
  // may start operations with this or another Io) or, with a null callback, until io->Wait() has returned. The result
  // is io->Wait()'s.
  void StartRead(Io* io, uint64_t offset, absl::Span<std::byte> to, const IoOptions& options = {},
                 void (*callback)(Io*, void*) = nullptr, void* context = nullptr);
  void StartWrite(Io* io, uint64_t offset, absl::Span<const std::byte> from, const IoOptions& options = {},
                  void (*callback)(Io*, void*) = nullptr, void* context = nullptr);
  // `masks` must stay as long as the buffer.
  void StartWriteChunks(Io* io, uint64_t offset, absl::Span<const std::byte> from, absl::Span<const ChunkMask> masks,
                        const IoOptions& options = {}, void (*callback)(Io*, void*) = nullptr, void* context = nullptr);

  // Places the range's spans and reserves room for all of its pages, so that later writes there do not fail for lack of
  // it (unless the lease ends, or writes elsewhere in this region have used it up). RESOURCE_EXHAUSTED: not that much
  // is there; nothing stays reserved by this call.
  absl::Status Reserve(uint64_t offset, uint64_t length, const IoOptions& options = {});

  // Gives back what Reserve has reserved and writes have not used, room for up to `bytes` of it.
  void Unreserve(uint64_t bytes);

  // Frees everything on every server, now. The region is unusable afterwards. Servers that do not answer keep their
  // part until they are back; if this client is gone by then, it is collected with the lease if the region is a GC one,
  // and is an orphan to be seen in `nram regions` if not. The error names one.
  absl::Status Destroy(const IoOptions& options = {});

  RegionId id() const { return id_; }
  std::string name() const { return described_ == nullptr ? "" : described_->name; }
  bool read_only() const { return read_only_; }
  uint64_t size_bytes() const { return described_ == nullptr ? 0 : described_->size_bytes; }
  // The server that holds the byte, by its number in the pool; kNoServer: none does yet.
  uint16_t ServerOf(uint64_t offset) const {
    GateLock lock(&mu_);
    return spans_.Find(offset / kSpanBytes).servers[0];
  }
  // Client memory that the region takes, this object included.
  size_t memory_bytes() const;

 private:
  friend class Io;
  friend class Pool;

  // What the region knows of one server.
  struct Presence {
    uint16_t server = kNoServer;
    bool unsure = false;       // whether it was: the write that would have created it has no answer
    uint64_t incarnation = 0;  // in which it was created there; 0: not yet
    RegionRoom room;           // reserved for this region alone
  };

  using Presences = absl::InlinedVector<Presence, 1>;

  // Where a piece goes and under which conditions.
  struct Target {
    ServerLink* link = nullptr;  // null: a hole to be read
    bool created = false;
    bool unsure = false;  // a write that has no answer may have created it
    uint64_t created_incarnation = 0;
    bool paid_for = false;  // room for the region itself was reserved there, or used
  };

  Region(Pool* pool, RegionId id, Epoch epoch, const RegionOptions& options, bool read_only);

  absl::Status CheckRange(uint64_t offset, uint64_t length) const;
  absl::StatusOr<Io::Request> MakeRequest(Op op, uint64_t offset, uint64_t length, const IoOptions& options) const;
  absl::StatusOr<Io::Request> MakeChunksRequest(uint64_t offset, absl::Span<const std::byte> from,
                                                absl::Span<const ChunkMask> masks, const IoOptions& options) const;
  // Where a span is; link null if it is nowhere.
  absl::StatusOr<Target> FindTarget(uint64_t span) const;
  // Places a span that is nowhere yet, on a server that grants `room_bytes` for its first write: *room. Another thread
  // may place it first, then that stands and nothing is granted. UNAVAILABLE: try again when *waits_for can be used.
  absl::StatusOr<Target> Place(uint64_t span, uint64_t room_bytes, int64_t deadline_ns, bool may_block,
                               Room::Grant* room, ServerLink** waits_for);
  Target TargetLocked(const SpanPlacement& placement) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Presence* PresenceLocked(uint16_t server) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // False: it was created, and lost, in an earlier life of the server.
  bool NoteCreated(uint16_t server, uint64_t incarnation);
  void NotePerhapsCreated(uint16_t server, uint64_t incarnation);
  // Of what is reserved for this region there; see RegionRoom.
  Room::Grant TakeReserved(uint16_t server, uint64_t least_bytes, uint64_t most_bytes);
  void EndReserved(uint16_t server, Room::Grant grant, uint64_t used_bytes);
  bool MayHaveReserved(uint16_t server, uint64_t had_bytes);
  struct Errand;
  void EndKeepingTrim(const Errand& errand, const absl::Status& status);
  // One for every server that holds part of the region; started by RunErrands, which returns the first error.
  void AddErrands(Op op, uint8_t flags, const ChunkRange& range, int64_t deadline_ns, std::deque<Errand>* errands);
  static absl::Status RunErrands(std::deque<Errand>* errands, IoClass io_class);
  static absl::Status DestroyAll(absl::Span<const std::unique_ptr<Region>> regions);
  absl::Status ForEachServer(Op op, uint8_t flags, const ChunkRange& range, const IoOptions& options);

  Pool* const pool_;
  const RegionId id_;
  const Epoch epoch_;
  const bool gc_;
  const bool read_only_;
  const PlacementPolicy policy_;
  // Of regions that have a name or a size to tell; the many others need no room for them.
  struct Described {
    std::string name;
    uint64_t size_bytes;
  };
  const std::unique_ptr<const Described> described_;

  mutable SharedGate mu_;  // taken exclusively: a mutex in four bytes
  SpanTable spans_ ABSL_GUARDED_BY(mu_);
  Presences presences_ ABSL_GUARDED_BY(mu_);
  bool destroyed_ ABSL_GUARDED_BY(mu_) = false;
  std::atomic<bool> reserved_{false};  // something was, once: its pages keep the room that they have
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_REGION_H_
