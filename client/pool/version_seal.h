#ifndef NRAM_CLIENT_POOL_VERSION_SEAL_H_
#define NRAM_CLIENT_POOL_VERSION_SEAL_H_

// How the owner of a region seals a version of it (adr/0019): doubtful spans are settled; then no change is under way,
// and all servers seal at the same time.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/pool/io.h"
#include "client/pool/version_calls.h"

namespace nram {

// A version that is there. A later reader needs these fields.
struct SealedVersion {
  VersionNumber number{};
  std::vector<uint64_t> incarnations;  // its members: the lives of servers that have answered their seal in time
  uint32_t least_in_sync = 0;          // the least number of copies in sync that each span has on members
};

// An operation's handle, as Io is. Used once.
class VersionSeal {
 public:
  using Callback = void (*)(VersionSeal* seal, void* context);

  VersionSeal() = default;
  ~VersionSeal();  // CHECKs that it is over
  VersionSeal(const VersionSeal&) = delete;
  VersionSeal& operator=(const VersionSeal&) = delete;

  // Blocks until the operation that was started without a callback is over, and returns its result.
  absl::StatusOr<SealedVersion> Wait();
  // If there is a callback, valid when it runs.
  const absl::StatusOr<SealedVersion>& result() const { return result_; }

  // --- For Region. Neither blocks. The callback, on any thread, perhaps before Start returns, is the last to touch it.
  void Start(const IoPlace& place, VersionKeep keep, IoClass io_class, int64_t deadline_ns, Callback callback,
             void* context);
  void Fail(const absl::Status& status, Callback callback, void* context);

 private:
  // A server that has not answered the seal by then is no member. A change waits as long for a copy.
  static constexpr int64_t kMissNs = 250 * kNsPerMs;
  // Changes happen in between, and the servers may have higher numbers than the owner knows.
  static constexpr int kRoundsMax = 64;
  // A server's word of its numbers is believed up to this jump, so that a lie does not use them up.
  static constexpr uint32_t kJumpMax = 1u << 24;
  static constexpr uint32_t kRunning = 0, kOver = 1;

  enum class State : uint8_t {
    kPay,  // drops that servers have missed
    kPaid,
    kSettle,   // the next span that is in doubt
    kSettled,  // it has been
    kEnter,    // the gate
    kLook,     // it is in the gate: checks that all is as it should be
    kSeal,     // the servers are to
    kJudge,    // they have, or not
  };

  enum class Next : uint8_t {
    kStep,      // follows at once
    kUnderWay,  // when the operation under way has ended
    kOver,      // no other
  };

  // The operation under way has ended: goes on until another is under way, or all is over.
  void OnEvent();
  Next Step();
  Next Pay();
  Next Paid();
  Next Settle();
  Next Settled();
  Next Enter();
  Next Look();
  Next Seal();
  Next Judge();
  // Starts the calls.
  void Call();
  // Those that have sealed it, or may have, are to drop it.
  void GiveUp(VersionNumber number);
  Next End(const absl::StatusOr<SealedVersion>& result);
  bool IsLate() const { return place_.environment->NowNs() >= deadline_ns_; }
  CopyMap* copies() const { return place_.map->copies(); }
  absl::Status NoMembers() const;

  IoPlace place_;
  VersionKeep keep_{};
  IoClass io_class_ = IoClass::kBulk;
  int64_t deadline_ns_ = 0;
  Callback callback_ = nullptr;
  void* callback_context_ = nullptr;

  State state_ = State::kPay;
  std::atomic<uint32_t> events_{0};
  std::atomic<uint32_t> over_{kOver};
  int rounds_ = 0;
  std::unique_ptr<Io> settles_;
  uint64_t next_span_ = 0;
  GatePlace gate_;
  bool in_gate_ = false;
  VersionCalls calls_;
  VersionNumber number_{};
  std::vector<uint64_t> refused_;  // lives of servers that have said that a number is old
  uint32_t step_ = 1;              // how far the number goes up when a server has a higher one
  absl::StatusOr<SealedVersion> result_ = absl::UnknownError("it is under way");
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_VERSION_SEAL_H_
