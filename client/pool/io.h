#ifndef NRAM_CLIENT_POOL_IO_H_
#define NRAM_CLIENT_POOL_IO_H_

// A read or a write of a region: its parts, one message each, several under way.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
};

struct IoRequest {
  Op op = Op::kRead;  // kRead or kWrite
  ChunkRange range;
  std::byte* in = nullptr;           // read: where to
  const std::byte* out = nullptr;    // write: where from
  const ChunkMask* masks = nullptr;  // write: as Call's
  int64_t deadline_ns = 0;
  IoClass io_class = IoClass::kBulk;
};

class Io;

// A piece of an operation, which goes to one server in one message. Io's own.
struct IoPart {
  enum class Phase : uint8_t { kFree, kCalled, kWaiting };

  Call call;
  Waiter waiter;
  Io* io = nullptr;
  uint32_t index = 0;
  Phase phase = Phase::kFree;
  bool placing = false;       // it waits for room for a new span
  bool unsure = false;        // whether the server knows the region
  bool without_room = false;  // the server has refused room; overwriting needs none
  int garbled = 0;            // how many answers were garbled
  ServerSession* session = nullptr;
  ServerLife* life = nullptr;
  uint32_t times_up = 0;                       // the session's, before the call
  std::atomic<Transport*> transport{nullptr};  // where its call is under way
  Room::Grant room;
  uint64_t wanted_room_bytes = 0;  // enough for the write in any case
  Placing search;
  absl::Status last;  // why it was tried again
};

// An operation's handle: give it to Region::StartRead or StartWrite, keep it and the buffer until it is done, then use
// it again if you like. One operation at a time.
//
// One thread at a time owns the operation, and no other touches its state, so an operation takes no lock. A blocking
// call belongs to its caller, who receives, judges and launches. Any other operation belongs to the thread that brings
// an event (a call is done, a waiter is resumed) while no thread owns it. A thread that brings an event meanwhile
// leaves it to the owner.
class Io {
 public:
  // The most parts under way: 4 MiB.
  static constexpr size_t kPartsMax = 16;
  using Callback = void (*)(Io* io, void* context);

  // Allocates its parts, 1 to kPartsMax, once. With fewer, less is under way.
  explicit Io(size_t part_count = kPartsMax);
  ~Io();
  Io(const Io&) = delete;
  Io& operator=(const Io&) = delete;

  // Blocks until the operation that was started is done (at its deadline at the latest) and returns its result.
  absl::Status Wait();
  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }

  // --- For Region.
  // Runs a whole operation on the calling thread.
  static absl::Status Run(const IoPlace& place, const IoRequest& request);
  // Begins an operation that completes by itself, or ends at once with the request's error. Does not block. The
  // callback is the last to touch the operation.
  void Start(const IoPlace& place, const absl::StatusOr<IoRequest>& request, Callback callback, void* context);

 private:
  static constexpr uint32_t kIdle = 0, kRunning = 1, kSleeping = 2, kDone = 3;
  // Of events_: a bit for each part that has one, and these.
  static constexpr uint32_t kOwned = 1u << 31;   // a thread has the operation
  static constexpr uint32_t kAsleep = 1u << 30;  // and sleeps until there is an event
  static constexpr uint32_t kEventMask = (1u << kPartsMax) - 1;
  // Answers to the same part, each over a new connection, whose checksums are wrong: it is not the network then.
  static constexpr int kGarbledMax = 3;

  // For a blocking call: the parts are on its stack.
  Io(IoPart* parts, size_t part_count) : parts_(parts), part_count_(part_count) {}
  void Reset(const IoPlace& place, const IoRequest& request, bool blocking);
  absl::Status RunToEnd();
  // Waits for the oldest call that is under way, or for an event.
  void Await();
  void SleepForEvent();
  // Sleeps until there is an event, unless one of `events` is there, or until the deadline.
  void SleepUnless(uint32_t events, int64_t deadline_ns);

  // A part has an event. From any thread; the Io may be gone when this returns.
  static void OnEvent(IoPart* part);
  static void OnCallDone(Call* call) { OnEvent(static_cast<IoPart*>(call->context)); }
  static void OnResume(Waiter* waiter) { OnEvent(static_cast<IoPart*>(waiter->context)); }
  // Handles events until there are none, or the operation is done.
  void Pump();
  void HandleEvents();
  void Finish();

  // The rest is for the thread that has the operation.
  // Starts pieces until no part is free or none is left.
  void LaunchAll();
  void Claim(IoPart* part);
  // Each of these leaves the part free, called or waiting.
  void Launch(IoPart* part);
  void Place(IoPart* part, uint64_t span);
  void Aim(IoPart* part, const RegionMap::Target& target);
  void Send(IoPart* part, const RegionMap::Target& target);
  void Judge(IoPart* part);
  void JudgeShortOfReserved(IoPart* part, const absl::Status& status, uint64_t unused_bytes);
  void JudgeUnanswered(IoPart* part);
  void Resume(IoPart* part);
  void WaitForRoom(IoPart* part, ServerSession* session, uint64_t bytes);
  void WaitFor(IoPart* part, Waiter::For what);
  void Retry(IoPart* part, const absl::Status& why, Waiter::For what = Waiter::For::kConnection);
  void End(IoPart* part, const absl::Status& status);
  // False: the part goes on to wait for room.
  bool TakeRoom(IoPart* part, const RegionMap::Target& target);
  // Ends the grant that the part has, if any.
  void EndRoom(IoPart* part, uint64_t used_bytes);

  const std::unique_ptr<IoPart[]> owned_;
  IoPart* const parts_;
  const size_t part_count_;
  std::atomic<uint32_t> events_{0};
  std::atomic<uint32_t> state_{kIdle};

  IoPlace place_;
  IoRequest request_;
  uint64_t next_chunk_ = 0;  // to be started
  size_t busy_ = 0;
  size_t next_part_ = 0;
  size_t oldest_part_ = 0;
  bool blocking_ = false;
  absl::Status status_;
  Callback callback_ = nullptr;
  void* callback_context_ = nullptr;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_IO_H_
