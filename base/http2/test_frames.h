#ifndef NRAM_BASE_HTTP2_TEST_FRAMES_H_
#define NRAM_BASE_HTTP2_TEST_FRAMES_H_

// Frames of HTTP/2 for tests.

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/http2/frame_scanner.h"

namespace nram {

inline std::string TestFrame(FrameType type, uint8_t flags, uint32_t stream, absl::string_view content) {
  std::string frame;
  for (int shift = 16; shift >= 0; shift -= 8) frame += static_cast<char>(content.size() >> shift);
  frame += static_cast<char>(type);
  frame += static_cast<char>(flags);
  for (int shift = 24; shift >= 0; shift -= 8) frame += static_cast<char>(stream >> shift);
  frame.append(content.data(), content.size());
  return frame;
}

// The first bytes of a client, and of a server.
inline std::string TestGreeting(FrameScanner::Sender sender) {
  const std::string settings = TestFrame(FrameType::kSettings, 0, 0, "");
  return sender == FrameScanner::Sender::kClient ? std::string(kHttp2Preface) + settings : settings;
}

inline absl::Span<const std::byte> TestBytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

}  // namespace nram

#endif  // NRAM_BASE_HTTP2_TEST_FRAMES_H_
