#include "client/pool/pool_room.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <vector>

namespace nram {

uint64_t UsableBytes(absl::Span<const uint64_t> free_bytes_of_hosts, int copies) {
  std::vector<uint64_t> free(free_bytes_of_hosts.begin(), free_bytes_of_hosts.end());
  std::sort(free.begin(), free.end(), std::greater<>());
  free.resize(std::max(free.size(), static_cast<size_t>(copies)));
  // A host takes one copy of a page at most. If the `large` largest hosts take one of every page, the others must have
  // room for all further copies.
  uint64_t usable = UINT64_MAX;
  for (int large = 0; large < copies; ++large) {
    const uint64_t others = std::accumulate(free.begin() + large, free.end(), uint64_t{0});
    usable = std::min(usable, others / static_cast<uint64_t>(copies - large));
  }
  return usable;
}

}  // namespace nram
