#ifndef NRAM_MEMSERVER_REGION_WALK_H_
#define NRAM_MEMSERVER_REGION_WALK_H_

#include <cstddef>
#include <vector>

#include "absl/functional/function_ref.h"
#include "memserver/region_table.h"
#include "memserver/stored_region.h"

namespace nram {

// A walk over all regions of a table, in steps. Between two steps regions may be created and destroyed. A region that
// is there all the time is visited. Used by one thread; the table is used by others meanwhile.
class RegionWalk {
 public:
  // `table` is not owned and must outlive the walk.
  explicit RegionWalk(RegionTable* table) : table_(table) {}

  // Calls `visit` with regions of one shard under its exclusive lock, until `visit` returns false: then the next step
  // begins with the same region, if it still exists. Returns false if the walk is at its end. A step is as long as
  // `visit` lets it be.
  bool Step(absl::FunctionRef<bool(const StoredKey& key, StoredRegion* region)> visit);

 private:
  RegionTable* const table_;
  size_t shard_ = 0;
  bool listed_ = false;  // keys_ are this shard's
  std::vector<StoredKey> keys_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_REGION_WALK_H_
