#ifndef NRAM_CLIENT_POOL_COPIED_REGIONS_H_
#define NRAM_CLIENT_POOL_COPIED_REGIONS_H_

#include <cstddef>

#include "base/sync.h"
#include "client/pool/region_map.h"

namespace nram {

// The regions of copies of one pool, in a ring, for walks over them. Thread-safe. Nothing blocks.
class CopiedRegions {
 public:
  CopiedRegions() = default;
  ~CopiedRegions();  // CHECKs that it is empty
  CopiedRegions(const CopiedRegions&) = delete;
  CopiedRegions& operator=(const CopiedRegions&) = delete;

  // Both with a map of copies. It must be removed before its region is destroyed.
  void Add(RegionMap* map);
  void Remove(RegionMap* map);
  // The one after the last that was returned; null at the end, and then the first one again.
  RegionMap::Ref Next();
  bool empty() const;

 private:
  mutable Mutex mu_;
  RegionMap* first_ ABSL_GUARDED_BY(mu_) = nullptr;
  RegionMap* next_ ABSL_GUARDED_BY(mu_) = nullptr;
  bool at_end_ ABSL_GUARDED_BY(mu_) = true;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_COPIED_REGIONS_H_
