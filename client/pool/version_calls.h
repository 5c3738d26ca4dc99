#ifndef NRAM_CLIENT_POOL_VERSION_CALLS_H_
#define NRAM_CLIENT_POOL_VERSION_CALLS_H_

// One message to each of a region's servers, all under way together: a seal or a drop of versions. A server that does
// not answer at once is not waited for, and not asked again.

#include <atomic>
#include <cstdint>
#include <deque>

#include "client/pool/io_engine.h"
#include "client/pool/options.h"
#include "client/transport/call.h"

namespace nram {

// Not thread-safe, except for the end.
class VersionCalls {
 public:
  struct Leg {
    Call call;
    VersionCalls* calls = nullptr;
    CopyMap::Life life;
    ServerSession* session = nullptr;
    uint32_t times_up = 0;  // the session's, before the call
    bool asked = false;     // else its server could not be

    bool answered() const { return asked && call.code == absl::StatusCode::kOk; }
    bool done() const { return answered() && call.reason == Reason::kOk; }
    absl::Status status() const;
  };
  using Done = void (*)(void* context);

  VersionCalls() = default;
  ~VersionCalls();  // CHECKs that nothing is under way
  VersionCalls(const VersionCalls&) = delete;
  VersionCalls& operator=(const VersionCalls&) = delete;

  // Nothing may be under way.
  void Clear() { legs_.clear(); }
  // To that life of a server; nothing if it is over.
  void Add(const IoPlace& place, const CopyMap::Life& life, const MessageHeader& request);
  // `done` runs once, when all have ended: on any thread, perhaps before Start returns. It is the last to touch this.
  // If there is nothing to be sent, it runs too. The answers' words of sessions, leases and owners have been noted by
  // then.
  void Start(const IoPlace& place, IoClass io_class, int64_t deadline_ns, Done done, void* context);
  const std::deque<Leg>& legs() const { return legs_; }

 private:
  static void OnCallDone(Call* call);
  void Judge(Leg* leg);
  void EndOne();

  std::deque<Leg> legs_;
  RegionMap* map_ = nullptr;
  std::atomic<size_t> left_{0};  // requests under way, and one while they are started
  Done done_ = nullptr;
  void* done_context_ = nullptr;
};

// The outcome of a drop of versions.
struct DroppedVersions {
  uint64_t freed_bytes = 0;
  uint32_t held = 0;        // that remain at some server, since they are held there
  uint32_t unanswered = 0;  // servers, which drop them with the next drop or snapshot when they are back
};

// Drops the region's versions [first, last] wherever it is, but none that is sealed from now on, and the leftovers of
// other drops. FAILED_PRECONDITION: another client has taken the region over. Blocks until all have answered that can
// be asked, or the deadline.
absl::StatusOr<DroppedVersions> DropVersionsOf(const IoPlace& place, VersionNumber first, VersionNumber last,
                                               bool force, IoClass io_class, int64_t deadline_ns);
// Adds the drops that servers have missed and can be asked for now to `calls`. True: there are some.
bool AddOwedDrops(const IoPlace& place, VersionCalls* calls);
// Those that were not answered, or not executed since a lease or a connection has ended, are owed. `drops`: drops
// alone.
void NoteOwedDrops(const IoPlace& place, const VersionCalls& drops);

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_VERSION_CALLS_H_
