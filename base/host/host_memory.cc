#include "base/host/host_memory.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/status.h"

namespace nram {
namespace {

// The value in bytes of a "NAME:   123 kB" line.
std::optional<uint64_t> KilobyteField(absl::string_view text, absl::string_view name) {
  const std::optional<uint64_t> kilobytes = NumberField(text, name);
  if (!kilobytes) return std::nullopt;
  return *kilobytes * 1024;
}

// Narrows `memory` to one cgroup's limit. The cold part of its page cache counts as available.
void ApplyLimit(const std::string& cgroup, const char* limit_file, const char* usage_file, HostMemory* memory) {
  const auto limit = ReadNumber(absl::StrCat(cgroup, "/", limit_file));
  const auto usage = ReadNumber(absl::StrCat(cgroup, "/", usage_file));
  if (!limit || !usage) return;
  uint64_t cold = 0;
  if (auto stat = ReadFile(cgroup + "/memory.stat"); stat.ok()) {
    // v1 has both fields; the first leaves out the groups below this one.
    cold = std::max(NumberField(*stat, "inactive_file").value_or(0),
                    NumberField(*stat, "total_inactive_file").value_or(0));
  }
  const uint64_t unused = *limit > *usage ? *limit - *usage : 0;
  memory->total_bytes = std::min(memory->total_bytes, *limit);
  memory->available_bytes = std::min(memory->available_bytes, unused + cold);
  memory->idle_bytes = std::min(memory->idle_bytes, unused);
}

}  // namespace

absl::Status WriteOomScore(int score) {
  UniqueFd fd(open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC));
  const std::string text = absl::StrCat(score);
  if (!fd.valid() || write(fd.get(), text.data(), text.size()) < 0) return ErrnoStatus(errno, "set oom_score_adj");
  return absl::OkStatus();
}

absl::StatusOr<HostMemory> ReadHostMemory(const std::string& root) {
  NRAM_ASSIGN_OR_RETURN(const std::string meminfo, ReadFile(root + "/proc/meminfo"));
  const auto total = KilobyteField(meminfo, "MemTotal");
  const auto available = KilobyteField(meminfo, "MemAvailable");
  const auto idle = KilobyteField(meminfo, "MemFree");
  if (!total || !available || !idle) return absl::InternalError(absl::StrCat(root, "/proc/meminfo: fields missing"));
  HostMemory memory{*total, *available, *idle};
  auto cgroups = ReadFile(root + "/proc/self/cgroup");
  if (!cgroups.ok()) return memory;
  for (absl::string_view line : absl::StrSplit(*cgroups, '\n')) {
    const std::vector<absl::string_view> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() != 3) continue;
    // The groups above limit it too. In a container its own group may be out of sight; the topmost is the container's.
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
  const auto available = KilobyteField(meminfo, "MemAvailable");
  if (!available) return absl::InternalError(absl::StrCat(root, "/proc/meminfo: fields missing"));
  return MachineMemory{*available, KilobyteField(meminfo, "SwapFree").value_or(0)};
}

std::string BootId() {
  const std::string id = ReadLine("/proc/sys/kernel/random/boot_id");
  return id.empty() ? "unknown" : id;
}

ProcessMemory ReadProcessMemory(int pid) {
  auto text = ReadFile(pid == 0 ? "/proc/self/status" : absl::StrCat("/proc/", pid, "/status"));
  if (!text.ok()) return {};
  return {KilobyteField(*text, "VmRSS").value_or(0), KilobyteField(*text, "RssAnon").value_or(0),
          KilobyteField(*text, "VmSwap").value_or(0)};
}

}  // namespace nram
