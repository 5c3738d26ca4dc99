#ifndef NRAM_PROTO_MESSAGE_BODY_H_
#define NRAM_PROTO_MESSAGE_BODY_H_

// The body of a message's header: a struct for each operation and direction. A body has the same layout in memory as on
// the wire (little-endian, naturally aligned, no padding), so encoding is one copy. Members named `reserved` are zero;
// the decoder checks that.

#include <array>
#include <bit>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "base/units.h"
#include "proto/wire.h"

namespace nram {

static_assert(std::endian::native == std::endian::little);

struct HelloRequest {
  static constexpr Op kOp = Op::kHello;
  static constexpr bool kIsReply = false;

  LeaseId lease{};
  uint64_t generation = 0;          // of the connection: a newer one fences an older one. 2^62 at most
  uint32_t version = kWireVersion;  // of the wire from here on, as control's hello chose it
  std::array<uint8_t, 20> reserved{};
};

struct HelloReply {
  static constexpr Op kOp = Op::kHello;
  static constexpr bool kIsReply = true;

  uint64_t incarnation = 0;  // of the server
  // The connection's credit: requests, and KiB of their payloads and of the replies they ask for.
  uint32_t credit_requests = 0;
  uint32_t credit_kib = 0;
  // The versions that the server speaks. Set also if it refuses.
  uint32_t version_lowest = kWireVersionLowest;
  uint32_t version_highest = kWireVersion;
  std::array<uint8_t, 16> reserved{};
};

struct PingRequest {
  static constexpr Op kOp = Op::kPing;
  static constexpr bool kIsReply = false;

  std::array<uint8_t, 40> reserved{};
};

struct PingReply {
  static constexpr Op kOp = Op::kPing;
  static constexpr bool kIsReply = true;

  std::array<uint8_t, 40> reserved{};
};

struct CreateRequest {
  static constexpr Op kOp = Op::kCreate;
  static constexpr bool kIsReply = false;

  RegionId region{};
  Epoch epoch{};
  std::array<uint8_t, 28> reserved{};
};

struct CreateReply {
  static constexpr Op kOp = Op::kCreate;
  static constexpr bool kIsReply = true;

  RegionId region{};
  std::array<uint8_t, 32> reserved{};
};

struct ReadRequest {
  static constexpr Op kOp = Op::kRead;
  static constexpr bool kIsReply = false;

  RegionId region{};
  ChunkRange range;
  Epoch epoch{};                     // the reader's; 0: that of any owner
  SpanGeneration span_generation{};  // in a read of a version: the span's generation then
  VersionNumber version{};           // 0: the present state
  std::array<uint8_t, 4> reserved{};
};

struct ReadReply {
  static constexpr Op kOp = Op::kRead;
  static constexpr bool kIsReply = true;

  RegionId region{};
  ChunkRange range;
  std::array<uint8_t, 16> reserved{};
};

struct WriteRequest {
  static constexpr Op kOp = Op::kWrite;
  static constexpr bool kIsReply = false;

  RegionId region{};
  ChunkRange range;
  Epoch epoch{};
  SpanGeneration span_generation{};
  uint64_t grant_bytes = 0;  // of the lease's reservation that it may use; 0 without kFlagReservation
};

struct WriteReply {
  static constexpr Op kOp = Op::kWrite;
  static constexpr bool kIsReply = true;

  RegionId region{};
  ChunkRange range;
  uint64_t used_bytes = 0;    // of the lease's reservation
  uint32_t stored_pages = 0;  // how many pages, the first ones of the range, are as written; all, if it did not fail
  VersionNumber yielded{};    // the highest version of the region that has ever given way here; 0: none
};

struct TrimRequest {
  static constexpr Op kOp = Op::kTrim;
  static constexpr bool kIsReply = false;

  RegionId region{};
  ChunkRange range;
  Epoch epoch{};
  SpanGeneration span_generation{};  // of all spans of the range
  std::array<uint8_t, 8> reserved{};
};

struct TrimReply {
  static constexpr Op kOp = Op::kTrim;
  static constexpr bool kIsReply = true;

