#include "client/pool/server_session.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/plant.h"
#include "base/status.h"
#include "client/pool/placement.h"

namespace nram {

ServerSession::ServerSession(uint16_t index, const Endpoint& endpoint, LeaseId lease, const PoolOptions& options,
                             Environment* environment)
    : index_(index),
      endpoint_(endpoint),
      name_(endpoint.ToString()),
      lease_(lease),
      options_(options),
      environment_(environment),
      reserver_(&room_, options.reserve_step_bytes),
      down_since_ns_(environment->NowNs()),
      last_error_(absl::UnavailableError(absl::StrCat("memory server ", name_, ": not connected yet"))),
      bring_up_(options, name_, down_since_ns_) {}

ServerSession::~ServerSession() = default;

void ServerSession::Remarks::Log() const {
  for (const std::string& text : warnings) LOG(WARNING) << text;
  for (const std::string& text : infos) LOG(INFO) << text;
}

// --- The server as it stands.

bool ServerSession::IsUsableLocked() const { return bring_up_.is_up() && !lease_ended_ && life()->connected(); }

bool ServerSession::IsAwayTooLongLocked(int64_t now_ns) const {
  return !bring_up_.is_up() && !asleep() && now_ns - down_since_ns_ > options_.fail_fast_after_ms * kNsPerMs;
}

bool ServerSession::HasLeaseRunOutLocked(int64_t now_ns) const { return now_ns - alive_ns_ > lease_ttl_ms_ * kNsPerMs; }

ServerSession::LeaseTime ServerSession::lease_time() const {
  MutexLock lock(&mu_);
  if (!bring_up_.is_up()) return {};
  const int64_t whole_ns = lease_ttl_ms_ * kNsPerMs;
  return {whole_ns, std::max<int64_t>(0, alive_ns_ + whole_ns - environment_->NowNs())};
}

bool ServerSession::away_too_long() const {
  MutexLock lock(&mu_);
  return IsAwayTooLongLocked(environment_->NowNs());
}

std::string ServerSession::data_plane() const {
  MutexLock lock(&mu_);
  return data_plane_;
}

absl::Status ServerSession::AwaitUp(int64_t deadline_ns) {
  MutexLock lock(&mu_);
  while (!up()) {
    if (!changed_.WaitUntil(&mu_, deadline_ns)) return up() ? absl::OkStatus() : last_error_;
  }
  return absl::OkStatus();
}

void ServerSession::BeginStop() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    changed_.SignalAll();
    WakeDriver();
  }
  if (asleep()) ResumeDue();
}

void ServerSession::SetDriver(SessionDriver* driver) {
  MutexLock lock(&mu_);
  down_since_ns_ = environment_->NowNs();
  bring_up_.Begin(down_since_ns_);
  driver_.store(driver, std::memory_order_release);
}

void ServerSession::SetRemoved(bool removed) {
  {
    MutexLock lock(&mu_);
    if (removed_.exchange(removed) == removed) return;
    bring_up_.SetPatient(removed, environment_->NowNs());
    SetPressedLocked();
    next_renew_ns_ = 0;
  }
  WantLook();
}

void ServerSession::Suspect() {
  MutexLock lock(&mu_);
  if (bring_up_.is_up() && life()->connected()) next_renew_ns_ = 0;
  WakeDriver();
}

void ServerSession::NoteLeaseEnded(uint32_t times_up) {
  MutexLock lock(&mu_);
  if (times_up != times_up_ || !bring_up_.is_up()) return;
  lease_ended_ = true;
  WakeDriver();
}

void ServerSession::WantLook() {
  if (!look_wanted_.exchange(true)) WakeDriver();
}

ServerLife* ServerSession::LookLocked(int64_t now_ns) {
  if (stopping_) return nullptr;  // that the connections are down is its own doing
  if (!bring_up_.is_up()) {
    lease_ended_ = false;  // it is looked at on the way up
    return nullptr;
  }
  if (std::exchange(lease_ended_, false) || HasLeaseRunOutLocked(now_ns)) {
    // Ended, or about to be: callers must not take this server for one that can be used.
    last_error_ =
        absl::UnavailableError(absl::StrCat("memory server ", name_, ": this client's lease has ended there"));
    GoDownLocked(/*reconnect=*/false, now_ns);
    return life();
  }
  if (!life()->connected()) {
    last_error_ = absl::UnavailableError(absl::StrCat("memory server ", name_, ": a connection is down"));
    GoDownLocked(/*reconnect=*/true, now_ns);
  }
  return nullptr;
}

void ServerSession::GoDownLocked(bool reconnect, int64_t now_ns) {
  bring_up_.GoDown(reconnect, now_ns);
  reserver_.Reset();
  up_ = false;
  was_up_ = true;
  down_since_ns_ = now_ns;
  changed_.SignalAll();
}

