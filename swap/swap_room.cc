#include "swap/swap_room.h"

#include <dirent.h>

#include <algorithm>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/file.h"
#include "base/host/host_memory.h"
#include "base/status.h"
#include "base/units.h"
#include "client/pool/pool_room.h"

namespace nram {
namespace {

constexpr int kDepthMax = 16;

// The sum of these fields of a memory.stat.
uint64_t StatFields(const std::string& group, std::initializer_list<absl::string_view> fields) {
  const std::string text = ReadFile(group + "/memory.stat").value_or("");
  uint64_t sum = 0;
  for (const absl::string_view field : fields) sum += NumberField(text, field).value_or(0);
  return sum;
}

// Of the group and all below it.
struct GroupMemory {
  uint64_t limit_bytes = 0;    // 0: none
  uint64_t used_bytes = 0;     // without page cache that can be dropped
  uint64_t swapped_bytes = 0;  // wherever to
  uint64_t back_bytes = 0;     // of these that are in memory too, and counted there
};

GroupMemory ReadGroup(const std::string& group, bool v2) {
  const uint64_t used = ReadNumber(group + (v2 ? "/memory.current" : "/memory.usage_in_bytes")).value_or(0);
  const uint64_t cache = v2 ? StatFields(group, {"inactive_file", "active_file"})
                            : StatFields(group, {"total_inactive_file", "total_active_file"});
  return {ReadNumber(group + (v2 ? "/memory.max" : "/memory.limit_in_bytes")).value_or(0), used - std::min(used, cache),
          v2 ? ReadNumber(group + "/memory.swap.current").value_or(0) : StatFields(group, {"total_swap"}),
          v2 ? StatFields(group, {"swapcached"}) : 0};
}

absl::Status CheckGroups(const std::string& top, const std::string& path, bool v2, uint64_t used_bytes,
                         uint64_t other_swap, int depth) {
  const GroupMemory group = ReadGroup(top + path, v2);
  const uint64_t out = group.swapped_bytes - std::min(group.swapped_bytes, group.back_bytes);
  const uint64_t back = std::min(out, used_bytes);  // at most: the kernel does not tell which area they are in
  if (!path.empty() && group.swapped_bytes == 0) return absl::OkStatus();  // nor has anything below it
  if (group.limit_bytes > 0 && group.used_bytes + back > group.limit_bytes + other_swap) {
    return absl::ResourceExhaustedError(absl::StrCat(
        FormatByteSize(back), " must return to the memory cgroup ", path.empty() ? "/" : path, ", which uses ",
        FormatByteSize(group.used_bytes), " of its limit of ", FormatByteSize(group.limit_bytes),
        ": the kernel would kill programs there. Raise the limit, end some programs, or add other swap first; --force ",
        "tries nevertheless"));
  }
  DIR* const directory = depth < kDepthMax ? opendir((top + path).c_str()) : nullptr;
  if (directory == nullptr) return absl::OkStatus();
  absl::Status status;
  while (const dirent* entry = readdir(directory)) {
    if (entry->d_type != DT_DIR || entry->d_name[0] == '.') continue;
    status = CheckGroups(top, absl::StrCat(path, "/", entry->d_name), v2, used_bytes, other_swap, depth + 1);
    if (!status.ok()) break;
  }
  closedir(directory);
  return status;
}

}  // namespace

absl::Status CheckRoomForSwap(uint64_t size_bytes, uint64_t used_bytes, const std::string& root) {
  NRAM_ASSIGN_OR_RETURN(const MachineMemory memory, ReadMachineMemory(root));
  const uint64_t own_free = size_bytes - std::min(size_bytes, used_bytes);
  const uint64_t other_swap = memory.swap_free_bytes - std::min(memory.swap_free_bytes, own_free);
  const uint64_t room = memory.available_bytes + other_swap;
  if (room < used_bytes + used_bytes / 16) {
    return absl::ResourceExhaustedError(
        absl::StrCat(FormatByteSize(used_bytes), " must return to RAM, and ", FormatByteSize(room),
                     " are available there and in other swap. End some programs, or add other swap first; --force ",
                     "tries nevertheless"));
  }
  const bool v2 = ReadFile(root + "/sys/fs/cgroup/cgroup.controllers").ok();
  return CheckGroups(root + (v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory"), "", v2, used_bytes, other_swap, 0);
}

absl::Status CheckRoomForArea(absl::Span<const uint64_t> free_bytes_of_hosts, int copies, uint64_t size_bytes) {
  const uint64_t usable = UsableBytes(free_bytes_of_hosts, copies);
  if (size_bytes <= usable) return absl::OkStatus();
  const uint64_t raw = std::accumulate(free_bytes_of_hosts.begin(), free_bytes_of_hosts.end(), uint64_t{0});
  return absl::ResourceExhaustedError(
      absl::StrCat("the pool does not have ", FormatByteSize(size_bytes), " free: ", copies,
                   " copies of each page, on different hosts, take ",
                   FormatByteSize(size_bytes * static_cast<uint64_t>(copies)), "; ", FormatByteSize(raw),
                   " are free on ", free_bytes_of_hosts.size(), " hosts, room for ", FormatByteSize(usable),
                   " of swap (`nram df` says where). With --copies=1 the area takes ", FormatByteSize(size_bytes)));
}

}  // namespace nram
