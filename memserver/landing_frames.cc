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

bool LandingFrames::MayTakeLocked(size_t count, const LandingTaker& taker) const {
  if (stock_.size() < count) return false;
  if (taker.tenant == nullptr) return true;
  if (taker.lease->held_ + count > std::max(size_ / 4, kPagesPerMessage)) return false;
  const auto held = static_cast<int64_t>(taker.tenant->held_ + count);
  if (held <= static_cast<int64_t>(kPagesPerMessage)) return true;
  const auto left = static_cast<int64_t>(stock_.size() - count);
  const int64_t room = (3 * left - held) / 4;  // that the tenant may still take then
  const auto pages = static_cast<int64_t>(count);
  return room >= (taker.urgent ? pages / 2 : std::max(pages, kUrgentRoom));
}

bool LandingFrames::Take(size_t count, FrameLoc* frames, const LandingTaker& taker) {
  MutexLock lock(&mu_);
  if (!MayTakeLocked(count, taker)) return false;
  if (taker.tenant != nullptr) {
    taker.tenant->held_ += static_cast<uint32_t>(count);
    taker.lease->held_ += static_cast<uint32_t>(count);
  }
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

void LandingFrames::Give(const FrameLoc* frames, size_t count, const LandingTaker& taker) {
  MutexLock lock(&mu_);
  CHECK_LE(stock_.size() + count, size_);
  if (taker.tenant != nullptr) {
    CHECK(taker.tenant->held_ >= count && taker.lease->held_ >= count);
    taker.tenant->held_ -= static_cast<uint32_t>(count);
    taker.lease->held_ -= static_cast<uint32_t>(count);
  }
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
