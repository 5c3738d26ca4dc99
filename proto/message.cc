#include "proto/message.h"

#include <glog/logging.h>

#include <algorithm>
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
  kAtPayloadBytes = 16,
  kAtChecksum = 20,
  kAtBody = 24,
};
static_assert(kAtBody + kMessageBodyBytes == kMessageHeaderBytes);
static_assert(kWireVersion < 256 && kWireVersionLowest <= kWireVersion);

// Integers are copied as they lie in memory. (A loop over bytes would work on any machine, and takes four times as
// long.)
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

// The reserved bits of a body, which the decoder checks.
template <MessageBody Body>
constexpr BodyWords ReservedBits() {
  Body bits = FromWords<Body>({});
  if constexpr (requires { bits.reserved; }) bits.reserved.fill(0xFF);
  return ToWords(bits);
}

// The form of the messages of one operation in one direction.
struct Form {
  uint8_t flags = 0;  // those that the messages may have
  BodyWords reserved{};
};
using Forms = std::array<std::array<Form, 2>, kOps>;  // by operation, and by whether it is a reply

template <MessageBody Body>
constexpr void AddForm(Forms* forms, unsigned flags) {
  (*forms)[static_cast<size_t>(Body::kOp)][Body::kIsReply ? 1 : 0] = {
      static_cast<uint8_t>(flags | (Body::kIsReply ? kFlagReply : 0)), ReservedBits<Body>()};
}

constexpr Forms AllForms() {
  Forms forms{};
  AddForm<HelloRequest>(&forms, kFlagUrgent);
  AddForm<HelloReply>(&forms, kFlagUrgent);
  AddForm<PingRequest>(&forms, 0);
  AddForm<PingReply>(&forms, kFlagAsksBack);
  AddForm<CreateRequest>(&forms, kFlagGc | kFlagSealed);
  AddForm<CreateReply>(&forms, kFlagAsksBack);
  AddForm<ReadRequest>(&forms, 0);
  AddForm<ReadReply>(&forms, kFlagSparse | kFlagSealed | kFlagAsksBack);
  AddForm<WriteRequest>(&forms,
                        kFlagSparse | kFlagCreate | kFlagGc | kFlagReservation | kFlagWholeFrames | kFlagSealed);
  AddForm<WriteReply>(&forms, kFlagAsksBack);
  AddForm<TrimRequest>(&forms, kFlagReservation | kFlagWholeFrames);
  AddForm<TrimReply>(&forms, kFlagAsksBack);
  AddForm<DestroyRequest>(&forms, 0);
  AddForm<DestroyReply>(&forms, kFlagAsksBack);
  AddForm<SealRequest>(&forms, 0);
  AddForm<SealReply>(&forms, kFlagAsksBack);
  AddForm<DropVersionRequest>(&forms, 0);
  AddForm<DropVersionReply>(&forms, kFlagAsksBack);
  return forms;
}
constexpr Forms kForms = AllForms();

bool CarriesChunks(const MessageHeader& header) {
  return header.op == (header.is_reply() ? Op::kRead : Op::kWrite) && header.reason == Reason::kOk;
}

absl::Status CheckRange(Op op, const ChunkRange& range) {
  if (range.count == 0) return Bad("no chunks");
  if (range.first >= kRegionChunksMax || range.count > kRegionChunksMax - range.first) {
    return Bad("range beyond 2^62 bytes");
  }
  if (op != Op::kTrim && range.pages() > kPagesPerMessage) return Bad("more than 64 pages");
  return absl::OkStatus();
}

