#include "fsd/file_store.h"

#include <algorithm>
#include <utility>

#include "base/units.h"
#include "fsd/file_data.h"

namespace nram {

namespace {

// A page that is alone in its span, sealed and with a copy; and one of many.
constexpr uint64_t kLonePageMemory = 700;
constexpr uint64_t kPageMemory = 16;

}  // namespace

FileStore::FileStore(BlockStore* blocks, uint64_t bytes_max, MemoryBound* memory)
    : blocks_(blocks),
      unit_bytes_(blocks->unit_bytes()),
      keeps_room_(blocks->keeps_room()),
      memory_(memory),
      quota_(bytes_max / kPageBytes),
      reclaimer_(&blocks_) {}

std::unique_ptr<FileBody> FileStore::NewFile() { return std::make_unique<FileData>(this); }

bool FileStore::MayGrow(uint64_t pages) {
  return memory_ == nullptr || memory_->TryGrow(kLonePageMemory + std::min(pages, UINT64_MAX / 32) * kPageMemory);
}

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
