#ifndef NRAM_FSD_FILE_PAGES_H_
#define NRAM_FSD_FILE_PAGES_H_

#include <atomic>
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
// Some of these pages are promised: reserved in the store, and not written since. No write may use their room but one
// of the page itself, so other pages of such a file are reserved before they are written (NeedsRoom). A store that
// keeps its files' room promises nothing here.
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

  // Counts the pages of a range that is to be written, and makes the stored file if there is none. ENOSPC: the limit is
  // reached. After an error, nothing counts that did not before.
  Errno Take(uint64_t offset, uint64_t end, BlockFile** stored);
  // A write of pages that were taken has ended, well or not: they are promised no more. Not earlier, because until then
  // their room may be unused, and other writes would use it.
  void NoteUsed(uint64_t offset, uint64_t end);
  // The pages that lie whole in the range count no more.
  void Return(uint64_t offset, uint64_t end);

  // A write of the range would use room that is promised to other pages: reserve its pages first.
  bool NeedsRoom(uint64_t offset, uint64_t end) const;
  // Reserves the pages of the range that do not count yet, counts them, and promises them; all or none (ENOSPC). Waits
  // for the store, without the lock: meanwhile no other call may change the pages.
  Errno Reserve(uint64_t offset, uint64_t end);
  PageSet Promised(uint64_t offset, uint64_t end) const;
  // The pages that lie whole in the range are promised no more, and their room goes back to the store. They count on.
  // If none is promised then, so does all room that is left: pages of zeros that were written have used none of theirs.
  void Break(uint64_t offset, uint64_t end);

  // The stored file as one that can share its pages: it becomes one, and is made if there is none. Earlier results of
  // FindStored and the like are of no use then, so nothing may be under way.
  CloneFile* MakeClone();
  // Counts the set's pages, all or none (ENOSPC).
  Errno TakeAll(const PageSet& pages);
  // Of the pages that lie whole in the range, only those in `kept` count on.
  void ReturnAllBut(const PageSet& kept, uint64_t offset, uint64_t end);
  // Nothing counts any more, and the caller gets the stored file; null if there was none.
  std::unique_ptr<BlockFile> TakeStored();

  // The first page at or after `page` that counts, PageSet::kNone if there is none; the first that does not.
  uint64_t NextIn(uint64_t page) const;
  uint64_t NextOut(uint64_t page) const;

 private:
  // Makes the stored file if there is none. After an error, *stored is unchanged.
  Errno MakeStored(BlockFile** stored);
  Errno MakeStoredLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Errno Promise(const PageSet& pages);
  Errno TakeAllLocked(const PageSet& pages) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void BreakLocked(uint64_t first_page, uint64_t end_page) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  FileStore* const store_;
  PageSet pages_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<BlockFile> stored_ ABSL_GUARDED_BY(mu_);
  mutable SharedGate mu_;                       // always taken exclusively: a mutex in four bytes
  std::atomic<bool> has_promises_{false};       // in the store's Promises; changed under mu_
  bool has_room_ ABSL_GUARDED_BY(mu_) = false;  // the store may still have room that was reserved
};

}  // namespace nram

#endif  // NRAM_FSD_FILE_PAGES_H_
