#include "tools/nram/mounts.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"

namespace nram {
namespace {

// Octal escapes, as /proc has them for blanks.
std::string Unescape(absl::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      out += static_cast<char>((text[i + 1] - '0') * 64 + (text[i + 2] - '0') * 8 + (text[i + 3] - '0'));
      i += 3;
    } else {
      out += text[i];
    }
  }
  return out;
}

}  // namespace

std::vector<MountPoint> FindMounts(absl::string_view who) {
  std::vector<MountPoint> mounts;
  const auto table = ReadFile(absl::StrCat("/proc/", who, "/mountinfo"));
  if (!table.ok()) return mounts;
  for (const absl::string_view line : absl::StrSplit(*table, '\n')) {
    const std::pair<absl::string_view, absl::string_view> halves = absl::StrSplit(line, absl::MaxSplits(" - ", 1));
    const std::vector<absl::string_view> mount = absl::StrSplit(halves.first, ' ');
    const std::vector<absl::string_view> system = absl::StrSplit(halves.second, ' ');
    if (mount.size() < 5 || system.size() < 2 || system[0] != "fuse.nram") continue;
    mounts.push_back({Unescape(mount[4]), Unescape(system[1]), std::string(mount[2])});
  }
  return mounts;
}

}  // namespace nram
