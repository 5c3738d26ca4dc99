#include "fsd/relocating_store.h"

#include <glog/logging.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <utility>

#include "base/clock.h"
#include "base/status.h"
#include "base/sync.h"
#include "base/units.h"

namespace nram {
namespace {

constexpr uint8_t kLayersMax = 64;  // servers' deaths that a file outlives
// After this time, a write tries no further layer: other writes wait behind it, and the kernel.
constexpr int64_t kElsewhereMs = 10'000;
// After kBarrenMax layers in which nothing could be stored, the next one is made kBarrenNs later.
constexpr int kBarrenMax = 3;
constexpr int64_t kBarrenNs = 10 * kNsPerSecond;

// Whether a write may succeed elsewhere: its server is gone, not slow or full.
bool IsLost(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
}

class RelocatingFile : public BlockFile {
 public:
  RelocatingFile(BlockStore* store, std::unique_ptr<BlockFile> first) : store_(store) { layers_[0] = std::move(first); }

  bool Start(BlockIo* io) override {
    if (io->waited_for()) {
      io->End(io->op() == BlockIo::Op::kRead ? ReadRuns(io->offset(), io->to())
                                             : WriteRuns(io->offset(), io->from(), io->earlier_failure()));
      return true;
    }
    // Without waiting, one run can be had: it is the layer's own operation.
    const uint8_t layer = LayerOf(io->offset() / kPageBytes);
    return RunEnd(io->offset(), io->end(), layer) == io->end() && layers_[layer]->Start(io);
  }
  bool RewriteMayHelp(const absl::Status& failed) const override { return IsLost(failed); }

  absl::Status Trim(uint64_t offset, uint64_t length) override {
    absl::Status status;
    const uint8_t count = count_.load(std::memory_order_acquire);
    for (uint8_t layer = 0; layer < count; ++layer) {
      const absl::Status trimmed = layers_[layer]->Trim(offset, length);
      // Lost pages need not be freed.
      if (!IsLost(trimmed)) status.Update(trimmed);
    }
    return status;
  }

  absl::Status Reserve(uint64_t offset, uint64_t length) override {
    NRAM_RETURN_IF_ERROR(layers_[0]->Reserve(offset, length));
    MutexLock lock(&mu_);
    const uint64_t pages = (offset + length + kPageBytes - 1) / kPageBytes;
    // The range is not in use yet, so no operation looks at layer_of_ meanwhile.
    if (pages > layer_of_.size()) {
      std::vector<std::atomic<uint8_t>> larger(pages);
      for (size_t i = 0; i < layer_of_.size(); ++i) larger[i] = layer_of_[i].load();
      layer_of_.swap(larger);
    }
    return absl::OkStatus();
  }
  void Unreserve(uint64_t offset, uint64_t length) override { layers_[0]->Unreserve(offset, length); }
  void UnreserveAll() override { layers_[0]->UnreserveAll(); }

  void TakeLayers(std::vector<std::unique_ptr<BlockFile>>* files) {
    for (uint8_t layer = 0; layer < count_; ++layer) files->push_back(std::move(layers_[layer]));
  }

 private:
  absl::Status ReadRuns(uint64_t offset, absl::Span<std::byte> to) {
    return ForEachRun(offset, to.size(), [&](BlockFile* file, uint8_t, uint64_t at, uint64_t bytes) {
      return file->Read(at, to.subspan(at - offset, bytes));
    });
  }
  absl::Status WriteRuns(uint64_t offset, absl::Span<const std::byte> from, const absl::Status& earlier_failure) {
    return ForEachRun(offset, from.size(), [&](BlockFile* file, uint8_t layer, uint64_t at, uint64_t bytes) {
      const absl::Span<const std::byte> part = from.subspan(at - offset, bytes);
      // A lost server is not tried again: that would take an operation's time once more. A full one may have room by
      // now.
      const absl::Status status = IsLost(earlier_failure) ? earlier_failure : file->Write(at, part);
      return WriteElsewhere(layer, at, part, status);
    });
  }
  // Pages beyond the reserved range stay in the first layer.
  uint8_t LayerOf(uint64_t page) const {
    return page < layer_of_.size() ? layer_of_[page].load(std::memory_order_acquire) : 0;
  }
  void SetLayer(uint64_t offset, uint64_t bytes, uint8_t layer) {
    for (uint64_t page = offset / kPageBytes; page < (offset + bytes) / kPageBytes; ++page) {
      layer_of_[page].store(layer, std::memory_order_release);
    }
  }
  // The pages from `offset` on are in `layer` up to here, or up to `end`.
  uint64_t RunEnd(uint64_t offset, uint64_t end, uint8_t layer) const {
    uint64_t page = offset / kPageBytes;
    while (page * kPageBytes < end && LayerOf(page) == layer) ++page;
    return std::min(page * kPageBytes, end);
  }
  template <typename Act>
  absl::Status ForEachRun(uint64_t offset, uint64_t length, const Act& act) {
    for (uint64_t at = offset; at < offset + length;) {
      const uint8_t layer = LayerOf(at / kPageBytes);
      const uint64_t end = RunEnd(at, offset + length, layer);
      NRAM_RETURN_IF_ERROR(act(layers_[layer].get(), layer, at, end - at));
      at = end;
    }
    return absl::OkStatus();
  }

