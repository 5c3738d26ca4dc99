#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <set>
#include <string>

#include "absl/strings/string_view.h"
#include "base/clock.h"
#include "base/http2/farewell.h"
#include "base/http2/frame_meter.h"
#include "base/http2/frame_scanner.h"
#include "base/http2/test_frames.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/targets.h"

namespace nram {
namespace {

// Bytes as they are, or frames that are well-formed for the most part.
std::string TakeStream(FuzzInput* input, FrameScanner::Sender sender) {
  const uint8_t how = input->Byte();
  if (how % 8 == 0) return std::string(input->Take(input->size()));
  std::string stream = TestGreeting(sender);
  while (!input->empty() && stream.size() < 200'000) {
    const uint8_t type = input->Byte();
    const uint8_t flags = input->Byte();
    const uint32_t id = input->Byte() % 128;
    static constexpr size_t kLengths[] = {0, 0, 5, 4, 6, 0, 8, 8, 4, 0};
    const size_t length = type % 10 < 2 || type % 10 == 9 ? input->Byte() * 70u : kLengths[type % 10];
    const std::string frame =
        TestFrame(static_cast<FrameType>(type < 240 ? type % 10 : type), flags, id, std::string(length, 'x'));
    for (int times = type / 10 % 4 == 3 ? 1 + input->Byte() : 1; times > 0 && stream.size() < 200'000; --times)
      stream += frame;
    if (type >= 250) stream[stream.size() - 1 - input->Byte() % frame.size()] ^= static_cast<char>(flags);
  }
  return stream;
}

// The bytes that a meter has let through have no more frames than its bounds, as a simple reader counts them.
void CheckPassed(absl::string_view passed, FrameScanner::Sender sender) {
  if (sender == FrameScanner::Sender::kClient) passed.remove_prefix(std::min(passed.size(), kHttp2Preface.size()));
  std::array<int64_t, 256> frames{};
  int64_t block = 0;
  uint32_t newest = 0;
  std::set<uint32_t> open;
  while (passed.size() >= kFrameHeaderBytes) {
    const auto at = [&](size_t i) { return static_cast<uint8_t>(passed[i]); };
    const size_t length = size_t{at(0)} << 16 | size_t{at(1)} << 8 | at(2);
    CHECK_LE(length, kFrameContentMax);
    ++frames[at(3)];
    if (at(3) == 1) block = 0;
    if (at(3) == 1 || at(3) == 9) block += static_cast<int64_t>(length);
    CHECK_LE(block, static_cast<int64_t>(FrameMeter::kBlockBytesMax));
    const uint32_t stream = (uint32_t{at(5)} << 24 | uint32_t{at(6)} << 16 | uint32_t{at(7)} << 8 | at(8)) & 0x7fffffff;
    if (at(3) == 1 && stream > newest) open.insert(newest = stream);
    if (at(3) == 3) open.erase(stream);
    if (sender == FrameScanner::Sender::kClient) CHECK_LE(open.size(), FrameMeter::kOpenStreamsMax);
    passed.remove_prefix(std::min(passed.size(), kFrameHeaderBytes + length));
  }
  CHECK_LE(frames[3], FrameMeter::RateOf(FrameMeter::kResets).at_once);
  CHECK_LE(frames[4], FrameMeter::RateOf(FrameMeter::kSettings).at_once);
  CHECK_LE(frames[6], FrameMeter::RateOf(FrameMeter::kPings).at_once);
  CHECK_LE(frames[9], FrameMeter::RateOf(FrameMeter::kContinuations).at_once);
}

// The verdict does not depend on the pieces, and all that passes is within the bounds.
void Meter(FuzzInput* input, FrameScanner::Sender sender) {
  const size_t step = 1 + input->Byte();
  const std::string stream = TakeStream(input, sender);
  FrameMeter whole(sender), pieces(sender);
  const absl::Status verdict = whole.Take(TestBytes(stream), kNsPerSecond);
  absl::Status status;
  size_t passed = 0;
  while (passed < stream.size()) {
    const size_t bytes = std::min(step, stream.size() - passed);
    status = pieces.Take(TestBytes(stream).subspan(passed, bytes), kNsPerSecond);
    if (!status.ok()) break;
    passed += bytes;
  }
  CHECK(status == verdict) << status << " and " << verdict;
  CheckPassed(absl::string_view(stream).substr(0, passed), sender);
}

// The answer is bounded, and is HTTP/2 of a server.
void Refuse(FuzzInput* input) {
  const size_t step = 1 + input->Byte();
  const std::string stream = TakeStream(input, FrameScanner::Sender::kClient);
  Farewell farewell(absl::UnauthenticatedError("a certificate is needed \x1b"));
  std::string out;
  for (size_t at = 0; at < stream.size() && !farewell.is_told(); at += step) {
    const size_t bytes = std::min(step, stream.size() - at);
    if (!farewell.Take(TestBytes(stream).subspan(at, bytes), &out).ok()) break;
    CHECK_LE(at + bytes, Farewell::kBytesMax);
  }
  CHECK_LE(out.size(), 1'000u);
  CHECK_EQ(farewell.is_told(), out.find("grpc-status") != std::string::npos);
  FrameMeter meter(FrameScanner::Sender::kServer);
  CHECK(meter.Take(TestBytes(out), kNsPerSecond).ok()) << "a client of nram would not take it";
}

}  // namespace

void FuzzHttp2(const uint8_t* data, size_t size) {
  FuzzInput input(data, size);
  switch (input.Byte() % 3) {
    case 0:
      return Meter(&input, FrameScanner::Sender::kClient);
    case 1:
      return Meter(&input, FrameScanner::Sender::kServer);
    default:
      return Refuse(&input);
  }
}

}  // namespace nram