void ServerSession::Cut(ServerLife* life) {
  if (life == nullptr) return;
  life->bulk->Disconnect();
  life->urgent->Disconnect();
}

// --- Waiting.

std::optional<Waiter::Outcome> ServerSession::JudgeLocked(Waiter* waiter, int64_t now_ns, bool may_take) {
  if (stopping_) return Outcome::kClosing;
  if (now_ns >= waiter->deadline_ns) return Outcome::kLate;
  switch (waiter->what) {
    case Waiter::For::kConnection:
      if (IsUsableLocked()) return Outcome::kUsable;
      if (IsAwayTooLongLocked(now_ns)) return Outcome::kAwayTooLong;
      return std::nullopt;
    case Waiter::For::kReservedRoom:
      if (returns_ != waiter->ticket) return Outcome::kUsable;
      return std::nullopt;
    case Waiter::For::kRoom:
      break;
  }
  if (!IsUsableLocked()) return Outcome::kNoAnswer;
  // When the server has refused, all waiters are told; each takes the room that is there.
  if (may_take || refused()) {
    waiter->grant = room_.TryTake(waiter->room_bytes);
    if (waiter->grant) return Outcome::kGranted;
  }
  const uint64_t number = RetryQueue::NumberOf(*waiter);
  if (number != 0 && number < room_failed_before_) return Outcome::kNoAnswer;
  if (reserver_.giving_back()) return std::nullopt;  // which ends a refusal
  if (refused() || (number != 0 && number == room_refused_number_)) return Outcome::kRefused;
  return std::nullopt;
}

void ServerSession::CountWaitersLocked() {
  room_waiters_ = static_cast<uint32_t>(queue_.count(Waiter::For::kRoom));
  return_waiters_ = static_cast<uint32_t>(queue_.count(Waiter::For::kReservedRoom));
}

bool ServerSession::WaitFor(Waiter* waiter) {
  MutexLock lock(&mu_);
  if (waiter->what == Waiter::For::kReservedRoom) return_waiters_ += 1;  // before the ticket is looked at
  if (waiter->what == Waiter::For::kRoom) reserver_.NoteTaken();
  const int64_t now_ns = environment_->NowNs();
  const std::optional<Outcome> outcome =
      JudgeLocked(waiter, now_ns, /*may_take=*/queue_.count(Waiter::For::kRoom) == 0);
  if (outcome) {
    waiter->outcome = *outcome;
  } else {
    waiter->since_ms = static_cast<uint32_t>(now_ns / kNsPerMs);
    queue_.Add(waiter);
    WakeDriver();
    if (asleep() && waker_ != nullptr) waker_->WantAwake(this);
  }
  CountWaitersLocked();
  return !outcome;
}

bool ServerSession::Cancel(Waiter* waiter) {
  MutexLock lock(&mu_);
  if (!queue_.Has(*waiter)) return false;
  queue_.Remove(waiter);
  CountWaitersLocked();
  return true;
}

void ServerSession::ResumeDue() {
  int64_t turn_ends_ns = environment_->NowNs() + kResumeTurnMs * kNsPerMs;
  uint64_t before = 0;
  {
    MutexLock lock(&mu_);
    if (queue_.empty()) return;
    if (stopping_) turn_ends_ns = INT64_MAX;  // the last turn
    before = queue_.next_number();
  }
  while (true) {
    Waiter* waiter = nullptr;
    std::string slow;
    {
      MutexLock lock(&mu_);
      const int64_t now_ns = environment_->NowNs();
      bool may_take = true;
      waiter = queue_.Take(before, [&](Waiter* one) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
        const std::optional<Outcome> outcome = JudgeLocked(one, now_ns, may_take);
        if (NRAM_PLANTED(waiter_not_resumed) && outcome == Outcome::kUsable && RetryQueue::NumberOf(*one) % 8 == 0) {
          return false;
        }
        if (NRAM_PLANTED(late_waiter_not_resumed) && outcome == Outcome::kLate) return false;
        if (outcome) {
          one->outcome = *outcome;
        } else if (one->what == Waiter::For::kRoom) {
          may_take = false;
        }
        return outcome.has_value();
      });
      CountWaitersLocked();
      if (waiter != nullptr) {
        const uint32_t waited_ms = static_cast<uint32_t>(now_ns / kNsPerMs) - waiter->since_ms;
        slow = waits_.Note(waiter->what, waiter->outcome, waited_ms * kNsPerMs, now_ns);
      }
    }
    if (!slow.empty()) LOG(INFO) << "memory server " << name_ << ": " << slow;
    if (waiter == nullptr) return;
    waiter->resume(waiter);
    if (environment_->NowNs() >= turn_ends_ns) return WakeDriver();
  }
}

