#ifndef NRAM_CLIENT_POOL_SWEEP_H_
#define NRAM_CLIENT_POOL_SWEEP_H_

// A trim or a destruction: one request to every server that holds part of a region, or of many regions, all under way
// together.

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/status/status.h"
#include "client/pool/io.h"
#include "client/pool/region_map.h"
#include "client/pool/sessions.h"
#include "client/transport/call.h"

namespace nram {

// An operation's handle, as Io is. Used once.
class Sweep {
 public:
  using Callback = void (*)(Sweep* sweep, void* context);

  Sweep() = default;
  ~Sweep();
  Sweep(const Sweep&) = delete;
  Sweep& operator=(const Sweep&) = delete;

  // Blocks until the operation that was started is done and returns its result: the first error. If there is a
  // callback, call this only when it runs.
  absl::Status Wait();

  // --- For Region. Add as often as is needed, then Start.
  // `flags`: of the request. With kFlagReservation the freed room remains the region's.
  void AddTrim(const IoPlace& place, uint8_t flags, const ChunkRange& range, int64_t deadline_ns);
  void AddDestroy(const IoPlace& place, int64_t deadline_ns);
  // Does not block. The callback, if any, is the last thing that touches the operation.
  void Start(IoClass io_class, Callback callback = nullptr, void* context = nullptr);
  // A trim in a region of copies, in place of the others.
  void StartCopied(const IoPlace& place, const IoRequest& request, Callback callback, void* context);
  // Ends at once with an error.
  void Fail(const absl::Status& status, Callback callback, void* context);

 private:
  // A request to one server on one region's behalf. The thread that brings its event has it.
  struct Leg {
    static constexpr uint32_t kRunning = 0, kSleeping = 1, kOver = 2;

    Call call;
    Waiter waiter;
    Sweep* sweep = nullptr;
    IoPlace place;
    ServerSession* session = nullptr;
    std::atomic<Transport*> transport{nullptr};  // where its call is under way
    uint32_t times_up = 0;                       // the session's, before the call
    uint64_t incarnation = 0;                    // the life of the server that has part of the region
    bool unsure = false;                         // the server may never have heard of the region
    bool sent = false;                           // by some attempt
    RegionRoom::Trim trim;                       // if it keeps room
    absl::Status status;
    std::atomic<uint32_t> state{kRunning};
  };

  Leg* Add(const IoPlace& place, const RegionMap::Target& target, const MessageHeader& request, int64_t deadline_ns);
  // Each of these leaves the request called, waiting or over.
  void Launch(Leg* leg);
  void Judge(Leg* leg);
  void Retry(Leg* leg, const absl::Status& why);
  void Resume(Leg* leg);
  void End(Leg* leg, const absl::Status& status);
  void EndKeepingTrim(Leg* leg);
  static void OnCallDone(Call* call) {
    auto* const leg = static_cast<Leg*>(call->context);
    leg->sweep->Judge(leg);
  }
  static void OnResume(Waiter* waiter) {
    auto* const leg = static_cast<Leg*>(waiter->context);
    leg->sweep->Resume(leg);
  }
  void EndOne();

  std::deque<Leg> legs_;
  std::unique_ptr<Io> copied_;
  IoClass io_class_ = IoClass::kBulk;
  absl::Status failed_;
  std::atomic<size_t> left_{0};  // requests that are not over, and one while they are started; counts for a callback
  Callback callback_ = nullptr;
  void* callback_context_ = nullptr;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_SWEEP_H_
