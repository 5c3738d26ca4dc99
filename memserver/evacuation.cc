// How the arena empties extents (frame_arena.h). It knows which frames are in use, and not which entries name them: the
// compactor moves them.

#include <poll.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "memserver/frame_arena.h"

namespace nram {

uint64_t FrameArena::ReleaseSpare(uint64_t bytes, int64_t deadline_ns) {
  uint64_t released = 0;
  while (true) {
    {
      MutexLock lock(&mu_);
      for (int i = 0; i < kReleaseStep && released < bytes && !spare_extents_.empty(); ++i) {
        ReleaseSpareLocked();
        released += kExtentBytes;
      }
      if (released >= bytes || spare_extents_.empty()) return released;
    }
    if (MonotonicNs() >= deadline_ns) return released;
    poll(nullptr, 0, 1);
  }
}

uint64_t FrameArena::ScatteredBytes() const {
  MutexLock lock(&mu_);
  const uint64_t in_use = (extents_backed_ - spare_extents_.size()) * kExtentBytes;
  return (in_use - frame_bytes_) / kExtentBytes * kExtentBytes;
}

uint64_t FrameArena::SpareBytes() const {
  MutexLock lock(&mu_);
  return spare_extents_.size() * kExtentBytes;
}

bool FrameArena::IsInUse(uint32_t extent) const {
  MutexLock lock(&mu_);
  return extent_used_bytes_[extent] > 0;
}

std::vector<uint32_t> FrameArena::EmptiestExtents(size_t most) const {
  std::vector<uint32_t> used;
  {
    MutexLock lock(&mu_);
    used = extent_used_bytes_;
  }
  std::vector<uint32_t> extents;
  extents.reserve(used.size());
  for (uint32_t extent = 0; extent < used.size(); ++extent) {
    if (used[extent] == 0 || used[extent] > kExtentBytes - kPageBytes) continue;
    if (!is_evacuating_[extent].load(std::memory_order_relaxed)) extents.push_back(extent);
  }
  const auto emptier = [&](uint32_t a, uint32_t b) { return std::pair(used[a], a) < std::pair(used[b], b); };
  most = std::min(most, extents.size());
  std::partial_sort(extents.begin(), extents.begin() + most, extents.end(), emptier);
  extents.resize(most);
  return extents;
}

void FrameArena::SetEvacuatingLocked(uint32_t extent, bool evacuating) {
  is_evacuating_[extent].store(evacuating, std::memory_order_relaxed);
  evacuating_count_.store(evacuating_count_.load(std::memory_order_relaxed) + (evacuating ? 1 : -1),
                          std::memory_order_relaxed);
}

void FrameArena::HideLocked(uint32_t extent) {
  for (uint32_t index = extent * kSlabsPerExtent; index < (extent + 1) * kSlabsPerExtent; ++index) {
    const Slab& hidden = slab(index);
    if (hidden.chunks == 0) {
      RemoveLocked(&free_slabs_, index);
      --slabs_free_;
      continue;
    }
    if (hidden.free_count > 0) RemoveLocked(&partial_[hidden.chunks], index);
    frames_free_[hidden.chunks] -= hidden.free_count;
    frames_to_move_[hidden.chunks] += FramesPerSlab(hidden.chunks) - hidden.free_count;
  }
  SetEvacuatingLocked(extent, true);
}

void FrameArena::ShowLocked(uint32_t extent) {
  for (uint32_t index = extent * kSlabsPerExtent; index < (extent + 1) * kSlabsPerExtent; ++index) {
    const Slab& shown = slab(index);
    if (shown.chunks == 0) {
      PushLocked(&free_slabs_, index);
      ++slabs_free_;
      continue;
    }
    if (shown.free_count > 0) PushLocked(&partial_[shown.chunks], index);
    frames_free_[shown.chunks] += shown.free_count;
    frames_to_move_[shown.chunks] -= FramesPerSlab(shown.chunks) - shown.free_count;
  }
  SetEvacuatingLocked(extent, false);
}

bool FrameArena::EvacuationFitsLocked() const {
  uint64_t slabs = 0;
  uint64_t data_bytes = frames_to_move_[kClasses] * kPageBytes;
  for (int chunks = 1; chunks <= kClasses; ++chunks) {
    if (frames_to_move_[chunks] <= frames_free_[chunks]) continue;
    const uint64_t per_slab = FramesPerSlab(chunks);
    const uint64_t opened = (frames_to_move_[chunks] - frames_free_[chunks] + per_slab - 1) / per_slab;
    slabs += opened;
    if (chunks < kClasses) data_bytes += opened * kSlabBytes;
  }
  // Frames do not move into spare extents: these go back to the host.
  return slabs <= slabs_free_ - spare_extents_.size() * kSlabsPerExtent &&
         DemandLocked(data_bytes, 0) <= ceiling_bytes_;
}

FrameArena::Evacuation FrameArena::BeginEvacuation(uint32_t extent) {
  MutexLock lock(&mu_);
  if (extent_used_bytes_[extent] == 0 || IsEvacuatingLocked(extent)) return Evacuation::kPinned;
  // The slack has room for one slab a class that is not paid. If that were put aside, the next one would be too much.
  for (const uint32_t unpaid : unpaid_slab_) {
    if (unpaid != kNone && unpaid / kSlabsPerExtent == extent) return Evacuation::kPinned;
  }
  HideLocked(extent);
  if (!EvacuationFitsLocked()) {
    ShowLocked(extent);
    return Evacuation::kNoRoom;
  }
  evacuating_.push_back(extent);
  return Evacuation::kBegun;
}

size_t FrameArena::GiveUpEvacuationLocked() {
  size_t given_up = 0;
  for (const uint32_t extent : evacuating_) {
    if (!IsEvacuatingLocked(extent)) continue;
    ShowLocked(extent);
    ++given_up;
  }
  evacuating_.clear();
  return given_up;
}

FrameArena::Evacuated FrameArena::EndEvacuation() {
  MutexLock lock(&mu_);
  Evacuated result{.emptied = std::exchange(emptied_, 0)};
  for (const uint32_t extent : evacuating_) {
    if (IsEvacuatingLocked(extent)) result.left.push_back(extent);
  }
  GiveUpEvacuationLocked();
  return result;
}

FrameLoc FrameArena::AllocateElsewhere(FrameLoc frame) {
  MutexLock lock(&mu_);
  const int chunks = slab(static_cast<uint32_t>(frame / kChunksPerSlab)).chunks;
  const bool opens_slab = partial_[chunks] == kNone;
  if (opens_slab && free_slabs_ == kNone) return kNoFrame;
  const uint64_t data_needed = opens_slab ? kSlabBytes : chunks == kClasses ? kPageBytes : 0;
  if (data_needed > 0 && !MakeRoomLocked(data_needed, 0)) return kNoFrame;
  if (!MayTakeUnpaidLocked(chunks)) return kNoFrame;
  return TakeFrameLocked(opens_slab ? OpenSlabLocked(chunks) : partial_[chunks]);
}

}  // namespace nram
