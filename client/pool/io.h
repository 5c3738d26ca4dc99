#ifndef NRAM_CLIENT_POOL_IO_H_
#define NRAM_CLIENT_POOL_IO_H_

// One operation on a region that is under way: its parts, one a message, several in flight. The engine behind Region's
// calls.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sync.h"
#include "client/pool/options.h"
#include "client/pool/room.h"
#include "client/transport/call.h"

namespace nram {

class Io;
class Region;
class ServerLink;
class Transport;

// A piece of an operation that goes to one server in one message.
struct IoPart {
  Call call;
  Io* io = nullptr;
  ServerLink* link = nullptr;
  Transport* transport = nullptr;  // where it was started
  uint64_t incarnation = 0;        // of the server then
  Room::Grant room;
  uint64_t wanted_room_bytes = 0;  // what would be enough whatever is there
  bool busy = false;
  bool started = false;         // `call` was given to `transport`
  bool unsure = false;          // whether the server knows the region
  bool waits_for_room = false;  // that is with other writes; the server is well
  int garbled = 0;              // answers that it has had
  IoPart* next_retry = nullptr;
};

// An asynchronous operation's handle: give it to Region::StartRead or StartWrite, keep it and the buffer until it is
// done, then use it again if you like. Not copyable. One operation at a time.
class Io {
 public:
  // The most parts in flight: 4 MiB.
  static constexpr size_t kPartsMax = 16;

  // Allocates its parts, once. With fewer, less is in flight.
  explicit Io(size_t part_count = kPartsMax)
      : owned_(new IoPart[part_count]), parts_(owned_.get()), part_count_(part_count) {}
  ~Io();
  Io(const Io&) = delete;
  Io& operator=(const Io&) = delete;

  // Blocks until the operation that was started is done (at its deadline at the latest) and returns its result.
  absl::Status Wait();
  bool done() const { return state_.load(std::memory_order_acquire) == kDone; }

 private:
  friend class Region;
  friend class ServerLink;

  static constexpr uint32_t kIdle = 0, kRunning = 1, kSleeping = 2, kDone = 3;
  // Answers to the same part, each over a new connection, whose checksums are wrong: it is not the network then.
  static constexpr int kGarbledMax = 3;

  struct Request {
    Op op = Op::kRead;
    uint64_t chunk = 0;  // next to be started
    uint64_t end = 0;
    uint64_t first = 0;
    std::byte* in = nullptr;
    const std::byte* out = nullptr;
    const ChunkMask* masks = nullptr;
    int64_t deadline_ns = 0;
    IoClass io_class = IoClass::kBulk;
    bool start_may_block = true;
  };

  // On parts of somebody else's, who keeps them as long: a blocking call's stack.
  Io(IoPart* parts, size_t part_count) : parts_(parts), part_count_(part_count) {}
  // Runs a whole operation on the calling thread.
  static absl::Status RunOnStack(Region* region, const Request& request);
  absl::Status Run(Region* region, const Request& request);
  // Begins one that completes by itself.
  void Begin(Region* region, const Request& request, void (*callback)(Io*, void*), void* context);

  // The same, or ends at once with the request's error.
  void BeginOrFail(Region* region, const absl::StatusOr<Request>& request, void (*callback)(Io*, void*), void* context);

  void Reset(Region* region, const Request& request, bool waited_for);
  // Starts parts until none is free or nothing is left to start, and finishes the operation when nothing is under way
  // either. One thread at a time pumps; whoever ends a part meanwhile leaves the work to it. The Io may be gone when
  // this returns.
  void Pump(bool may_block);
  void PumpLoop(bool may_block);
  // Takes the next piece for a free part; null if there is none.
  IoPart* ClaimLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Finds the part's server and starts its call; or ends it, if it failed or needed none.
  void Launch(IoPart* part, bool may_block);
  // True if the call was started; false if the piece is a hole, filled here. UNAVAILABLE: try again later.
  absl::StatusOr<bool> TryLaunch(IoPart* part, bool may_block);
  // Ends what TryLaunch took.
  void EndRoom(IoPart* part, uint64_t used_bytes);
  // Judges a call that is done. UNAVAILABLE: it may be tried again.
  absl::Status Judge(IoPart* part);
  // Handles a part whose call is done or could not be started.
  void Settle(IoPart* part, const absl::Status& status, bool may_block);
  static void OnCallDone(Call* call);
  // Takes a part up again that RetryLater was given; on the link's thread.
  void Restart(IoPart* part, bool give_up);
  void EndPart(IoPart* part, const absl::Status& status);
  Mutex mu_;
  Region* region_ = nullptr;
  Request request_ ABSL_GUARDED_BY(mu_);
  const std::unique_ptr<IoPart[]> owned_;
  IoPart* const parts_;
  const size_t part_count_;
  size_t busy_ ABSL_GUARDED_BY(mu_) = 0;
  size_t next_part_ ABSL_GUARDED_BY(mu_) = 0;
  bool pumping_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status status_ ABSL_GUARDED_BY(mu_);
  bool waited_for_ = true;
  IoClass io_class_ = IoClass::kBulk;
  void (*callback_)(Io*, void*) = nullptr;
  void* callback_context_ = nullptr;
  std::atomic<uint32_t> state_{kIdle};
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_IO_H_
