#ifndef NRAM_MEMSERVER_PAYMENT_H_
#define NRAM_MEMSERVER_PAYMENT_H_

// How a request pays for memory that it takes, and gets memory back that it gives up.

#include <cstdint>

namespace nram {

class ArenaAccount;
class FrameArena;

// A lease's reservation: memory that is reserved and not used yet. Fields belong to the arena.
class ArenaReservation {
 public:
  // The server's own, without an account.
  ArenaReservation() = default;
  explicit ArenaReservation(ArenaAccount* account) : account_(account) {}

 private:
  friend class FrameArena;
  ArenaAccount* const account_ = nullptr;
  uint64_t left_bytes_ = 0;
  bool closed_ = false;
};

// Pays for the memory that one request takes. A reservation pays first, up to a limit; the rest comes out of free
// memory. Used by one thread at a time; does not own the reservation.
class Payment {
 public:
  // Without a reservation.
  Payment() = default;
  explicit Payment(ArenaReservation* reservation, uint64_t limit_bytes = ~uint64_t{0})
      : reservation_(reservation), limit_bytes_(limit_bytes), pays_(reservation != nullptr) {}

  // Begins a step that takes at most `bytes_max`. If the limit allows that, the reservation pays in this step, whatever
  // the step really takes. The next step looks at the limit again.
  void BeginStep(uint64_t bytes_max) { pays_ = reservation_ != nullptr && paid_bytes_ + bytes_max <= limit_bytes_; }
  // Whether the reservation pays in this step, as long as it has enough left.
  bool pays() const { return pays_; }
  // The bytes that the reservation has paid in all steps.
  uint64_t paid_bytes() const { return paid_bytes_; }

 private:
  friend class FrameArena;

  ArenaReservation* reservation_ = nullptr;
  uint64_t limit_bytes_ = 0;
  uint64_t paid_bytes_ = 0;
  bool pays_ = false;
};

// Adds the memory that one request gives up to its lease's reservation, so that no other client can take it. Used by
// one thread at a time; does not own the reservation.
class Refund {
 public:
  // If `reservation` is null, the memory is free for all.
  explicit Refund(ArenaReservation* reservation) : reservation_(reservation) {}

  uint64_t kept_bytes() const { return kept_bytes_; }

 private:
  friend class FrameArena;

  ArenaReservation* const reservation_;
  uint64_t kept_bytes_ = 0;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_PAYMENT_H_
