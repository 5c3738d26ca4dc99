#include "base/host/donors_here.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/units.h"

namespace nram {
namespace {

// The innermost memory cgroup of a process with a limit below the machine's memory; "": only the machine limits it.
std::string LimitingGroup(const std::string& process, uint64_t machine_bytes, const std::string& root) {
  for (const absl::string_view line : absl::StrSplit(ReadFile(process + "/cgroup").value_or(""), '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3 || (!parts[1].empty() && parts[1] != "memory")) continue;
    const bool second = parts[1].empty();  // v2
    for (std::string path = parts[2] == "/" ? "" : parts[2]; !path.empty();
         path.resize(std::min(path.rfind('/'), path.size() - 1))) {
      const std::string group = absl::StrCat(root, second ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory", path);
      const auto limit = ReadNumber(group + (second ? "/memory.max" : "/memory.limit_in_bytes"));
      if (limit && *limit < machine_bytes) return group;
    }
  }
  return "";
}

// Whether a process is a memory server that follows its host's memory.
bool IsDonor(const std::string& process) {
  if (ReadLine(process + "/comm") != "nram-memserver") return false;
  const std::string command = ReadFile(process + "/cmdline").value_or("");
  const std::vector<absl::string_view> words = absl::StrSplit(command, '\0');
  return absl::c_any_of(words, [](absl::string_view word) {
    return absl::StartsWith(word, "--donate=auto") || word == "--give-back=idle" || word == "--give-back=pressure";
  });
}

}  // namespace

int CountDonorsHere(int self, const std::string& root) {
  const uint64_t machine_bytes =
      NumberField(ReadFile(root + "/proc/meminfo").value_or(""), "MemTotal").value_or(0) * kKiB;
  const std::string own_group = LimitingGroup(absl::StrCat(root, "/proc/", self), machine_bytes, root);
  int count = 1;
  for (const std::string& name : ListDirectory(root + "/proc")) {
    int pid = 0;
    const std::string process = absl::StrCat(root, "/proc/", name);
    if (!absl::SimpleAtoi(name, &pid) || pid == self || !IsDonor(process)) continue;
    if (LimitingGroup(process, machine_bytes, root) == own_group) ++count;
  }
  return count;
}

}  // namespace nram