void ServerSession::Tick() {
  ServerLife* cut = nullptr;
  bool went_down = false;
  {
    MutexLock lock(&mu_);
    const bool was_up = bring_up_.is_up();
    cut = LookLocked(environment_->NowNs());
    went_down = was_up && !bring_up_.is_up();
  }
  Cut(cut);
  if (went_down) WakeDriver();
  ResumeDue();
}

// --- Room.

Room::Grant ServerSession::TryTakeRoom(uint64_t bytes) {
  // Others wait for more than there is, and the server may still say how much more they get.
  if (room_waiters_.load(std::memory_order_relaxed) != 0 && !refused() && !reserver_.unanswered()) return {};
  Room::Grant grant = room_.TryTake(bytes);
  // Half a step left: asks for the next one before an operation must wait for it.
  if (grant && reserver_.NoteTaken()) WantLook();
  return grant;
}

void ServerSession::EndRoom(Room::Grant grant, uint64_t used_bytes) {
  if (grant) {
    room_.Used(std::move(grant), used_bytes);
    NoteRoom();
  } else if (used_bytes > 0) {
    // Without a grant the server knows which room was used, and says how much.
    room_.Charge(used_bytes);
  }
}

void ServerSession::NoteRoom() {
  if (room_waiters_.load(std::memory_order_relaxed) != 0 || reserver_.has_surplus()) WantLook();
}

void ServerSession::NoteReturned() {
  returns_ += 1;
  if (return_waiters_ != 0) WantLook();
}

void ServerSession::NoteAsksBack() {
  if (hears_soon_.load(std::memory_order_relaxed) || hears_soon_.exchange(true)) return;
  {
    MutexLock lock(&mu_);
    HearSoonLocked();
  }
  WantLook();
}

void ServerSession::HearSoonLocked() {
  // Whatever the server says, it is not asked at each of its answers; and if it has said when to ask, not before.
  next_renew_ns_ = std::min(next_renew_ns_, renewed_ns_ + hear_again_ms_ * kNsPerMs);
}

// --- Deferred destroys, and undos.

void ServerSession::RememberLocked(const DeferredDestroys::Destroy& destroy) {
  if (!deferred_.Add(destroy)) forgot_destroys_ = true;
}

void ServerSession::DestroyLater(const DeferredDestroys::Destroy& destroy) {
  MutexLock lock(&mu_);
  RememberLocked(destroy);
  WakeDriver();
}

void ServerSession::UndoCreate(DeferredDestroys::Undo undo) {
  MutexLock lock(&mu_);
  deferred_.Add(std::move(undo));  // MayUndo was asked; calls at the same time go beyond by their number
  WakeDriver();
}

bool ServerSession::MayUndo() const {
  MutexLock lock(&mu_);
  return deferred_.MayUndo();
}

bool ServerSession::AwaitUndone(const std::string& name, int64_t deadline_ns) {
  MutexLock lock(&mu_);
  while (true) {
    const bool done = !deferred_.IsUndoing(name);
    if (done || !up() || environment_->NowNs() >= deadline_ns) return done;
    changed_.WaitUntil(&mu_, deadline_ns);
  }
}

// --- The next action.

SessionAction ServerSession::Next() {
  ServerLife* cut = nullptr;
  look_wanted_ = false;
  {
    MutexLock lock(&mu_);
    CHECK(!in_action_) << "a session was asked for two things at a time";
    cut = LookLocked(environment_->NowNs());
    if (stopping_) cut = life();
  }
  Cut(cut);
  ResumeDue();
  SessionAction action;
  {
    MutexLock lock(&mu_);
    action = ChooseLocked(environment_->NowNs());
    in_action_ = action.kind != Kind::kNone && action.kind != Kind::kFinished;
  }
  // The server may begin another term of the lease now. Its answers of the former term, from before it collected that
  // term's writes, must not arrive later.
  if (action.kind == Kind::kGrant && !NRAM_PLANTED(former_connection_stays)) Cut(action.life);
  return action;
}

SessionAction ServerSession::StartActionLocked(Kind kind, int64_t now_ns, int64_t timeout_ms) const {
  SessionAction action;
  action.kind = kind;
  action.asked_ns = now_ns;
  action.deadline_ns = now_ns + timeout_ms * kNsPerMs;
  action.life = life();
  action.copies = copies_;
  return action;
}

