#include "client/run/task_maps.h"

#include <fcntl.h>
#include <linux/kcmp.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/fd.h"
#include "base/status.h"
#include "base/units.h"
#include "client/run/call_filter.h"
#include "client/run/helper_code.h"

namespace nram {
namespace {

absl::StatusOr<std::string> ReadMaps(pid_t task) {
  const UniqueFd file(open(absl::StrCat("/proc/", task, "/maps").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, "opening the program's /proc/PID/maps");
  std::string text;
  char part[16384];
  ssize_t got;
  while ((got = read(file.get(), part, sizeof(part))) > 0) text.append(part, static_cast<size_t>(got));
  if (got < 0) return ErrnoStatus(errno, "reading the program's /proc/PID/maps");
  return text;
}

// The lines of these names.
absl::StatusOr<std::string> ReadStatus(pid_t task, std::initializer_list<absl::string_view> names) {
  char text[4096] = {};
  const UniqueFd file(open(absl::StrCat("/proc/", task, "/status").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid() || read(file.get(), text, sizeof(text) - 1) <= 0) {
    return ErrnoStatus(errno, "reading the program's /proc/PID/status");
  }
  std::string lines;
  for (const absl::string_view line : absl::StrSplit(text, '\n')) {
    for (const absl::string_view name : names) {
      if (line.substr(0, name.size()) == name) absl::StrAppend(&lines, line, "\n");
    }
  }
  return lines;
}

// Compares the rights by which the kernel, besides their memory, decides the access to two tasks.
bool HaveSameRights(pid_t one, pid_t other) {
  const auto read = [](pid_t task) { return ReadStatus(task, {"Uid:", "Gid:", "CapPrm:"}); };
  const absl::StatusOr<std::string> rights = read(one);
  const absl::StatusOr<std::string> others = read(other);
  return rights.ok() && others.ok() && *rights == *others;
}

}  // namespace

std::vector<AddressRun> FindRemotable(absl::string_view maps) {
  std::vector<AddressRun> found;
  for (const absl::string_view line : absl::StrSplit(maps, '\n', absl::SkipEmpty())) {
    uint64_t begin = 0;
    uint64_t end = 0;
    uint64_t inode = 0;
    char permissions[5] = {};
    int name_at = 0;
    if (sscanf(std::string(line).c_str(), "%" SCNx64 "-%" SCNx64 " %4s %*x %*x:%*x %" SCNu64 " %n", &begin, &end,
               permissions, &inode, &name_at) != 4) {
      continue;
    }
    const absl::string_view name = line.substr(std::min<size_t>(line.size(), static_cast<size_t>(name_at)));
    const bool heap = name == "[heap]";
    const bool anonymous = inode == 0 && (name.empty() || heap || name.substr(0, 6) == "[anon:");
    const bool helper = begin < HelperPlace::kBase + HelperPlace::kBytes && end > HelperPlace::kBase;
    if (!anonymous || helper || permissions[3] != 'p' || permissions[2] == 'x') continue;
    if ((end - begin < kRemoteBytesMin && !heap) || end - begin > kRemoteBytesMax) continue;
    // The text is read in parts, and mappings may change meanwhile. A range that is listed twice is looked after once.
    if (!found.empty()) begin = std::max(begin, found.back().begin + found.back().pages * kPageBytes);
    if (begin >= end) continue;
    found.push_back({begin, (end - begin) / kPageBytes});
  }
  return found;
}

bool HasHelperPages(absl::string_view maps) {
  for (const absl::string_view line : absl::StrSplit(maps, '\n', absl::SkipEmpty())) {
    uint64_t begin = 0;
    uint64_t end = 0;
    char permissions[5] = {};
    if (sscanf(std::string(line).c_str(), "%" SCNx64 "-%" SCNx64 " %4s", &begin, &end, permissions) != 3) continue;
    // The helper's code. Other mappings around it are not the helper's: sanitizers reserve large ranges.
    if (begin == HelperPlace::kBase && end == begin + 4096 && absl::string_view(permissions) == "r-xp") return true;
  }
  return false;
}

absl::StatusOr<std::vector<AddressRun>> ReadRemotable(pid_t task) {
  NRAM_ASSIGN_OR_RETURN(const std::string text, ReadMaps(task));
  return FindRemotable(text);
}

absl::StatusOr<size_t> CountMappings(pid_t task, const AddressRun& run) {
  NRAM_ASSIGN_OR_RETURN(const std::string text, ReadMaps(task));
  size_t count = 0;
  for (const absl::string_view line : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
    uint64_t begin = 0;
    uint64_t end = 0;
    if (sscanf(std::string(line).c_str(), "%" SCNx64 "-%" SCNx64, &begin, &end) != 2) continue;
    if (begin < run.begin + run.pages * kPageBytes && end > run.begin) ++count;
  }
  return count;
}

pid_t ProcessOf(pid_t thread) {
  char text[1024] = {};
  const UniqueFd file(open(absl::StrCat("/proc/", thread, "/status").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid() || read(file.get(), text, sizeof(text) - 1) <= 0) return thread;
  const char* const line = strstr(text, "\nTgid:");
  return line == nullptr ? thread : static_cast<pid_t>(strtol(line + 6, nullptr, 10));
}

UniqueFd CopyDescriptor(pid_t thread, int number) {
  const UniqueFd pidfd(static_cast<int>(syscall(SYS_pidfd_open, ProcessOf(thread), 0)));
  if (!pidfd.valid()) return UniqueFd();
  return UniqueFd(static_cast<int>(syscall(SYS_pidfd_getfd, pidfd.get(), number, 0)));
}

UniqueFd ReopenFile(pid_t thread, int number) {
  const std::string path = absl::StrCat("/proc/", thread, "/fd/", number);
  struct stat info;
  struct stat link;
  if (number < 0 || stat(path.c_str(), &info) != 0 || lstat(path.c_str(), &link) != 0) {
    errno = EBADF;
    return UniqueFd();
  }
  if (!S_ISREG(info.st_mode)) {
    errno = ENODEV;
    return UniqueFd();
  }
  // The link's rights are those of the descriptor. Does not wait for a lease on the file.
  return UniqueFd(open(path.c_str(), ((link.st_mode & S_IWUSR) != 0 ? O_RDWR : O_RDONLY) | O_CLOEXEC | O_NONBLOCK));
}

std::optional<bool> SharesMemory(pid_t helper, pid_t thread, bool only) {
  const long order = syscall(SYS_kcmp, helper, thread, KCMP_VM, 0, 0);
  if (order >= 0) return order == 0;
  const int error = errno;
  if (error != EPERM && error != ENOSYS) return std::nullopt;
  const absl::StatusOr<std::string> maps = ReadMaps(thread);
  // Memory that is not dumpable is hidden from this process, memory that is dumpable is not: they are two.
  if (absl::IsPermissionDenied(maps.status()) && ReadMaps(helper).ok() && HaveSameRights(helper, thread)) return false;
  // Else the helper has ended, or the thread has.
  if (maps.ok() && !maps->empty() && only && kill(helper, 0) == 0) return HasHelperPages(*maps);
  errno = error;
  return std::nullopt;
}

absl::StatusOr<std::string> ReadRights(pid_t task) {
  return ReadStatus(task, {"Uid:", "CapEff:", "Seccomp:", "Seccomp_filters:"});
}

absl::StatusOr<std::vector<bool>> ReadPresent(pid_t task, const AddressRun& run) {
  constexpr uint64_t kThere = uint64_t{3} << 62;  // present, or swapped
  const UniqueFd file(open(absl::StrCat("/proc/", task, "/pagemap").c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, "opening the program's /proc/PID/pagemap");
  std::vector<bool> present(run.pages);
  std::vector<uint64_t> entries(8192);
  for (uint64_t page = 0; page < run.pages;) {
    const uint64_t count = std::min<uint64_t>(entries.size(), run.pages - page);
    const ssize_t got = pread(file.get(), entries.data(), count * sizeof(uint64_t),
                              static_cast<off_t>((run.begin / kPageBytes + page) * sizeof(uint64_t)));
    if (got != static_cast<ssize_t>(count * sizeof(uint64_t))) {
      return ErrnoStatus(got < 0 ? errno : EIO, "reading the program's /proc/PID/pagemap");
    }
    for (uint64_t i = 0; i < count; ++i) present[page + i] = (entries[i] & kThere) != 0;
    page += count;
  }
  return present;
}

}  // namespace nram