absl::Status CheckLengths(const MessageHeader& h) {
  const ChunkRange range = h.range();
  if (HasRange(h.op)) {
    if (absl::Status status = CheckRange(h.op, range); !status.ok()) return status;
  }
  if (!CarriesChunks(h)) {
    if (h.payload_bytes != 0) return Bad("unexpected payload");
    const bool may_be_sealed = h.op == Op::kCreate;  // then the region is
    const int tables = kFlagSparse | (may_be_sealed ? 0 : kFlagSealed);
    return (h.flags & tables) == 0 ? absl::OkStatus() : Bad("unexpected tables");
  }
  if (h.sealed() && (range.first % kChunksPerPage != 0 || range.count % kChunksPerPage != 0)) {
    return Bad("a part of a sealed page");
  }
  const uint64_t tables = h.table_bytes();
  if (!h.sparse()) {
    return h.payload_bytes == tables + range.bytes() ? absl::OkStatus() : Bad("length does not fit the range");
  }
  if (h.payload_bytes < tables || (h.payload_bytes - tables) % kChunkBytes != 0 ||
      h.payload_bytes - tables > range.bytes()) {
    return Bad("length does not fit the masks");
  }
  return absl::OkStatus();
}

bool IsVersion(VersionNumber version) { return version != VersionNumber{} && version <= kVersionNumberMax; }

// Checks the fields of a request by themselves and against each other.
absl::Status CheckFields(const MessageHeader& h) {
  if (h.is<WriteRequest>() && (h.flags & kFlagReservation) == 0 && h.as<WriteRequest>().grant_bytes != 0) {
    return Bad("a grant without the reservation flag");
  }
  if (h.is<SealRequest>()) {
    const auto seal = h.as<SealRequest>();
    if (!IsVersion(seal.version)) return Bad("no version has this number");
  }
  if (h.is<DropVersionRequest>()) {
    const auto drop = h.as<DropVersionRequest>();
    if (!IsVersion(drop.first) || !IsVersion(drop.last) || drop.last < drop.first) return Bad("no range of versions");
    if (drop.force > 1) return Bad("force is 0 or 1");
  }
  return absl::OkStatus();
}

}  // namespace

void MessageHeader::DieOfOtherBody() const {
  LOG(FATAL) << "the message is a " << OpName(op) << (is_reply() ? " reply" : " request") << " and has no other body";
}

void EncodeHeader(const MessageHeader& h, uint32_t payload_crc, std::byte* out) {
  Put32(out + kAtMagic, kMessageMagic);
  out[kAtVersion] = std::byte{kWireVersion};
  out[kAtOp] = static_cast<std::byte>(h.op);
  out[kAtFlags] = static_cast<std::byte>(h.flags);
  out[kAtReason] = static_cast<std::byte>(h.reason);
  Put64(out + kAtRequestId, h.request_id);
  Put32(out + kAtPayloadBytes, h.payload_bytes);
  Put32(out + kAtChecksum, 0);
  memcpy(out + kAtBody, h.body.data(), kMessageBodyBytes);
  Put32(out + kAtChecksum, Crc32c(payload_crc, out, kMessageHeaderBytes));
}

absl::Status DecodeHeader(const std::byte* in, MessageHeader* h) {
  if (Get32(in + kAtMagic) != kMessageMagic) return Bad("wrong magic");
  if (in[kAtVersion] != std::byte{kWireVersion}) {
    return Bad(absl::StrCat("version ", static_cast<int>(in[kAtVersion]), ", this end speaks ", kWireVersion,
                            ": install the same release of nram at both ends"));
  }
  const auto op = static_cast<uint8_t>(in[kAtOp]);
  if (op < static_cast<uint8_t>(Op::kHello) || op >= kOps) return Bad("unknown operation");
  h->op = static_cast<Op>(op);
  h->flags = static_cast<uint8_t>(in[kAtFlags]);
  const Form& form = kForms[op][h->is_reply() ? 1 : 0];
  if ((h->flags & ~form.flags) != 0) return Bad("flags that the operation does not have");
  const auto reason = static_cast<uint8_t>(in[kAtReason]);
  if (reason > kReasonMax || (reason != 0 && !h->is_reply())) return Bad("unknown reason");
  h->reason = static_cast<Reason>(reason);
  h->request_id = Get64(in + kAtRequestId);
  h->payload_bytes = Get32(in + kAtPayloadBytes);
  memcpy(h->body.data(), in + kAtBody, kMessageBodyBytes);
  uint64_t reserved = 0;
  for (size_t i = 0; i < h->body.size(); ++i) reserved |= h->body[i] & form.reserved[i];
  if (reserved != 0) return Bad("reserved bytes are set");
  if (absl::Status status = CheckFields(*h); !status.ok()) return status;
  return CheckLengths(*h);
}

