#include "client/pool/copied_regions.h"

#include <glog/logging.h>

#include <utility>

namespace nram {

CopiedRegions::~CopiedRegions() { CHECK(empty()) << "a region outlives its pool"; }

bool CopiedRegions::empty() const {
  MutexLock lock(&mu_);
  return first_ == nullptr;
}

void CopiedRegions::Add(RegionMap* map) {
  MutexLock lock(&mu_);
  RegionMap::Link* const link = map->link();
  *link = {first_, nullptr};
  if (first_ != nullptr) first_->link()->previous = map;
  first_ = map;
}

void CopiedRegions::Remove(RegionMap* map) {
  MutexLock lock(&mu_);
  const RegionMap::Link link = *map->link();
  if (link.previous != nullptr) link.previous->link()->next = link.next;
  if (link.next != nullptr) link.next->link()->previous = link.previous;
  if (first_ == map) first_ = link.next;
  if (next_ == map) next_ = link.next;
}

RegionMap::Ref CopiedRegions::Next() {
  MutexLock lock(&mu_);
  if (std::exchange(at_end_, false)) next_ = first_;
  RegionMap* const map = next_;
  if (map == nullptr) {
    at_end_ = true;
    return nullptr;
  }
  next_ = map->link()->next;
  return map->Share();
}

}  // namespace nram
