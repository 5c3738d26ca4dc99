#ifndef NRAM_EXPERIMENTS_MEMORY_PING_PONG_H_
#define NRAM_EXPERIMENTS_MEMORY_PING_PONG_H_

// The reference for fetching a page: a request of 64 bytes, and a reply of 64 bytes and a page, over TCP loopback to a
// process of its own. Both ends block in read() and write() and never poll.

#include <cstdint>

#include "absl/status/statusor.h"

namespace nram {

// Returns the nanoseconds for `count` round trips, one after the other; a tenth as many go before, untimed. Call it
// before there are threads: it forks. With `apart` the ends stay on the first and the last processor, since two
// machines never share one; otherwise the scheduler places them.
absl::StatusOr<int64_t> PingPongNs(int64_t count, bool apart);

}  // namespace nram

#endif  // NRAM_EXPERIMENTS_MEMORY_PING_PONG_H_
