#ifndef NRAM_SWAP_SWAP_ROOM_H_
#define NRAM_SWAP_SWAP_ROOM_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace nram {

// Checks whether `used_bytes`, swapped out to an area of `size_bytes`, have room to go back to: in RAM and other swap,
// and in the memory cgroups of their owners (v1 or v2). Each page is charged to its owner's group again, and the kernel
// ends programs of a group that has no room. RESOURCE_EXHAUSTED: the message names the shortage and the remedy. `root`
// is put before every path, for tests.
absl::Status CheckRoomForSwap(uint64_t size_bytes, uint64_t used_bytes, const std::string& root = "");

// Checks whether these hosts have room for an area of `size_bytes`. RESOURCE_EXHAUSTED: the message tells the area's
// size, the room that all copies take, and the room that there is, raw and usable. It is an early check with a clear
// message; only the reservation decides, because clients share the room.
absl::Status CheckRoomForArea(absl::Span<const uint64_t> free_bytes_of_hosts, int copies, uint64_t size_bytes);

}  // namespace nram

#endif  // NRAM_SWAP_SWAP_ROOM_H_
