#ifndef NRAM_BASE_FILE_H_
#define NRAM_BASE_FILE_H_

// Small files as a whole: the kernel's in /proc and /sys, and those that processes leave for each other. All calls
// block for as long as the file system does, and any number of threads may make them at the same time.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace nram {

// The whole text of a file. NOT_FOUND: there is none; else the error of open(2) or read(2), with the path.
absl::StatusOr<std::string> ReadFile(const std::string& path);

// The first line of a file, without its end; "" if the file cannot be read.
std::string ReadLine(const std::string& path);

// The number that is all of a file; nothing if the file cannot be read or says something else ("max").
std::optional<uint64_t> ReadNumber(const std::string& path);

// The number in the line "NAME 123", "NAME: 123" or "NAME:   123 kB" of `text`; nothing if there is no such line. It is
// in the kernel's unit: the caller multiplies kB.
std::optional<uint64_t> NumberField(absl::string_view text, absl::string_view name);

// The names in a directory, without "." and "..", in no order; none if the directory cannot be read.
std::vector<std::string> ListDirectory(const std::string& path);

// Creates or replaces the file in one step (written beside it, then renamed), so that readers see the old or the new
// text. Follows no link, neither at `path` nor beside it. After an error the old file is as it was.
absl::Status WriteFileAtomically(const std::string& path, absl::string_view text);

}  // namespace nram

#endif  // NRAM_BASE_FILE_H_
