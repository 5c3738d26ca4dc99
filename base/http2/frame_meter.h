#ifndef NRAM_BASE_HTTP2_FRAME_METER_H_
#define NRAM_BASE_HTTP2_FRAME_METER_H_

// Bounds the frames that HTTP/2 lets a peer send for nothing, before gRPC sees them (adr/0027). gRPC itself takes any
// number of streams that are opened and reset, of header blocks without an end, of PING and SETTINGS frames. It also
// takes any number of open streams from a client that does not acknowledge its SETTINGS, and so never hears the bound.

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/http2/frame_scanner.h"

namespace nram {

// The bytes that one peer sends on one connection, and those that this end sends to it. Not thread-safe. Allocates
// nothing but errors.
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
  // The streams that a client has opened, and that neither its RST_STREAM nor the server has ended.
  static constexpr size_t kOpenStreamsMax = 24;

  // `sender`: the peer.
  explicit FrameMeter(FrameScanner::Sender sender);

  // Judges the next bytes, before they are passed on. `now_ns`: of a clock that never runs back. An error names the
  // peer's fault: none of these bytes may be passed on, and the connection must be cut. INVALID_ARGUMENT: they are not
  // HTTP/2 as gRPC speaks it. RESOURCE_EXHAUSTED: too many frames.
  absl::Status Take(absl::Span<const std::byte> bytes, int64_t now_ns);
  // Sees the next bytes of this end, before the peer can see them: they end the streams of a client. Bytes that are not
  // HTTP/2 end none.
  void NoteSent(absl::Span<const std::byte> bytes);

 private:
  absl::Status Judge(const FrameHeader& frame, int64_t now_ns);
  absl::Status TakeBlock(const FrameHeader& frame);
  absl::Status OpenStream(uint32_t stream);
  void EndStream(uint32_t stream);
  absl::Status Count(Kind kind, int64_t now_ns);

  const bool counts_streams_;  // the peer is a client; a server opens none
  FrameScanner scanner_;
  FrameScanner sent_scanner_;
  // The first open_count_ are the open streams.
  std::array<uint32_t, kOpenStreamsMax> open_{};
  size_t open_count_ = 0;
  uint32_t last_stream_ = 0;  // the peer's newest
  // For each kind, the time at which its bucket is full again.
  std::array<int64_t, kKinds> full_ns_{};
  // The header block that has not ended.
  uint32_t block_stream_ = 0;  // 0: there is none
  size_t block_bytes_ = 0;
  int block_continuations_ = 0;
};

}  // namespace nram

#endif  // NRAM_BASE_HTTP2_FRAME_METER_H_
