#include "fsd/file_store.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "fsd/file_data.h"

namespace nram {

FileStore::FileStore(BlockStore* blocks, uint64_t bytes_max)
    : blocks_(blocks),
      unit_bytes_(blocks->unit_bytes()),
      keeps_room_(blocks->keeps_room()),
      quota_(bytes_max / kPageBytes),
      reclaimer_(&blocks_) {}

std::unique_ptr<FileBody> FileStore::NewFile() { return std::make_unique<FileData>(this); }

void FileStore::Bury(std::unique_ptr<FileBody> file) {
  std::unique_ptr<BlockFile> stored = static_cast<FileData*>(file.get())->TakeStored();
  if (stored != nullptr) reclaimer_.Free(std::move(stored));
}

StoreCapacity FileStore::Capacity() const {
  const StoreCapacity store = blocks_.Capacity();
  return {std::min(quota_.max() * kPageBytes, store.total_bytes),
          std::min(quota_.left() * kPageBytes, store.free_bytes)};
}

}  // namespace nram
