#include "tests/fuzz/targets.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string>
#include <vector>

#include "base/args.h"
#include "base/clock.h"
#include "base/crc32c.h"
#include "base/units.h"
#include "client/pool/pool_spec.h"
#include "memserver/landing_frames.h"
#include "memserver/session.h"
#include "proto/frame_reader.h"

namespace nram {
namespace {

class Sink : public FrameReader::Handler {
 public:
  absl::StatusOr<bool> OnHeader(const FrameHeader& header, absl::Span<const ChunkMask> masks,
                                Landing* landing) override {
    room_.resize(header.payload_bytes - masks.size());
    if (!room_.empty()) landing->Add(room_.data(), room_.size());
    return true;
  }
  absl::Status OnFrame(const FrameHeader&, absl::Span<const uint32_t>) override { return absl::OkStatus(); }
  void OnCorrupt(const FrameHeader&) override {}

 private:
  std::vector<std::byte> room_;
};

// A server's insides, once.
struct Insides {
  FakeClock clock;
  std::unique_ptr<FrameArena> arena = FrameArena::Create(64 * kMiB, kMiB).value();
  LeaseTable leases{arena.get(), &clock, 10'000};
  PageStore store{arena.get(), &leases};
  LandingFrames landing{arena.get(), 256};
  std::shared_ptr<Lease> lease = leases.Grant(LeaseId{1}, "fuzz", 0).value();
  std::vector<std::byte> reply = std::vector<std::byte>(kFrameBytesMax);
  uint64_t generation = 0;
};

}  // namespace

void FuzzFrames(const uint8_t* data, size_t size) {
  Sink sink;
  FrameReader reader(256);
  size_t taken = 0;
  (void)reader.Feed({reinterpret_cast<const std::byte*>(data), size}, &taken, &sink);
  if (size < kFrameHeaderBytes) return;
  FrameHeader header;
  if (!DecodeHeader(reinterpret_cast<const std::byte*>(data), &header).ok()) return;
  std::byte encoded[kFrameHeaderBytes];
  EncodeHeader(header, 0, encoded);
  CHECK_EQ(memcmp(encoded, data, kFrameHeaderBytes - 4), 0);
}

void FuzzSession(const uint8_t* data, size_t size) {
  static Insides* const in = new Insides;
  const SessionContext context{&in->store, &in->leases, &in->landing, 1, CreditWindow{256, 4096}};
  Session session(context);
  FrameHeader hello;
  hello.op = Op::kHello;
  hello.request_id = 1;
  hello.subject = 1;
  hello.aux = ++in->generation;
  uint64_t next_id = 1;
  const auto run = [&](FrameHeader header, absl::Span<const ChunkMask> masks) {
    header.request_id = next_id++;
    Landing landing;
    const auto accepted = session.Begin(header, masks, kFrameBytesMax, &landing);
    if (!accepted.ok()) return false;
    CHECK(*accepted);
    for (const iovec& piece : landing.pieces())
      memset(piece.iov_base, static_cast<int>(header.request_id), piece.iov_len);
    ReplyBuffer reply{in->reply.data(), in->reply.size(), 0};
    const std::array<uint32_t, kPagesPerFrame> page_crcs{};
    const size_t pages = header.op == Op::kWrite ? header.range.pages() : 0;
    if (!session.Execute(header, {page_crcs.data(), pages}, &reply).ok()) return false;
    FrameHeader decoded;
    CHECK(DecodeHeader(reply.data, &decoded).ok());
    CHECK_EQ(reply.used, kFrameHeaderBytes + decoded.payload_bytes);
    return true;
  };
  CHECK(run(hello, {}));
  // Each 16 bytes make one request: small numbers of region and epoch, so that they meet.
  for (; size >= 16; data += 16, size -= 16) {
    FrameHeader header;
    header.op = static_cast<Op>(2 + data[0] % 6);
    header.subject = data[1] % 4;
    header.epoch = data[2] % 3;
    if (header.op == Op::kRead || header.op == Op::kWrite || header.op == Op::kTrim) {
      uint64_t first = 0;
      memcpy(&first, data + 3, data[15] % 7);
      header.range = {first, 1 + data[10] % 200u};
    }
    std::vector<ChunkMask> masks;
    if (header.op == Op::kWrite) {
      header.aux = uint64_t{data[11]} * kPageBytes;
      header.flags = data[11] & (kFlagCreate | kFlagGc | kFlagPromised | kFlagReserved);
      if (data[12] % 2 == 0) {
        header.flags |= kFlagSparse;
        for (uint64_t i = 0; i < header.range.pages(); ++i)
          masks.push_back(MaskOfPage(header.range, header.range.first_page() + i) & (data[13] + i * data[14]));
      }
    }
    if (!run(header, masks)) return;
  }
}

void FuzzText(const uint8_t* data, size_t size) {
  const absl::string_view text(reinterpret_cast<const char*>(data), size);
  (void)ParseByteSize(text);
  if (const auto id = ParseId(text); id.ok()) CHECK_EQ(*ParseId(FormatId(*id)), *id);
  (void)ParseHostFile(text, "fuzz");
  if (text.find('/') == absl::string_view::npos && text.find('@') == absl::string_view::npos) (void)ParsePoolSpec(text);
  ArgParser parser("fuzz");
  bool flag = false;
  int64_t number = 0;
  uint64_t bytes = 0;
  parser.Switch("switch", &flag);
  parser.Integer("number", 0, 9, &number);
  parser.ByteSize("bytes", 0, 1 << 20, &bytes);
  std::vector<std::string> words;
  (void)parser.Parse({"--" + std::string(text), std::string(text)}, &words);
}

}  // namespace nram
