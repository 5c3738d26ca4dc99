#ifndef NRAM_TESTS_FUZZ_ANY_MESSAGE_H_
#define NRAM_TESTS_FUZZ_ANY_MESSAGE_H_

#include <cstdint>
#include <string>

#include "proto/message.h"

namespace nram {

// An input's fields for a message's body. Each operation takes the fields that it has.
struct AnyFields {
  uint64_t subject = 0;  // the region; hello: the lease, or the incarnation
  ChunkRange range;
  uint64_t epoch = 0;  // the high half: the span's generation
  uint64_t last = 0;   // bytes of a grant, versions, a connection's generation, credit
};

inline MessageHeader AnyReply(Op op, uint8_t flags, const AnyFields& fields) {
  const RegionId region{fields.subject};
  const auto last_low = static_cast<uint32_t>(fields.last);
  const auto last_high = static_cast<uint32_t>(fields.last >> 32);
  switch (op) {
    case Op::kHello:
      return MessageHeader(
          HelloReply{.incarnation = fields.subject, .credit_requests = last_low, .credit_kib = last_high}, flags);
    case Op::kPing:
      return MessageHeader(PingReply{}, flags);
    case Op::kCreate:
      return MessageHeader(CreateReply{.region = region}, flags);
    case Op::kRead:
      return MessageHeader(ReadReply{.region = region, .range = fields.range}, flags);
    case Op::kWrite:
      return MessageHeader(
          WriteReply{
              .region = region, .range = fields.range, .used_bytes = fields.last, .yielded = VersionNumber{last_low}},
          flags);
    case Op::kTrim:
      return MessageHeader(TrimReply{.region = region, .range = fields.range, .kept_bytes = fields.last}, flags);
    case Op::kDestroy:
      return MessageHeader(DestroyReply{.region = region}, flags);
    case Op::kSeal:
      return MessageHeader(SealReply{.region = region,
                                     .oldest = VersionNumber{last_low},
                                     .newest = VersionNumber{last_high},
                                     .pages = fields.last},
                           flags);
    case Op::kDropVersion:
      return MessageHeader(
          DropVersionReply{.region = region, .freed_bytes = fields.last, .dropped = last_low, .held = last_high},
          flags);
  }
  MessageHeader unknown(PingReply{}, flags);
  unknown.op = op;
  return unknown;
}

// `op` and `flags` may be any.
inline MessageHeader AnyMessage(Op op, uint8_t flags, const AnyFields& fields) {
  if ((flags & kFlagReply) != 0) return AnyReply(op, flags, fields);
  const RegionId region{fields.subject};
  const Epoch epoch{static_cast<uint32_t>(fields.epoch)};
  const SpanGeneration generation{static_cast<uint32_t>(fields.epoch >> 32)};
  const auto last_low = static_cast<uint32_t>(fields.last);
  const auto last_high = static_cast<uint32_t>(fields.last >> 32);
  switch (op) {
    case Op::kHello:
      return MessageHeader(HelloRequest{.lease = LeaseId{fields.subject}, .generation = fields.last}, flags);
    case Op::kPing:
      return MessageHeader(PingRequest{}, flags);
    case Op::kCreate:
      return MessageHeader(CreateRequest{.region = region, .epoch = epoch}, flags);
    case Op::kRead:
      return MessageHeader(ReadRequest{.region = region,
                                       .range = fields.range,
                                       .epoch = epoch,
                                       .span_generation = generation,
                                       .version = VersionNumber{last_low}},
                           flags);
    case Op::kWrite:
      return MessageHeader(WriteRequest{.region = region,
                                        .range = fields.range,
                                        .epoch = epoch,
                                        .span_generation = generation,
                                        .grant_bytes = (flags & kFlagReservation) != 0 ? fields.last : 0},
                           flags);
    case Op::kTrim:
      return MessageHeader(
          TrimRequest{.region = region, .range = fields.range, .epoch = epoch, .span_generation = generation}, flags);
    case Op::kDestroy:
      return MessageHeader(DestroyRequest{.region = region, .epoch = epoch}, flags);
    case Op::kSeal:
      return MessageHeader(
          SealRequest{.region = region, .epoch = epoch, .version = VersionNumber{last_low}, .keep = last_high}, flags);
    case Op::kDropVersion:
      return MessageHeader(DropVersionRequest{.region = region,
                                              .epoch = epoch,
                                              .first = VersionNumber{last_low},
                                              .last = VersionNumber{last_high},
                                              .force = static_cast<uint8_t>(Raw(generation))},
                           flags);
  }
  MessageHeader unknown(PingRequest{}, flags);
  unknown.op = op;
  return unknown;
}

// Header and payload in one piece, whether they fit each other or not. If they do, the checksum is right.
inline std::string EncodeAnyMessage(const MessageHeader& header, const std::string& payload) {
  std::string message(kMessageHeaderBytes, '\0');
  auto* const encoded = reinterpret_cast<std::byte*>(message.data());
  EncodeHeader(header, 0, encoded);
  MessageHeader checked;
  const auto* const tables = reinterpret_cast<const uint8_t*>(payload.data());
  if (DecodeHeader(encoded, &checked).ok() && checked.payload_bytes == payload.size() &&
      checked.table_bytes() <= payload.size() && CheckTables(checked, {tables, checked.table_bytes()}).ok()) {
    EncodeHeader(header, PayloadCrcOf(checked, reinterpret_cast<const std::byte*>(payload.data())), encoded);
  }
  return message + payload;
}

}  // namespace nram

#endif  // NRAM_TESTS_FUZZ_ANY_MESSAGE_H_
