#ifndef NRAM_PROTO_MESSAGE_H_
#define NRAM_PROTO_MESSAGE_H_

// The data message: one fixed header and a payload of chunks. docs/wire.md is its page in prose; this is its only
// codec.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/units.h"

namespace nram {

inline constexpr size_t kMessageHeaderBytes = 64;
inline constexpr uint32_t kMessageMagic = 0x314d524e;  // "NRM1" in memory order
inline constexpr uint8_t kWireVersion = 6;
inline constexpr uint32_t kWireVersion = 6;  // both ends speak the same of both, and find out in control's hello
// A message touches at most this many pages, so that each end holds 256 KiB of it at most and other messages get their
// turn.
inline constexpr uint64_t kPagesPerMessage = 64;
inline constexpr uint64_t kChunksPerMessage = kPagesPerMessage * kChunksPerPage;
inline constexpr size_t kPayloadBytesMax = kPagesPerMessage + kChunksPerMessage * kChunkBytes;

enum class Op : uint8_t {
  kHello = 1,    // binds the connection to a lease; must be the first message and only that
  kPing = 2,     // answered at once; renews the lease
  kCreate = 3,   // an unnamed region
  kRead = 4,     // chunks of a region
  kWrite = 5,    // chunks of a region
  kTrim = 6,     // makes a run of chunks a hole
  kDestroy = 7,  // a region and all it holds
};

// Why a request was refused. The client turns it into a Status with the server's address and the region (reason.h).
enum class Reason : uint8_t {
  kOk = 0,
  kFull = 1,           // over the donor's ceiling; what was stored is intact
  kUnknownRegion = 2,  // never created here, destroyed, collected, or lost with the server's former life
  kRegionExists = 3,
  kStaleEpoch = 4,  // somebody took the region over
  kNotOwner = 5,    // owned by another lease
  kLeaseEnded = 6,
  kFenced = 7,    // a newer connection of the same lease and class took this one's place
  kDraining = 8,  // the donor takes no new pages
  kDamaged = 9,   // the server's memory of a page has changed since it was written; a write of all of it mends it
};
inline constexpr uint8_t kReasonMax = 9;

enum MessageFlag : uint8_t {
  kFlagReply = 1,
  kFlagSparse = 2,   // the payload begins with one chunk mask for each page of the range; only those chunks follow
  kFlagGc = 4,       // create, or a write that creates: a GC region
  kFlagUrgent = 8,   // hello: the connection carries urgent requests (page faults), not bulk ones
  kFlagCreate = 16,  // write: create the region if it is not there; for a client's first write to it on this server
  // write: draw on the room promised to the lease; without it, only on what is promised to nobody. trim: what it frees
  // is promised to the lease again, so that nobody else can take it.
  kFlagPromised = 32,
  // write, trim: room for the region's pages is reserved. A page takes a whole frame and stays in it whatever chunks it
  // has, so that it can change without new room.
  kFlagReserved = 64,
};

struct MessageHeader {
  Op op = Op::kPing;
  uint8_t flags = 0;
  Reason reason = Reason::kOk;  // replies only
  uint64_t request_id = 0;      // counts up by one on a connection, from 1; a reply repeats its request's
  uint64_t subject = 0;         // the region; hello: the lease; hello's reply: the server's incarnation
  ChunkRange range;             // read, write, trim
  uint32_t payload_bytes = 0;   // masks and chunks
  uint32_t epoch = 0;           // create, write, trim, destroy: the sender's epoch of the region
  // hello: the connection's generation; hello's reply: PackWindow(); a write with kFlagPromised: how many bytes of the
  // lease's promise it may use up; create's and write's reply: how many it did; trim's: bytes that it added to it.
  uint64_t aux = 0;

  bool is_reply() const { return (flags & kFlagReply) != 0; }
  bool sparse() const { return (flags & kFlagSparse) != 0; }
  // Bytes of the mask table at the front of the payload.
  uint32_t mask_bytes() const { return sparse() ? static_cast<uint32_t>(range.pages()) : 0; }

  friend bool operator==(const MessageHeader&, const MessageHeader&) = default;
};

// How much one connection may have in flight: the credit that hello's reply announces.
struct CreditWindow {
  uint32_t requests = 0;
  uint32_t kib = 0;  // payload bytes of requests and of the replies they ask for, in KiB
};
constexpr uint64_t PackWindow(CreditWindow window) { return uint64_t{window.kib} << 32 | window.requests; }
constexpr CreditWindow UnpackWindow(uint64_t aux) {
  return {static_cast<uint32_t>(aux), static_cast<uint32_t>(aux >> 32)};
}

// The checksum of a payload: CRC-32C of its masks and then of its pages' own CRC-32Cs, in wire order. `page_crcs` has
// one for each page of the range: of those of its chunks that are in the payload, 0 if none is. Whoever keeps it with
// the page can send the page without looking at it, and whoever receives it notices what has changed since.
uint32_t PayloadCrc(absl::Span<const ChunkMask> masks, absl::Span<const uint32_t> page_crcs);
// The same of a whole payload, masks and chunks, as header.payload_bytes says.
uint32_t PayloadCrcOf(const MessageHeader& header, const std::byte* payload);

// Writes `header` in wire order to `out` (kMessageHeaderBytes). `payload_crc` is PayloadCrc, or 0 without a payload:
// the checksum covers the payload first and then the header, so that a sender can checksum the payload before it knows
// the request id.
void EncodeHeader(const MessageHeader& header, uint32_t payload_crc, std::byte* out);

// Reads a header from kMessageHeaderBytes at `in` and checks everything that can be checked without the payload: magic,
// version, known operation and flags, reserved bits zero, lengths within bounds and consistent with the operation.
// INVALID_ARGUMENT says what was wrong; *header is then unspecified. The checksum is checked by MatchesChecksum.
absl::Status DecodeHeader(const std::byte* in, MessageHeader* header);

// True if the checksum in the encoded header at `in` is that of the header and a payload with `payload_crc`.
bool MatchesChecksum(const std::byte* in, uint32_t payload_crc);

// Checks a mask table against its header: only bits within the range, and as many chunks as the length says.
absl::Status CheckMasks(const MessageHeader& header, absl::Span<const ChunkMask> masks);

absl::string_view OpName(Op op);

// Calls visit(byte offset, byte length) for every maximal run of set bits of `mask`, in order. Offsets are within the
// page.
template <typename Visit>
void ForEachRun(ChunkMask mask, Visit visit) {
  unsigned rest = mask;
  while (rest != 0) {
    const int first = std::countr_zero(rest);
    const int length = std::countr_one(rest >> first);
    visit(first * kChunkBytes, length * kChunkBytes);
    rest &= ~(((1u << length) - 1) << first);
  }
}

}  // namespace nram

#endif  // NRAM_PROTO_MESSAGE_H_
