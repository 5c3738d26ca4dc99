#include "base/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/fd.h"
#include "base/status.h"

namespace nram {

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("open ", path));
  std::string text;
  char buffer[4096];
  while (true) {
    const ssize_t n = read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
  }
}

std::string ReadLine(const std::string& path) {
  const auto text = ReadFile(path);
  return text.ok() ? text->substr(0, text->find('\n')) : "";
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  const auto text = ReadFile(path);
  uint64_t value = 0;
  if (!text.ok() || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &value)) return std::nullopt;
  return value;
}

std::optional<uint64_t> NumberField(absl::string_view text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, name) || line.empty()) continue;
    if (!absl::ConsumePrefix(&line, ":") && !absl::ascii_isspace(line[0])) continue;  // a longer name
    line = absl::StripAsciiWhitespace(absl::StripSuffix(line, " kB"));
    uint64_t value = 0;
    if (absl::SimpleAtoi(line, &value)) return value;
  }
  return std::nullopt;
}

std::vector<std::string> ListDirectory(const std::string& path) {
  std::vector<std::string> names;
  DIR* const directory = opendir(path.c_str());
  if (directory == nullptr) return names;
  while (const dirent* entry = readdir(directory)) {
    const absl::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  closedir(directory);
  return names;
}

absl::Status WriteFileAtomically(const std::string& path, absl::string_view text) {
  // A new file: in a directory that others may write to, a file of theirs or a link may have the name.
  std::string beside;
  UniqueFd fd;
  for (int i = 0; i < 100 && !fd.valid(); ++i) {
    beside = absl::StrCat(path, ".new.", getpid(), ".", i);
    fd.reset(open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!fd.valid() && errno != EEXIST) break;
  }
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("create ", path));
  while (!text.empty()) {
    const ssize_t n = write(fd.get(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const absl::Status status = ErrnoStatus(errno, absl::StrCat("write ", path));
      unlink(beside.c_str());
      return status;
    }
    text.remove_prefix(static_cast<size_t>(n));
  }
  if (rename(beside.c_str(), path.c_str()) != 0) {
    const absl::Status status = ErrnoStatus(errno, absl::StrCat("replace ", path));
    unlink(beside.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace nram
