#ifndef NRAM_CLIENT_POOL_RESERVER_H_
#define NRAM_CLIENT_POOL_RESERVER_H_

// A client's requests to one server about room: reservations ahead of use, reservations for waiters, and the return of
// unneeded room. Pure: the reserver decides, and its session's driver asks the server.

#include <algorithm>
#include <atomic>
#include <cstdint>

#include "absl/status/statusor.h"
#include "client/pool/room.h"
#include "client/transport/control_client.h"

namespace nram {

// Not thread-safe: its session's lock guards it, except for the functions that are marked thread-safe.
class Reserver {
 public:
  // `room` outlives it. `step_bytes`: how much is reserved ahead at a time.
  Reserver(Room* room, uint64_t step_bytes) : room_(room), step_bytes_(step_bytes) {}

  // One request to the server.
  struct Ask {
    enum class Kind {
      kNothing,
      kSettle,    // Reserve of nothing: its answer shows that an earlier request without an answer is over
      kReserve,   // Reserve of `pages`
      kMeasure,   // RenewLease: only the server knows how much may be given back
      kGiveBack,  // Reserve of minus `pages`
    };
    Kind kind = Kind::kNothing;
    int64_t pages = 0;  // below 0 for a return
    ReserveOrder order;
    uint64_t for_bytes = 0;     // of `pages`, how much is needed now
    bool exactly = false;       // it asks for no more than that
    uint64_t freed_before = 0;  // NoteFreed's count
  };
  enum class Answer {
    kDone,
    kRefused,   // the server has less; the waiter must be told
    kNoAnswer,  // the outcome is unknown, or the lease's term is over
  };

  // The request that is due. `wish_bytes`: the wish of the first waiter; 0: there is no waiter.
  Ask Next(int64_t now_ns, uint64_t wish_bytes);
  // When a request becomes due by time alone; INT64_MAX: never.
  int64_t DueNs(uint64_t wish_bytes) const;
  // Ends a request that Next has returned. The answer to kMeasure is a renewal's.
  Answer End(const Ask& ask, const absl::StatusOr<LeaseInfo>& answer, int64_t now_ns);
  // Nothing is under way any more: the server is away.
  void Reset();
  // The lease has another term: nothing of the former one can be given back.
  void NoteTerm();

  // --- Thread-safe.
  // The client is giving room back, which may end a refusal.
  bool giving_back() const { return giving_back_; }
  // The server has no free room: it has refused the last reservation and has not reported free room since, and this
  // client is not giving room back.
  bool refused() const {
    return !giving_back_ && refused_;  // in this order: giving room back ends a refusal before it is over
  }
  void NoteCapacity(const ServerCapacity& capacity) {
    if (capacity.free_bytes > kSpanBytes) refused_ = false;
  }
  // The last request for room has no answer. Then free room may be taken although others wait for more.
  bool unanswered() const { return unanswered_.load(std::memory_order_relaxed); }
  // The client freed something at the server: it is worth asking again.
  void NoteFreed() {
    freed_events_.fetch_add(1, std::memory_order_relaxed);
    refused_.store(false, std::memory_order_relaxed);
  }
  // The client writes there: it is worth reserving ahead. True if it is time to.
  bool NoteTaken() {
    if (!written_to_.load(std::memory_order_relaxed)) written_to_ = true;
    return !refused() && pressed_.load(std::memory_order_relaxed) == Pressed::kNo && room_->free_bytes() < half();
  }
  // More is free than the client keeps.
  bool has_surplus() const {
    return room_->free_bytes() > (pressed_ == Pressed::kAsked ? int64_t{Room::kBytesPerPage}
                                                              : kStepsKept * static_cast<int64_t>(step_bytes_));
  }
  // The server asks for memory: unused room is not kept.
  enum class Pressed : uint8_t {
    kNo,
    kLately,  // nothing is reserved ahead of use, and little at a time
    kAsked,   // nor kept
  };
  void SetPressed(Pressed pressed) { pressed_ = pressed; }

 private:
  // Room beyond this many steps is given back, down to one.
  static constexpr int64_t kStepsKept = 2;
  // A server that refuses no more than this is full.
  static constexpr uint64_t kRefusedBytes = 2 * kSpanBytes;
  static constexpr int64_t kSettleAgainMs = 500;
  static constexpr int64_t kReserveAgainMs = 50;
  static constexpr int64_t kAheadAgainMs = 1'000;
  static constexpr int64_t kGiveBackAgainMs = 1'000;

  static constexpr uint64_t kSmallStepBytes = kSpanBytes / 4;
  // The bytes asked for beyond the need.
  uint64_t StepBytes() const {
    return pressed_ == Pressed::kNo      ? step_bytes_
           : pressed_ == Pressed::kAsked ? 0
                                         : std::min(step_bytes_, kSmallStepBytes);
  }
  int64_t half() const { return static_cast<int64_t>(step_bytes_ / 2); }
  bool IsAheadDue() const {
    return written_to_ && pressed_ == Pressed::kNo && !refused() && room_->free_bytes() < half();
  }
  Ask Reserve(Ask::Kind kind, int64_t pages);
  Answer EndReserve(const Ask& ask, const absl::StatusOr<LeaseInfo>& answer, int64_t now_ns);
  void EndGivingBack(bool done, int64_t now_ns);

  Room* const room_;
  const uint64_t step_bytes_;
  std::atomic<bool> written_to_{false};
  std::atomic<bool> refused_{false};
  std::atomic<Pressed> pressed_{Pressed::kNo};
  std::atomic<uint64_t> freed_events_{0};
  uint64_t last_order_ = 0;
  bool ask_exactly_ = false;  // the server has refused a whole step
  std::atomic<bool> giving_back_{false};
  std::atomic<bool> unanswered_{false};
  uint64_t surplus_pages_ = 0;  // taken out of the free room, to be given back next
  // Not before.
  int64_t settle_ns_ = 0;
  int64_t reserve_ns_ = 0;
  int64_t ahead_ns_ = 0;
  int64_t give_back_ns_ = 0;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_RESERVER_H_
