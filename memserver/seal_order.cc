#include "memserver/seal_order.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

namespace nram {

uint16_t SealOrder::PlaceOf(uint16_t born) const {
  const auto place = static_cast<uint16_t>(born & ~kHalf);
  if ((born & kHalf) == half_) return place;
  // An entry that was born at an old place comes after all that were living there or before.
  return static_cast<uint16_t>(std::upper_bound(former_.begin(), former_.end(), place) - former_.begin());
}

void SealOrder::BeginRenumbering(std::vector<uint16_t> living) {
  CHECK(!renumbers_);
  CHECK_LT(living.size(), places_);
  renumbers_ = true;
  half_ ^= kHalf;
  newest_ = static_cast<uint16_t>(living.size());
  former_ = std::move(living);
}

void SealOrder::EndRenumbering() {
  CHECK(renumbers_);
  renumbers_ = false;
  former_ = {};
}

}  // namespace nram
