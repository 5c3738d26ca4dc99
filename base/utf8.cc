#include "base/utf8.h"

#include <cstdint>

namespace nram {
namespace {

// Bytes of the well-formed character at the front; 0 if there is none.
size_t CharacterBytes(absl::string_view text) {
  const auto lead = static_cast<uint8_t>(text[0]);
  if (lead < 0x80) return 1;
  const size_t bytes = lead >= 0xC2 && lead < 0xE0   ? 2
                       : lead >= 0xE0 && lead < 0xF0 ? 3
                       : lead >= 0xF0 && lead < 0xF5 ? 4
                                                     : 0;
  if (bytes == 0 || bytes > text.size()) return 0;
  uint32_t point = lead & (0x7Fu >> bytes);
  for (size_t i = 1; i < bytes; ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    if ((byte & 0xC0) != 0x80) return 0;
    point = point << 6 | (byte & 0x3F);
  }
  const bool is_short = bytes == 2 || point >= (bytes == 3 ? 0x800u : 0x10000u);
  return is_short && point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF) ? bytes : 0;
}

}  // namespace

std::string ToUtf8(absl::string_view text, size_t bytes_max) {
  std::string out;
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text);
    if (out.size() + (bytes == 0 ? 1 : bytes) > bytes_max) break;
    if (bytes == 0) {
      out += '?';
      text.remove_prefix(1);
    } else {
      out.append(text.data(), bytes);
      text.remove_prefix(bytes);
    }
  }
  return out;
}

}  // namespace nram
