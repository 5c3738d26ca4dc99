#ifndef NRAM_FSD_PROMISES_H_
#define NRAM_FSD_PROMISES_H_

#include <cstdint>

#include "absl/container/flat_hash_map.h"
#include "base/sync.h"
#include "fsd/page_set.h"

namespace nram {

// The promised pages of all files: those that a file has reserved, and not written since. Files without any take no
// memory here. Thread-safe; no other lock is taken while its lock is held.
class Promises {
 public:
  // `file` is only a key.
  void Add(const void* file, const PageSet& pages) {
    MutexLock lock(&mu_);
    files_[file].AddAll(pages);
  }
  // Those in [first, end).
  PageSet Find(const void* file, uint64_t first, uint64_t end) const {
    PageSet found;
    MutexLock lock(&mu_);
    const auto it = files_.find(file);
    if (it != files_.end()) found.AddAll(it->second, first, end);
    return found;
  }
  // Those in [first, end) are promised no more. False: the file has none any more.
  bool Remove(const void* file, uint64_t first, uint64_t end) {
    MutexLock lock(&mu_);
    const auto it = files_.find(file);
    if (it == files_.end()) return false;
    it->second.Remove(first, end);
    if (!it->second.empty()) return true;
    files_.erase(it);
    return false;
  }

 private:
  mutable Mutex mu_;
  absl::flat_hash_map<const void*, PageSet> files_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_FSD_PROMISES_H_
