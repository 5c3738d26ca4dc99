#ifndef NRAM_BASE_HTTP2_FRAME_METER_H_
#define NRAM_BASE_HTTP2_FRAME_METER_H_

// Bounds the frames that HTTP/2 lets a peer send for nothing, before gRPC sees them (adr/0027). gRPC itself takes any
// number of streams that are opened and reset, of header blocks without an end, of PING and SETTINGS frames.

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/http2/frame_scanner.h"

namespace nram {

// The bytes that one peer sends on one connection. Not thread-safe. Allocates nothing but errors.
class FrameMeter {
 public:
  enum Kind : uint8_t {
    kStreams,
    kWindows,
    kPings,
    kResets,
    kSettings,
    kEmptyData,
    kContinuations,
    kPriorities,
    kOthers
  };
  static constexpr size_t kKinds = kOthers + 1;
  // A peer may send `at_once` frames of a kind at once, and `each_second` more each second.
  struct Rate {
    const char* name;
    int64_t at_once;
    int64_t each_second;
  };
  static const Rate& RateOf(Kind kind);
  // A header block's bytes (the content of its HEADERS and CONTINUATION frames), and the number of the latter.
  static constexpr size_t kBlockBytesMax = 16 * 1024;
  static constexpr int kBlockContinuationsMax = 8;
  static constexpr uint32_t kSettingsBytesMax = 256;

  // `sender`: the peer.
  explicit FrameMeter(FrameScanner::Sender sender) : scanner_(sender) {}

  // Judges the next bytes, before they are passed on. `now_ns`: of a clock that never runs back. An error names the
  // peer's fault: none of these bytes may be passed on, and the connection must be cut. INVALID_ARGUMENT: they are not
  // HTTP/2 as gRPC speaks it. RESOURCE_EXHAUSTED: too many frames.
  absl::Status Take(absl::Span<const std::byte> bytes, int64_t now_ns);

 private:
  absl::Status Judge(const FrameHeader& frame, int64_t now_ns);
  absl::Status TakeBlock(const FrameHeader& frame);
  absl::Status Count(Kind kind, int64_t now_ns);

  FrameScanner scanner_;
  // For each kind, the time at which its bucket is full again.
  std::array<int64_t, kKinds> full_ns_{};
  // The header block that has not ended.
  uint32_t block_stream_ = 0;  // 0: there is none
  size_t block_bytes_ = 0;
  int block_continuations_ = 0;
};

}  // namespace nram

#endif  // NRAM_BASE_HTTP2_FRAME_METER_H_
