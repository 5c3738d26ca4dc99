#include "proto/message.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/test_core_dump.h"
#include "base/test_seed.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/any_request.h"
#include "proto/encode_message.h"
#include "proto/message_reader.h"

namespace nram {
namespace {

using ::testing::HasSubstr;

using Encoded = std::array<std::byte, kMessageHeaderBytes>;

Encoded Encode(const MessageHeader& header, uint32_t payload_crc = 0) {
  Encoded encoded;
  EncodeHeader(header, payload_crc, encoded.data());
  return encoded;
}

std::string Refusal(const Encoded& encoded) {
  MessageHeader decoded;
  return std::string(DecodeHeader(encoded.data(), &decoded).message());
}
std::string Refusal(const MessageHeader& header) { return Refusal(Encode(header)); }

MessageHeader WriteHeader(ChunkRange range, uint8_t flags = kFlagReservation) {
  MessageHeader header(WriteRequest{.region = RegionId{0x99AABBCCDDEEFF00},
                                    .range = range,
                                    .epoch = Epoch{7},
                                    .span_generation = SpanGeneration{0x0A0B0C0D},
                                    .grant_bytes = (flags & kFlagReservation) != 0 ? uint64_t{42} : 0},
                       flags);
  header.request_id = 0x1122334455667788;
  header.payload_bytes = range.bytes();
  return header;
}

// A message of each operation in each direction, every field of it set.
template <typename Visit>
void ForEachMessage(Visit visit) {
  const RegionId region{0x0102030405060708};
  const ChunkRange range{0x1112131415, 0x20};
  const auto message = [](auto body, uint8_t flags, uint32_t payload_bytes = 0) {
    MessageHeader header(body, flags);
    header.request_id = 0xA1A2A3A4A5A6A7A8;
    header.payload_bytes = payload_bytes;
    return header;
  };
  visit(message(HelloRequest{LeaseId{0x2122232425262728}, 0x3132333435363738, 0x41424344}, kFlagUrgent));
  visit(message(HelloReply{0x2122232425262728, 0x31323334, 0x35363738, 7, 9}, kFlagUrgent));
  visit(message(PingRequest{}, 0));
  visit(message(PingReply{}, 0));
  visit(message(CreateRequest{region, Epoch{0x21222324}}, kFlagGc));
  visit(message(CreateReply{region}, 0));
  visit(message(ReadRequest{region, range, Epoch{5}, SpanGeneration{6}, VersionNumber{0x41424344}}, 0));
  visit(message(ReadReply{region, range}, 0, 0x20 * kChunkBytes));
  visit(message(WriteRequest{region, range, Epoch{5}, SpanGeneration{6}, 0x5152535455565758},
                kFlagCreate | kFlagGc | kFlagReservation | kFlagWholeFrames, 0x20 * kChunkBytes));
  visit(message(WriteReply{region, range, 0x6162636465666768, 0x69, VersionNumber{0x71727374}}, 0));
  visit(message(TrimRequest{region, range, Epoch{5}, SpanGeneration{6}}, kFlagReservation | kFlagWholeFrames));
  visit(message(TrimReply{region, range, 0x6162636465666768}, 0));
  visit(message(DestroyRequest{region, Epoch{0x21222324}}, 0));
  visit(message(DestroyReply{region}, 0));
  visit(message(SealRequest{region, Epoch{5}, VersionNumber{0x41424344}, 1}, 0));
  visit(message(SealReply{region, VersionNumber{5}, VersionNumber{0x41424344}, 0x6162636465666768}, 0));
  visit(message(DropVersionRequest{region, Epoch{5}, VersionNumber{0x41424344}, VersionNumber{0x51525354}, 1}, 0));
  visit(message(DropVersionReply{region, 0x6162636465666768, 0x71727374, 0x75767778}, 0));
}

std::string NameOf(const MessageHeader& header) {
  return std::string(OpName(header.op)) + (header.is_reply() ? " reply" : " request");
}

TEST(MessageTest, EachOperationRoundTrips) {
  int messages = 0;
  ForEachMessage([&](const MessageHeader& header) {
    SCOPED_TRACE(NameOf(header));
    const Encoded encoded = Encode(header, 123);
    MessageHeader decoded;
    const absl::Status status = DecodeHeader(encoded.data(), &decoded);
    ASSERT_TRUE(status.ok()) << status;
    EXPECT_TRUE(decoded == header);
    EXPECT_TRUE(MatchesChecksum(encoded.data(), 123));
    EXPECT_FALSE(MatchesChecksum(encoded.data(), 124));
    ++messages;
  });
  EXPECT_EQ(messages, 2 * (kOps - 1));
}

TEST(MessageTest, FieldsAreWhereTheirNamesSay) {
  const MessageHeader header = WriteHeader({5, 8});
  EXPECT_TRUE(header.is<WriteRequest>());
  EXPECT_FALSE(header.is<WriteReply>());
  EXPECT_EQ(header.as<WriteRequest>().grant_bytes, 42);
  EXPECT_EQ(header.region(), RegionId{0x99AABBCCDDEEFF00});
  EXPECT_EQ(header.range(), (ChunkRange{5, 8}));
  const MessageHeader hello(HelloRequest{.lease = LeaseId{1}, .generation = 2});
  EXPECT_EQ(hello.region(), RegionId{});
  EXPECT_EQ(hello.range(), ChunkRange{});
  EXPECT_EQ(MessageHeader(DestroyRequest{.region = RegionId{3}}).region(), RegionId{3});
}

TEST(MessageDeathTest, NoMessageHasTheBodyOfAnother) {
  const MessageHeader header = WriteHeader({5, 8});
  EXPECT_DEATH((void)header.as<ReadRequest>(), "a write request and has no other body");
  EXPECT_DEATH((void)header.as<WriteReply>(), "a write request and has no other body");
}

TEST(MessageTest, TheWireDoesNotChange) {
  // docs/wire.md, byte by byte: a change of these changes the version. The checksum is not among them.
  const auto expect = [](const MessageHeader& header, std::vector<unsigned char> expected) {
    SCOPED_TRACE(NameOf(header));
    Encoded encoded = Encode(header);
    memset(&encoded[20], 0, 4);
    expected.resize(kMessageHeaderBytes);
    for (size_t i = 0; i < encoded.size(); ++i) EXPECT_EQ(std::to_integer<int>(encoded[i]), expected[i]) << i;
  };
  expect(WriteHeader({0x0102, 8}), {'N',  'R',  'M',  '1',  12,   5,    32,   0,  // magic, version, op, flags, reason
                                    0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,  // request id
                                    0,    0x10, 0,    0,    0,    0,    0,    0,     // payload bytes, checksum
                                    0x00, 0xFF, 0xEE, 0xDD, 0xCC, 0xBB, 0xAA, 0x99,  // region
                                    2,    1,    0,    0,    0,    0,    0,    0,     // first chunk
                                    8,    0,    0,    0,    0,    0,    0,    0,     // chunk count
                                    7,    0,    0,    0,    0x0D, 0x0C, 0x0B, 0x0A,  // epoch, generation
                                    42,   0,    0,    0,    0,    0,    0,    0});   // grant bytes
  expect(MessageHeader(HelloRequest{LeaseId{0x0102}, 0x0304, 7}, kFlagUrgent),
         {'N', 'R', 'M', '1', 12, 1, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // the common part
          2,   1,   0,   0,   0,  0, 0, 0,                                                  // lease
          4,   3,   0,   0,   0,  0, 0, 0,                                                  // connection's generation
          7});                                                                              // version
  expect(MessageHeader(HelloReply{0x0102, 3, 4, 5, 6}),
         {'N', 'R', 'M', '1', 12, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // the common part
          2,   1,   0,   0,   0,  0, 0, 0,                                                  // incarnation
          3,   0,   0,   0,   4,  0, 0, 0,                                                  // credit
          5,   0,   0,   0,   6,  0, 0, 0});                                                // versions
  expect(MessageHeader(ReadRequest{RegionId{1}, {2, 3}, Epoch{4}, SpanGeneration{5}, VersionNumber{6}}),
         {'N', 'R', 'M', '1', 12, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // the common part
          1,   0,   0,   0,   0,  0, 0, 0,                                                  // region
          2,   0,   0,   0,   0,  0, 0, 0,                                                  // first chunk
          3,   0,   0,   0,   0,  0, 0, 0,                                                  // chunk count
          4,   0,   0,   0,   5,  0, 0, 0,                                                  // epoch, generation
          6});                                                                              // version
  expect(MessageHeader(WriteReply{RegionId{1}, {2, 3}, 4, 5, VersionNumber{6}}),
         {'N', 'R', 'M', '1', 12, 5, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // the common part
          1,   0,   0,   0,   0,  0, 0, 0,                                                  // region
          2,   0,   0,   0,   0,  0, 0, 0,                                                  // first chunk
          3,   0,   0,   0,   0,  0, 0, 0,                                                  // chunk count
          4,   0,   0,   0,   0,  0, 0, 0,                                                  // used bytes
          5,   0,   0,   0,   6,  0, 0, 0});                                                // stored pages, yielded
  expect(MessageHeader(SealRequest{RegionId{1}, Epoch{2}, VersionNumber{3}, 1}),
         {'N', 'R', 'M', '1', 12, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // the common part
          1,   0,   0,   0,   0,  0, 0, 0,                                                  // region
          2,   0,   0,   0,   3,  0, 0, 0,                                                  // epoch, version
          1});                                                                              // keep
  expect(MessageHeader(SealReply{RegionId{1}, VersionNumber{2}, VersionNumber{3}, 4}),
         {'N', 'R', 'M', '1', 12, 8, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // the common part
          1,   0,   0,   0,   0,  0, 0, 0,                                                  // region
          2,   0,   0,   0,   3,  0, 0, 0,                                                  // oldest, newest
          4});                                                                              // pages
  expect(MessageHeader(DropVersionRequest{RegionId{1}, Epoch{2}, VersionNumber{3}, VersionNumber{4}, 1}),
         {'N', 'R', 'M', '1', 12, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // the common part
          1,   0,   0,   0,   0,  0, 0, 0,                                                  // region
          2,   0,   0,   0,   3,  0, 0, 0,                                                  // epoch, first
          4,   0,   0,   0,   1});                                                          // last, force
  expect(MessageHeader(DropVersionReply{RegionId{1}, 2, 3, 4}),
         {'N', 'R', 'M', '1', 12, 9, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // the common part
          1,   0,   0,   0,   0,  0, 0, 0,                                                  // region
          2,   0,   0,   0,   0,  0, 0, 0,                                                  // freed bytes
          3,   0,   0,   0,   4,  0, 0, 0});                                                // dropped, held
  expect(MessageHeader(TrimReply{RegionId{1}, {2, 3}, 4}),
         {'N', 'R', 'M', '1', 12, 6, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,  // the common part
          1,   0,   0,   0,   0,  0, 0, 0,                                                  // region
          2,   0,   0,   0,   0,  0, 0, 0,                                                  // first chunk
          3,   0,   0,   0,   0,  0, 0, 0,                                                  // chunk count
          4});                                                                              // kept bytes
}

TEST(MessageTest, EveryFlippedBitIsNoticed) {
  const MessageHeader header = WriteHeader({5, 8});
  for (size_t bit = 0; bit < kMessageHeaderBytes * 8; ++bit) {
    Encoded encoded = Encode(header, 99);
    encoded[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    MessageHeader decoded;
    EXPECT_FALSE(DecodeHeader(encoded.data(), &decoded).ok() && MatchesChecksum(encoded.data(), 99)) << bit;
  }
}

// Counts the bytes of a body that are refused when they are set.
TEST(MessageTest, EachReservedByteIsRefused) {
  std::vector<std::pair<std::string, int>> refused;
  ForEachMessage([&](const MessageHeader& header) {
    int bytes = 0;
    for (size_t i = kMessageHeaderBytes - kMessageBodyBytes; i < kMessageHeaderBytes; ++i) {
      Encoded encoded = Encode(header);
      encoded[i] ^= std::byte{0x80};
      bytes += Refusal(encoded) == "malformed message: reserved bytes are set" ? 1 : 0;
    }
    refused.emplace_back(NameOf(header), bytes);
  });
  EXPECT_EQ(refused, (std::vector<std::pair<std::string, int>>{{"hello request", 20},
                                                               {"hello reply", 16},
                                                               {"ping request", 40},
                                                               {"ping reply", 40},
                                                               {"create request", 28},
                                                               {"create reply", 32},
                                                               {"read request", 4},
                                                               {"read reply", 16},
                                                               {"write request", 0},
                                                               {"write reply", 0},
                                                               {"trim request", 8},
                                                               {"trim reply", 8},
                                                               {"destroy request", 28},
                                                               {"destroy reply", 32},
                                                               {"seal request", 20},
                                                               {"seal reply", 16},
                                                               {"drop of versions request", 19},
                                                               {"drop of versions reply", 16}}));
}

TEST(MessageTest, EachFlagThatAnOperationDoesNotHaveIsRefused) {
  ForEachMessage([&](const MessageHeader& header) {
    uint8_t had = header.flags;
    // Messages that carry chunks come with tables, which have a test of their own.
    if (header.is<ReadReply>() || header.is<WriteRequest>()) had |= kFlagSparse | kFlagSealed;
    if (header.is<CreateRequest>()) had |= kFlagSealed;  // says of what kind the region is
    if (header.is_reply() && !header.is<HelloReply>()) had |= kFlagAsksBack;
    for (int bit = 1; bit < 8; ++bit) {
      if ((had >> bit & 1) != 0) continue;
      MessageHeader spoiled = header;
      spoiled.flags |= static_cast<uint8_t>(1 << bit);
      EXPECT_THAT(Refusal(spoiled), HasSubstr("flags that the operation does not have")) << NameOf(header) << bit;
    }
  });
}

TEST(MessageTest, OtherMagicVersionsOperationsAndReasonsAreRefused) {
  Encoded encoded = Encode(WriteHeader({0, 8}));
  encoded[0] = std::byte{'M'};
  EXPECT_THAT(Refusal(encoded), HasSubstr("wrong magic"));
  encoded = Encode(WriteHeader({0, 8}));
  encoded[4] = std::byte{6};
  EXPECT_THAT(Refusal(encoded), HasSubstr("version 6, this end speaks 12: install the same release"));
  for (const int op : {0, 10, 99, 255}) {
    encoded = Encode(WriteHeader({0, 8}));
    encoded[5] = static_cast<std::byte>(op);
    EXPECT_THAT(Refusal(encoded), HasSubstr("unknown operation")) << op;
  }
  MessageHeader header = WriteHeader({0, 8});
  header.reason = Reason::kFull;
  EXPECT_THAT(Refusal(header), HasSubstr("unknown reason")) << "a request has none";
  header = MessageHeader(PingReply{});
  for (int reason = 0; reason < 256; ++reason) {
    header.reason = static_cast<Reason>(reason);
    EXPECT_EQ(Refusal(header).empty(), reason <= kReasonMax) << reason;
  }
}

TEST(MessageTest, RefusesWhatDoesNotFit) {
  MessageHeader header = WriteHeader({0, 8});
  EXPECT_EQ(Refusal(header), "");
  for (const uint32_t payload_bytes : {0u, 4095u, 4097u, 8192u, ~0u}) {
    header.payload_bytes = payload_bytes;
    EXPECT_THAT(Refusal(header), HasSubstr("length does not fit the range")) << payload_bytes;
  }
  EXPECT_THAT(Refusal(WriteHeader({0, 0})), HasSubstr("no chunks"));
  EXPECT_EQ(Refusal(WriteHeader({0, kChunksPerMessage})), "");
  EXPECT_THAT(Refusal(WriteHeader({1, kChunksPerMessage})), HasSubstr("more than 64 pages"));
  EXPECT_EQ(Refusal(WriteHeader({kRegionChunksMax - 8, 8})), "");
  EXPECT_THAT(Refusal(WriteHeader({kRegionChunksMax - 7, 8})), HasSubstr("range beyond"));
  EXPECT_THAT(Refusal(WriteHeader({~uint64_t{0}, 8})), HasSubstr("range beyond"));
  EXPECT_THAT(Refusal(WriteHeader({0, ~uint64_t{0}})), HasSubstr("range beyond"));
  // A read is bounded like a write, a trim by the region alone.
  EXPECT_EQ(Refusal(AnyRequest(Op::kRead, 1, 1, {0, kChunksPerMessage})), "");
  EXPECT_THAT(Refusal(AnyRequest(Op::kRead, 1, 1, {0, kChunksPerMessage + 1})), HasSubstr("more than 64 pages"));
  EXPECT_THAT(Refusal(AnyRequest(Op::kTrim, 1, 1, {0, 0})), HasSubstr("no chunks"));
  EXPECT_EQ(Refusal(AnyRequest(Op::kTrim, 1, 1, {0, kRegionChunksMax})), "");
  EXPECT_THAT(Refusal(AnyRequest(Op::kTrim, 1, 1, {1, kRegionChunksMax})), HasSubstr("range beyond"));
  for (const Op op : {Op::kPing, Op::kCreate, Op::kRead, Op::kTrim, Op::kDestroy, Op::kSeal, Op::kDropVersion}) {
    header = AnyRequest(op, 1, 1, {0, 8});
    header.payload_bytes = 4096;
    EXPECT_THAT(Refusal(header), HasSubstr("unexpected payload")) << OpName(op);
  }
  // A grant without a reservation.
  header = WriteHeader({0, 8});
  header.flags = 0;
  EXPECT_THAT(Refusal(header), HasSubstr("without the reservation flag"));
}

TEST(MessageTest, VersionsThatCannotBeAreRefused) {
  constexpr VersionNumber kNone{}, kBeyond{Raw(kVersionNumberMax) + 1}, kOne{1}, kTwo{2};
  const auto seal = [](VersionNumber version, uint32_t keep) {
    return Refusal(MessageHeader(SealRequest{RegionId{1}, Epoch{1}, version, keep}));
  };
  EXPECT_EQ(seal(kOne, 0), "");
  EXPECT_EQ(seal(kVersionNumberMax, 1), "");
  EXPECT_THAT(seal(kNone, 0), HasSubstr("no version has this number"));
  EXPECT_THAT(seal(kBeyond, 0), HasSubstr("no version has this number"));
  const auto drop = [](VersionNumber first, VersionNumber last, uint8_t force) {
    return Refusal(MessageHeader(DropVersionRequest{RegionId{1}, Epoch{1}, first, last, force}));
  };
  EXPECT_EQ(drop(kOne, kOne, 0), "");
  EXPECT_EQ(drop(kOne, kVersionNumberMax, 1), "");
  EXPECT_THAT(drop(kTwo, kOne, 0), HasSubstr("no range of versions"));
  EXPECT_THAT(drop(kNone, kOne, 0), HasSubstr("no range of versions"));
  EXPECT_THAT(drop(kOne, kBeyond, 0), HasSubstr("no range of versions"));
  EXPECT_THAT(drop(kOne, kOne, 2), HasSubstr("force is 0 or 1"));
  // A reply has the server's numbers, whatever they are.
  EXPECT_EQ(Refusal(MessageHeader(SealReply{RegionId{1}, kNone, kBeyond, 0})), "");
}

TEST(MessageTest, ARefusedReadHasNoPayloadAndNoTables) {
  MessageHeader header(ReadReply{.region = RegionId{1}, .range = {0, 8}});
  header.reason = Reason::kUnknownRegion;
  EXPECT_EQ(Refusal(header), "");
  header.payload_bytes = 4096;
  EXPECT_THAT(Refusal(header), HasSubstr("unexpected payload"));
  header.payload_bytes = 0;
  for (const uint8_t flag : {kFlagSparse, kFlagSealed}) {
    header.flags = kFlagReply | flag;
    EXPECT_THAT(Refusal(header), HasSubstr("unexpected tables"));
  }
}

TEST(MessageTest, MasksMustFit) {
  MessageHeader header = WriteHeader({6, 4}, kFlagSparse);
  header.payload_bytes = 2 + 2 * 512;
  EXPECT_EQ(Refusal(header), "");
  const ChunkMask good[] = {0x80, 0x01};
  EXPECT_TRUE(CheckTables(header, good).ok());
  const ChunkMask outside[] = {0x81, 0x00};
  EXPECT_FALSE(CheckTables(header, outside).ok());
  const ChunkMask too_many[] = {0xC0, 0x01};
  EXPECT_FALSE(CheckTables(header, too_many).ok());
  for (const uint32_t payload_bytes : {0u, 1u, 3u, 2 + 511u, 2 + 5 * 512u}) {
    header.payload_bytes = payload_bytes;
    EXPECT_THAT(Refusal(header), HasSubstr("length does not fit the masks")) << payload_bytes;
  }
}

TEST(MessageTest, SealsMustFit) {
  MessageHeader header = WriteHeader({8, 16}, kFlagSealed);
  EXPECT_THAT(Refusal(header), HasSubstr("length does not fit")) << "without seals";
  EXPECT_EQ(header.table_bytes(), 2 * 24);
  header.payload_bytes = 2 * 24 + 2 * 4096;
  EXPECT_EQ(Refusal(header), "");
  EXPECT_TRUE(CheckTables(header, std::vector<uint8_t>(2 * 24, 0xEE)).ok());
  // Only whole pages have seals.
  for (const ChunkRange range : {ChunkRange{9, 15}, ChunkRange{8, 15}, ChunkRange{9, 16}}) {
    MessageHeader part = WriteHeader(range, kFlagSealed);
    part.payload_bytes = part.table_bytes() + range.bytes();
    EXPECT_THAT(Refusal(part), HasSubstr("a part of a sealed page"));
  }
  // One page that is there, and one that is not.
  header.flags |= kFlagSparse;
  header.payload_bytes = 2 + 2 * 24 + 4096;
  EXPECT_EQ(Refusal(header), "");
  EXPECT_EQ(header.table_bytes(), 2 + 2 * 24);
  std::vector<uint8_t> tables(2 + 2 * 24, 0);
  tables[0] = kAllChunks;
  std::fill_n(tables.begin() + 2, 24, 0xEE);
  EXPECT_TRUE(CheckTables(header, tables).ok());
  std::vector<uint8_t> spoiled = tables;
  spoiled[2 + 24 + 23] = 1;
  EXPECT_TRUE(CheckTables(header, spoiled).ok()) << "a write makes a hole so";
  MessageHeader read(ReadReply{.region = RegionId{1}, .range = {8, 16}}, kFlagSealed | kFlagSparse);
  read.payload_bytes = header.payload_bytes;
  EXPECT_TRUE(CheckTables(read, tables).ok());
  EXPECT_THAT(std::string(CheckTables(read, spoiled).message()), HasSubstr("a seal without a page"));
  spoiled = tables;
  spoiled[0] = 0x0F;
  spoiled[1] = 0xF0;
  EXPECT_THAT(std::string(CheckTables(header, spoiled).message()), HasSubstr("a part of a sealed page"));
  // The largest there is.
  header = WriteHeader({0, kChunksPerMessage}, kFlagSealed | kFlagSparse);
  header.payload_bytes = kPayloadBytesMax;
  EXPECT_EQ(Refusal(header), "");
  EXPECT_EQ(header.table_bytes(), kPayloadTableBytesMax);
}

TEST(MessageTest, RunsOfAMask) {
  std::vector<std::pair<size_t, size_t>> runs;
  ForEachRun(0b10110001, [&](size_t offset, size_t bytes) { runs.emplace_back(offset, bytes); });
  EXPECT_EQ(runs, (std::vector<std::pair<size_t, size_t>>{{0, 512}, {2048, 1024}, {3584, 512}}));
}

// Lands every payload in memory of its own and keeps it.
class Recorder : public MessageReader::Handler {
 public:
  absl::StatusOr<bool> OnHeader(const MessageHeader& header, const PayloadTables& tables, Landing* landing) override {
    if (pauses > 0) {
      --pauses;
      return false;
    }
    payload.assign(header.payload_bytes - header.table_bytes(), '?');
    // In odd pieces, as a sparse page would be.
    for (size_t at = 0; at < payload.size();) {
      const size_t step = std::min<size_t>(payload.size() - at, 512 * (1 + at / 512 % 3));
      landing->Add(reinterpret_cast<std::byte*>(payload.data()) + at, step);
      at += step;
    }
    return true;
  }
  absl::Status OnMessage(const MessageHeader& header, absl::Span<const uint32_t>) override {
    headers.push_back(header);
    payloads.push_back(payload);
    return absl::OkStatus();
  }
  void OnCorrupt(const MessageHeader&) override { ++corrupt; }

  int pauses = 0;
  int corrupt = 0;
  std::string payload;
  std::vector<MessageHeader> headers;
  std::vector<std::string> payloads;
};

TEST(MessageReaderTest, ReadsAnySlicing) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 50; ++round) {
    std::string stream;
    std::vector<std::string> payloads;
    for (int i = 0; i < 20; ++i) {
      const ChunkRange range{random() % 1000 * 8, 1 + random() % (random() % 4 == 0 ? kChunksPerMessage : 16)};
      std::string payload(range.bytes(), '\0');
      for (char& c : payload) c = static_cast<char>(random());
      MessageHeader header = WriteHeader(range);
      header.request_id = i;
      stream += EncodeMessage(header, payload);
      payloads.push_back(payload);
    }
    Recorder recorder;
    MessageReader reader(4096);
    for (size_t at = 0; at < stream.size();) {
      const size_t step = std::min<size_t>(stream.size() - at, 1 + random() % 9000);
      recorder.pauses = random() % 8 == 0 ? 2 : 0;
      size_t taken = 0;
      const auto all = reader.Feed({reinterpret_cast<const std::byte*>(stream.data()) + at, step}, &taken, &recorder);
      ASSERT_TRUE(all.ok()) << all.status();
      at += taken;
    }
    while (recorder.headers.size() < 20) {
      size_t taken = 0;
      ASSERT_TRUE(reader.Feed({}, &taken, &recorder).ok());
    }
    EXPECT_TRUE(recorder.payloads == payloads);
    EXPECT_FALSE(reader.mid_message());
  }
}

TEST(MessageReaderTest, SealsAreReadOverAndCheckedInAnySlicing) {
  MessageHeader header = WriteHeader({0, kChunksPerMessage}, kFlagSealed | kFlagSparse);
  std::string payload(kPayloadTableBytesMax, '\0');
  payload[3] = static_cast<char>(kAllChunks);
  payload[60] = static_cast<char>(kAllChunks);
  for (const size_t page : {3, 60}) payload.replace(64 + page * 24, 24, std::string(24, 's'));
  payload += std::string(2 * 4096, 'x');
  header.payload_bytes = static_cast<uint32_t>(payload.size());
  const std::string message = EncodeMessage(header, payload);
  const auto read = [](const std::string& stream, size_t step, Recorder* recorder) {
    MessageReader reader(MessageReader::kBufferBytesMin);
    absl::Status status;
    for (size_t at = 0; at < stream.size() && status.ok();) {
      size_t taken = 0;
      const size_t bytes = std::min(step, stream.size() - at);
      status = reader.Feed({reinterpret_cast<const std::byte*>(stream.data()) + at, bytes}, &taken, recorder).status();
      at += taken;
    }
    return status;
  };
  for (const size_t step : {1, 7, 64, 1000, 100'000}) {
    Recorder recorder;
    EXPECT_TRUE(read(message + message, step, &recorder).ok());
    EXPECT_EQ(recorder.payloads, (std::vector<std::string>(2, std::string(2 * 4096, 'x')))) << step;
    std::string spoiled = message;
    spoiled[64 + 64 + 3 * 24] ^= 1;
    EXPECT_EQ(read(spoiled, step, &recorder).code(), absl::StatusCode::kDataLoss) << step;
    EXPECT_EQ(recorder.corrupt, 1);
  }
}

// Two bits that flip in two pages, at every distance between the two places.
TEST(MessageTest, NoTwoFlippedBitsMakeUpForEachOther) {
  std::vector<std::byte> payload(2 * kPageBytes);
  const MessageHeader read = [] {
    MessageHeader reply(ReadReply{.region = RegionId{1}, .range = {0, 2 * kChunksPerPage}});
    reply.payload_bytes = 2 * kPageBytes;
    return reply;
  }();
  const uint32_t right = PayloadCrcOf(read, payload.data());
  for (size_t at = 0; at < kPageBytes; at += 4) {
    for (size_t other = at < 64 ? 0 : at - 64; other < std::min(at + 64, kPageBytes); ++other) {
      payload[at] ^= std::byte{4};
      payload[kPageBytes + other] ^= std::byte{4};
      ASSERT_NE(PayloadCrcOf(read, payload.data()), right) << "bytes " << at << " and " << other;
      payload[at] ^= std::byte{4};
      payload[kPageBytes + other] ^= std::byte{4};
    }
  }
}

// It reads ahead what may be users' data.
TEST(MessageReaderTest, CoreDumpsLeaveItsBufferOut) {
  constexpr size_t kBytes = 4 * kMiB;
  const size_t before = UndumpedBytes();
  const MessageReader reader(kBytes);
  EXPECT_EQ(UndumpedBytes() - before, kBytes);
}

TEST(MessageReaderTest, ACorruptPayloadEndsTheStream) {
  std::string message = EncodeMessage(WriteHeader({0, 8}), std::string(4096, 'x'));
  message[kMessageHeaderBytes + 1000] ^= 1;
  Recorder recorder;
  MessageReader reader;
  size_t taken = 0;
  const auto result =
      reader.Feed({reinterpret_cast<const std::byte*>(message.data()), message.size()}, &taken, &recorder);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(recorder.corrupt, 1);
  EXPECT_TRUE(recorder.headers.empty());
}

}  // namespace
}  // namespace nram
