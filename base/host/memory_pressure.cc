#include "base/host/memory_pressure.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "base/clock.h"
#include "base/file.h"

namespace nram {
namespace {

constexpr char kMachineFile[] = "/proc/pressure/memory";

// "some avg10=0.00 avg60=0.00 avg300=0.00 total=1234", and the same for "full".
std::optional<StallTotals> ParseStalls(absl::string_view text) {
  StallTotals totals;
  bool known = false;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    const bool some = absl::ConsumePrefix(&line, "some ");
    if (!some && !absl::ConsumePrefix(&line, "full ")) continue;
    for (absl::string_view word : absl::StrSplit(line, ' ')) {
      uint64_t total_us = 0;
      if (!absl::ConsumePrefix(&word, "total=") || !absl::SimpleAtoi(word, &total_us)) continue;
      (some ? totals.some_us : totals.full_us) = total_us;
      known |= some;
    }
  }
  return known ? std::optional<StallTotals>(totals) : std::nullopt;
}

std::optional<StallTotals> ReadStalls(const std::string& path) {
  // EOPNOTSUPP: PSI is compiled in and turned off.
  const auto text = ReadFile(path);
  return text.ok() ? ParseStalls(*text) : std::nullopt;
}

// Where the pressure of this process's cgroup v2 may be; v2 may be mounted beside v1.
std::vector<std::string> CgroupFiles(const std::string& root) {
  std::vector<std::string> files;
  const auto cgroups = ReadFile(root + "/proc/self/cgroup");
  if (!cgroups.ok()) return files;
  for (absl::string_view line : absl::StrSplit(*cgroups, '\n')) {
    if (!absl::ConsumePrefix(&line, "0::")) continue;
    const absl::string_view path = line == "/" ? "" : line;
    for (absl::string_view mount : {"/sys/fs/cgroup", "/sys/fs/cgroup/unified"}) {
      files.push_back(absl::StrCat(root, mount, path, "/memory.pressure"));
    }
  }
  return files;
}

double ShareOf(const std::optional<StallTotals>& before, const std::optional<StallTotals>& now, int64_t elapsed_ns) {
  if (!before || !now || elapsed_ns <= 0 || now->some_us < before->some_us) return 0;
  const double stalled_ns = static_cast<double>(now->some_us - before->some_us) * kNsPerUs;
  return std::min(1.0, stalled_ns / static_cast<double>(elapsed_ns));
}

UniqueFd OpenTrigger(const std::string& path) {
  for (const char* trigger : {"some 50000 1000000", "some 100000 2000000"}) {
    UniqueFd fd(open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    if (!fd.valid()) return fd;
    // With the final zero byte, as the kernel's documentation does.
    if (write(fd.get(), trigger, strlen(trigger) + 1) > 0) return fd;
  }
  return UniqueFd();
}

}  // namespace

MemoryStalls ReadMemoryStalls(const std::string& root) {
  MemoryStalls stalls;
  stalls.machine = ReadStalls(root + kMachineFile);
  for (const std::string& file : CgroupFiles(root)) {
    if (!stalls.cgroup) stalls.cgroup = ReadStalls(file);
  }
  return stalls;
}

double StallMeter::Share(const MemoryStalls& stalls, int64_t now_ns) {
  double share = 0;
  if (last_) {
    const int64_t elapsed_ns = now_ns - last_ns_;
    share = std::max(ShareOf(last_->machine, stalls.machine, elapsed_ns),
                     ShareOf(last_->cgroup, stalls.cgroup, elapsed_ns));
  }
  last_ = stalls;
  last_ns_ = now_ns;
  return share;
}

PressureTrigger PressureTrigger::Open(const std::string& root) {
  PressureTrigger trigger;
  trigger.fds_[0] = OpenTrigger(root + kMachineFile);
  for (const std::string& file : CgroupFiles(root)) {
    if (!trigger.fds_[1].valid()) trigger.fds_[1] = OpenTrigger(file);
  }
  return trigger;
}

bool PressureTrigger::WaitUntil(int other_fd, int64_t deadline_ns) {
  // poll(2) passes over negative descriptors.
  pollfd waits[] = {{other_fd, POLLIN, 0}, {fds_[0].get(), POLLPRI, 0}, {fds_[1].get(), POLLPRI, 0}};
  const int64_t left_ms = (deadline_ns - MonotonicNs() + kNsPerMs - 1) / kNsPerMs;
  if (poll(waits, 3, static_cast<int>(std::clamp<int64_t>(left_ms, 0, 60'000))) <= 0) return false;
  bool fired = false;
  for (size_t i = 0; i < fds_.size(); ++i) {
    const short events = waits[i + 1].revents;
    // Its cgroup is gone: the descriptor would be ready for ever.
    if ((events & (POLLERR | POLLNVAL)) != 0) {
      fds_[i].reset();
    } else {
      fired |= (events & POLLPRI) != 0;
    }
  }
  return fired;
}

}  // namespace nram
