#ifndef NRAM_PROTO_WIRE_H_
#define NRAM_PROTO_WIRE_H_

// The vocabulary of the data plane: versions, bounds, operations, flags and reasons. docs/wire.md describes it in
// prose.

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/units.h"

namespace nram {

// The versions that this end speaks, of both planes. Control's hello chooses the highest one that both ends speak
// (proto/version.h); the data plane's hello names it.
inline constexpr uint32_t kWireVersion = 12;
inline constexpr uint32_t kWireVersionLowest = 12;

// A message's header: a part that all messages have, and a body that depends on the operation and the direction
// (proto/message_body.h).
inline constexpr size_t kMessageHeaderBytes = 64;
inline constexpr size_t kMessageBodyBytes = 40;
inline constexpr uint32_t kMessageMagic = 0x314d524e;  // "NRM1" in memory order

// A message touches at most this many pages. So each end holds at most 256 KiB of it, and other messages get their
// turn.
inline constexpr uint64_t kPagesPerMessage = 64;
inline constexpr uint64_t kChunksPerMessage = kPagesPerMessage * kChunksPerPage;

// A payload has three parts, in this order:
//   a chunk mask for each page of the range, if the message is sparse
//   a seal for each page of the range, if the message is sealed
//   the chunks
// Masks and seals are the payload's tables.
inline constexpr size_t kPayloadTableBytesPerPageMax = sizeof(ChunkMask) + 24;
inline constexpr size_t kPayloadTableBytesMax = kPagesPerMessage * kPayloadTableBytesPerPageMax;
inline constexpr size_t kPayloadBytesMax = kPayloadTableBytesMax + kChunksPerMessage * kChunkBytes;
inline constexpr size_t kMessageBytesMax = kMessageHeaderBytes + kPayloadBytesMax;
static_assert(kPayloadBytesMax < (1u << 31));

// How much one connection may have under way. Hello's reply announces it.
struct Credit {
  uint32_t requests = 0;
  uint32_t kib = 0;  // payload bytes of requests and of the replies they ask for, in KiB
};

// The seal of a sealed page (adr/0016), as it stands on the wire. Clients make and check seals; servers keep them
// beside the page without looking at them. In a write, a seal that is not zero, of a page without chunks, makes the
// page a hole.
struct PageSeal {
  std::array<uint8_t, 8> counter{};  // of the region, little-endian; half of the nonce
  std::array<uint8_t, 16> tag{};
  friend bool operator==(const PageSeal&, const PageSeal&) = default;
};
static_assert(sizeof(PageSeal) == 24 && sizeof(ChunkMask) + sizeof(PageSeal) == kPayloadTableBytesPerPageMax);

enum class Op : uint8_t {
  kHello = 1,    // binds the connection to a lease; the first message, and no other
  kPing = 2,     // answered at once; renews the lease
  kCreate = 3,   // an unnamed region
  kRead = 4,     // chunks of a region
  kWrite = 5,    // chunks of a region
  kTrim = 6,     // makes a run of chunks a hole
  kDestroy = 7,  // a region and all it holds
  kSeal = 8,     // makes the region's present state one of its versions
  kDropVersion = 9,
};
inline constexpr size_t kOps = 10;  // one more than the last

constexpr bool HasRange(Op op) {
  constexpr unsigned kWithRange =
      1u << static_cast<int>(Op::kRead) | 1u << static_cast<int>(Op::kWrite) | 1u << static_cast<int>(Op::kTrim);
  return (kWithRange >> static_cast<int>(op) & 1) != 0;
}
constexpr bool HasRegion(Op op) { return op != Op::kHello && op != Op::kPing; }

// Why a request was refused. The client turns the reason into a Status with the server's address and the region
// (client/transport/call.h).
enum class Reason : uint8_t {
  kOk = 0,
  kFull = 1,           // over the donor's ceiling; the stored pages are intact
  kUnknownRegion = 2,  // never created here, destroyed, collected, or lost with the server's former life
  kRegionExists = 3,
  kStaleEpoch = 4,  // the region was taken over under a higher epoch
  kNotOwner = 5,    // owned by another lease
  kLeaseEnded = 6,
  kFenced = 7,    // a newer connection of the same lease and class took this one's place
  kDraining = 8,  // the donor takes no new pages
  kDamaged = 9,   // the server's memory of a page has changed since it was written; a write of the whole page mends it
  kOtherGeneration = 10,  // the span's generation is not the server's own: one of the two has missed a write
  // The region is sealed and the request is not, or the reverse; or the request is for a part of a sealed page.
  kNoSeals = 11,
  kUnknownSnapshot = 12,  // the server has no such version of the region
  kOtherVersion = 13,     // hello: the server does not speak this version of the wire
  kOldVersion = 14,       // seal: a version of this number or a higher one was sealed here
};
inline constexpr uint8_t kReasonMax = 14;

// How long a version is kept (adr/0019): as long as its region has a living owner, and this many seconds more; or until
// it is dropped. A held one is kept anyway. Any may yield.
enum class VersionKeep : uint32_t { kWithOwner = 0, kUntilDropped = UINT32_MAX };

enum MessageFlag : uint8_t {
  kFlagReply = 1,
  kFlagSparse = 2,  // the payload has a chunk mask for each page of the range; only those chunks follow
  kFlagGc = 4,      // create, or a write that creates: a GC region
  // any reply but hello's: the server asks its clients to give memory back; a renewal of the lease tells how much.
  kFlagAsksBack = 4,
  kFlagUrgent = 8,   // hello: the connection carries urgent requests (page faults), not bulk ones
  kFlagCreate = 16,  // write: create the region if it is not there; for a client's first write to it on this server
  // write: draw on the lease's reservation; without the flag, only on free memory. trim: add the freed memory to the
  // lease's reservation, so that no other client can take it.
  kFlagReservation = 32,
  // write, trim: room for the region's pages is reserved. A page takes a whole frame and stays in it, whatever chunks
  // it has. So it can change without new room.
  kFlagWholeFrames = 64,
  // write, read's reply: the payload has a seal for each page of the range, and its pages are whole. create, or a write
  // that creates: the region is sealed, and has such pages alone.
  kFlagSealed = 128,
};

}  // namespace nram

#endif  // NRAM_PROTO_WIRE_H_
