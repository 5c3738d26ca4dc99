#ifndef NRAM_PROTO_MESSAGE_H_
#define NRAM_PROTO_MESSAGE_H_

// The data message: one header of 64 bytes and a payload of chunks. This is its only codec; docs/wire.md describes it
// in prose.

#include <bit>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/units.h"
#include "proto/message_body.h"
#include "proto/wire.h"

namespace nram {

// The part that all messages have, and the body of one operation in one direction.
//
//   MessageHeader request(WriteRequest{.region = id, .range = range, .epoch = epoch}, kFlagCreate);
//   ... request.as<WriteRequest>().grant_bytes ...
struct MessageHeader {
  Op op = Op::kPing;
  uint8_t flags = 0;
  Reason reason = Reason::kOk;  // replies only
  uint32_t payload_bytes = 0;   // tables and chunks
  uint64_t request_id = 0;      // counts up by one on a connection, from 1; a reply repeats its request's
  BodyWords body{};             // see as() and set()

  MessageHeader() = default;
  // The operation and the direction are the body's own.
  template <MessageBody Body>
  explicit MessageHeader(const Body& body, uint8_t flags = 0)
      : op(Body::kOp), flags(flags | (Body::kIsReply ? kFlagReply : 0)), body(ToWords(body)) {}

  bool is_reply() const { return (flags & kFlagReply) != 0; }
  template <MessageBody Body>
  bool is() const {
    return op == Body::kOp && is_reply() == Body::kIsReply;
  }
  // The body. CHECKs that the message has this one.
  template <MessageBody Body>
  Body as() const {
    if (!is<Body>()) DieOfOtherBody();
    return FromWords<Body>(body);
  }
  // Replaces the body. CHECKs that the message has this one.
  template <MessageBody Body>
  void set(const Body& other) {
    if (!is<Body>()) DieOfOtherBody();
    body = ToWords(other);
  }

  // Fields that many bodies have; 0 and empty if this one has none.
  RegionId region() const { return HasRegion(op) ? RegionId{body[0]} : RegionId{}; }
  ChunkRange range() const { return HasRange(op) ? ChunkRange{body[1], body[2]} : ChunkRange{}; }

  bool sparse() const { return (flags & kFlagSparse) != 0; }
  bool sealed() const { return (flags & kFlagSealed) != 0; }
  // Bytes of the tables at the front of the payload: masks, and then seals.
  uint32_t mask_bytes() const { return sparse() ? static_cast<uint32_t>(range().pages()) : 0; }
  uint32_t seal_bytes() const {
    return sealed() && HasRange(op) ? static_cast<uint32_t>(range().pages() * sizeof(PageSeal)) : 0;
  }
  uint32_t table_bytes() const { return mask_bytes() + seal_bytes(); }

  friend bool operator==(const MessageHeader&, const MessageHeader&) = default;

 private:
  [[noreturn]] void DieOfOtherBody() const;
};

// The tables at the front of a payload, where they are.
struct PayloadTables {
  absl::Span<const ChunkMask> masks;  // empty unless the message is sparse
  absl::Span<const PageSeal> seals;   // empty unless it is sealed
};

// The checksum of a payload: CRC-32C of its tables and then of its pages' own CRC-32Cs, in wire order. `page_crcs` has
// one for each page of the range: the CRC-32C of the page's chunks in the payload, or 0 if it has none there. An end
// that keeps a page's CRC-32C can send the page without reading it, and the receiver notices any change since.
uint32_t PayloadCrc(absl::Span<const uint8_t> tables, absl::Span<const uint32_t> page_crcs);
// The same for tables whose CRC-32C is known (0 if there are none).
uint32_t PayloadCrcAfterTables(uint32_t tables_crc, absl::Span<const uint32_t> page_crcs);
// The same for a whole payload of header.payload_bytes bytes.
uint32_t PayloadCrcOf(const MessageHeader& header, const std::byte* payload);

// Writes `header` in wire order to `out` (kMessageHeaderBytes). `payload_crc` is PayloadCrc, or 0 without a payload.
// The checksum covers the payload first and then the header, so a sender can checksum the payload before it knows the
// request id.
void EncodeHeader(const MessageHeader& header, uint32_t payload_crc, std::byte* out);

// Reads a header from kMessageHeaderBytes at `in` and checks everything that can be checked without the payload: magic,
// version, known operation and flags, reserved bytes zero, lengths within bounds and consistent with the operation.
// INVALID_ARGUMENT names the error; *header is then unspecified. MatchesChecksum checks the checksum.
absl::Status DecodeHeader(const std::byte* in, MessageHeader* header);

// True if the checksum in the encoded header at `in` is that of the header and a payload with `payload_crc`.
bool MatchesChecksum(const std::byte* in, uint32_t payload_crc);

// Checks a payload's tables against its header:
//   masks  have only bits within the range, and as many chunks as the length says; if the message is sealed, all chunks
//          of a page or none
//   seals  of a reply are zeros for a page that is not there
absl::Status CheckTables(const MessageHeader& header, absl::Span<const uint8_t> tables);

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
