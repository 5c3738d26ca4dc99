#include "swap/swap_device.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/loop.h>
#include <sys/ioctl.h>
#include <sys/swap.h>

#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/file.h"
#include "base/poll_until.h"
#include "base/status.h"
#include "base/units.h"

namespace nram {
namespace {

constexpr int64_t kSwapOffMs = 60'000;
constexpr int64_t kAgainMs = 20;
constexpr int kLoopTries = 16;  // others may take the number that was free a moment ago

// Word number `word` of a file in the device's directory in /sys; 0 if it is not there.
uint64_t SysNumber(const std::string& device, const char* file, size_t word) {
  if (device.size() < 5) return 0;
  const auto text = ReadFile(absl::StrCat("/sys/block/", device.substr(5), "/", file));
  if (!text.ok()) return 0;
  const std::vector<absl::string_view> words = absl::StrSplit(*text, absl::ByAnyChar(" \n\t"), absl::SkipEmpty());
  uint64_t value = 0;
  if (word < words.size()) (void)absl::SimpleAtoi(words[word], &value);
  return value;
}

}  // namespace

SwapDevice PresentDevice(const std::string& path) { return {path, SysNumber(path, "diskseq", 0)}; }

bool IsPresent(const SwapDevice& device) {
  return !device.path.empty() && PresentDevice(device.path).sequence == device.sequence;
}

absl::StatusOr<std::string> AttachLoop(const std::string& path) {
  const UniqueFd file(open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, "open " + path);
  const UniqueFd control(open("/dev/loop-control", O_RDWR | O_CLOEXEC));
  if (!control.valid()) {
    return absl::FailedPreconditionError(
        absl::StrCat("/dev/loop-control: ", strerror(errno), "; load the kernel's module with `modprobe loop`"));
  }
  for (int i = 0; i < kLoopTries; ++i) {
    const int number = ioctl(control.get(), LOOP_CTL_GET_FREE);
    if (number < 0) return ErrnoStatus(errno, "find a free loop device");
    const std::string device = absl::StrCat("/dev/loop", number);
    const UniqueFd loop(open(device.c_str(), O_RDWR | O_CLOEXEC));
    if (!loop.valid()) return ErrnoStatus(errno, "open " + device);
    loop_config config{};
    config.fd = static_cast<uint32_t>(file.get());
    config.block_size = kPageBytes;
    config.info.lo_flags = LO_FLAGS_DIRECT_IO;
    if (ioctl(loop.get(), LOOP_CONFIGURE, &config) == 0) return device;
    if (errno != EBUSY) return ErrnoStatus(errno, "attach " + path + " to " + device);
  }
  return absl::ResourceExhaustedError("no loop device is free");
}

absl::Status DetachLoop(const SwapDevice& device) {
  if (!IsPresent(device)) return absl::OkStatus();
  const UniqueFd loop(open(device.path.c_str(), O_RDWR | O_CLOEXEC));
  if (!loop.valid()) return ErrnoStatus(errno, "open " + device.path);
  if (ioctl(loop.get(), LOOP_CLR_FD) != 0 && errno != ENXIO) return ErrnoStatus(errno, "detach " + device.path);
  return absl::OkStatus();
}

std::string FindLoop(const std::string& path) {
  for (const std::string& device : ListDirectory("/sys/block")) {
    // The kernel shows a file whose mount is gone without the path before it, or as deleted.
    if (absl::StartsWith(ReadLine(absl::StrCat("/sys/block/", device, "/loop/backing_file")), path)) {
      return absl::StrCat("/dev/", device);
    }
  }
  return "";
}

uint64_t DiscardedBytes(const std::string& path) {
  constexpr size_t kDiscardSectors = 13;  // Documentation/block/stat.rst
  return SysNumber(path, "stat", kDiscardSectors) * kChunkBytes;
}

std::optional<SwapUse> FindUse(const SwapDevice& device) {
  const auto table = ReadFile("/proc/swaps");
  if (!table.ok() || !IsPresent(device)) return std::nullopt;
  for (const absl::string_view line : absl::StrSplit(*table, '\n')) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, absl::ByAnyChar(" \t"), absl::SkipEmpty());
    if (words.size() < 5 || words[0] != device.path) continue;
    SwapUse use;
    uint64_t used_kib = 0;
    (void)absl::SimpleAtoi(words[3], &used_kib);
    (void)absl::SimpleAtoi(words[4], &use.priority);
    use.used_bytes = used_kib * kKiB;
    return use;
  }
  return std::nullopt;
}

int SwapOffWhole(const SwapDevice& device, bool insist) {
  uint64_t left_bytes = UINT64_MAX;
  int64_t give_up_ns = 0;
  while (true) {
    const int error = swapoff(device.path.c_str()) == 0 ? 0 : errno;
    const std::optional<SwapUse> use = FindUse(device);
    if (error == 0 || !use.has_value()) return 0;
    if (use->used_bytes < left_bytes) {
      left_bytes = use->used_bytes;
      give_up_ns = DeadlineAfterMs(kSwapOffMs);
    }
    if ((error != EINVAL && !insist) || MonotonicNs() >= give_up_ns) return error;
    SleepMs(kAgainMs);  // no event announces the end of another process's swapoff(2)
  }
}

}  // namespace nram
