#ifndef NRAM_CLIENT_POOL_IO_ENGINE_H_
#define NRAM_CLIENT_POOL_IO_ENGINE_H_

// How an operation moves: its messages are called, wait, and bring events. Its way (one_copy_io.h, copied_io.h) decides
// their contents and the meaning of the answers.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "client/pool/change_gate.h"
#include "client/pool/copy_map.h"
#include "client/pool/options.h"
#include "client/pool/placing.h"
#include "client/pool/region_map.h"
#include "client/pool/retry_queue.h"
#include "client/pool/room.h"
#include "client/pool/sessions.h"
#include "client/transport/call.h"

namespace nram {

// Where an operation takes place. All outlive it.
struct IoPlace {
  Sessions* sessions = nullptr;
  RegionMap* map = nullptr;
  Environment* environment = nullptr;
  ChangeGate* gate = nullptr;
};

// The work that an operation does for a region of copies besides its own: for the repairer.
enum class RepairWork : uint8_t {
  kNone,
  kOpen,    // `copy` is emptied, and catches up from now on; the range is all of a span
  kCopy,    // reads from a copy in sync, and writes that only to the copies that catch up
  kMend,    // likewise, to all copies
  kJoin,    // `copy`, if any, is in sync from now on, and `leaves` are dropped; the range is all of a span
  kSettle,  // the copies of a span are alike from now on; the range is all of it
};

struct IoRequest {
  Op op = Op::kRead;  // kRead or kWrite; kTrim in a region of copies
  ChunkRange range;
  std::byte* in = nullptr;           // read: where to
  const std::byte* out = nullptr;    // write: where from
  const ChunkMask* masks = nullptr;  // write: as Call's
  int64_t deadline_ns = 0;
  IoClass io_class = IoClass::kBulk;
  bool keeps_room = false;  // trim: the freed room remains the region's
  RepairWork repair = RepairWork::kNone;
  ChunkMask* found = nullptr;              // kCopy: the chunks that are no zeros, one mask for each page of the range
  std::optional<uint16_t> copy;            // kOpen, kJoin: a replica host
  absl::Span<const uint16_t> leaves = {};  // kJoin: replica hosts
  uint64_t* used_bytes = nullptr;          // kCopy: the room that the copies have used is added
};

class IoEngine;

// One message of an operation to one server.
struct IoPart {
  enum class Phase : uint8_t { kFree, kCalled, kWaiting };

  Call call;
  Waiter waiter;
  IoEngine* engine = nullptr;
  uint32_t index = 0;
  Phase phase = Phase::kFree;
  bool without_room = false;     // the server has refused room; overwriting needs none
  bool room_unanswered = false;  // or has not said (copies)
  int garbled = 0;               // how many answers were garbled
  ServerSession* session = nullptr;
  ServerLife* life = nullptr;
  uint32_t times_up = 0;                       // the session's, before the call
  std::atomic<Transport*> transport{nullptr};  // where its call is under way
  Room::Grant room;
  uint64_t wanted_room_bytes = 0;  // enough for the write in any case
  absl::Status last;               // why it was tried again

  // --- A piece of a region of one copy (one_copy_io.h).
  bool placing = false;  // it waits for room for a new span
  bool unsure = false;   // whether the server knows the region
  Placing search;

  // --- A leg of a piece of a region of copies (copied_io.h): one copy's message.
  CopyMap::Leg leg;
  bool is_over = true;
  bool sends_raise = false;  // a write without chunks
  PageSeal no_seal;          // that write's, in a sealed region
  bool trims = false;        // `trim` lasts: it keeps room
  bool trim_sent = false;    // by some attempt
  RegionRoom::Trim trim;
};

// The work of an operation. Every function runs on the thread that has the operation.
class IoWay {
 public:
  virtual ~IoWay() = default;
  // Starts what can be started now.
  virtual void LaunchAll() = 0;
  // The part's call is done.
  virtual void Judge(IoPart* part) = 0;
  // The part's wait has ended, with success or without.
  virtual void Resume(IoPart* part) = 0;
  // The deadline has passed, and the part still waits. True: it will not be resumed, and the way knows that it is late.
  virtual bool Cancel(IoPart* part) = 0;
  virtual bool is_busy() const = 0;
};

// One thread at a time owns the operation, and no other touches its state, so an operation takes no lock. A blocking
// call belongs to its caller, who receives, judges and launches. Any other operation belongs to the thread that brings
// an event (a call is done, a waiter is resumed) while no thread owns it. A thread that brings an event meanwhile
// leaves it to the owner.
class IoEngine {
 public:
  using Finished = void (*)(void* context);

