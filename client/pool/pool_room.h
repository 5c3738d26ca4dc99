#ifndef NRAM_CLIENT_POOL_POOL_ROOM_H_
#define NRAM_CLIENT_POOL_POOL_ROOM_H_

#include <cstdint>

#include "absl/types/span.h"

namespace nram {

// How many bytes of data fit on hosts with these free bytes, if each page has `copies` copies, each on another host. 0:
// there are fewer hosts than copies.
uint64_t UsableBytes(absl::Span<const uint64_t> free_bytes_of_hosts, int copies);

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_POOL_ROOM_H_
