#ifndef NRAM_BASE_UTF8_H_
#define NRAM_BASE_UTF8_H_

// Names from outside (paths, programs) may be any bytes; strings of protobuf and JSON may not.

#include <string>

#include "absl/strings/string_view.h"

namespace nram {

// `text` with a '?' for each byte that is not part of a well-formed character (RFC 3629), at most `bytes_max` bytes.
std::string ToUtf8(absl::string_view text, size_t bytes_max);

// Makes `bytes` safe for a terminal or a log, in at most `bytes_max` bytes: a name that an attacker chose can neither
// move the cursor nor forge a line. Well-formed characters stay. Each byte of the following becomes "\xNN": control
// characters (C0, DEL, C1), line and paragraph separators (U+2028, U+2029), characters that turn the direction of text
// (U+202A to U+202E, U+2066 to U+2069), and bytes that are not part of a well-formed character. A backslash stays as it
// is, so the result is for people, not for parsing.
std::string Printable(absl::string_view bytes, size_t bytes_max);

// A name in a message: Printable, in quotes, at most 1,000 bytes of it.
std::string Quoted(absl::string_view name);

// True if Printable would only cut the text, if at all.
bool IsPrintable(absl::string_view bytes);

}  // namespace nram

#endif  // NRAM_BASE_UTF8_H_
