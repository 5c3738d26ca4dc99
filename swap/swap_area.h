#ifndef NRAM_SWAP_SWAP_AREA_H_
#define NRAM_SWAP_SWAP_AREA_H_

// Swap areas on the pool. An area has a daemon of its own (nram-fsd --swap) with one file, and a loop device with
// direct I/O on that file. The kernel swaps to the device with discards of single pages, which arrive as holes that the
// servers free. A directory in the state directory records the parts of the area before they are made, so that all of
// them can be found and removed after a crash.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace nram {

struct SwapOptions {
  std::string name = "swap";
  uint64_t size_bytes = 0;
  int priority = -1;                   // 0..32767; -1: the kernel chooses, below all that others have
  std::string pool;                    // as nram-fsd's --pool; "": none
  int copies = 1;                      // of each page, on servers of different hosts: 1 to 4
  int64_t io_timeout_ms = 10'000;      // as nram-fsd's
  int64_t silence_min_ms = 60'000;     // no daemon counts as frozen that has been silent for less
  std::vector<std::string> fsd_flags;  // "--backend=memory"
};

struct SwapArea {
  std::string name;
  std::string directory;  // in the state directory
  std::string pool;       // where it is
  std::string tls_dir;    // the certificates that its daemon was given; "": the usual ones
  int copies = 1;         // of each page
  std::string device;     // "/dev/loop3"; "": the area has none yet, or no longer
  // The kernel's sequence number of the device, another one for each use of it. 0: not known (before Linux 5.15).
  uint64_t device_sequence = 0;
  uint64_t size_bytes = 0;
  int priority = 0;
  int daemon_pid = 0;
  bool daemon_alive = false;
  bool active = false;           // the kernel swaps to it
  bool busy = false;             // another command is setting it up or taking it down
  uint64_t used_bytes = 0;       // as the kernel has it
  uint64_t discarded_bytes = 0;  // given back so far
};

// AddSwap and RemoveSwap need root. Messages name the error and the remedy. One call at a time works on an area:
// others are refused.

// Sets up an area, whole or not at all, also if SIGINT, SIGTERM or SIGHUP comes meanwhile. ALREADY_EXISTS: the name is
// taken. RESOURCE_EXHAUSTED: the pool has less room than the area's size times the number of copies.
absl::StatusOr<SwapArea> AddSwap(const SwapOptions& options);
// What AddSwap looks at first: the name, the size, and root. Asks no server.
absl::Status CheckSwapOptions(const SwapOptions& options);

// Takes an area away. The pages that are swapped out go back to RAM first, which takes time; `on_progress` is told now
// and then how many bytes are left. RESOURCE_EXHAUSTED: RAM and other swap have too little room (swap_room.h).
// FAILED_PRECONDITION: the area's daemon is gone; the pages that were swapped out are lost then, and programs that
// touch them get SIGBUS. `force` goes on all the same.
absl::Status RemoveSwap(const std::string& name, bool force, void (*on_progress)(uint64_t left_bytes));

std::vector<SwapArea> FindSwaps();

}  // namespace nram

#endif  // NRAM_SWAP_SWAP_AREA_H_
