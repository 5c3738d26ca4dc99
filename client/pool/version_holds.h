#ifndef NRAM_CLIENT_POOL_VERSION_HOLDS_H_
#define NRAM_CLIENT_POOL_VERSION_HOLDS_H_

// A pool's claims on versions at servers (adr/0019). A lease has a version's hold once; so the handles of a version are
// counted here, and the end of the last one releases it.

#include <compare>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/pool/environment.h"
#include "client/pool/server_session.h"

namespace nram {

// Thread-safe. Calls of one hold come one after the other; those of others do not wait for them.
class VersionHolds {
 private:
  struct Key {
    ServerSession* session = nullptr;
    uint64_t incarnation = 0;
    RegionId region{};
    VersionNumber version{};
    friend auto operator<=>(const Key&, const Key&) = default;
  };

 public:
  explicit VersionHolds(Environment* environment) : environment_(environment) {}
  VersionHolds(const VersionHolds&) = delete;
  ~VersionHolds();  // CHECKs that all have ended

  // Ends with its last handle. Its end blocks for kReleaseMs at most. If the server does not answer then, the release
  // is sent later, at another hold's end or beginning there, or the hold ends with the lease.
  class Hold {
   public:
    Hold(Hold&& other) noexcept : holds_(std::exchange(other.holds_, nullptr)), key_(other.key_) {}
    Hold& operator=(Hold&&) = delete;
    ~Hold() {
      if (holds_ != nullptr) holds_->Release(key_);
    }

   private:
    friend class VersionHolds;
    Hold(VersionHolds* holds, const Key& key) : holds_(holds), key_(key) {}
    VersionHolds* holds_;
    Key key_;
  };
  // Errors are ControlClient::HoldVersion's. NOT_FOUND also if the server's life is another one. Blocks until the
  // deadline at most.
  absl::StatusOr<Hold> Take(ServerSession* session, uint64_t incarnation, RegionId region, VersionNumber version,
                            int64_t deadline_ns);

 private:
  static constexpr int64_t kReleaseMs = 1'000;
  static constexpr int64_t kTurnMs = 100;
  static constexpr size_t kOwedMax = 4'096;

  struct Entry {
    int handles = 0;
    bool busy = false;  // a thread asks the server
  };
  void Release(const Key& key);
  // Has the entry for this caller. To be given back by EndTurn. Null: others have it until the deadline.
  Entry* BeginTurnLocked(const Key& key, int64_t deadline_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndTurnLocked(const Key& key, Entry* entry) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  absl::Status Send(const Key& key, bool release, int64_t deadline_ns) const;
  // With the turn, which it ends. False: there was no answer, so the release is owed.
  bool SendRelease(const Key& key, Entry* entry, int64_t deadline_ns);
  // A release that has no answer, or that of a hold that has none, is sent again later. True: so it is.
  bool OweLocked(const Key& key, const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends the server the releases that it has missed: until it does not answer, or the deadline, or for kReleaseMs.
  void PayOwed(ServerSession* session, int64_t deadline_ns);

  Environment* const environment_;
  Mutex mu_;
  CondVar changed_;
  std::map<Key, Entry> entries_ ABSL_GUARDED_BY(mu_);
  std::set<Key> owed_ ABSL_GUARDED_BY(mu_);  // releases that were not answered
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_VERSION_HOLDS_H_
