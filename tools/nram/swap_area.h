#ifndef NRAM_TOOLS_NRAM_SWAP_AREA_H_
#define NRAM_TOOLS_NRAM_SWAP_AREA_H_

// Swap areas on the pool: for each a daemon of its own (nram-fsd --swap) with one file, a loop device with direct I/O
// on that, and swapon with discards of single pages, which come back as holes that the servers free. What an area
// consists of is written to a directory in the state directory first, so that all of it can be found and removed after
// a crash.

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
  int64_t io_timeout_ms = 10'000;      // as nram-fsd's
  int64_t silence_min_ms = 60'000;     // before so much of it no daemon counts as frozen
  std::vector<std::string> fsd_flags;  // "--backend=memory"
};

struct SwapArea {
  std::string name;
  std::string directory;  // in the state directory
  std::string pool;       // where it is
  std::string device;     // "/dev/loop3"; "": not yet, or not its any more
  // The kernel's number of what `device` is at present: it has another when it is taken for something else. 0: not
  // known (before Linux 5.15).
  uint64_t device_sequence = 0;
  uint64_t size_bytes = 0;
  int priority = 0;
  int daemon_pid = 0;
  bool daemon_alive = false;
  bool active = false;           // the kernel swaps to it
  bool busy = false;             // somebody is setting it up or taking it down
  uint64_t used_bytes = 0;       // as the kernel has it
  uint64_t discarded_bytes = 0;  // given back so far
};

// All need root. Messages say what is wrong and what to do. One at a time for each area: others are refused.

// Sets one up, whole or not at all, also if it gets SIGINT, SIGTERM or SIGHUP meanwhile. ALREADY_EXISTS: the name is
// taken. RESOURCE_EXHAUSTED: the pool has not so much.
absl::StatusOr<SwapArea> AddSwap(const SwapOptions& options);

// Takes it away: what is swapped out goes back to RAM first, which takes time; `on_progress` is told what is left, now
// and then. RESOURCE_EXHAUSTED: there is not RAM and other swap enough (swap_room.h). FAILED_PRECONDITION: its daemon
// is gone (then what was swapped out is lost, and whoever uses it gets SIGBUS). `force` goes on all the same.
absl::Status RemoveSwap(const std::string& name, bool force, void (*on_progress)(uint64_t left_bytes));

std::vector<SwapArea> FindSwaps();

}  // namespace nram

#endif  // NRAM_TOOLS_NRAM_SWAP_AREA_H_
