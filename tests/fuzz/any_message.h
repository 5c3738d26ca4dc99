#ifndef NRAM_TESTS_FUZZ_ANY_MESSAGE_H_
#define NRAM_TESTS_FUZZ_ANY_MESSAGE_H_

#include <string>

#include "proto/message.h"

namespace nram {

// Header and payload in one piece, whether they fit each other or not. If they do, the checksum is right.
inline std::string EncodeAnyMessage(const MessageHeader& header, const std::string& payload) {
  std::string message(kMessageHeaderBytes, '\0');
  auto* const encoded = reinterpret_cast<std::byte*>(message.data());
  EncodeHeader(header, 0, encoded);
  MessageHeader checked;
  const auto* const masks = reinterpret_cast<const ChunkMask*>(payload.data());
  if (DecodeHeader(encoded, &checked).ok() && checked.payload_bytes == payload.size() &&
      (!checked.sparse() ||
       (checked.mask_bytes() <= payload.size() && CheckMasks(checked, {masks, checked.mask_bytes()}).ok()))) {
    EncodeHeader(header, PayloadCrcOf(checked, reinterpret_cast<const std::byte*>(payload.data())), encoded);
  }
  return message + payload;
}

}  // namespace nram

#endif  // NRAM_TESTS_FUZZ_ANY_MESSAGE_H_
