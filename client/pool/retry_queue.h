#ifndef NRAM_CLIENT_POOL_RETRY_QUEUE_H_
#define NRAM_CLIENT_POOL_RETRY_QUEUE_H_

// The waiters of one server: for its connections, for room there, or for reserved room that other writes hold.

#include <cstddef>
#include <cstdint>

#include "absl/base/thread_annotations.h"
#include "client/pool/room.h"

namespace nram {

// One wait. Its memory is its owner's, and must be valid until it is resumed or cancelled.
struct Waiter {
  enum class For : uint8_t {
    kConnection,    // both connections of the server can be used
    kRoom,          // `room_bytes` of the client's room
    kReservedRoom,  // some write has returned room that its region had reserved
  };
  enum class Outcome : uint8_t {
    kUsable,       // kConnection, kReservedRoom: try again
    kGranted,      // kRoom: `grant` is the waiter's, which must end it
    kRefused,      // kRoom: the server has no such room
    kNoAnswer,     // kRoom: the server did not say
    kAwayTooLong,  // kConnection: the server has been away too long to wait for
    kLate,         // the deadline has passed
    kClosing,      // the pool closes
  };

  // --- Set by the owner.
  For what = For::kConnection;
  bool urgent = false;  // resumed before those that are not
  uint64_t room_bytes = 0;
  uint64_t ticket = 0;  // kReservedRoom: ServerSession::returns() as it was before the owner looked
  int64_t deadline_ns = 0;
  // Runs once, with no lock held, on any thread of the pool; must not block. It may start calls and wait again.
  void (*resume)(Waiter* waiter) = nullptr;
  void* context = nullptr;

  // --- Set before `resume` runs.
  Outcome outcome = Outcome::kUsable;
  uint32_t since_ms = 0;  // when it began to wait, by the session's clock; the lower half of it
  Room::Grant grant;

 private:
  friend class RetryQueue;
  Waiter* next_ = nullptr;
  Waiter* previous_ = nullptr;
  uint64_t number_ = 0;  // 0: not queued
};

// Waiters in the order in which they are to be resumed: urgent ones first, else in order of arrival. Allocates nothing.
// Not thread-safe.
class RetryQueue {
 public:
  ~RetryQueue();  // CHECKs that it is empty

  void Add(Waiter* waiter);
  void Remove(Waiter* waiter);
  bool Has(const Waiter& waiter) const { return waiter.number_ != 0; }
  // Rises with each waiter that is added; 0 if it is in no queue.
  static uint64_t NumberOf(const Waiter& waiter) { return waiter.number_; }
  // Of that kind.
  size_t count(Waiter::For what) const { return counts_[static_cast<size_t>(what)]; }
  bool empty() const { return urgent_.first == nullptr && others_.first == nullptr; }
  // The earliest deadline; INT64_MAX if there is none. Looks at all.
  int64_t EarliestDeadlineNs() const;
  // The first waiter of the kind, or null.
  const Waiter* First(Waiter::For what) const;
  // The number that the next waiter gets.
  uint64_t next_number() const { return next_number_; }
  // Removes and returns the first waiter with a number below `number` for which `is_due` is true; null if there is
  // none.
  template <typename IsDue>
  Waiter* Take(uint64_t number, const IsDue& is_due) ABSL_NO_THREAD_SAFETY_ANALYSIS {  // `is_due` may need a lock
    for (List* list : {&urgent_, &others_}) {
      for (Waiter* waiter = list->first; waiter != nullptr; waiter = waiter->next_) {
        if (waiter->number_ >= number || !is_due(waiter)) continue;
        Remove(waiter);
        return waiter;
      }
    }
    return nullptr;
  }

 private:
  struct List {
    Waiter* first = nullptr;
    Waiter* last = nullptr;
  };
  List* ListOf(const Waiter& waiter) { return waiter.urgent ? &urgent_ : &others_; }

  List urgent_;
  List others_;
  size_t counts_[3] = {0, 0, 0};
  uint64_t next_number_ = 1;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_RETRY_QUEUE_H_
