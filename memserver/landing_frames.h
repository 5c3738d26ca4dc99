#ifndef NRAM_MEMSERVER_LANDING_FRAMES_H_
#define NRAM_MEMSERVER_LANDING_FRAMES_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/sync.h"
#include "memserver/frame_arena.h"

namespace nram {

// How many landing frames a tenant, or a lease, holds. The lock of LandingFrames guards it.
class LandingShare {
 private:
  friend class LandingFrames;
  uint32_t held_ = 0;
};

// The shares that frames count in while they are out, and whether a page fault waits for them. Without shares: the
// server's own. Owns nothing.
struct LandingTaker {
  LandingShare* tenant = nullptr;
  LandingShare* lease = nullptr;
  bool urgent = false;
};

// A fixed stock of whole frames; payloads are received into them. If a write keeps a frame, the frame that it displaced
// or a new one takes its place at once. So the stock never shrinks, and overwriting works on a full server.
//
// A taker with shares leaves frames for others, however long it keeps its own:
//   A lease holds a quarter of the stock at most.
//   A tenant holds three times as many as are left at most: alone, three quarters of the stock. Its first message needs
//   free frames alone.
//   Of its tenant's room, a bulk message leaves as much as it takes, and kUrgentRoom at least; an urgent one leaves
//   half as much as it takes.
// Thread-safe.
class LandingFrames {
 public:
  // Takes `frames` frames from the arena, or as many as it has (see size()).
  LandingFrames(FrameArena* arena, size_t frames);
  // `count`: kPagesPerMessage at most. False: too few frames are here, or the taker would exceed its shares. Try again
  // after others have given frames back.
  bool Take(size_t count, FrameLoc* frames, const LandingTaker& taker = {});
  // While extents are evacuated, frames in them are exchanged for others, here and by LeaveEvacuating.
  // `taker`: as at Take.
  void Give(const FrameLoc* frames, size_t count, const LandingTaker& taker = {});
  // Brings the frame of the next one-page write into this processor's caches. A displaced frame has long left them. For
  // when there is time.
  void Warm();
  // Exchanges the frames that lie in evacuating extents, as far as they are here and there are others.
  void LeaveEvacuating();
  size_t size() const { return size_; }

 private:
  static constexpr size_t kStep = 64;
  static constexpr int64_t kUrgentRoom = 16;

  bool MayTakeLocked(size_t count, const LandingTaker& taker) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void LeaveEvacuatingLocked(size_t from, size_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  FrameArena* const arena_;
  Mutex mu_;
  std::vector<FrameLoc> stock_ ABSL_GUARDED_BY(mu_);
  size_t size_ = 0;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_LANDING_FRAMES_H_
