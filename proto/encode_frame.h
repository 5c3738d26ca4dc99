#ifndef NRAM_PROTO_ENCODE_FRAME_H_
#define NRAM_PROTO_ENCODE_FRAME_H_

#include <string>

#include "proto/frame.h"

namespace nram {

// A whole frame in one piece, for tests. `payload` is empty, if none is to follow, or has header.payload_bytes bytes.
inline std::string EncodeFrame(const FrameHeader& header, const std::string& payload = "") {
  const uint32_t crc = payload.empty() ? 0 : PayloadCrcOf(header, reinterpret_cast<const std::byte*>(payload.data()));
  std::string frame(kFrameHeaderBytes, '\0');
  EncodeHeader(header, crc, reinterpret_cast<std::byte*>(frame.data()));
  return frame + payload;
}

}  // namespace nram

#endif  // NRAM_PROTO_ENCODE_FRAME_H_
