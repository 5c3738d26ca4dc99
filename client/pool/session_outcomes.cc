// How the actions of a session have ended.

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "client/pool/server_session.h"

namespace nram {

void ServerSession::Done(SessionAction action, SessionOutcome outcome) {
  Remarks remarks;
  ServerLife* cut = nullptr;
  const int64_t now_ns = environment_->NowNs();
  {
    MutexLock lock(&mu_);
    CHECK(std::exchange(in_action_, false)) << "something has ended that had not begun";
    switch (action.kind) {
      case Kind::kHello:
      case Kind::kGrant:
      case Kind::kDial:
      case Kind::kConnect:
        cut = EndBringUpLocked(action, &outcome, now_ns, &remarks);
        break;
      case Kind::kPing:
        // Too late, it has broken the connection. The next one's hello renews the lease too.
        if (!outcome.status.ok()) break;
        if (outcome.asks_back) HearSoonLocked();
        if (outcome.reason == Reason::kOk) {
          alive_ns_ = action.asked_ns;
        } else {
          lease_ended_ = true;
        }
        break;
      case Kind::kRenew:
        EndRenewLocked(action, outcome, now_ns, &remarks);
        break;
      case Kind::kReserve:
        EndAskLocked(action, outcome, now_ns);
        break;
      case Kind::kDestroy:
      case Kind::kUndo:
        EndDeferredLocked(action, outcome, now_ns, &remarks);
        break;
      case Kind::kEndLease:
      case Kind::kNone:
      case Kind::kFinished:
        break;
    }
    if (forgot_destroys_ && now_ns >= log_again_ns_) {
      forgot_destroys_ = false;
      log_again_ns_ = now_ns + kLogAgainMs * kNsPerMs;
      remarks.warnings.push_back(
          absl::StrCat("memory server ", name_, ": too many deletes while it was away; some are forgotten"));
    }
  }
  Cut(cut);
  remarks.Log();
  ResumeDue();
}

ServerLife* ServerSession::EndBringUpLocked(const SessionAction& action, SessionOutcome* outcome, int64_t now_ns,
                                            Remarks* remarks) {
  // Now and then: a server that is broken breaks each connection.
  if (!outcome->broken.empty() && now_ns >= log_again_ns_) {
    log_again_ns_ = now_ns + kLogAgainMs * kNsPerMs;
    remarks->warnings.push_back(absl::StrCat("memory server ", name_, ": a connection was broken: ", outcome->broken));
  }
  absl::Status status = bring_up_.End(action, outcome, incarnation(), now_ns);
  if (status.ok() && action.kind == Kind::kHello && claims_ != nullptr) {
    // A life that it has entered is its own, even if another session has claimed it meanwhile: it has data there.
    const uint16_t holder = claims_->Claim(bring_up_.hello().incarnation, index_);
    twin_ = bring_up_.hello().incarnation == incarnation() ? kNoServer : holder;
    if (twin_ != kNoServer) {
      status = absl::AlreadyExistsError(
          absl::StrCat("memory server ", name_, " is the same server as another member of the pool"));
      bring_up_.SetPatient(true, now_ns);
      bring_up_.Fail(incarnation() != 0, now_ns);
    } else if (!removed_) {
      bring_up_.SetPatient(false, now_ns);
    }
  }
  if (status.ok() && action.kind == Kind::kGrant && bring_up_.hello().incarnation != incarnation() &&
      lives_.size() >= kLivesMax && now_ns < next_life_ns_) {
    status = absl::UnavailableError(absl::StrCat("memory server ", name_, " has restarted ", lives_.size(),
                                                 " times: it is used again within a minute"));
    bring_up_.Fail(/*has_life=*/true, now_ns);
  }
  if (!status.ok()) {
    // The server may be reached by its other name (of another protocol, say).
    if (claims_ != nullptr && now_ns - down_since_ns_ >= kGiveUpMs * kNsPerMs) claims_->GiveUp(index_);
    last_error_ = Annotate(status, "cannot be used");
    is_kept_out_ = absl::IsUnauthenticated(status) || absl::IsPermissionDenied(status) || absl::IsAlreadyExists(status);
    if (std::exchange(was_up_, false)) remarks->warnings.push_back(std::string(last_error_.message()));
    changed_.SignalAll();
    return nullptr;
  }
  if (!outcome->status.ok()) return nullptr;  // a reconnect's
  ServerLife* cut = nullptr;
  if (action.kind == Kind::kDial) {
    cut = EnterLifeLocked(outcome, now_ns, remarks);
    EnterLeaseLocked(action);
  } else if (action.kind == Kind::kGrant && bring_up_.hello().incarnation == incarnation()) {
    EnterLeaseLocked(action);
  }
  if (bring_up_.is_up()) ComeUpLocked(action, now_ns, remarks);
  return cut;
}

ServerLife* ServerSession::EnterLifeLocked(SessionOutcome* outcome, int64_t now_ns, Remarks* remarks) {
  ServerLife* const former = life();
  if (former != nullptr) {
    remarks->warnings.push_back(absl::StrCat("memory server ", name_, " has restarted: its stored data is lost"));
  }
  data_plane_ = std::move(outcome->data_plane);
  next_life_ns_ = now_ns + kLifePauseMs * kNsPerMs;
  lives_.push_back(std::move(outcome->life));
  life_.store(lives_.back().get(), std::memory_order_release);
  return former;
}

void ServerSession::EnterLeaseLocked(const SessionAction& action) {
  const LeaseInfo& lease = bring_up_.granted();
  lease_ttl_ms_ = options_.lease_ttl_ms > 0 ? std::min(options_.lease_ttl_ms, lease.ttl_ms) : lease.ttl_ms;
  host_state_ = bring_up_.hello().host;
  tenant_ = bring_up_.hello().tenant;
  host_ = NumberOfName(host_state_.counts_as());
  domain_ = NumberOfName(host_state_.domain);
  room_.Enter(lease.incarnation, lease.term);
  reserver_.NoteTerm();
  NoteLeaseLocked(lease, std::nullopt, action.asked_ns);
}

void ServerSession::ComeUpLocked(const SessionAction& action, int64_t now_ns, Remarks* remarks) {
  if (down_since_ns_ + kNsPerSecond < now_ns) {
    remarks->infos.push_back(absl::StrCat("memory server ", name_, " is back"));
  }
  alive_ns_ = action.asked_ns;  // hello asks for a lease that lives
  next_renew_ns_ = 0;           // to learn the server's word of lease, room and capacity
  times_up_ += 1;
  up_ = true;
  changed_.SignalAll();
}

void ServerSession::NoteLeaseLocked(const LeaseInfo& info, std::optional<uint64_t> look, int64_t asked_ns) {
  alive_ns_ = std::max(alive_ns_, asked_ns);
  if (look) room_.Hear(info.reservation_bytes, *look);
  reserver_.NoteCapacity(info.capacity);
  capacity_ = info.capacity;
  asked_.word += 1;
  asked_.share = info.asked_back_share;
  hear_again_ms_ = info.hear_again_ms;
  SetPressedLocked();
}

void ServerSession::SetPressedLocked() {
  reserver_.SetPressed(asked_.share > 0 || removed_ ? Reserver::Pressed::kAsked
                       : capacity_.pressed          ? Reserver::Pressed::kLately
                                                    : Reserver::Pressed::kNo);
}

void ServerSession::EndRenewLocked(const SessionAction& action, const SessionOutcome& outcome, int64_t now_ns,
                                   Remarks* remarks) {
  if (outcome.status.ok()) {
    bring_up_.NoteWell();
    // It may have been granted anew, and the answer to that was lost.
    if (room_.Enter(outcome.lease.incarnation, outcome.lease.term)) reserver_.NoteTerm();
    NoteLeaseLocked(outcome.lease, action.room_look == 0 ? std::nullopt : std::optional(action.room_look),
                    action.asked_ns);
  }
  if (action.ask.kind != Reserver::Ask::Kind::kNothing) return EndAskLocked(action, outcome, now_ns);
  if (outcome.status.ok()) {
    next_renew_ns_ = now_ns + std::min(lease_ttl_ms_ / 3, asked_.share > 0 ? hear_again_ms_ : kRenewMs) * kNsPerMs;
    renewed_ns_ = now_ns;
    hears_soon_ = false;
    return;
  }
  last_error_ = outcome.status;
  next_renew_ns_ = now_ns + std::min(lease_ttl_ms_ / 3, kRenewAgainMs) * kNsPerMs;
  if (absl::IsNotFound(outcome.status)) {
    lease_ended_ = true;
    if (now_ns >= log_again_ns_) {
      log_again_ns_ = now_ns + kLogAgainMs * kNsPerMs;
      remarks->warnings.push_back(std::string(outcome.status.message()));
    }
  }
}

void ServerSession::EndAskLocked(const SessionAction& action, const SessionOutcome& outcome, int64_t now_ns) {
  const absl::StatusOr<LeaseInfo> answer =
      outcome.status.ok() ? absl::StatusOr<LeaseInfo>(outcome.lease) : absl::StatusOr<LeaseInfo>(outcome.status);
  // First: room that was given back ends a refusal before it is over.
  if (outcome.status.ok()) NoteLeaseLocked(outcome.lease, std::nullopt, action.asked_ns);
  // That is why it refuses; a renewal will say more.
  if (absl::IsFailedPrecondition(outcome.status)) capacity_.draining = true;
  switch (reserver_.End(action.ask, answer, now_ns)) {
    case Reserver::Answer::kDone:
      break;
    case Reserver::Answer::kRefused:
      room_refused_number_ = room_asked_number_;
      break;
    case Reserver::Answer::kNoAnswer:
      room_failed_before_ = queue_.next_number();
      if (outcome.status.ok() || absl::IsAborted(outcome.status)) next_renew_ns_ = 0;  // another term, it seems
      break;
  }
}

void ServerSession::EndDeferredLocked(const SessionAction& action, const SessionOutcome& outcome, int64_t now_ns,
                                      Remarks* remarks) {
  if (action.kind == Kind::kDestroy) {
    for (const DeferredDestroys::Destroy& destroy : action.destroys) {
      if (!destroy.answered) RememberLocked(destroy);
    }
    if (outcome.reason == Reason::kLeaseEnded) lease_ended_ = true;
    NoteFreed();
    return;
  }
  if (!deferred_.EndUndo(outcome.status, now_ns)) return;
  if (!outcome.status.ok()) {  // another client may have taken it over meanwhile
    remarks->warnings.push_back(
        absl::StrCat("a named region that could not be created remains: ", outcome.status.message()));
  }
  changed_.SignalAll();
}

}  // namespace nram