  IoEngine(IoPart* parts, size_t part_count);
  ~IoEngine();

  // An operation begins. `way` outlives it.
  void Reset(const IoPlace& place, const IoRequest& request, IoWay* way, bool blocking, bool wait_expected);
  // Blocking: runs it on this thread until it is not busy.
  void RunToEnd();
  // Else: goes on until it must wait; `finished` runs when it is over, and is the last to touch it.
  void Go(Finished finished, void* context);
  // Blocks until an operation with Go is over.
  void Wait();
  bool is_done() const { return state_.load(std::memory_order_acquire) == kDone; }
  bool is_idle() const { return state_.load(std::memory_order_acquire) == kIdle; }

  // --- For the way.
  const IoPlace& place() const { return place_; }
  const IoRequest& request() const { return request_; }
  IoPart* part(size_t index) const { return &parts_[index]; }
  size_t part_count() const { return part_count_; }
  int64_t NowNs() const { return place_.environment->NowNs(); }
  // The first error is the operation's.
  void NoteStatus(const absl::Status& status) {
    if (status_.ok() && !status.ok()) status_ = status;
  }
  const absl::Status& status() const { return status_; }
  // Gives the part's call the data of these chunks of the operation.
  void SetData(IoPart* part, const ChunkRange& range);
  // Each leaves the part called, or waiting.
  void StartCall(IoPart* part);
  void WaitFor(IoPart* part, Waiter::For what, int64_t deadline_ns);
  // The part has an event. From any thread; the operation may be gone when this returns.
  static void OnEvent(IoPart* part);
  // Takes room for the part's write at its session: of the region's quota, or the client's. False: the part waits for
  // it. True: it has a grant, or the server refuses and the part goes without. `bytes`: the most that the write may
  // cost.
  bool TakeRoom(IoPart* part, uint64_t bytes);
  void WaitForRoom(IoPart* part, uint64_t bytes);
  // Ends the grant that the part has, if any.
  void EndRoom(IoPart* part, uint64_t used_bytes);
  // The same for a write that has no answer. If it was not sent, it has used nothing.
  void EndUnanswered(IoPart* part);

 private:
  static constexpr uint32_t kIdle = 0, kRunning = 1, kSleeping = 2, kDone = 3;
  // events_ has a bit for each part with an event, and these.
  static constexpr uint32_t kOwned = 1u << 31;   // a thread has the operation
  static constexpr uint32_t kAsleep = 1u << 30;  // and sleeps until there is an event
  static constexpr uint32_t kEventMask = kAsleep - 1;

  // Waits for the oldest call that is under way, or for an event.
  void Await();
  void SleepForEvent();
  // Sleeps until there is an event, unless one of `events` is there, or until the deadline.
  void SleepUnless(uint32_t events, int64_t deadline_ns);
  // Handles events until there are none, or the operation is over.
  void Pump();
  void HandleEvents();
  static void OnCallDone(Call* call) { OnEvent(static_cast<IoPart*>(call->context)); }
  static void OnResume(Waiter* waiter) { OnEvent(static_cast<IoPart*>(waiter->context)); }

  IoPart* const parts_;
  const size_t part_count_;
  std::atomic<uint32_t> events_{0};
  std::atomic<uint32_t> state_{kIdle};

  IoPlace place_;
  IoRequest request_;
  IoWay* way_ = nullptr;
  size_t oldest_part_ = 0;
  bool blocking_ = false;
  bool wait_expected_ = false;
  absl::Status status_;
  Finished finished_ = nullptr;
  void* finished_context_ = nullptr;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_IO_ENGINE_H_
