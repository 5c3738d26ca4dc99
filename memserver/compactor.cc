#include "memserver/compactor.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "base/clock.h"
#include "base/plant.h"
#include "memserver/page_index.h"
#include "memserver/region_walk.h"
#include "memserver/store_counters.h"

namespace nram {

uint64_t Compactor::GainBytes() const { return arena_->SpareBytes() + arena_->ScatteredBytes(); }

uint64_t Compactor::Release(uint64_t bytes, int64_t deadline_ns) {
  const uint64_t released = arena_->ReleaseSpare(bytes, deadline_ns);
  if (released > 0) Count(&counters_.bytes_given_back, released);
  return released;
}

size_t Compactor::Choose(uint64_t want_bytes) {
  constexpr uint64_t kExtent = FrameArena::extent_size();
  const size_t wanted = std::min(arena_->ScatteredBytes() / kExtent, want_bytes / kExtent + (want_bytes % kExtent > 0));
  if (wanted == 0) return 0;
  size_t chosen = 0;
  int refused = 0;
  for (const uint32_t extent : arena_->EmptiestExtents(wanted + pinned_.size() + kRefusalsMax)) {
    if (chosen == wanted || refused == kRefusalsMax) break;
    if (pinned_.contains(extent)) continue;
    if (arena_->BeginEvacuation(extent) == FrameArena::Evacuation::kBegun) {
      ++chosen;
    } else {
      ++refused;
    }
  }
  return chosen;
}

FrameLoc Compactor::MovePage(FrameLoc frame, ChunkMask mask, Step* step) {
  if (!arena_->IsEvacuating(frame)) return frame;
  if (step->moves_left == 0) return kNoFrame;
  const FrameLoc to = arena_->AllocateElsewhere(frame);
  if (to == kNoFrame) {
    step->has_room = false;
    return kNoFrame;
  }
  const size_t bytes = std::popcount(mask) * kChunkBytes;
  memcpy(arena_->Data(to), arena_->Data(frame), NRAM_PLANTED(compaction_copies_less) ? bytes - kChunkBytes : bytes);
  arena_->Free(frame);
  --step->moves_left;
  Count(&counters_.pages_moved);
  Count(&counters_.bytes_moved, bytes);
  return to;
}

bool Compactor::Walk(uint64_t want_bytes, int64_t deadline_ns, uint64_t* given_bytes) {
  RegionWalk walk(regions_);
  StoredKey at{};
  uint64_t page = 0;  // of the head; then `delta` says where in the region's versions
  RegionVersions::DeltaCursor delta;
  bool more = true;
  while (more) {
    Step step;
    more = walk.Step([&](const StoredKey& key, StoredRegion* region) {
      if (step.looks_left == 0) return false;
      --step.looks_left;
      if (at != key) {
        page = 0;
        delta = {};
      }
      at = key;
      const auto move = [&](FrameLoc frame, ChunkMask mask) { return MovePage(frame, mask, &step); };
      if (page != PageIndex::kNoPage) page = region->index.MoveFrames(page, &step.looks_left, move);
      if (page != PageIndex::kNoPage) return false;
      if (region->versions == nullptr || NRAM_PLANTED(compactor_skips_deltas)) return true;
      return region->versions->MoveFrames(&delta, &step.looks_left, move);
    });
    if (*given_bytes < want_bytes) *given_bytes += Release(want_bytes - *given_bytes, deadline_ns);
    if (!step.has_room || MonotonicNs() >= deadline_ns) return false;
    if (arena_->evacuating_extents() == 0) return true;
  }
  return true;
}

uint64_t Compactor::Run(uint64_t want_bytes, int64_t deadline_ns) {
  MutexLock turn(&run_mu_);
  regions_->FreeSome(deadline_ns);
  uint64_t given_bytes = Release(want_bytes, deadline_ns);
  pinned_.clear();
  bool goes_on = true;
  for (int round = 0; round < kRoundsMax && goes_on && given_bytes < want_bytes; ++round) {
    if (MonotonicNs() >= deadline_ns) break;
    const size_t chosen = Choose(want_bytes - given_bytes);
    if (chosen == 0) break;
    Count(&counters_.runs);
    for (int i = 0; i < kWalksPerRound && goes_on && arena_->evacuating_extents() > 0; ++i) {
      if (landing_ != nullptr) landing_->LeaveEvacuating();
      goes_on = Walk(want_bytes, deadline_ns, &given_bytes);
    }
    const FrameArena::Evacuated done = arena_->EndEvacuation();
    pinned_.insert(done.left.begin(), done.left.end());
    Count(&counters_.extents_emptied, done.emptied);
    Count(&counters_.extents_given_up, chosen - done.emptied);
    if (given_bytes < want_bytes) given_bytes += Release(want_bytes - given_bytes, deadline_ns);
    // If a reservation needed the memory that was put aside, this is no time to try again.
    goes_on = goes_on && done.emptied > 0 && done.emptied + done.left.size() == chosen;
  }
  return given_bytes;
}

}  // namespace nram
