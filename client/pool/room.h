#ifndef NRAM_CLIENT_POOL_ROOM_H_
#define NRAM_CLIENT_POOL_ROOM_H_

// A client's room at one server: its account of the reservation that its lease has there. Pure: it sends nothing, does
// not block and reads no clock.
//
//   the reservation = free + granted + reserved + unknown
//
//   free      can be granted
//   granted   writes under way may use it; it was taken from the free or the reserved room
//   reserved  is in the quotas of regions (region_room.h)
//   unknown   was granted to writes that had no answer; counts as used until an exact word of the server says otherwise
//
// All of it is of one term: of one granting of the lease in one life of the server. In another term none of it exists
// any more.

#include <atomic>
#include <cstdint>
#include <utility>

#include "base/sync.h"
#include "base/units.h"
#include "proto/price.h"

namespace nram {

// Thread-safe.
class Room {
 public:
  // The price list (proto/price.h), as this class needs it.
  static constexpr uint64_t kBytesPerPage = kReservationBytesPerPage;
  static constexpr uint64_t kBytesPerRegion = kReservationBytesPerRegion;
  static constexpr uint64_t kUsedBytesMax = kWriteUsesBytesMax;

  // Room for one write, which exactly one of Used, Unused and Unknown ends. Nothing, or moved from: false.
  class Grant {
   public:
    Grant() = default;
    Grant(Grant&& other) noexcept { *this = std::move(other); }
    Grant& operator=(Grant&& other) noexcept;
    ~Grant();  // CHECKs that it has ended

    explicit operator bool() const { return bytes_ > 0; }
    uint64_t bytes() const { return bytes_; }
    // Taken from a region's quota, which ends it.
    bool is_regions() const { return is_regions_; }
    uint32_t term() const { return term_; }
    // Makes one grant of two of the same room. If their terms differ, it has the older term: then nothing of it counts.
    void Absorb(Grant other);

   private:
    friend class Room;
    Grant(uint64_t bytes, uint32_t term, bool is_regions) : bytes_(bytes), term_(term), is_regions_(is_regions) {}
    void End() { bytes_ = 0; }

    uint64_t bytes_ = 0;
    uint32_t term_ = 0;
    bool is_regions_ = false;
  };

  Room() = default;
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;

  // --- A write's way.
  // Nothing if not that much is free.
  Grant TryTake(uint64_t bytes);
  // The write has used `used_bytes`: perhaps more than was granted, where an index cost more.
  void Used(Grant grant, uint64_t used_bytes);
  void Unused(Grant grant) { Used(std::move(grant), 0); }
  // It was sent and has no answer: counts as used.
  void Unknown(Grant grant) {
    const uint64_t bytes = grant.bytes();
    Used(std::move(grant), bytes);
  }
  // Below 0 if more was used than there was, or regions count on more than there is.
  int64_t free_bytes() const { return FreeOf(purse_.load(std::memory_order_relaxed)); }
  // In all regions' quotas.
  int64_t reserved_bytes() const {
    MutexLock lock(&mu_);
    return reserved_bytes_;
  }

  // --- Regions' quotas. A call for another term than the present changes nothing; then the answer is false, or
  // nothing.
  uint32_t Reserve(Grant grant);                        // granted to reserved; the term, or 0
  Grant TakeReserved(uint64_t bytes, uint32_t term);    // reserved to granted
  bool EndReserved(Grant grant, uint64_t used_bytes);   // the unused part back to reserved
  bool ReleaseReserved(uint64_t bytes, uint32_t term);  // reserved to free
  bool ChargeReserved(uint64_t bytes, uint32_t term);   // free to reserved: a region has used `bytes` more than it had
  void Charge(uint64_t bytes);                          // something has used `bytes` more than it was granted
  // Something that changes the reservation is under way, such as a trim with kFlagReservation. No word of the server is
  // exact before the same term's Unhold, which adds the gain to the reserved room.
  uint32_t Hold();
  bool Unhold(uint64_t reserved_bytes, uint32_t term);
  // A hold goes on because a region does not know its quota there, and may use the room of others. Nothing is given
  // back to the server before EndDoubt, which ends the hold too.
  void BeginDoubt() { doubts_ += 1; }
  void EndDoubt(uint32_t term);

  // --- The server's words.
  // The lease as it was granted: a life of the server, and the term in it. False: it is the present one already.
  bool Enter(uint64_t incarnation, uint64_t lease_term);
  bool IsPresent(uint64_t incarnation, uint64_t lease_term) const;
  uint32_t term() const;
  uint64_t lease_term() const;
  // The server has reserved `bytes` more, at this client's request. False: in another term than the present one.
  bool AddReservation(uint64_t bytes, uint64_t incarnation, uint64_t lease_term);
  // A request for room, or a return of some, has no answer and may still be executed: no word is exact until another
  // one was answered, or the term ends.
  void SetUnsettled(bool unsettled) { unsettled_ = unsettled; }
  bool unsettled() const { return unsettled_; }
  // Hear(the lease's reservation in the server's words, Look() from before it was asked). True: the word was exact,
  // since nothing was granted, held or unsettled, and nothing has happened meanwhile.
  uint64_t Look() const { return events_; }
  bool Hear(uint64_t reservation_bytes, uint64_t look);
  // Takes free room beyond `keep_bytes` out, in whole pages, to be given back to the server. Granted and reserved room
  // remains covered by the reservation. Takes nothing while there is doubt. Returns pages.
  uint64_t TakeSurplus(uint64_t reservation_bytes, uint64_t keep_bytes);

 private:
  // Free bytes and the low bits of the term change together: room that a write of an old term returns must not be
  // counted in the present one.
  static constexpr int kFreeBits = 48;
  static constexpr uint64_t kReservationBytesMax = uint64_t{1} << 46;  // a higher value is not believed
  static int64_t FreeOf(uint64_t purse) { return static_cast<int64_t>(purse << (64 - kFreeBits)) >> (64 - kFreeBits); }
  static uint64_t Purse(uint32_t term, int64_t free_bytes) {
    return uint64_t{term} << kFreeBits | (static_cast<uint64_t>(free_bytes) & ((uint64_t{1} << kFreeBits) - 1));
  }
  static bool IsOf(uint64_t purse, uint32_t term) { return (purse >> kFreeBits) == (term & 0xFFFF); }
  static uint32_t TermOf(uint64_t purse) { return static_cast<uint32_t>(purse >> kFreeBits); }
  // False, and nothing, if `purse_` is of another term.
  bool AddFree(int64_t bytes, uint32_t term);
  void AddFreeNow(int64_t bytes);
  // Each change counts an event first. The granted room rises before its source falls, and falls after its target has
  // risen. So with nothing granted, and no event since a look, the free and the reserved room are complete.
  void Begin(uint64_t granted_bytes) {
    events_ += 1;
    granted_bytes_ += granted_bytes;
  }
  void End(uint64_t granted_bytes) { granted_bytes_ -= granted_bytes; }

  std::atomic<uint64_t> purse_{Purse(1, 0)};
  std::atomic<uint64_t> granted_bytes_{0};
  std::atomic<uint64_t> events_{0};
  std::atomic<uint32_t> doubts_{0};
  std::atomic<bool> unsettled_{false};

  mutable Mutex mu_;
  uint32_t term_ ABSL_GUARDED_BY(mu_) = 1;
  uint64_t incarnation_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t lease_term_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t reserved_bytes_ ABSL_GUARDED_BY(mu_) = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_ROOM_H_