SessionAction ServerSession::ChooseLocked(int64_t now_ns) {
  if (stopping_) {
    const bool has_lease = !std::exchange(ended_, true) && bring_up_.is_up();
    up_ = false;
    return StartActionLocked(has_lease ? Kind::kEndLease : Kind::kFinished, now_ns, kEndTimeoutMs);
  }
  if (!bring_up_.is_up()) return ChooseBringUpLocked(now_ns);
  // An action that keeps the control plane waiting must not keep the lease from being renewed in time.
  const int64_t timeout_ms = std::min(kControlTimeoutMs, lease_ttl_ms_ / 4);
  if (now_ns >= PingTimeLocked()) return StartActionLocked(Kind::kPing, now_ns, timeout_ms);
  if (now_ns >= next_renew_ns_) {
    SessionAction action = StartActionLocked(Kind::kRenew, now_ns, timeout_ms);
    action.room_look = room_.Look();
    return action;
  }
  deferred_first_ = !deferred_first_;
  SessionAction action =
      deferred_first_ ? ChooseDeferredLocked(now_ns, timeout_ms) : ChooseAskLocked(now_ns, timeout_ms);
  if (action.kind == Kind::kNone) {
    action = deferred_first_ ? ChooseAskLocked(now_ns, timeout_ms) : ChooseDeferredLocked(now_ns, timeout_ms);
  }
  if (action.kind == Kind::kNone) action.deadline_ns = WakeTimeLocked(now_ns);
  return action;
}

SessionAction ServerSession::ChooseBringUpLocked(int64_t now_ns) {
  int64_t timeout_ms = 0;
  const Kind kind = bring_up_.Next(now_ns, lease_ttl_ms_, &timeout_ms);
  SessionAction action = StartActionLocked(kind, now_ns, timeout_ms);
  if (kind == Kind::kNone) action.deadline_ns = WakeTimeLocked(now_ns);
  if (kind == Kind::kGrant) action.ttl_ms = bring_up_.LeaseTtlMs();
  if (kind == Kind::kDial) action.hello = bring_up_.hello();
  return action;
}

SessionAction ServerSession::ChooseAskLocked(int64_t now_ns, int64_t timeout_ms) {
  const Waiter* const first = queue_.First(Waiter::For::kRoom);
  const Reserver::Ask ask = reserver_.Next(now_ns, first == nullptr ? 0 : first->room_bytes);
  if (ask.kind == Reserver::Ask::Kind::kNothing) return {};
  const bool measures = ask.kind == Reserver::Ask::Kind::kMeasure;
  SessionAction action = StartActionLocked(measures ? Kind::kRenew : Kind::kReserve, now_ns, timeout_ms);
  action.ask = ask;
  action.pages = ask.pages;
  action.order = ask.order;
  room_asked_number_ = first == nullptr ? 0 : RetryQueue::NumberOf(*first);
  return action;
}

SessionAction ServerSession::ChooseDeferredLocked(int64_t now_ns, int64_t timeout_ms) {
  if (deferred_.DropOldUndos(incarnation())) changed_.SignalAll();
  std::vector<DeferredDestroys::Destroy> destroys = deferred_.TakeDestroys(incarnation());
  if (!destroys.empty()) {
    SessionAction action = StartActionLocked(Kind::kDestroy, now_ns, timeout_ms);
    action.destroys = std::move(destroys);
    return action;
  }
  const DeferredDestroys::Undo* const undo = deferred_.NextUndo(now_ns);
  if (undo == nullptr) return {};
  SessionAction action = StartActionLocked(Kind::kUndo, now_ns, timeout_ms);
  action.undo = *undo;
  return action;
}

int64_t ServerSession::PingTimeLocked() const {
  // Each server and each client bounds the cost of all its pings.
  const int64_t servers =
      fleet_ != nullptr ? fleet_->load(std::memory_order_relaxed) : static_cast<int64_t>(options_.servers.size());
  const int64_t period_ms = std::clamp(std::max(hear_again_ms_, servers * kPingMsPerServer), kPingMinMs, kPingMaxMs);
  return alive_ns_ + std::min(lease_ttl_ms_ * 2 / 5, period_ms) * kNsPerMs;
}

int64_t ServerSession::WakeTimeLocked(int64_t now_ns) const {
  int64_t wake_ns = std::min(now_ns + kIdleNs, queue_.EarliestDeadlineNs());
  if (!bring_up_.is_up()) {
    wake_ns = std::min(wake_ns, bring_up_.due_ns());
    const int64_t fail_fast_ns = down_since_ns_ + options_.fail_fast_after_ms * kNsPerMs + 1;
    if (!queue_.empty() && fail_fast_ns > now_ns) wake_ns = std::min(wake_ns, fail_fast_ns);
    return wake_ns;
  }
  const Waiter* const first = queue_.First(Waiter::For::kRoom);
  return std::min({wake_ns, next_renew_ns_, PingTimeLocked(), deferred_.DueNs(),
                   reserver_.DueNs(first == nullptr ? 0 : first->room_bytes)});
}

}  // namespace nram