  RegionId region{};
  ChunkRange range;
  // The sum that trims of this region with kFlagReservation have added to the reservation in this term of the lease.
  uint64_t kept_bytes = 0;
  std::array<uint8_t, 8> reserved{};
};

struct DestroyRequest {
  static constexpr Op kOp = Op::kDestroy;
  static constexpr bool kIsReply = false;

  RegionId region{};
  Epoch epoch{};
  std::array<uint8_t, 28> reserved{};
};

struct DestroyReply {
  static constexpr Op kOp = Op::kDestroy;
  static constexpr bool kIsReply = true;

  RegionId region{};
  std::array<uint8_t, 32> reserved{};
};

struct SealRequest {
  static constexpr Op kOp = Op::kSeal;
  static constexpr bool kIsReply = false;

  RegionId region{};
  Epoch epoch{};
  VersionNumber version{};  // above all that were sealed there; the newest one is answered again
  uint32_t keep = 0;        // a VersionKeep
  std::array<uint8_t, 20> reserved{};
};

struct SealReply {
  static constexpr Op kOp = Op::kSeal;
  static constexpr bool kIsReply = true;

  RegionId region{};
  VersionNumber oldest{};  // of those that the server has; 0: none
  VersionNumber newest{};
  uint64_t pages = 0;  // that the region has now
  std::array<uint8_t, 16> reserved{};
};

struct DropVersionRequest {
  static constexpr Op kOp = Op::kDropVersion;
  static constexpr bool kIsReply = false;

  RegionId region{};
  Epoch epoch{};
  VersionNumber first{}, last{};  // drops all in [first, last]
  uint8_t force = 0;              // 1: held ones too
  std::array<uint8_t, 19> reserved{};
};

struct DropVersionReply {
  static constexpr Op kOp = Op::kDropVersion;
  static constexpr bool kIsReply = true;

  RegionId region{};
  uint64_t freed_bytes = 0;
  uint32_t dropped = 0;  // versions
  uint32_t held = 0;     // versions that are kept because they are held
  std::array<uint8_t, 16> reserved{};
};

template <typename T>
concept MessageBody = std::is_trivially_copyable_v<T> && std::is_standard_layout_v<T> && requires {
  { T::kOp } -> std::convertible_to<Op>;
  { T::kIsReply } -> std::convertible_to<bool>;
};

// The bytes of any body.
using BodyWords = std::array<uint64_t, kMessageBodyBytes / sizeof(uint64_t)>;

template <MessageBody Body>
constexpr BodyWords ToWords(const Body& body) {
  static_assert(sizeof(Body) == kMessageBodyBytes);
  return std::bit_cast<BodyWords>(body);
}
template <MessageBody Body>
constexpr Body FromWords(const BodyWords& words) {
  static_assert(sizeof(Body) == kMessageBodyBytes);
  return std::bit_cast<Body>(words);
}

// If an operation has a region, its bodies begin with the region. If they have a range, it comes next.
static_assert(offsetof(CreateRequest, region) == 0 && offsetof(CreateReply, region) == 0);
static_assert(offsetof(ReadRequest, region) == 0 && offsetof(ReadReply, region) == 0);
static_assert(offsetof(WriteRequest, region) == 0 && offsetof(WriteReply, region) == 0);
static_assert(offsetof(TrimRequest, region) == 0 && offsetof(TrimReply, region) == 0);
static_assert(offsetof(DestroyRequest, region) == 0 && offsetof(DestroyReply, region) == 0);
static_assert(offsetof(SealRequest, region) == 0 && offsetof(SealReply, region) == 0);
static_assert(offsetof(DropVersionRequest, region) == 0 && offsetof(DropVersionReply, region) == 0);
static_assert(offsetof(ReadRequest, range) == 8 && offsetof(ReadReply, range) == 8);
static_assert(offsetof(WriteRequest, range) == 8 && offsetof(WriteReply, range) == 8);
static_assert(offsetof(TrimRequest, range) == 8 && offsetof(TrimReply, range) == 8);

}  // namespace nram

#endif  // NRAM_PROTO_MESSAGE_BODY_H_
