#ifndef NRAM_TOOLS_NRAM_SWAP_DEVICE_H_
#define NRAM_TOOLS_NRAM_SWAP_DEVICE_H_

// Loop devices that are swapped to, as the kernel has them.

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nram {

// Numbers of loop devices are used again, sequence numbers are not.
struct SwapDevice {
  std::string path;       // "/dev/loop3"; "": none
  uint64_t sequence = 0;  // of what has it at present; 0: not known (before Linux 5.15)
};

// The device with its present sequence number.
SwapDevice PresentDevice(const std::string& path);
// Whether `device` is still what it was.
bool IsPresent(const SwapDevice& device);

// A free one with direct I/O on the file; needs root. The path of it.
absl::StatusOr<std::string> AttachLoop(const std::string& file);
// OK if it is somebody else's by now. The kernel does it when the last one who has it open closes it.
absl::Status DetachLoop(const SwapDevice& device);
// The one whose file is this, also if the file's mount is gone; "" if there is none.
std::string FindLoop(const std::string& file);
// What the device has been told so far that nobody needs, in bytes, for whomever it was.
uint64_t DiscardedBytes(const std::string& path);

struct SwapUse {
  uint64_t used_bytes = 0;
  int priority = 0;
};
// Nothing if the kernel does not swap to it, or it is another by now.
std::optional<SwapUse> FindUse(const SwapDevice& device);

// Takes the device from the kernel: swapoff(2) until it is gone. The kernel gives up half way when it gets a signal,
// and says EINVAL to all but one of those who try at the same time; they wait for that one. Other errors are tried
// again if `insist`: where the device fails they mean nothing; else they may mean that there is too little RAM. Gives
// up when nothing has been taken back for a minute; one call of the kernel's takes as long as it takes. 0 or errno;
// after an error the kernel has the device as before, perhaps with less on it.
int SwapOffWhole(const SwapDevice& device, bool insist);

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_SWAP_DEVICE_H_
