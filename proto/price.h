#ifndef NRAM_PROTO_PRICE_H_
#define NRAM_PROTO_PRICE_H_

// The price list for room: how much of a lease's reservation things cost at most. A client that takes so much before it
// writes is never short, and a server never takes more. memserver binds its real sizes to these figures where it
// defines them.

#include <cstdint>

#include "base/units.h"
#include "proto/wire.h"

namespace nram {

// The price of a page: its frame, and its share of the index. A page that is stored in parts, or with others of its
// span, costs less.
inline constexpr uint64_t kIndexBytesPerPageMax = 128;
inline constexpr uint64_t kReservationBytesPerPage = kPageBytes + kIndexBytesPerPageMax;
// The price of a region that a write creates, beside its pages.
inline constexpr uint64_t kReservationBytesPerRegion = 512;

// The grant that a write must bring if it touches `pages` pages, and creates the region or does not.
constexpr uint64_t PriceOfWrite(uint64_t pages, bool creates_region) {
  return pages * kReservationBytesPerPage + (creates_region ? kReservationBytesPerRegion : 0);
}

// No write uses more than this, which is twice the dearest one. A client does not believe a server that says more.
inline constexpr uint64_t kWriteUsesBytesMax = 2 * kPagesPerMessage * kReservationBytesPerPage;
static_assert(PriceOfWrite(kPagesPerMessage, /*creates_region=*/true) <= kWriteUsesBytesMax);

}  // namespace nram

#endif  // NRAM_PROTO_PRICE_H_
