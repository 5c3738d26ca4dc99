#include "proto/frame.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "base/test_seed.h"
#include "gtest/gtest.h"
#include "proto/encode_frame.h"
#include "proto/frame_reader.h"

namespace nram {
namespace {

FrameHeader WriteHeader(ChunkRange range) {
  FrameHeader header;
  header.op = Op::kWrite;
  header.request_id = 0x1122334455667788;
  header.subject = 0x99AABBCCDDEEFF00;
  header.range = range;
  header.payload_bytes = range.bytes();
  header.epoch = 7;
  header.aux = 42;
  return header;
}

TEST(FrameTest, RoundTrips) {
  const FrameHeader header = WriteHeader({5, 8});
  std::byte encoded[kFrameHeaderBytes];
  EncodeHeader(header, 123, encoded);
  FrameHeader decoded;
  ASSERT_TRUE(DecodeHeader(encoded, &decoded).ok());
  EXPECT_TRUE(decoded == header);
  EXPECT_TRUE(MatchesChecksum(encoded, 123));
  EXPECT_FALSE(MatchesChecksum(encoded, 124));
}

TEST(FrameTest, TheWireDoesNotChange) {
  // docs/wire.md, byte by byte: who changes this changes the version.
  std::byte encoded[kFrameHeaderBytes];
  EncodeHeader(WriteHeader({0x0102, 8}), 0, encoded);
  const unsigned char expected[60] = {
      'N',  'R',  'M',  '1',  6, 5, 0, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 0x00, 0xFF, 0xEE, 0xDD,
      0xCC, 0xBB, 0xAA, 0x99, 2, 1, 0, 0, 0,    0,    0,    0,    8,    0,    0,    0,    0,    0,    0,    0,
      0,    0x10, 0,    0,    7, 0, 0, 0, 42,   0,    0,    0,    0,    0,    0,    0,    0,    0,    0,    0};
  EXPECT_EQ(memcmp(encoded, expected, 60), 0);
}

TEST(FrameTest, EveryFlippedBitIsNoticed) {
  const FrameHeader header = WriteHeader({5, 8});
  for (size_t bit = 0; bit < kFrameHeaderBytes * 8; ++bit) {
    std::byte encoded[kFrameHeaderBytes];
    EncodeHeader(header, 99, encoded);
    encoded[bit / 8] ^= static_cast<std::byte>(1 << bit % 8);
    FrameHeader decoded;
    EXPECT_FALSE(DecodeHeader(encoded, &decoded).ok() && MatchesChecksum(encoded, 99)) << bit;
  }
}

TEST(FrameTest, RefusesWhatDoesNotFit) {
  const auto refused = [](FrameHeader header) {
    std::byte encoded[kFrameHeaderBytes];
    EncodeHeader(header, 0, encoded);
    FrameHeader decoded;
    return !DecodeHeader(encoded, &decoded).ok();
  };
  FrameHeader header = WriteHeader({0, 8});
  EXPECT_FALSE(refused(header));
  header.payload_bytes += 1;
  EXPECT_TRUE(refused(header));
  header = WriteHeader({0, 0});
  EXPECT_TRUE(refused(header));
  header = WriteHeader({0, kChunksPerFrame});
  EXPECT_FALSE(refused(header));
  header = WriteHeader({1, kChunksPerFrame});  // 65 pages
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

TEST(FrameTest, MasksMustFit) {
  FrameHeader header = WriteHeader({6, 4});
  header.flags = kFlagSparse;
  header.payload_bytes = 2 + 2 * 512;
  const ChunkMask good[] = {0x80, 0x01};
  EXPECT_TRUE(CheckMasks(header, good).ok());
  const ChunkMask outside[] = {0x81, 0x00};
  EXPECT_FALSE(CheckMasks(header, outside).ok());
  const ChunkMask too_many[] = {0xC0, 0x01};
  EXPECT_FALSE(CheckMasks(header, too_many).ok());
}

TEST(FrameTest, RunsOfAMask) {
  std::vector<std::pair<size_t, size_t>> runs;
  ForEachRun(0b10110001, [&](size_t offset, size_t bytes) { runs.emplace_back(offset, bytes); });
  EXPECT_EQ(runs, (std::vector<std::pair<size_t, size_t>>{{0, 512}, {2048, 1024}, {3584, 512}}));
}

// Lands every payload in memory of its own and keeps what came.
class Recorder : public FrameReader::Handler {
 public:
  absl::StatusOr<bool> OnHeader(const FrameHeader& header, absl::Span<const ChunkMask> masks,
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
  absl::Status OnFrame(const FrameHeader& header, absl::Span<const uint32_t>) override {
    headers.push_back(header);
    payloads.push_back(payload);
    return absl::OkStatus();
  }
  void OnCorrupt(const FrameHeader&) override { ++corrupt; }

  int pauses = 0;
  int corrupt = 0;
  std::string payload;
  std::vector<FrameHeader> headers;
  std::vector<std::string> payloads;
};

TEST(FrameReaderTest, ReadsAnySlicing) {
  std::mt19937_64 random(TestSeed());
  for (int round = 0; round < 50; ++round) {
    std::string stream;
    std::vector<std::string> payloads;
    for (int i = 0; i < 20; ++i) {
      const ChunkRange range{random() % 1000 * 8, 1 + random() % (random() % 4 == 0 ? kChunksPerFrame : 16)};
      std::string payload(range.bytes(), '\0');
      for (char& c : payload) c = static_cast<char>(random());
      FrameHeader header = WriteHeader(range);
      header.request_id = i;
      stream += EncodeFrame(header, payload);
      payloads.push_back(payload);
    }
    Recorder recorder;
    FrameReader reader(4096);
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
    EXPECT_FALSE(reader.mid_frame());
  }
}

TEST(FrameReaderTest, ACorruptPayloadEndsTheStream) {
  std::string frame = EncodeFrame(WriteHeader({0, 8}), std::string(4096, 'x'));
  frame[kFrameHeaderBytes + 1000] ^= 1;
  Recorder recorder;
  FrameReader reader;
  size_t taken = 0;
  const auto result = reader.Feed({reinterpret_cast<const std::byte*>(frame.data()), frame.size()}, &taken, &recorder);
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(recorder.corrupt, 1);
  EXPECT_TRUE(recorder.headers.empty());
}

}  // namespace
}  // namespace nram
