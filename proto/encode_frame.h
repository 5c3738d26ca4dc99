#ifndef NRAM_PROTO_ENCODE_FRAME_H_
#define NRAM_PROTO_ENCODE_FRAME_H_

#include <array>
#include <bit>
#include <string>

#include "base/crc32c.h"
#include "proto/frame.h"

namespace nram {

// A whole frame in one piece, for tests. `payload` has header.payload_bytes bytes, unless the header is to be wrong.
inline std::string EncodeFrame(const FrameHeader& header, const std::string& payload = "") {
  const auto* const bytes = reinterpret_cast<const ChunkMask*>(payload.data());
  std::array<uint32_t, kPagesPerFrame> page_crcs{};
  size_t at = std::min<size_t>(header.mask_bytes(), payload.size());
  const absl::Span<const ChunkMask> masks(bytes, at);
  const size_t pages = std::min<size_t>(payload.empty() ? 0 : header.range.pages(), kPagesPerFrame);
  for (size_t i = 0; i < pages; ++i) {
    const ChunkMask mask = i < masks.size() ? masks[i] : MaskOfPage(header.range, header.range.first_page() + i);
    const size_t step = std::min(payload.size() - at, std::popcount(mask) * kChunkBytes);
    page_crcs[i] = Crc32c(0, bytes + at, step);
    at += step;
  }
  std::string frame(kFrameHeaderBytes, '\0');
  EncodeHeader(header, payload.empty() ? 0 : PayloadCrc(masks, {page_crcs.data(), pages}),
               reinterpret_cast<std::byte*>(frame.data()));
  return frame + payload;
}

}  // namespace nram

#endif  // NRAM_PROTO_ENCODE_FRAME_H_
