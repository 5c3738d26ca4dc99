#ifndef NRAM_SWAP_SWAP_DEVICE_H_
#define NRAM_SWAP_SWAP_DEVICE_H_

// The loop devices that the kernel swaps to.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nram {

// Numbers of loop devices are used again, sequence numbers are not.
struct SwapDevice {
  std::string path;       // "/dev/loop3"; "": none
  uint64_t sequence = 0;  // of its present use; 0: not known (before Linux 5.15)
};

// The device with its present sequence number.
SwapDevice PresentDevice(const std::string& path);
// Whether the device still has the use that it had.
bool IsPresent(const SwapDevice& device);

// Attaches a free loop device to the file, with direct I/O; returns the device's path. Needs root.
absl::StatusOr<std::string> AttachLoop(const std::string& file);
// Detaches the device; the kernel does so when the last process that has it open closes it. OK if the device has
// another use by now.
absl::Status DetachLoop(const SwapDevice& device);
// The device of this file, also if the file's mount is gone; "" if there is none.
std::string FindLoop(const std::string& file);
// How many bytes were discarded on the device so far, in all of its uses.
uint64_t DiscardedBytes(const std::string& path);

struct SwapUse {
  uint64_t used_bytes = 0;
  int priority = 0;
};
// Nothing if the kernel does not swap to the device, or the device has another use by now.
std::optional<SwapUse> FindUse(const SwapDevice& device);

// Takes the device from the kernel: calls swapoff(2) until the kernel does not have it any more. The kernel gives up
// half way when a signal comes. If several processes try at the same time, all but one get EINVAL; this call waits for
// that one. Other errors are tried again if `insist`: they mean nothing if the device fails, else they may mean that
// there is too little RAM. Gives up when nothing has been taken back for a minute; a single swapoff(2) has no limit.
// Returns 0 or an errno; after an error the kernel still has the device, perhaps with less on it.
int SwapOffWhole(const SwapDevice& device, bool insist);

}  // namespace nram

#endif  // NRAM_SWAP_SWAP_DEVICE_H_
