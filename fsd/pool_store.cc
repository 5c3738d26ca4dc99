#include "fsd/pool_store.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace nram {
namespace {

constexpr IoOptions kStartOptions{.io_class = IoClass::kUrgent, .start_may_block = false};

// At most 64 KiB lie in two messages.
struct PoolIo : BlockIo {
  Io io{2};
};

void OnDone(Io* io, void* context) {
  auto* const pool_io = static_cast<PoolIo*>(context);
  pool_io->done(pool_io, io->Wait());
}

class PoolFile : public BlockFile {
 public:
  PoolFile(std::unique_ptr<Region> region, Region::TrimRoom room) : region_(std::move(region)), room_(room) {}

  absl::Status Read(uint64_t offset, absl::Span<std::byte> to) override { return region_->Read(offset, to); }
  absl::Status Write(uint64_t offset, absl::Span<const std::byte> from) override {
    return region_->Write(offset, from);
  }
  bool StartRead(BlockIo* io, uint64_t offset, absl::Span<std::byte> to) override {
    auto* const pool_io = static_cast<PoolIo*>(io);
    region_->StartRead(&pool_io->io, offset, to, kStartOptions, &OnDone, pool_io);
    return true;
  }
  bool StartWrite(BlockIo* io, uint64_t offset, absl::Span<const std::byte> from) override {
    auto* const pool_io = static_cast<PoolIo*>(io);
    region_->StartWrite(&pool_io->io, offset, from, kStartOptions, &OnDone, pool_io);
    return true;
  }
  absl::Status Trim(uint64_t offset, uint64_t length) override { return region_->Trim(offset, length, {}, room_); }
  absl::Status Reserve(uint64_t offset, uint64_t length) override { return region_->Reserve(offset, length); }
  void Unreserve(uint64_t bytes) override {
    if (room_ == Region::TrimRoom::kFree) region_->Unreserve(bytes);
  }

  std::unique_ptr<Region> region_;
  const Region::TrimRoom room_;
};

class PoolStore : public BlockStore {
 public:
  PoolStore(Pool* pool, bool gc, bool keep_room)
      : pool_(pool), options_{.gc = gc}, trim_room_(keep_room ? Region::TrimRoom::kKeep : Region::TrimRoom::kFree) {}

  absl::StatusOr<std::unique_ptr<BlockFile>> Create() override {
    NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Region> region, pool_->CreateRegion(options_));
    return std::make_unique<PoolFile>(std::move(region), trim_room_);
  }

  std::unique_ptr<BlockIo> NewIo() override { return std::make_unique<PoolIo>(); }

  void Destroy(std::vector<std::unique_ptr<BlockFile>> files) override {
    std::vector<std::unique_ptr<Region>> regions;
    regions.reserve(files.size());
    for (auto& file : files) regions.push_back(std::move(static_cast<PoolFile*>(file.get())->region_));
    const absl::Status status = pool_->DestroyRegions(regions);
    if (!status.ok()) {
      LOG_EVERY_N(WARNING, 100) << "freeing what was deleted: " << status;
    }
  }

  StoreCapacity Capacity() const override {
    StoreCapacity sum;
    for (size_t i = 0; i < pool_->server_count(); ++i) {
      const ServerLink* const link = pool_->link(i);
      if (!link->up()) continue;
      const ServerCapacity capacity = link->capacity();
      // Without what the server takes for itself: an empty mount shows as empty.
      sum.total_bytes += capacity.donated_bytes - std::min(capacity.donated_bytes, capacity.overhead_bytes);
      sum.free_bytes += capacity.free_bytes + static_cast<uint64_t>(std::max<int64_t>(link->room()->free_bytes(), 0));
    }
    return sum;
  }

 private:
  Pool* const pool_;
  const RegionOptions options_;
  const Region::TrimRoom trim_room_;
};

}  // namespace

std::unique_ptr<BlockStore> NewPoolStore(Pool* pool, bool gc, bool keep_room) {
  return std::make_unique<PoolStore>(pool, gc, keep_room);
}

}  // namespace nram
