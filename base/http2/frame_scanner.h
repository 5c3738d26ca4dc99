#ifndef NRAM_BASE_HTTP2_FRAME_SCANNER_H_
#define NRAM_BASE_HTTP2_FRAME_SCANNER_H_

// The headers of HTTP/2's frames (RFC 9113, section 4), in a stream of bytes that comes in any pieces. Contents are
// skipped.

#include <array>
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace nram {

// The type of a frame is a byte; a peer may send others than these.
enum class FrameType : uint8_t {
  kData = 0,
  kHeaders = 1,
  kPriority = 2,
  kReset = 3,
  kSettings = 4,
  kPushPromise = 5,
  kPing = 6,
  kGoAway = 7,
  kWindowUpdate = 8,
  kContinuation = 9,
};

inline constexpr uint8_t kFlagEndStream = 1;   // of DATA and HEADERS
inline constexpr uint8_t kFlagAck = 1;         // of SETTINGS and PING
inline constexpr uint8_t kFlagEndHeaders = 4;  // of HEADERS and CONTINUATION

inline constexpr size_t kFrameHeaderBytes = 9;
// The longest content, unless an end announces another one. No end of nram does.
inline constexpr uint32_t kFrameContentMax = 16 * 1024;
inline constexpr absl::string_view kHttp2Preface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

struct FrameHeader {
  uint32_t content_bytes = 0;
  FrameType type = FrameType::kData;
  uint8_t flags = 0;
  uint32_t stream = 0;
  bool has(uint8_t flag) const { return (flags & flag) != 0; }
};

// Not thread-safe. Allocates nothing.
class FrameScanner {
 public:
  enum class Sender : uint8_t { kClient, kServer };  // a client begins with the preface

  explicit FrameScanner(Sender sender, uint32_t content_max = kFrameContentMax)
      : content_max_(content_max), preface_left_(sender == Sender::kClient ? kHttp2Preface.size() : 0) {}

  // Calls `visit` for each frame whose header is whole with these bytes, until it returns an error. INVALID_ARGUMENT:
  // that is not HTTP/2, or a frame's content is longer than `content_max`. After an error the stream cannot be scanned
  // on.
  absl::Status Scan(absl::Span<const std::byte> bytes, absl::FunctionRef<absl::Status(const FrameHeader&)> visit);
  bool has_preface() const { return preface_left_ == 0; }

 private:
  absl::Status TakeHeader(absl::FunctionRef<absl::Status(const FrameHeader&)> visit);

  uint32_t content_max_;
  size_t preface_left_;
  std::array<std::byte, kFrameHeaderBytes> header_;
  size_t header_bytes_ = 0;    // of the next header that are here
  uint32_t content_left_ = 0;  // of the last frame
  bool has_begun_ = false;
};

}  // namespace nram

#endif  // NRAM_BASE_HTTP2_FRAME_SCANNER_H_
