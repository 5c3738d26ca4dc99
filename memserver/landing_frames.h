#ifndef NRAM_MEMSERVER_LANDING_FRAMES_H_
#define NRAM_MEMSERVER_LANDING_FRAMES_H_

#include <cstddef>
#include <vector>

#include "base/sync.h"
#include "memserver/frame_arena.h"

namespace nram {

// A fixed stock of whole frames; payloads are received into them. If a write keeps a frame, the frame that it displaced
// or a new one takes its place at once. So the stock never shrinks, and overwriting works on a full server.
// Thread-safe.
class LandingFrames {
 public:
  // Takes `frames` frames from the arena, or as many as it has (see size()).
  LandingFrames(FrameArena* arena, size_t frames);
  // False: fewer than `count` and `leave` frames are here. Try again after others have given frames back.
  bool Take(size_t count, FrameLoc* frames, size_t leave = 0);
  // While extents are evacuated, frames in them are exchanged for others, here and by LeaveEvacuating.
  void Give(const FrameLoc* frames, size_t count);
  // Brings the frame of the next one-page write into this processor's caches. A displaced frame has long left them. For
  // when there is time.
  void Warm();
  // Exchanges the frames that lie in evacuating extents, as far as they are here and there are others.
  void LeaveEvacuating();
  size_t size() const { return size_; }

 private:
  static constexpr size_t kStep = 64;

  void LeaveEvacuatingLocked(size_t from, size_t end) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  FrameArena* const arena_;
  Mutex mu_;
  std::vector<FrameLoc> stock_ ABSL_GUARDED_BY(mu_);
  size_t size_ = 0;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_LANDING_FRAMES_H_