// A checksum of checksums of the same polynomial would not notice some pairs of flipped bits in two pages: those whose
// distance makes up for the distance of the two checksums. Multiplied, they do not add up any more.
uint32_t PayloadCrcAfterTables(uint32_t tables_crc, absl::Span<const uint32_t> page_crcs) {
  constexpr uint32_t kOdd = 0x9E3779B1;
  std::array<uint32_t, kPagesPerMessage> multiplied;
  const size_t pages = std::min(page_crcs.size(), multiplied.size());
  for (size_t i = 0; i < pages; ++i) multiplied[i] = page_crcs[i] * kOdd;
  return Crc32c(tables_crc, multiplied.data(), pages * sizeof(uint32_t));
}

uint32_t PayloadCrc(absl::Span<const uint8_t> tables, absl::Span<const uint32_t> page_crcs) {
  return PayloadCrcAfterTables(tables.empty() ? 0 : Crc32c(0, tables.data(), tables.size()), page_crcs);
}

uint32_t PayloadCrcOf(const MessageHeader& header, const std::byte* payload) {
  if (header.payload_bytes == 0) return 0;
  std::array<uint32_t, kPagesPerMessage> page_crcs;
  const ChunkRange range = header.range();
  const uint64_t pages = range.pages();
  const auto* const tables = reinterpret_cast<const uint8_t*>(payload);
  const std::byte* at = payload + header.table_bytes();
  for (uint64_t i = 0; i < pages; ++i) {
    const ChunkMask mask = header.sparse() ? tables[i] : MaskOfPage(range, range.first_page() + i);
    page_crcs[i] = Crc32c(0, at, std::popcount(mask) * kChunkBytes);
    at += std::popcount(mask) * kChunkBytes;
  }
  return PayloadCrc({tables, header.table_bytes()}, {page_crcs.data(), pages});
}

bool MatchesChecksum(const std::byte* in, uint32_t payload_crc) {
  std::array<std::byte, kMessageHeaderBytes> header;
  memcpy(header.data(), in, header.size());
  Put32(&header[kAtChecksum], 0);
  return Get32(in + kAtChecksum) == Crc32c(payload_crc, header.data(), header.size());
}

absl::Status CheckTables(const MessageHeader& header, absl::Span<const uint8_t> tables) {
  const ChunkRange range = header.range();
  const absl::Span<const uint8_t> masks = tables.subspan(0, header.mask_bytes());
  const absl::Span<const uint8_t> seals = tables.subspan(masks.size());
  uint64_t chunks = 0;
  for (size_t i = 0; i < masks.size(); ++i) {
    if ((masks[i] & ~MaskOfPage(range, range.first_page() + i)) != 0) return Bad("mask outside the range");
    chunks += std::popcount(masks[i]);
    if (seals.empty()) continue;
    const absl::Span<const uint8_t> seal = seals.subspan(i * sizeof(PageSeal), sizeof(PageSeal));
    if (masks[i] != 0 && masks[i] != kAllChunks) return Bad("a part of a sealed page");
    if (masks[i] == 0 && header.is_reply() &&
        std::any_of(seal.begin(), seal.end(), [](uint8_t byte) { return byte != 0; })) {
      return Bad("a seal without a page");
    }
  }
  if (header.sparse() && tables.size() + chunks * kChunkBytes != header.payload_bytes) {
    return Bad("masks do not fit the length");
  }
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
    case Op::kSeal:
      return "seal";
    case Op::kDropVersion:
      return "drop of versions";
  }
  return "unknown";
}

}  // namespace nram
