#include "proto/message.h"

#include <array>
#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"

namespace nram {
namespace {

// The header on the wire. All integers little-endian.
enum Offset : size_t {
  kAtMagic = 0,
  kAtVersion = 4,
  kAtOp = 5,
  kAtFlags = 6,
  kAtReason = 7,
  kAtRequestId = 8,
  kAtSubject = 16,
  kAtFirstChunk = 24,
  kAtChunkCount = 32,
  kAtPayloadBytes = 40,
  kAtEpoch = 44,
  kAtAux = 48,
  kAtReserved = 56,
  kAtChecksum = 60,
};
static_assert(kAtChecksum + 4 == kMessageHeaderBytes);
static_assert(kPayloadBytesMax < (1u << 31));

// As they lie in memory. (A loop over bytes says the same on any machine, and takes four times as long.)
static_assert(std::endian::native == std::endian::little);
void Put32(std::byte* at, uint32_t value) { memcpy(at, &value, sizeof value); }
void Put64(std::byte* at, uint64_t value) { memcpy(at, &value, sizeof value); }
uint32_t Get32(const std::byte* at) {
  uint32_t value;
  memcpy(&value, at, sizeof value);
  return value;
}
uint64_t Get64(const std::byte* at) {
  uint64_t value;
  memcpy(&value, at, sizeof value);
  return value;
}

absl::Status Bad(absl::string_view what) {
  return absl::InvalidArgumentError(absl::StrCat("malformed message: ", what));
}

uint8_t AllowedFlags(Op op, bool reply) {
  switch (op) {
    case Op::kHello:
      return kFlagReply | kFlagUrgent;
    case Op::kCreate:
      return kFlagReply | kFlagGc;
    case Op::kRead:
      return reply ? kFlagReply | kFlagSparse : 0;
    case Op::kWrite:
      return reply ? kFlagReply : kFlagSparse | kFlagCreate | kFlagGc | kFlagPromised | kFlagReserved;
    case Op::kTrim:
      return reply ? kFlagReply : kFlagPromised | kFlagReserved;
    default:
      return kFlagReply;
  }
}

bool CarriesChunks(const MessageHeader& header) {
  return header.op == (header.is_reply() ? Op::kRead : Op::kWrite) && header.reason == Reason::kOk;
}

absl::Status CheckLengths(const MessageHeader& h) {
  const bool has_range = h.op == Op::kRead || h.op == Op::kWrite || h.op == Op::kTrim;
  if (has_range) {
    if (h.range.count == 0) return Bad("no chunks");
    if (h.range.first >= kRegionChunksMax || h.range.count > kRegionChunksMax - h.range.first) {
      return Bad("range beyond 2^62 bytes");
    }
    if (h.op != Op::kTrim && h.range.pages() > kPagesPerMessage) return Bad("more than 64 pages");
  } else if (h.range.first != 0 || h.range.count != 0) {
    return Bad("unexpected range");
  }
  if (!CarriesChunks(h)) return h.payload_bytes == 0 ? absl::OkStatus() : Bad("unexpected payload");
  if (!h.sparse()) return h.payload_bytes == h.range.bytes() ? absl::OkStatus() : Bad("length does not fit the range");
  if (h.payload_bytes < h.mask_bytes() || (h.payload_bytes - h.mask_bytes()) % kChunkBytes != 0 ||
      h.payload_bytes - h.mask_bytes() > h.range.bytes()) {
    return Bad("length does not fit the masks");
  }
  return absl::OkStatus();
}

}  // namespace

void EncodeHeader(const MessageHeader& h, uint32_t payload_crc, std::byte* out) {
  Put32(out + kAtMagic, kMessageMagic);
  out[kAtVersion] = std::byte{kWireVersion};
  out[kAtOp] = static_cast<std::byte>(h.op);
  out[kAtFlags] = static_cast<std::byte>(h.flags);
  out[kAtReason] = static_cast<std::byte>(h.reason);
  Put64(out + kAtRequestId, h.request_id);
  Put64(out + kAtSubject, h.subject);
  Put64(out + kAtFirstChunk, h.range.first);
  Put64(out + kAtChunkCount, h.range.count);
  Put32(out + kAtPayloadBytes, h.payload_bytes);
  Put32(out + kAtEpoch, h.epoch);
  Put64(out + kAtAux, h.aux);
  Put32(out + kAtReserved, 0);
  Put32(out + kAtChecksum, Crc32c(payload_crc, out, kAtChecksum));
}

absl::Status DecodeHeader(const std::byte* in, MessageHeader* h) {
  if (Get32(in + kAtMagic) != kMessageMagic) return Bad("wrong magic");
  if (in[kAtVersion] != std::byte{kWireVersion}) {
    return Bad(absl::StrCat("version ", static_cast<int>(in[kAtVersion]), ", this end speaks ", kWireVersion));
  }
  const auto op = static_cast<uint8_t>(in[kAtOp]);
  if (op < static_cast<uint8_t>(Op::kHello) || op > static_cast<uint8_t>(Op::kDestroy)) return Bad("unknown operation");
  h->op = static_cast<Op>(op);
  h->flags = static_cast<uint8_t>(in[kAtFlags]);
  if ((h->flags & ~AllowedFlags(h->op, h->is_reply())) != 0) return Bad("flags that the operation does not have");
  const auto reason = static_cast<uint8_t>(in[kAtReason]);
  if (reason > kReasonMax || (reason != 0 && !h->is_reply())) return Bad("unknown reason");
  h->reason = static_cast<Reason>(reason);
  if (Get32(in + kAtReserved) != 0) return Bad("reserved bits are set");
  h->request_id = Get64(in + kAtRequestId);
  h->subject = Get64(in + kAtSubject);
  h->range = {Get64(in + kAtFirstChunk), Get64(in + kAtChunkCount)};
  h->payload_bytes = Get32(in + kAtPayloadBytes);
  h->epoch = Get32(in + kAtEpoch);
  h->aux = Get64(in + kAtAux);
  return CheckLengths(*h);
}

uint32_t PayloadCrc(absl::Span<const ChunkMask> masks, absl::Span<const uint32_t> page_crcs) {
  std::array<std::byte, 4 * kPagesPerMessage> encoded;
  for (size_t i = 0; i < page_crcs.size(); ++i) Put32(&encoded[4 * i], page_crcs[i]);
  return Crc32c(Crc32c(0, masks.data(), masks.size()), encoded.data(), 4 * page_crcs.size());
}

uint32_t PayloadCrcOf(const MessageHeader& header, const std::byte* payload) {
  if (header.payload_bytes == 0) return 0;
  std::array<uint32_t, kPagesPerMessage> page_crcs;
  const uint64_t pages = header.range.pages();
  const auto* const masks = reinterpret_cast<const ChunkMask*>(payload);
  const std::byte* at = payload + header.mask_bytes();
  for (uint64_t i = 0; i < pages; ++i) {
    const ChunkMask mask = header.sparse() ? masks[i] : MaskOfPage(header.range, header.range.first_page() + i);
    page_crcs[i] = Crc32c(0, at, std::popcount(mask) * kChunkBytes);
    at += std::popcount(mask) * kChunkBytes;
  }
  return PayloadCrc({masks, header.mask_bytes()}, {page_crcs.data(), pages});
}

bool MatchesChecksum(const std::byte* in, uint32_t payload_crc) {
  return Get32(in + kAtChecksum) == Crc32c(payload_crc, in, kAtChecksum);
}

absl::Status CheckMasks(const MessageHeader& header, absl::Span<const ChunkMask> masks) {
  uint64_t chunks = 0;
  for (size_t i = 0; i < masks.size(); ++i) {
    if ((masks[i] & ~MaskOfPage(header.range, header.range.first_page() + i)) != 0)
      return Bad("mask outside the range");
    chunks += std::popcount(masks[i]);
  }
  if (masks.size() + chunks * kChunkBytes != header.payload_bytes) return Bad("masks do not fit the length");
  return absl::OkStatus();
}

absl::string_view OpName(Op op) {
  switch (op) {
    case Op::kHello:
      return "hello";
    case Op::kPing:
      return "ping";
    case Op::kCreate:
      return "create";
    case Op::kRead:
      return "read";
    case Op::kWrite:
      return "write";
    case Op::kTrim:
      return "trim";
    case Op::kDestroy:
      return "destroy";
  }
  return "unknown";
}

}  // namespace nram
