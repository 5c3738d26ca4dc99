#include "fsd/pool_store.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "base/units.h"
#include "client/pool/room.h"

namespace nram {
namespace {

constexpr IoOptions kStartOptions{.io_class = IoClass::kUrgent};

// At most 64 KiB lie in two messages.
struct PoolIo : StoreIo {
  Io io{2};
};

void OnDone(Io* io, void* block_io) { static_cast<BlockIo*>(block_io)->End(io->Wait()); }

class PoolFile : public BlockFile {
 public:
  PoolFile(std::unique_ptr<Region> region, Region::TrimRoom room) : region_(std::move(region)), room_(room) {}

  bool Start(BlockIo* io) override {
    const bool reads = io->op() == BlockIo::Op::kRead;
    if (io->waited_for()) {
      // The pool's own wait: the calling thread receives the answers itself, in as many messages as the pool allows.
      io->End(reads ? region_->Read(io->offset(), io->to()) : region_->Write(io->offset(), io->from()));
      return true;
    }
    Io* const pool_io = &static_cast<PoolIo*>(io->part())->io;
    if (reads) {
      region_->StartRead(pool_io, io->offset(), io->to(), kStartOptions, &OnDone, io);
    } else {
      region_->StartWrite(pool_io, io->offset(), io->from(), kStartOptions, &OnDone, io);
    }
    return true;
  }
  absl::Status Trim(uint64_t offset, uint64_t length) override { return region_->Trim(offset, length, {}, room_); }
  absl::Status Reserve(uint64_t offset, uint64_t length) override { return region_->Reserve(offset, length); }
  void Unreserve(uint64_t offset, uint64_t length) override {
    if (room_ == Region::TrimRoom::kFree) region_->Unreserve(offset, length);
  }
  void UnreserveAll() override {
    if (room_ == Region::TrimRoom::kFree) region_->UnreserveAll();
  }

  std::unique_ptr<Region> region_;
  const Region::TrimRoom room_;
};

class PoolStore : public BlockStore {
 public:
  PoolStore(Pool* pool, const PoolStoreOptions& options)
      : pool_(pool),
        options_{.gc = options.gc, .copies = options.copies, .seal = options.seal},
        sealed_(options.seal == Seal::kAuto ? pool->seals() : options.seal == Seal::kYes),
        trim_room_(options.keep_room ? Region::TrimRoom::kKeep : Region::TrimRoom::kFree) {}

  absl::StatusOr<std::unique_ptr<BlockFile>> Create() override {
    NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Region> region, pool_->CreateRegion(options_));
    return std::make_unique<PoolFile>(std::move(region), trim_room_);
  }

  size_t unit_bytes() const override { return sealed_ ? kPageBytes : kChunkBytes; }
  bool keeps_room() const override { return trim_room_ == Region::TrimRoom::kKeep; }
  std::unique_ptr<StoreIo> NewIo() override { return std::make_unique<PoolIo>(); }

  void Destroy(std::vector<std::unique_ptr<BlockFile>> files) override {
    std::vector<std::unique_ptr<Region>> regions;
    regions.reserve(files.size());
    for (auto& file : files) regions.push_back(std::move(static_cast<PoolFile*>(file.get())->region_));
    const absl::Status status = Region::DestroyAll(regions);
    if (!status.ok()) {
      LOG_EVERY_N(WARNING, 100) << "freeing deleted files: " << status;
    }
  }

  StoreCapacity Capacity() const override {
    const PoolCapacity capacity = pool_->Capacity();
    return {Storable(capacity.total_bytes), Storable(capacity.free_bytes)};
  }

 private:
  // The bytes of files that fit into these of the servers at the dearest: pages with their share of the index. At each
  // server there may be less left than a span takes, which is then room for no span, and a new connection takes some.
  uint64_t Storable(uint64_t bytes) const {
    constexpr uint64_t kSpanPrice = kPagesPerSpan * Room::kBytesPerPage + Room::kBytesPerRegion;
    const uint64_t pieces = std::min(bytes, 4 * pool_->server_count() * kSpanPrice);
    const auto copies = static_cast<uint64_t>(options_.copies);
    return (bytes - pieces) / Room::kBytesPerPage / copies * kPageBytes;
  }

  Pool* const pool_;
  const RegionOptions options_;
  const bool sealed_;
  const Region::TrimRoom trim_room_;
};

}  // namespace

std::unique_ptr<BlockStore> NewPoolStore(Pool* pool, const PoolStoreOptions& options) {
  return std::make_unique<PoolStore>(pool, options);
}

}  // namespace nram
