#ifndef NRAM_SWAP_SWAP_GUARD_H_
#define NRAM_SWAP_SWAP_GUARD_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "swap/swap_device.h"

namespace nram {

inline constexpr char kGuardName[] = "nram-guard";
inline constexpr int kGuardFd = 3;  // a guard's descriptor of the daemon that it watches

struct GuardOptions {
  SwapDevice device;
  int daemon_pid = 0;
  std::string mount;            // where the daemon's file is
  int64_t silence_ms = 60'000;  // a daemon that answers nothing for this long is ended
};

// Starts a process that takes the device from the kernel if the area's daemon dies or answers nothing. Without it, the
// kernel would try for ever to write to a device that fails every write, and programs would wait with it; now they are
// told (by SIGBUS, or by the OOM killer). It is a process of its own, because no other one is sure to run. It ends
// after the daemon, when the kernel does not have the device any more.
absl::Status StartGuard(const GuardOptions& options);

}  // namespace nram

#endif  // NRAM_SWAP_SWAP_GUARD_H_
