#include "memserver/region_walk.h"

namespace nram {

bool RegionWalk::Step(absl::FunctionRef<bool(const StoredKey& key, StoredRegion* region)> visit) {
  // Empty shards cost little. A step ends with a shard that has regions.
  while (shard_ < RegionTable::kShards) {
    RegionTable::Shard& at = table_->shards_[shard_];
    if (!listed_) {
      ReaderLock lock(&at.mu);
      for (const auto& [key, region] : at.regions) keys_.push_back(key);
      listed_ = true;
    }
    const bool any = !keys_.empty();
    if (any) {
      WriterLock lock(&at.mu);
      while (!keys_.empty()) {
        const auto it = at.regions.find(keys_.back());
        if (it != at.regions.end() && !visit(it->first, it->second.get())) return true;
        keys_.pop_back();
      }
    }
    ++shard_;
    listed_ = false;
    if (any) break;
  }
  return shard_ < RegionTable::kShards;
}

}  // namespace nram
