#include "base/http2/frame_scanner.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace nram {
namespace {

absl::Status NotHttp2() { return absl::InvalidArgumentError("the peer does not speak HTTP/2"); }

}  // namespace

absl::Status FrameScanner::Scan(absl::Span<const std::byte> bytes,
                                absl::FunctionRef<absl::Status(const FrameHeader&)> visit) {
  while (!bytes.empty()) {
    size_t step = 0;
    if (preface_left_ > 0) {
      step = std::min(preface_left_, bytes.size());
      const absl::string_view expected = kHttp2Preface.substr(kHttp2Preface.size() - preface_left_, step);
      if (memcmp(bytes.data(), expected.data(), step) != 0) return NotHttp2();
      preface_left_ -= step;
    } else if (content_left_ > 0) {
      step = std::min<size_t>(content_left_, bytes.size());
      content_left_ -= static_cast<uint32_t>(step);
    } else {
      step = std::min(kFrameHeaderBytes - header_bytes_, bytes.size());
      memcpy(header_.data() + header_bytes_, bytes.data(), step);
      header_bytes_ += step;
      if (header_bytes_ == kFrameHeaderBytes) NRAM_RETURN_IF_ERROR(TakeHeader(visit));
    }
    bytes.remove_prefix(step);
  }
  return absl::OkStatus();
}

absl::Status FrameScanner::TakeHeader(absl::FunctionRef<absl::Status(const FrameHeader&)> visit) {
  const auto at = [&](size_t i) { return std::to_integer<uint32_t>(header_[i]); };
  FrameHeader header;
  header.content_bytes = at(0) << 16 | at(1) << 8 | at(2);
  header.type = static_cast<FrameType>(at(3));
  header.flags = static_cast<uint8_t>(at(4));
  header.stream = (at(5) << 24 | at(6) << 16 | at(7) << 8 | at(8)) & 0x7fffffff;
  const bool is_beginning = header.type == FrameType::kSettings && header.stream == 0 && !header.has(kFlagAck);
  if (!has_begun_ && !is_beginning) return NotHttp2();
  has_begun_ = true;
  if (header.content_bytes > content_max_) {
    return absl::InvalidArgumentError(absl::StrCat("the peer sends an HTTP/2 frame of ", header.content_bytes,
                                                   " bytes; at most ", content_max_, " are allowed"));
  }
  header_bytes_ = 0;
  content_left_ = header.content_bytes;
  return visit(header);
}

}  // namespace nram
