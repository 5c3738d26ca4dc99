#ifndef NRAM_MEMSERVER_PAYMENT_H_
#define NRAM_MEMSERVER_PAYMENT_H_

// How a request pays for the room that it takes, and where the room goes that it gives up.

#include <cstdint>

namespace nram {

class FrameArena;

// Room that was reserved and not used yet. Fields belong to the arena.
class ArenaPromise {
 private:
  friend class FrameArena;
  uint64_t left_bytes_ = 0;
  bool closed_ = false;
};

// Pays for the room that one request takes. A promise pays first, up to a limit; the rest comes out of room that is
// promised to nobody. Used by one thread at a time; does not own the promise.
class Payment {
 public:
  // Without a promise.
  Payment() = default;
  explicit Payment(ArenaPromise* promise, uint64_t limit_bytes = ~uint64_t{0})
      : promise_(promise), limit_bytes_(limit_bytes), pays_(promise != nullptr) {}

  // Begins a step that takes at most `bytes_max`. If the limit leaves room for all of that, the promise pays in this
  // step, whatever it really takes; the next step looks at the limit again.
  void BeginStep(uint64_t bytes_max) { pays_ = promise_ != nullptr && paid_bytes_ + bytes_max <= limit_bytes_; }
  // Whether the promise pays in this step, as long as it has enough left.
  bool pays() const { return pays_; }
  // What the promise has paid in all steps.
  uint64_t paid_bytes() const { return paid_bytes_; }

 private:
  friend class FrameArena;

  ArenaPromise* promise_ = nullptr;
  uint64_t limit_bytes_ = 0;
  uint64_t paid_bytes_ = 0;
  bool pays_ = false;
};

// Keeps the room that one request gives up promised to its lease, so that nobody else can take it. Used by one thread
// at a time; does not own the promise.
class Refund {
 public:
  // If `promise` is null, the room is free for all.
  explicit Refund(ArenaPromise* promise) : promise_(promise) {}

  uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  friend class FrameArena;

  ArenaPromise* const promise_;
  uint64_t kept_bytes_ = 0;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_PAYMENT_H_
