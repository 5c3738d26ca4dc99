#include "base/host_memory.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/fd.h"
#include "base/status.h"

namespace nram {
namespace {

// The value in bytes of a "Name:   123 kB" line.
std::optional<uint64_t> KilobyteField(absl::string_view text, absl::string_view name) {
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    if (!absl::ConsumePrefix(&line, name)) continue;
    line = absl::StripAsciiWhitespace(absl::StripSuffix(line, " kB"));
    uint64_t kilobytes = 0;
    if (absl::SimpleAtoi(line, &kilobytes)) return kilobytes * 1024;
  }
  return std::nullopt;
}

// Narrows `memory` to one cgroup's limit; what its page cache holds cold counts as available.
void ApplyLimit(const std::string& cgroup, const char* limit_file, const char* usage_file, HostMemory* memory) {
  const auto limit = ReadNumber(absl::StrCat(cgroup, "/", limit_file));
  const auto usage = ReadNumber(absl::StrCat(cgroup, "/", usage_file));
  if (!limit || !usage) return;
  uint64_t cold = 0;
  if (auto stat = ReadFile(cgroup + "/memory.stat"); stat.ok()) {
    for (absl::string_view line : absl::StrSplit(*stat, '\n')) {
      // v1 has both, and the first is the group's without those below it.
      uint64_t bytes = 0;
      if ((absl::ConsumePrefix(&line, "inactive_file ") || absl::ConsumePrefix(&line, "total_inactive_file ")) &&
          absl::SimpleAtoi(line, &bytes)) {
        cold = std::max(cold, bytes);
      }
    }
  }
  const uint64_t unused = *limit > *usage ? *limit - *usage : 0;
  memory->total_bytes = std::min(memory->total_bytes, *limit);
  memory->available_bytes = std::min(memory->available_bytes, unused + cold);
  memory->idle_bytes = std::min(memory->idle_bytes, unused);
}

}  // namespace

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

absl::Status WriteFileAtomically(const std::string& path, absl::string_view text) {
  // A file of our own: in a directory that others may write to, one of theirs, or a link, may have the name.
  std::string beside;
  UniqueFd fd;
  for (int i = 0; i < 100 && !fd.valid(); ++i) {
    beside = absl::StrCat(path, ".new.", getpid(), ".", i);
    fd.reset(open(beside.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644));
    if (!fd.valid() && errno != EEXIST) break;
  }
  if (!fd.valid()) return ErrnoStatus(errno, absl::StrCat("create ", beside));
  while (!text.empty()) {
    const ssize_t n = write(fd.get(), text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      const absl::Status status = ErrnoStatus(errno, absl::StrCat("write ", beside));
      unlink(beside.c_str());
      return status;
    }
    text.remove_prefix(static_cast<size_t>(n));
  }
  if (rename(beside.c_str(), path.c_str()) != 0) {
    const absl::Status status = ErrnoStatus(errno, absl::StrCat("rename to ", path));
    unlink(beside.c_str());
    return status;
  }
  return absl::OkStatus();
}

absl::Status WriteOomScore(int score) {
  UniqueFd fd(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  const std::string text = absl::StrCat(score);
  if (!fd.valid() || write(fd.get(), text.data(), text.size()) < 0) return ErrnoStatus(errno, "set oom_score_adj");
  return absl::OkStatus();
}

absl::StatusOr<HostMemory> ReadHostMemory(const std::string& root) {
  NRAM_ASSIGN_OR_RETURN(const std::string meminfo, ReadFile(root + "/proc/meminfo"));
  const auto total = KilobyteField(meminfo, "MemTotal:");
  const auto available = KilobyteField(meminfo, "MemAvailable:");
  const auto idle = KilobyteField(meminfo, "MemFree:");
  if (!total || !available || !idle) return absl::InternalError(absl::StrCat(root, "/proc/meminfo: fields missing"));
  HostMemory memory{*total, *available, *idle};
  auto cgroups = ReadFile(root + "/proc/self/cgroup");
  if (!cgroups.ok()) return memory;
  for (absl::string_view line : absl::StrSplit(*cgroups, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    // Those above limit it too; in a container its own may be out of sight, and the topmost is the container's.
    absl::string_view path = parts[2] == "/" ? "" : parts[2];
    while (true) {
      if (parts[1].empty()) {  // v2, perhaps mounted beside v1
        for (absl::string_view mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
          ApplyLimit(absl::StrCat(root, mount, path), "memory.max", "memory.current", &memory);
        }
      } else if (parts[1] == "memory") {
        ApplyLimit(absl::StrCat(root, "/sys/fs/cgroup/memory", path), "memory.limit_in_bytes", "memory.usage_in_bytes",
                   &memory);
      }
      if (path.empty()) break;
      path = path.substr(0, std::min(path.rfind('/'), path.size() - 1));
    }
  }
  return memory;
}

absl::StatusOr<MachineMemory> ReadMachineMemory(const std::string& root) {
  NRAM_ASSIGN_OR_RETURN(const std::string meminfo, ReadFile(root + "/proc/meminfo"));
  const auto available = KilobyteField(meminfo, "MemAvailable:");
  if (!available) return absl::InternalError(absl::StrCat(root, "/proc/meminfo: fields missing"));
  return MachineMemory{*available, KilobyteField(meminfo, "SwapFree:").value_or(0)};
}

std::optional<uint64_t> ReadNumber(const std::string& path) {
  auto text = ReadFile(path);
  uint64_t value = 0;
  if (!text.ok() || !absl::SimpleAtoi(absl::StripAsciiWhitespace(*text), &value)) return std::nullopt;
  return value;
}

std::string BootId() {
  auto text = ReadFile("/proc/sys/kernel/random/boot_id");
  return text.ok() ? std::string(absl::StripAsciiWhitespace(*text)) : "unknown";
}

ProcessMemory ReadProcessMemory(int pid) {
  auto text = ReadFile(pid == 0 ? "/proc/self/status" : absl::StrCat("/proc/", pid, "/status"));
  if (!text.ok()) return {};
  return {KilobyteField(*text, "VmRSS:").value_or(0), KilobyteField(*text, "RssAnon:").value_or(0)};
}

}  // namespace nram
