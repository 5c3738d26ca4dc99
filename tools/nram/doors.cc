#include "tools/nram/doors.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/file.h"
#include "base/host/programs.h"
#include "base/units.h"
#include "client/memory/userfault.h"
#include "client/run/task_space.h"
#include "client/run/untraced_start.h"
#include "client/seal/key_memory.h"
#include "tools/nram/mounts.h"

namespace nram {
namespace {

constexpr char kFuse[] = "/dev/fuse";
constexpr char kFusermount[] = "/usr/bin/fusermount3";

Finding CheckFuse() {
  if (access(kFuse, F_OK) != 0) {
    return {Verdict::kAdvice, "nram mount: there is no /dev/fuse", "load the kernel's module: modprobe fuse"};
  }
  if (access(kFuse, R_OK | W_OK) != 0) {
    return {Verdict::kAdvice, "nram mount: this user may not open /dev/fuse",
            "as root, `chmod 666 /dev/fuse` after each boot; Debian's package fuse3 has a udev rule for it"};
  }
  if (geteuid() != 0 && access(kFusermount, X_OK) != 0) {
    return {Verdict::kAdvice, absl::StrCat("nram mount: there is no ", kFusermount),
            "users other than root need it: apt install fuse3"};
  }
  return {Verdict::kGood, "nram mount: this user may mount", ""};
}

// Good if `status` is, else advice with its text.
Finding OfStatus(const absl::Status& status, const char* door, const char* good, const char* bad) {
  if (status.ok()) return {Verdict::kGood, absl::StrCat(door, ": ", good), ""};
  return {Verdict::kAdvice, absl::StrCat(door, ": ", bad), std::string(status.message())};
}

Finding CheckRun() {
  const Finding memory = OfStatus(TaskSpace::Probe(), "nram run", "", "does not work for this user");
  if (memory.verdict != Verdict::kGood) return memory;
  const absl::Status traces = MayTrace();
  if (traces.ok()) return {Verdict::kGood, "nram run: this user may trace programs", ""};
  return {Verdict::kAdvice, "nram run: this user may not trace programs",
          absl::StrCat(traces.message(),
                       ". A library is loaded first instead, so static programs are refused. Where "
                       "Yama forbids it: sysctl kernel.yama.ptrace_scope=1; in a container, permit ptrace")};
}

Finding MountFinding(const std::string& directory, int error) {
  if (error == 0) return {Verdict::kGood, absl::StrCat(directory, ": the mount answers"), ""};
  if (error == EACCES || error == EPERM) {
    return {Verdict::kGood, absl::StrCat(directory, ": another user's mount, which only that user can look at"), ""};
  }
  if (error == ENOTCONN || error == ECONNABORTED) {
    return {Verdict::kBad, absl::StrCat(directory, ": the daemon of this mount is gone"),
            absl::StrCat("its files are lost: nram umount ", directory)};
  }
  if (error == ETIMEDOUT) {
    return {Verdict::kBad, absl::StrCat(directory, ": the mount does not answer"),
            "its daemon is stopped or waits for servers: `nram df` shows these. If the daemon must go, kill -9 it and "
            "then use `nram umount`; its files are lost"};
  }
  return {Verdict::kBad, absl::StrCat(directory, ": ", strerror(error)), "see the log of its daemon"};
}

// Programs in swap wait for other disks; the first line is a heading.
bool HasSwap(const std::string& root) {
  const auto table = ReadFile(root + "/proc/swaps");
  return table.ok() && std::count(table->begin(), table->end(), '\n') > 1;
}

uint64_t StatusField(const std::string& process, absl::string_view field) {
  return NumberField(ReadFile(process + "/status").value_or(""), field).value_or(0) * kKiB;
}

}  // namespace

std::optional<uint64_t> LowestInCgroups(const std::string& process, const std::vector<std::string>& files,
                                        const std::string& root) {
  const auto groups = ReadFile(root + process + "/cgroup");
  std::optional<uint64_t> lowest;
  for (const absl::string_view line : absl::StrSplit(groups.ok() ? *groups : "", '\n')) {
    const std::vector<std::string> parts = absl::StrSplit(line, absl::MaxSplits(':', 2));
    if (parts.size() < 3 || (!parts[1].empty() && parts[1] != "memory")) continue;
    const std::string mount = root + (parts[1].empty() ? "/sys/fs/cgroup" : "/sys/fs/cgroup/memory");
    // Up to the topmost group, which may be a container's.
    std::string path = parts[2] == "/" ? "" : parts[2];
    while (true) {
      for (const std::string& file : files) {
        const std::optional<uint64_t> number = ReadNumber(absl::StrCat(mount, path, file));
        if (number && (!lowest || *number < *lowest)) lowest = number;
      }
      if (path.empty()) break;
      path.resize(std::min(path.rfind('/'), path.size() - 1));
    }
  }
  return lowest;
}

Finding CheckServerProcess(int pid, const std::string& root) {
  const std::string process = absl::StrCat("/proc/", pid);
  const std::string server = absl::StrCat("the memory server ", pid, " of this machine ");
  const uint64_t swapped = StatusField(root + process, "VmSwap");
  // cgroup v1 has no limit of swap alone: there, a group whose swappiness is 0 is not swapped.
  const auto allowed = LowestInCgroups(process, {"/memory.swap.max", "/memory.swappiness"}, root);
  const uint64_t locked = StatusField(root + process, "VmLck");
  const bool may =
      HasSwap(root) && allowed.value_or(1) > 0 && (locked == 0 || locked < StatusField(root + process, "VmRSS"));
  if (!may && swapped == 0) return {Verdict::kGood, server + "is not swapped out", ""};
  const std::string command = ReadFile(root + process + "/cmdline").value_or("");
  if (absl::StrContains(command, "--spill=swap")) {
    return {Verdict::kAdvice, server + "may be swapped out, as its --spill=swap asks",
            "unsealed pages then lie on the disk in clear; never let it swap to the pool that it serves"};
  }
  const std::string may_be = absl::StrCat(server, "may be swapped out",
                                          swapped == 0 ? "" : absl::StrCat(" (", FormatByteSize(swapped), " are)"));
  // On Unix sockets alone, as `nram up` starts it: no other machine stores there, and swapon refuses it.
  if (absl::c_linear_search(absl::StrSplit(command, '\0'), "--listen=none")) {
    return {Verdict::kAdvice, may_be + ", as other programs of this machine",
            "it serves this machine alone, as for a trial: programs then wait for the swap, and unsealed pages lie "
            "there in clear. Donate less, or use servers on other machines"};
  }
  return {
      Verdict::kBad, may_be,
      absl::StrCat("clients then wait for the swap, and unsealed pages lie there in clear; if the swap is in the pool, "
                   "the server may wait for itself, and all that it stores is lost. Use nram-memserver.service, or put "
                   "MemorySwapMax=0 into its unit; by hand: echo 0 > .../memory.swap.max of its cgroup")};
}

std::vector<Finding> CheckServersHere() {
  std::vector<Finding> findings;
  for (const int pid : ListProcesses()) {
    if (ProcessName(pid) == "nram-memserver") findings.push_back(CheckServerProcess(pid));
  }
  return findings;
}

std::vector<Finding> CheckDoors() {
  const absl::Status memory = Userfault::Open().status();
  return {CheckFuse(), OfStatus(memory, "memory API", "this user may use it", "does not work for this user"),
          CheckRun(),
          OfStatus(KeyMemory::Make(1).status(), "sealed pages", "this user may lock keys in memory",
                   "this user may lock no memory for keys")};
}

std::vector<Finding> CheckMounts(const std::vector<std::string>& directories, int64_t timeout_ms) {
  std::vector<Finding> findings;
  const std::vector<MountRoom> rooms = AskRooms(directories, timeout_ms);
  for (size_t i = 0; i < rooms.size(); ++i) {
    if (rooms[i].error != EAGAIN) findings.push_back(MountFinding(directories[i], rooms[i].error));
  }
  return findings;
}

std::string FormatTimeLeft(int64_t seconds) {
  constexpr int64_t kMinute = 60, kHour = 60 * kMinute, kDay = 24 * kHour;
  if (seconds >= 2 * kDay) return absl::StrCat(seconds / kDay, " days");
  if (seconds >= 2 * kHour) return absl::StrCat(seconds / kHour, " h");
  return absl::StrCat(std::max<int64_t>(seconds, 0) / kMinute, " min");
}

}  // namespace nram
