#ifndef NRAM_BASE_UTF8_H_
#define NRAM_BASE_UTF8_H_

// Names that come from outside (paths, programs) may be any bytes; protobuf's and JSON's strings may not.

#include <string>

#include "absl/strings/string_view.h"

namespace nram {

// `text` with a '?' for each byte that is not part of a well-formed character (RFC 3629), at most `bytes_max` bytes.
std::string ToUtf8(absl::string_view text, size_t bytes_max);

}  // namespace nram

#endif  // NRAM_BASE_UTF8_H_
