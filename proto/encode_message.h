#ifndef NRAM_PROTO_ENCODE_MESSAGE_H_
#define NRAM_PROTO_ENCODE_MESSAGE_H_

#include <string>

#include "proto/message.h"

namespace nram {

// A whole message in one piece, for tests. `payload` has header.payload_bytes bytes, or is empty if no payload follows.
inline std::string EncodeMessage(const MessageHeader& header, const std::string& payload = "") {
  const uint32_t crc = payload.empty() ? 0 : PayloadCrcOf(header, reinterpret_cast<const std::byte*>(payload.data()));
  std::string message(kMessageHeaderBytes, '\0');
  EncodeHeader(header, crc, reinterpret_cast<std::byte*>(message.data()));
  return message + payload;
}

}  // namespace nram

#endif  // NRAM_PROTO_ENCODE_MESSAGE_H_
