#include "proto/message.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "proto/encode_message.h"
#include "proto/message_reader.h"

namespace nram {
namespace {

MessageHeader WriteHeader(ChunkRange range) {
  MessageHeader header;
  header.op = Op::kWrite;
  header.request_id = 0x1122334455667788;
  header.subject = 0x99AABBCCDDEEFF00;
  header.range = range;
  header.payload_bytes = range.bytes();
  header.epoch = 7;
  header.aux = 42;
  return header;
}

TEST(MessageTest, RoundTrips) {
  const MessageHeader header = WriteHeader({5, 8});
  std::byte encoded[kMessageHeaderBytes];
  EncodeHeader(header, 123, encoded);
  MessageHeader decoded;
  ASSERT_TRUE(DecodeHeader(encoded, &decoded).ok());
  EXPECT_TRUE(decoded == header);
  EXPECT_TRUE(MatchesChecksum(encoded, 123));
  EXPECT_FALSE(MatchesChecksum(encoded, 124));
}

TEST(MessageTest, TheWireDoesNotChange) {
  // docs/wire.md, byte by byte: who changes this changes the version.
  std::byte encoded[kMessageHeaderBytes];
  EncodeHeader(WriteHeader({0x0102, 8}), 0, encoded);
  const unsigned char expected[60] = {
      'N',  'R',  'M',  '1',  6, 5, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x00, 0xFF, 0xEE, 0xDD,
      0xCC, 0xBB, 0xAA, 0x99, 2, 1, 0, 0, 0,    0,    0,    0,    8,    0,    0,    0,    0,    0,    0,    0,
      0,    0x10, 0,    0,    7, 0, 0, 0, 42,   0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0};
  EXPECT_EQ(memcmp(encoded, expected, 60), 0);
}

TEST(MessageTest, EveryFlippedBitIsNoticed) {
  const MessageHeader header = WriteHeader({5, 8});
  for (size_t bit = 0; bit < kMessageHeaderBytes * 8; ++bit) {
    std::byte encoded[kMessageHeaderBytes];
    EncodeHeader(header, 99, encoded);
    encoded[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    MessageHeader decoded;
    EXPECT_FALSE(DecodeHeader(encoded, &decoded).ok() && MatchesChecksum(encoded, 99)) << bit;
  }
}

TEST(MessageTest, RefusesWhatDoesNotFit) {
  const auto refused = [](MessageHeader header) {
    std::byte encoded[kMessageHeaderBytes];
    EncodeHeader(header, 0, encoded);
    MessageHeader decoded;
    return !DecodeHeader(encoded, &decoded).ok();
  };
  MessageHeader header = WriteHeader({0, 8});
  EXPECT_FALSE(refused(header));
  header.payload_bytes += 1;
  EXPECT_TRUE(refused(header));
  header = WriteHeader({0, 0});
  EXPECT_TRUE(refused(header));
  header = WriteHeader({0, kChunksPerMessage});
  EXPECT_FALSE(refused(header));
  header = WriteHeader({1, kChunksPerMessage});  // 65 pages
  EXPECT_TRUE(refused(header));
  header = WriteHeader({kRegionChunksMax - 7, 8});
  EXPECT_TRUE(refused(header));
  header = WriteHeader({~uint64_t{0}, 8});
  EXPECT_TRUE(refused(header));
  header = WriteHeader({0, 8});
  header.flags = kFlagUrgent;
  EXPECT_TRUE(refused(header));
  header.flags = 0;
  header.reason = Reason::kFull;  // a request has none
  EXPECT_TRUE(refused(header));
  header = WriteHeader({0, 8});
  header.op = Op::kRead;
  EXPECT_TRUE(refused(header));  // a read request carries nothing
  header.op = static_cast<Op>(99);
  EXPECT_TRUE(refused(header));
}

TEST(MessageTest, MasksMustFit) {
  MessageHeader header = WriteHeader({6, 4});
  header.flags = kFlagSparse;
  header.payload_bytes = 2 + 2 * 512;
  const ChunkMask good[] = {0x80, 0x01};
  EXPECT_TRUE(CheckMasks(header, good).ok());
  const ChunkMask outside[] = {0x81, 0x00};
  EXPECT_FALSE(CheckMasks(header, outside).ok());
  const ChunkMask too_many[] = {0xC0, 0x01};
  EXPECT_FALSE(CheckMasks(header, too_many).ok());
}

TEST(MessageTest, RunsOfAMask) {
  std::vector<std::pair<size_t, size_t>> runs;
  ForEachRun(0b10110001, [&](size_t offset, size_t bytes) { runs.emplace_back(offset, bytes); });
  EXPECT_EQ(runs, (std::vector<std::pair<size_t, size_t>>{{0, 512}, {2048, 1024}, {3584, 512}}));
}

// Lands every payload in memory of its own and keeps what came.
class Recorder : public MessageReader::Handler {
 public:
  absl::StatusOr<bool> OnHeader(const MessageHeader& header, absl::Span<const ChunkMask> masks,
                                Landing* landing) override {
    if (pauses > 0) {
      --pauses;
      return false;
    }
    payload.assign(header.payload_bytes - masks.size(), '?');
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
