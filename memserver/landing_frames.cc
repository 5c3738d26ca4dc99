#include "memserver/landing_frames.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

namespace nram {

LandingFrames::LandingFrames(FrameArena* arena, size_t frames) : arena_(arena) {
  MutexLock lock(&mu_);
  stock_.reserve(frames);
  while (stock_.size() < frames) {
    const FrameLoc frame = arena->Allocate(kChunksPerPage);
    if (frame == kNoFrame) break;
    stock_.push_back(frame);
  }
  size_ = stock_.size();
}

bool LandingFrames::Take(size_t count, FrameLoc* frames, size_t leave) {
  MutexLock lock(&mu_);
  if (stock_.size() < count + leave) return false;
  std::copy(stock_.end() - count, stock_.end(), frames);
  stock_.resize(stock_.size() - count);
  return true;
}

void LandingFrames::Warm() {
  FrameLoc next;
  {
    MutexLock lock(&mu_);
    if (stock_.empty()) return;
    next = stock_.back();
  }
  const std::byte* const frame = arena_->Data(next);
  for (size_t line = 0; line < kPageBytes; line += 64) __builtin_prefetch(frame + line, /*rw=*/1);
}

void LandingFrames::Give(const FrameLoc* frames, size_t count) {
  MutexLock lock(&mu_);
  CHECK_LE(stock_.size() + count, size_);
  stock_.insert(stock_.end(), frames, frames + count);
  // A frame that a write has displaced must not go to a page that the compactor has passed.
  if (arena_->evacuating_extents() > 0) LeaveEvacuatingLocked(stock_.size() - count, stock_.size());
}

void LandingFrames::LeaveEvacuatingLocked(size_t from, size_t end) {
  for (size_t i = from; i < end; ++i) {
    if (!arena_->IsEvacuating(stock_[i])) continue;
    const FrameLoc other = arena_->AllocateElsewhere(stock_[i]);
    if (other == kNoFrame) return;
    arena_->Free(std::exchange(stock_[i], other));
  }
}

void LandingFrames::LeaveEvacuating() {
  for (size_t from = 0; from < size_; from += kStep) {
    MutexLock lock(&mu_);
    // Others take and give frames at the end in between; Give exchanges those that it gets.
    LeaveEvacuatingLocked(std::min(from, stock_.size()), std::min(from + kStep, stock_.size()));
  }
}

}  // namespace nram
