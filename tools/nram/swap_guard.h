#ifndef NRAM_TOOLS_NRAM_SWAP_GUARD_H_
#define NRAM_TOOLS_NRAM_SWAP_GUARD_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "tools/nram/swap_device.h"

namespace nram {

inline constexpr char kGuardName[] = "nram-guard";
inline constexpr int kGuardFd = 3;  // a guard's descriptor of the daemon that it watches

struct GuardOptions {
  SwapDevice device;
  int daemon_pid = 0;
  std::string mount;            // where the daemon's file is
  int64_t silence_ms = 60'000;  // a daemon that answers nothing for so long is ended
};

// Starts a process that takes the device from the kernel if its daemon dies, or answers nothing: a device that fails
// every write is one that the kernel would try to write to for ever, and programs with it. Then they are told (SIGBUS,
// or the OOM killer). A process of its own, since nobody else is sure to be there. It ends with the daemon, when the
// kernel does not have the device any more.
absl::Status StartGuard(const GuardOptions& options);

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_SWAP_GUARD_H_
