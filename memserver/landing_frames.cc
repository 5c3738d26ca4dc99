#include "memserver/landing_frames.h"

#include <glog/logging.h>

#include <algorithm>

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
}

}  // namespace nram
