#ifndef NRAM_FSD_FAILED_PAGES_H_
#define NRAM_FSD_FAILED_PAGES_H_

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/container/btree_map.h"
#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
#include "base/sync.h"
#include "base/units.h"

namespace nram {

// The pages of a mount's files whose last bytes are lost, because the kernel could not write them back after it had
// told their writer that they are written (adr/0029). They are errors, until each is written whole or cut off.
//
// A file has a Mark, a byte; it is the file's name here too. Memory: a run of pages takes about 20 bytes. Beyond
// kRunsMax runs of a file, or kAllRunsMax of all files, the next pages and their neighbours become one run: good pages
// between them are then errors too, until they are written. Beyond kAllRunsMax, a page in the middle of a run stays an
// error even when it is written; at the run's ends it does not. Thread-safe; its lock is held for moments, and no other
// one is taken under it.
//
// Ranges are bytes [offset, end); a page belongs to a range that touches it.
class FailedPages {
 public:
  static constexpr uint64_t kNone = UINT64_MAX;
  static constexpr size_t kRunsMax = 1'024;
  static constexpr size_t kAllRunsMax = 65'536;

  class Mark {
   public:
    // Whether the file has any such page. Without a lock.
    bool any() const { return any_.load(std::memory_order_acquire); }

   private:
    friend class FailedPages;
    std::atomic<bool> any_{false};
  };

  FailedPages() = default;
  FailedPages(const FailedPages&) = delete;
  FailedPages& operator=(const FailedPages&) = delete;

  // `grow` runs when the pages are errors, under the lock: it makes the file as long as they reach.
  void Add(
      Mark* file, uint64_t offset, uint64_t end, absl::FunctionRef<void()> grow = [] {});
  // The range has bytes again, in a file that ends at `file_end`: of pages that lie in it up to there, none is an
  // error. `file_end` is looked at under the lock: an Add beside this may make the last page longer.
  void Renew(Mark* file, uint64_t offset, uint64_t end, const std::atomic<uint64_t>& file_end);
  // None of the file's pages from byte `offset` on is an error; the page that `offset` is in the middle of stays one.
  void CutOff(Mark* file, uint64_t offset);

  // Whether the range has such a page.
  bool Any(const Mark& file, uint64_t offset, uint64_t end) const;
  // The first such page at or after `page`, kNone if there is none; the first other one.
  uint64_t NextIn(const Mark& file, uint64_t page) const;
  uint64_t NextOut(const Mark& file, uint64_t page) const;

  // Runs of all files.
  size_t runs() const;

 private:
  using Runs = absl::btree_map<uint64_t, uint64_t>;  // first page, and the page after the last; apart from each other

  void RemoveLocked(Mark* file, uint64_t first, uint64_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  mutable Mutex mu_;
  absl::flat_hash_map<const Mark*, Runs> files_ ABSL_GUARDED_BY(mu_);  // none of them is empty
  size_t all_runs_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace nram

#endif  // NRAM_FSD_FAILED_PAGES_H_
