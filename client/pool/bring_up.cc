#include "client/pool/bring_up.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"

namespace nram {

void BringUp::GoDown(bool reconnect, int64_t now_ns) {
  stage_ = reconnect ? Stage::kReconnect : Stage::kHello;
  // At once, unless the server has just come up and has gone down again.
  if (now_ns - up_since_ns_ > kBackoffMaxMs * kNsPerMs) backoff_ms_ = kBackoffMinMs;
  due_ns_ = began_ns_ = backoff_ms_ == kBackoffMinMs ? now_ns : now_ns + backoff_ms_ * kNsPerMs;
  backoff_ms_ = std::min(backoff_ms_ * 2, backoff_max_ms_);
}

SessionAction::Kind BringUp::Next(int64_t now_ns, int64_t lease_ttl_ms, int64_t* timeout_ms) const {
  *timeout_ms = kControlTimeoutMs;
  if (now_ns < due_ns_) return SessionAction::Kind::kNone;
  switch (stage_) {
    case Stage::kReconnect:
      // The control plane may be slow to answer, and it is the connections that are needed now. But the lease must not
      // end while they cannot be had.
      *timeout_ms = std::min(kSlowAttemptMs, lease_ttl_ms / 3);
      return SessionAction::Kind::kConnect;
    case Stage::kHello:
      return SessionAction::Kind::kHello;
    case Stage::kGrant:
      return SessionAction::Kind::kGrant;
    case Stage::kDial:
      return SessionAction::Kind::kDial;
    case Stage::kConnect:
      *timeout_ms = std::min(kControlTimeoutMs, lease_ttl_ms / 3);
      return SessionAction::Kind::kConnect;
    case Stage::kUp:
      break;
  }
  return SessionAction::Kind::kNone;
}

int64_t BringUp::LeaseTtlMs() const {
  if (options_.lease_ttl_ms == 0 && hello_.lease_ttl_ms < options_.lease_ttl_min_ms) return options_.lease_ttl_min_ms;
  return options_.lease_ttl_ms;
}

absl::Status BringUp::End(const SessionAction& action, SessionOutcome* outcome, uint64_t incarnation, int64_t now_ns) {
  const absl::StatusOr<Stage> next = Advance(action, outcome, incarnation);
  if (next.ok()) {
    stage_ = *next;
    if (is_up()) {
      NoteEnd(now_ns);
      up_since_ns_ = now_ns;
    }
    return absl::OkStatus();
  }
  if (stage_ == Stage::kReconnect) {
    stage_ = Stage::kHello;  // the same attempt goes on
    return absl::OkStatus();
  }
  Fail(incarnation != 0, now_ns);
  return next.status();
}

absl::StatusOr<BringUp::Stage> BringUp::Advance(const SessionAction& action, SessionOutcome* outcome,
                                                uint64_t incarnation) {
  NRAM_RETURN_IF_ERROR(outcome->status);
  switch (action.kind) {
    case SessionAction::Kind::kHello:
      hello_ = std::move(outcome->hello);
      return Stage::kGrant;
    case SessionAction::Kind::kGrant:
      granted_ = outcome->lease;
      if (granted_.ttl_ms < options_.lease_ttl_min_ms) {
        return absl::FailedPreconditionError(absl::StrCat(
            "memory server ", server_, " grants leases of ", granted_.ttl_ms, " ms at most, and this client needs ",
            options_.lease_ttl_min_ms, ": set a longer --lease-ttl-ms there, or shorter deadlines here"));
      }
      return hello_.incarnation == incarnation ? Stage::kConnect : Stage::kDial;
    case SessionAction::Kind::kDial:
      return Stage::kConnect;
    default:
      return Stage::kUp;
  }
}

void BringUp::NoteEnd(int64_t now_ns) {
  was_slow_ = was_slow_ || now_ns - began_ns_ > kSlowAttemptMs * kNsPerMs;
  may_be_slow_ = was_slow_;
}

void BringUp::Fail(bool has_life, int64_t now_ns) {
  NoteEnd(now_ns);
  stage_ = has_life ? Stage::kReconnect : Stage::kHello;
  due_ns_ = began_ns_ = now_ns + backoff_ms_ * kNsPerMs;
  backoff_ms_ = std::min(backoff_ms_ * 2, backoff_max_ms_);
}

}  // namespace nram
