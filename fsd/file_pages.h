#ifndef NRAM_FSD_FILE_PAGES_H_
#define NRAM_FSD_FILE_PAGES_H_

#include <cstdint>
#include <memory>

#include "base/sync.h"
#include "fsd/block_file.h"
#include "fsd/clone_file.h"
#include "fsd/errno.h"
#include "fsd/file_store.h"
#include "fsd/page_set.h"

namespace nram {

// The account of one file's pages: which of them count against the mount's limit, and the stored file that has their
// bytes. A page counts before it is written, so the pages that count are a superset of the stored ones; a file with
// pages has a stored file. Thread-safe. Its lock is held for moments, and over no wait for a server; it is the last to
// be taken.
//
// Ranges are bytes [offset, end); a page belongs to a range that touches it.
class FilePages {
 public:
  // `store` must outlive it.
  explicit FilePages(FileStore* store) : store_(store) {}
  // Gives all pages back to the limit. The stored file, if it is still here, stays in the store.
  ~FilePages();
  FilePages(const FilePages&) = delete;
  FilePages& operator=(const FilePages&) = delete;

  FileStore* store() const { return store_; }

  uint64_t Count() const;
  uint64_t Count(uint64_t offset, uint64_t end) const;
  // The stored file if the range has any page, else null: the range is a hole. Valid until TakeStored.
  BlockFile* FindStored(uint64_t offset, uint64_t end) const;
  // The stored file, null if there is none. Valid as long.
  BlockFile* stored() const;
  // Makes the stored file if there is none. After an error, *stored is unchanged.
  Errno MakeStored(BlockFile** stored);

  // Counts the range's pages, and makes the stored file if there is none. ENOSPC: the limit is reached. After an error,
  // nothing counts that did not before.
  Errno Take(uint64_t offset, uint64_t end, BlockFile** stored);
  // The pages that lie whole in the range count no more. Returns how many those were.
  uint64_t Return(uint64_t offset, uint64_t end);
  // The stored file as one that can share its pages: it becomes one, and is made if there is none. Earlier results of
  // FindStored and the like are of no use then, so nothing may be under way.
  CloneFile* MakeClone();
  // Counts the set's pages, all or none (ENOSPC).
  Errno TakeAll(const PageSet& pages);
  // Of the pages that lie whole in the range, only those in `kept` count on. Returns how many do no more.
  uint64_t ReturnAllBut(const PageSet& kept, uint64_t offset, uint64_t end);
  // Nothing counts any more, and the caller gets the stored file; null if there was none.
  std::unique_ptr<BlockFile> TakeStored();

  // The first page at or after `page` that counts, PageSet::kNone if there is none; the first that does not.
  uint64_t NextIn(uint64_t page) const;
  uint64_t NextOut(uint64_t page) const;

 private:
  Errno MakeStoredLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  FileStore* const store_;
  PageSet pages_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<BlockFile> stored_ ABSL_GUARDED_BY(mu_);
  mutable SharedGate mu_;  // always taken exclusively: a mutex in four bytes
};

}  // namespace nram

#endif  // NRAM_FSD_FILE_PAGES_H_
