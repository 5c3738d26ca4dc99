#ifndef NRAM_MEMSERVER_LANDING_FRAMES_H_
#define NRAM_MEMSERVER_LANDING_FRAMES_H_

#include <cstddef>
#include <vector>

#include "base/sync.h"
#include "memserver/frame_arena.h"

namespace nram {

// A fixed stock of whole frames that payloads are received into. A frame that a write keeps is replaced at once by the
// one it displaced or by a new one, so the stock never shrinks and overwriting works on a full server. Thread-safe.
class LandingFrames {
 public:
  // Takes `frames` from the arena; fewer if it has not that many (see size()).
  LandingFrames(FrameArena* arena, size_t frames);
  // False if not that many are there, and `leave` more; try again when others have given theirs back.
  bool Take(size_t count, FrameLoc* frames, size_t leave = 0);
  void Give(const FrameLoc* frames, size_t count);
  // Brings what the next one-page write lands in nearer to this processor: a frame that was displaced has long left its
  // caches. For when there is time.
  void Warm();
  size_t size() const { return size_; }

 private:
  FrameArena* const arena_;
  Mutex mu_;
  std::vector<FrameLoc> stock_ ABSL_GUARDED_BY(mu_);
  size_t size_ = 0;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_LANDING_FRAMES_H_
