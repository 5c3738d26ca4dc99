#ifndef NRAM_TOOLS_NRAM_BUNDLE_H_
#define NRAM_TOOLS_NRAM_BUNDLE_H_

// Decides which text may stand in a report of a bug. It only computes, but for AddFile.

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace nram {

// Leaves out possible secrets: blocks in PEM, lines with a long run of base64 or hexadecimal digits, values of
// variables and fields whose name says secret, password, token or key, unless it names a file. In their place stands
// "(left out)".
std::string WithoutSecrets(absl::string_view text);

// The last `bytes_max` of a text, from the beginning of a line, below a line that tells how much is missing.
std::string LastOf(absl::string_view text, size_t bytes_max);

// Whether files of that name are never read: certificates, keys, sockets' neighbours that could hold one.
bool MayBeSecret(absl::string_view path);

// Puts the text into DIRECTORY/name, without secrets. `name` may have one folder in front.
absl::Status AddFile(const std::string& directory, const std::string& name, absl::string_view text);

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_BUNDLE_H_
