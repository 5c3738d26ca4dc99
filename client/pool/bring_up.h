#ifndef NRAM_CLIENT_POOL_BRING_UP_H_
#define NRAM_CLIENT_POOL_BRING_UP_H_

// Takes a server up: the stages of an attempt, and when the next one is due. Pure.

#include <algorithm>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/pool/options.h"
#include "client/pool/session_action.h"

namespace nram {

// Not thread-safe: its session's lock guards it.
class BringUp {
 public:
  enum class Stage {
    kReconnect,  // to the known life: its hello shows whether lease and server are still the same
    kHello,
    kGrant,
    kDial,  // a new life
    kConnect,
    kUp,
  };

  // `options` outlive it. `server` names the server in errors.
  BringUp(const PoolOptions& options, std::string server, int64_t now_ns)
      : options_(options), server_(std::move(server)), began_ns_(now_ns) {}

  bool is_up() const { return stage_ == Stage::kUp; }
  // The server has gone down. `reconnect`: its lease and life may be those from before.
  void GoDown(bool reconnect, int64_t now_ns);
  // It is looked at from now on: this is when the first attempt begins.
  void Begin(int64_t now_ns) { began_ns_ = now_ns; }
  // The server is not needed much: attempts are rare while they fail.
  void SetPatient(bool patient, int64_t now_ns) {
    backoff_max_ms_ = patient ? kBackoffPatientMs : kBackoffMaxMs;
    if (patient) return;
    backoff_ms_ = std::min(backoff_ms_, backoff_max_ms_);
    due_ns_ = std::min(due_ns_, now_ns);
  }
  // The server is well: when it goes down, the next attempt begins at once.
  void NoteWell() { backoff_ms_ = kBackoffMinMs; }

  // The kind of the next action, and how long it may take: kNone until due_ns().
  SessionAction::Kind Next(int64_t now_ns, int64_t lease_ttl_ms, int64_t* timeout_ms) const;
  int64_t due_ns() const { return due_ns_; }
  // The lease's time to ask for: 0 is the server's usual.
  int64_t LeaseTtlMs() const;
  const ServerHello& hello() const { return hello_; }
  const LeaseInfo& granted() const { return granted_; }

  // An action of an attempt has ended. `incarnation`: of the life that is known. OK: the next stage is due at once, or
  // the server is up. An error of a reconnect is none: the attempt goes on with the control plane.
  absl::Status End(const SessionAction& action, SessionOutcome* outcome, uint64_t incarnation, int64_t now_ns);
  // The attempt has failed although End accepted the action.
  void Fail(bool has_life, int64_t now_ns);

  // The server has not come up and has not refused either: an attempt took long, or the first is still under way.
  bool may_be_slow() const { return may_be_slow_; }

 private:
  static constexpr int64_t kControlTimeoutMs = 2'000;
  static constexpr int64_t kSlowAttemptMs = 500;  // longer than any refusal takes
  static constexpr int64_t kBackoffMinMs = 10;
  static constexpr int64_t kBackoffMaxMs = 1'000;
  static constexpr int64_t kBackoffPatientMs = 30'000;

  absl::StatusOr<Stage> Advance(const SessionAction& action, SessionOutcome* outcome, uint64_t incarnation);
  void NoteEnd(int64_t now_ns);

  const PoolOptions& options_;
  const std::string server_;
  Stage stage_ = Stage::kHello;
  ServerHello hello_;
  LeaseInfo granted_;
  bool may_be_slow_ = true;
  bool was_slow_ = false;  // some attempt was
  int64_t began_ns_;       // this attempt
  int64_t due_ns_ = 0;
  int64_t up_since_ns_ = 0;
  int64_t backoff_ms_ = kBackoffMinMs;
  int64_t backoff_max_ms_ = kBackoffMaxMs;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_BRING_UP_H_
