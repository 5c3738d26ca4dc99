#ifndef NRAM_FSD_FILE_STORE_H_
#define NRAM_FSD_FILE_STORE_H_

#include <cstdint>
#include <memory>

#include "fsd/block_file.h"
#include "fsd/clone_file.h"
#include "fsd/failed_pages.h"
#include "fsd/memory_bound.h"
#include "fsd/namespace.h"
#include "fsd/page_quota.h"
#include "fsd/promises.h"
#include "fsd/reclaimer.h"

namespace nram {

// Everything that the data of all files stands on: the store of their bytes, the mount's limit, and the freeing of
// deleted files. Thread-safe.
class FileStore {
 public:
  // At most `bytes_max` of data. `blocks` and `memory` must outlive it; null: the memory for bookkeeping has no bound.
  FileStore(BlockStore* blocks, uint64_t bytes_max, MemoryBound* memory = nullptr);

  // A FileData without bytes. The FileStore must outlive it.
  std::unique_ptr<FileBody> NewFile();
  // Takes a file of NewFile that is not in use any more, and frees its bytes in the background, soon. Does not block.
  void Bury(std::unique_ptr<FileBody> file);
  // From now on, the bytes of files that are buried stay in the store.
  void StopFreeing() { reclaimer_.StopFreeing(); }

  // The answer of statfs: at most the limit, and at most the store's.
  StoreCapacity Capacity() const;

  BlockStore* blocks() { return &blocks_; }
  // BlockStore::unit_bytes.
  size_t unit_bytes() const { return unit_bytes_; }
  // BlockStore::keeps_room.
  bool keeps_room() const { return keeps_room_; }
  PageQuota* quota() { return &quota_; }
  // False: there is no memory for the bookkeeping of so many new pages in a file.
  bool MayGrow(uint64_t pages);
  Promises* promises() { return &promises_; }
  Reclaimer* reclaimer() { return &reclaimer_; }
  FailedPages* failed_pages() { return &failed_pages_; }

 private:
  CloningStore blocks_;
  const size_t unit_bytes_;
  const bool keeps_room_;
  MemoryBound* const memory_;
  PageQuota quota_;
  Promises promises_;
  FailedPages failed_pages_;
  Reclaimer reclaimer_;
};

}  // namespace nram

#endif  // NRAM_FSD_FILE_STORE_H_