  // `status` is the result of the write in `layer`. If the server is lost, the next layers are tried. Returns the
  // result of the last try.
  absl::Status WriteElsewhere(uint8_t layer, uint64_t at, absl::Span<const std::byte> part, absl::Status status) {
    // Part of a page cannot go elsewhere without the rest. The layer of pages beyond the reserved range has no place in
    // layer_of_.
    const uint64_t end = at + part.size();
    if (at % kPageBytes != 0 || end % kPageBytes != 0 || end / kPageBytes > layer_of_.size()) return status;
    const int64_t give_up_ns = DeadlineAfterMs(kElsewhereMs);
    while (IsLost(status) && layer + 1 < kLayersMax && MonotonicNs() < give_up_ns) {
      NRAM_ASSIGN_OR_RETURN(layer, NextLayer(layer, status));
      status = layers_[layer]->Write(at, part);
      if (!status.ok()) continue;
      SetLayer(at, part.size(), layer);
      barren_ = 0;
    }
    return status;
  }

  // The number of the layer after `after`, which is made if there is none. `status`, if another layer would be of no
  // use now.
  absl::StatusOr<uint8_t> NextLayer(uint8_t after, const absl::Status& status) {
    MutexLock lock(&mu_);
    const auto next = static_cast<uint8_t>(after + 1);
    if (next == count_) {
      // Nothing could be stored in the last layers: perhaps no server is there at all.
      if (barren_ >= kBarrenMax && MonotonicNs() < last_made_ns_ + kBarrenNs) return status;
      ++barren_;
      last_made_ns_ = MonotonicNs();
      NRAM_ASSIGN_OR_RETURN(layers_[next], store_->Create());
      count_.store(static_cast<uint8_t>(next + 1), std::memory_order_release);
      LOG(WARNING) << "a server is lost: new writes use other servers, layer " << static_cast<int>(next);
    }
    return next;
  }

  BlockStore* const store_;
  Mutex mu_;
  // A layer is set before count_ rises to it, and never changes.
  std::array<std::unique_ptr<BlockFile>, kLayersMax> layers_;
  std::atomic<uint8_t> count_{1};
  std::atomic<int> barren_{0};  // layers made since the last write that succeeded in a new one
  int64_t last_made_ns_ ABSL_GUARDED_BY(mu_) = 0;
  std::vector<std::atomic<uint8_t>> layer_of_;  // for each page; Reserve sizes it before the pages are used
};

class RelocatingStore : public BlockStore {
 public:
  size_t unit_bytes() const override { return inner_->unit_bytes(); }
  bool keeps_room() const override { return inner_->keeps_room(); }
  explicit RelocatingStore(std::unique_ptr<BlockStore> inner) : inner_(std::move(inner)) {}

  absl::StatusOr<std::unique_ptr<BlockFile>> Create() override {
    NRAM_ASSIGN_OR_RETURN(std::unique_ptr<BlockFile> first, inner_->Create());
    return std::make_unique<RelocatingFile>(inner_.get(), std::move(first));
  }
  std::unique_ptr<StoreIo> NewIo() override { return inner_->NewIo(); }
  void Destroy(std::vector<std::unique_ptr<BlockFile>> files) override {
    std::vector<std::unique_ptr<BlockFile>> layers;
    for (auto& file : files) static_cast<RelocatingFile*>(file.get())->TakeLayers(&layers);
    inner_->Destroy(std::move(layers));
  }
  StoreCapacity Capacity() const override { return inner_->Capacity(); }

 private:
  const std::unique_ptr<BlockStore> inner_;
};

}  // namespace

std::unique_ptr<BlockStore> NewRelocatingStore(std::unique_ptr<BlockStore> inner) {
  return std::make_unique<RelocatingStore>(std::move(inner));
}

}  // namespace nram
