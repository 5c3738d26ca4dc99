#ifndef NRAM_BASE_HTTP2_FAREWELL_H_
#define NRAM_BASE_HTTP2_FAREWELL_H_

// Tells a gRPC client why it is refused, without gRPC: its first call gets a fixed answer (adr/0027).

#include <cstddef>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/http2/frame_scanner.h"

namespace nram {

// One connection. Not thread-safe. Keeps none of the peer's bytes.
class Farewell {
 public:
  // gRPC's clients send some hundred bytes before they have the answer.
  static constexpr size_t kBytesMax = 16 * 1024;
  // Of the message; the rest is cut off.
  static constexpr size_t kMessageBytesMax = 1'000;

  // The client is told the code and the message of `why`, which is an error.
  explicit Farewell(const absl::Status& why);

  // Takes the next bytes of the peer, and appends those that it must be sent: SETTINGS after the preface (gRPC's
  // clients do not call before these come), the answer after HEADERS on stream 1. INVALID_ARGUMENT: the peer speaks
  // something else, or says too much; it must be cut off. Nothing may be taken after an error, or once is_told().
  absl::Status Take(absl::Span<const std::byte> bytes, std::string* out);
  // The answer is out.
  bool is_told() const { return is_told_; }

 private:
  const std::string answer_;
  FrameScanner scanner_{FrameScanner::Sender::kClient};
  size_t taken_bytes_ = 0;
  bool has_greeted_ = false;
  bool has_acknowledged_ = false;
  bool is_told_ = false;
};

}  // namespace nram

#endif  // NRAM_BASE_HTTP2_FAREWELL_H_
