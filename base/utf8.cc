#include "base/utf8.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"

namespace nram {
namespace {

// Bytes of the well-formed character at the front, and which one that is; 0 if there is none.
size_t CharacterBytes(absl::string_view text, uint32_t* character) {
  const auto lead = static_cast<uint8_t>(text[0]);
  *character = lead;
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
  *character = point;
  const bool is_short = bytes == 2 || point >= (bytes == 3 ? 0x800u : 0x10000u);
  return is_short && point <= 0x10FFFF && (point < 0xD800 || point > 0xDFFF) ? bytes : 0;
}

bool MayBePrinted(uint32_t character) {
  const bool is_control = character < 0x20 || (character >= 0x7F && character < 0xA0);
  const bool is_separator = character == 0x2028 || character == 0x2029;
  const bool turns_text = (character >= 0x202A && character <= 0x202E) || (character >= 0x2066 && character <= 0x2069);
  return !is_control && !is_separator && !turns_text;
}

}  // namespace

std::string ToUtf8(absl::string_view text, size_t bytes_max) {
  std::string out;
  uint32_t character = 0;
  while (!text.empty()) {
    const size_t bytes = CharacterBytes(text, &character);
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

std::string Printable(absl::string_view bytes, size_t bytes_max) {
  constexpr absl::string_view kDigits = "0123456789ABCDEF";
  std::string out;
  uint32_t character = 0;
  while (!bytes.empty()) {
    const size_t size = CharacterBytes(bytes, &character);
    if (size > 0 && MayBePrinted(character)) {
      if (out.size() + size > bytes_max) break;
      out.append(bytes.data(), size);
      bytes.remove_prefix(size);
      continue;
    }
    const size_t bad = std::max<size_t>(size, 1);
    if (out.size() + 4 * bad > bytes_max) break;
    for (const char one : bytes.substr(0, bad)) {
      const auto byte = static_cast<uint8_t>(one);
      out += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    }
    bytes.remove_prefix(bad);
  }
  return out;
}

std::string Quoted(absl::string_view name) { return absl::StrCat("\"", Printable(name, 1'000), "\""); }

bool IsPrintable(absl::string_view bytes) {
  uint32_t character = 0;
  while (!bytes.empty()) {
    const size_t size = CharacterBytes(bytes, &character);
    if (size == 0 || !MayBePrinted(character)) return false;
    bytes.remove_prefix(size);
  }
  return true;
}

}  // namespace nram
