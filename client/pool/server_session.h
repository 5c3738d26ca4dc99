#ifndef NRAM_CLIENT_POOL_SERVER_SESSION_H_
#define NRAM_CLIENT_POOL_SERVER_SESSION_H_

// A pool client's standing with one server: its lease there, the two data connections, the room that the server has
// reserved, and the waiters for any of these. A state machine: it has no thread, reads no clock but its environment's,
// and touches no network but to cut its connections. Its driver asks Next() for an action, carries it out, and reports
// the outcome to Done(). The driver is a thread in production (thread_driver.h) and the event loop in a simulation.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/host/wake_latency.h"
#include "base/poller.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/pool/bring_up.h"
#include "client/pool/change_gate.h"
#include "client/pool/claims.h"
#include "client/pool/deferred_destroys.h"
#include "client/pool/environment.h"
#include "client/pool/options.h"
#include "client/pool/placement.h"
#include "client/pool/reserver.h"
#include "client/pool/retry_queue.h"
#include "client/pool/room.h"
#include "client/pool/session_action.h"
#include "client/pool/slow_waits.h"
#include "client/transport/control_client.h"
#include "client/transport/transport.h"

namespace nram {

class ServerSession;

// Drives one session. Thread-safe.
class SessionDriver {
 public:
  virtual ~SessionDriver() = default;
  // Next() has an action. Does not block; the caller may hold the session's lock.
  virtual void Wake() = 0;
  // Blocks until Next() has returned kFinished: one action's deadline and a second at most.
  virtual void Join() = 0;
  // The server's control plane, for calls that concern regions. Lives as long as the driver.
  virtual ControlClient* control() = 0;
};

// Everything that a pool stands on: this machine's clock, threads and sockets (thread_driver.h), or a simulation's.
// Thread-safe.
class PoolEdge {
 public:
  virtual ~PoolEdge() = default;
  virtual Environment* environment() = 0;
  // Drives `session` until it has stopped. The caller owns the driver, and destroys it before the session.
  // Null: there is no thread for it now, and the session is as it was.
  virtual std::unique_ptr<SessionDriver> Drive(ServerSession* session) = 0;
  // Null where there are no threads.
  virtual Poller* poller() = 0;
  virtual WakeLatency* wake_latency() = 0;

  // The order of changes that overlap, in regions of copies.
  ChangeGate* gate() { return &gate_; }
  // The listener of the time, called after the gate. Null: none. Blocks while a call of the former listener is under
  // way; it gets none after that.
  class Ticked {
   public:
    virtual ~Ticked() = default;
    virtual void Tick(int64_t now_ns) = 0;
  };
  void SetTicked(Ticked* ticked) {
    MutexLock lock(&mu_);
    ticked_ = ticked;
  }

 protected:
  // To be called every 20 ms or so.
  void Tick(int64_t now_ns) {
    gate_.Tick(now_ns);
    MutexLock lock(&mu_);
    if (ticked_ != nullptr) ticked_->Tick(now_ns);
  }

 private:
  ChangeGate gate_;
  Mutex mu_;
  Ticked* ticked_ ABSL_GUARDED_BY(mu_) = nullptr;
};

// Thread-safe. Nothing blocks but AwaitUp and AwaitUndone.
class ServerSession {
 public:
  // `environment` and `options` outlive the session.
  ServerSession(uint16_t index, const Endpoint& endpoint, LeaseId lease, const PoolOptions& options,
                Environment* environment);
  ~ServerSession();
  ServerSession(const ServerSession&) = delete;
  ServerSession& operator=(const ServerSession&) = delete;

  // --- For the pool, before others see it.
  // Learns that a waiter needs a session that is asleep. Does not block; the session's lock may be held.
  class Waker {
   public:
    virtual ~Waker() = default;
    virtual void WantAwake(ServerSession* session) = 0;
  };
  // All outlive the session. Null `waker`: none. Null `claims`: each server has one session only.
  void SetWaker(Waker* waker, Claims* claims) {
    waker_ = waker;
    claims_ = claims;
  }
  // How many servers the pool greets.
  void SetFleet(const std::atomic<int64_t>* fleet) { fleet_ = fleet; }

  // --- For the driver: one thread at a time.
  // Before the first Next. `driver` outlives the session's use.
  void SetDriver(SessionDriver* driver);
  // Resumes waiters that are due and returns the next action. One action is under way at a time.
  SessionAction Next();
  // Ends the action that Next has returned. Resumes waiters that are due.
  void Done(SessionAction action, SessionOutcome outcome);
  // Resumes waiters that are due or late. To be called every 20 ms or so, from any thread, also while an action is
  // under way.
  void Tick();
  // The session begins to stop: it resumes all waiters, cuts its connections and ends the lease.
  void BeginStop();

  // --- The server as it stands.
  uint16_t index() const { return index_; }
  const Endpoint& endpoint() const { return endpoint_; }
  const std::string& name() const { return name_; }
  LeaseId lease() const { return lease_; }
  const PoolOptions& options() const { return options_; }
  ControlClient* control() const { return driver()->control(); }
  // It has no driver yet: the server is known by its name alone.
  bool asleep() const { return driver() == nullptr; }
  // The server is no member of the pool any more, or is one again. While it is none, it gets no new pages, and its
  // pages are to move, as if it asked for that itself.
  void SetRemoved(bool removed);
  bool removed() const { return removed_.load(std::memory_order_relaxed); }
  // The session that has the same server by another name, while that keeps this one out; kNoServer: none.
  uint16_t twin() const { return twin_.load(std::memory_order_relaxed); }
  bool up() const { return up_.load(std::memory_order_acquire); }
  // The present life; null before the first. It may be over, and not noticed yet.
  ServerLife* life() const { return life_.load(std::memory_order_acquire); }
  uint64_t incarnation() const {
    const ServerLife* const present = life();
    return present == nullptr ? 0 : present->incarnation;
  }
  // Away for longer than fail_fast_after_ms.
  bool away_too_long() const;
  // As of now, its connections can be used.
  bool usable() const {
    const ServerLife* const present = life();
    return up() && present != nullptr && present->connected();
  }
  // For how long it has been away; 0: it is not, or that is not noticed yet.
  int64_t AwayNs() const {
    MutexLock lock(&mu_);
    return bring_up_.is_up() || asleep() ? 0 : environment_->NowNs() - down_since_ns_;
  }
  // The lease there, as this client knows it: its whole time, and the time left, which is less than the server counts.
  // 0: it has none.
  struct LeaseTime {
    int64_t whole_ns = 0;
    int64_t left_ns = 0;
  };
  LeaseTime lease_time() const;
  // It has not come up, but was not refused: an attempt took long, or the first is still under way.
  bool may_be_slow() const {
    MutexLock lock(&mu_);
    return bring_up_.may_be_slow();
  }
  // As of the last word from the server, or of the pool's members.
  ServerCapacity capacity() const {
    MutexLock lock(&mu_);
    ServerCapacity capacity = capacity_;
    capacity.draining = capacity.draining || removed_;
    capacity.leaving = capacity.leaving || removed_;
    return capacity;
  }
  // Equal for servers that share a host, or a domain (0: it has none). As of the server's last hello.
  uint32_t host() const { return host_.load(); }
  uint32_t domain() const { return domain_.load(); }
  ServerHost host_state() const {
    MutexLock lock(&mu_);
    return host_state_;
  }
  // The tenant that this client is there, as of the server's last hello; "" before the first.
  std::string tenant() const {
    MutexLock lock(&mu_);
    return tenant_;
  }
  // Where the data connections go: "10.0.0.7:7071" or "unix:/path"; empty before the first.
  std::string data_plane() const;
  // Blocks until the server can be used or `deadline_ns`. The error is that of the last attempt.
  absl::Status AwaitUp(int64_t deadline_ns);
  // The last attempt was refused because of this client's identity: waiting does not help.
  bool keeps_out() const {
    MutexLock lock(&mu_);
    return is_kept_out_ && !up();
  }
  // The error of the last attempt, or the error that took it down.
  absl::Status last_error() const {
    MutexLock lock(&mu_);
    return last_error_;
  }

  // The server's last word to this client about giving back: the share, in millionths of the client's bytes there, and
  // the number of that word.
  struct Asked {
    uint64_t word = 0;
    uint32_t share = 0;
  };
  Asked asked() const {
    MutexLock lock(&mu_);
    return asked_;
  }
  // It asks for memory, so it gets no new pages. That holds until it says that it has received enough.
  bool asks() const {
    MutexLock lock(&mu_);
    return asked_.share > 0 || capacity_.asked_back_bytes > 0;
  }
  // It asks, or was short of memory lately and has no room for a new span: spans with another copy do without this one
  // for now.
  bool needs_memory() const {
    MutexLock lock(&mu_);
    return asked_.share > 0 || capacity_.asked_back_bytes > 0 ||
           (capacity_.pressed && capacity_.free_bytes < kSpanBytes);
  }

  // --- Observations of calls.
  // The server asks for memory: a renewal of the lease, soon, tells how much.
  void NoteAsksBack();
  // A call failed: look at the connections now.
  void Suspect();
  // The server has said that the lease has ended, to a call that was started when times_up() was `times_up`. If the
  // server has come up since, the answer is old.
  void NoteLeaseEnded(uint32_t times_up);
  uint32_t times_up() const { return times_up_.load(std::memory_order_acquire); }
  // NoteSilence: a call was not answered in time. was_silent: that was less than kSilentNs ago. New spans then are
  // placed on other servers, if there are any.
  void NoteSilence() { silent_ns_ = environment_->NowNs(); }
  bool was_silent() const { return environment_->NowNs() < silent_ns_ + kSilentNs; }

  // --- Waiting.
  // True: `waiter` will be resumed, once. False: it need not wait; its outcome is set, and resume does not run.
  bool WaitFor(Waiter* waiter);
  // The ended waits, by kind.
  SlowWaits::Totals waits() const {
    MutexLock lock(&mu_);
    return waits_.totals();
  }
  // True: it will not be resumed. False: it was, or is just being resumed.
  bool Cancel(Waiter* waiter);

  // --- Room. EndRoom ends a grant of the client's room; a RegionRoom ends a grant of its region's quota. Null if less
  // is free now, or others wait for it.
  Room::Grant TryTakeRoom(uint64_t bytes);
  void EndRoom(Room::Grant grant, uint64_t used_bytes);
  Room* room() { return &room_; }
  const Room* room() const { return &room_; }
  // The copies to report to the server when the lease is renewed, which is soon if the report is new.
  void NoteCopies(const CopiesReport& copies) {
    {
      MutexLock lock(&mu_);
      if (copies_ == copies) return;
      copies_ = copies;
      next_renew_ns_ = 0;
    }
    WantLook();
  }
  CopiesReport copies() const {
    MutexLock lock(&mu_);
    return copies_;
  }
  // The room may have changed: has the driver look whether waiters can be served, or room can be given back.
  void NoteRoom();
  // Room was returned to a region's quota, or the quota grew. A waiter takes its ticket from `returns`.
  void NoteReturned();
  uint64_t returns() const { return returns_.load(); }
  // This client freed something there: it is worth asking for room again.
  void NoteFreed() { reserver_.NoteFreed(); }
  // The server has no room beyond the reserved room.
  bool refused() const { return reserver_.refused(); }

  // --- Deferred destroys, and undos, for when the server is back.
  // Frees a destroyed region's part at the server. The list is bounded; parts that do not fit are freed with the lease.
  void DestroyLater(const DeferredDestroys::Destroy& destroy);
  // A failed create of a named region is undone.
  void UndoCreate(DeferredDestroys::Undo undo);
  // Whether one more is remembered.
  bool MayUndo() const;
  // Blocks until nothing of that name is to be undone here. False if `deadline_ns` passed, or the server is away.
  bool AwaitUndone(const std::string& name, int64_t deadline_ns);

 private:
  static constexpr int64_t kControlTimeoutMs = 2'000;
  static constexpr int64_t kEndTimeoutMs = 1'000;
  static constexpr int64_t kResumeTurnMs = 50;
  static constexpr int64_t kRenewMs = 4'000;  // at least this often, to learn the server's state
  // A ping follows the last sign of life after this time, which bounds the age of the server's request for memory.
  static constexpr int64_t kPingMinMs = 100;
  static constexpr int64_t kPingMaxMs = 500;
  static constexpr int64_t kPingMsPerServer = 2;
  static constexpr int64_t kRenewAgainMs = 500;
  static constexpr int64_t kRenewAskedMs = 100;  // after the last, if an answer says that the server asks for memory
  static constexpr int64_t kSilentNs = 10 * kNsPerSecond;
  static constexpr int64_t kIdleNs = 3'600 * kNsPerSecond;
  static constexpr int64_t kLogAgainMs = 1'000;
  static constexpr int64_t kGiveUpMs = 30'000;  // away for this long, it gives up the server's life to a twin
  // Each costs two transports until the pool is closed: after this many restarts a server's next life is taken in once
  // a minute.
  static constexpr size_t kLivesMax = 4096;
  static constexpr int64_t kLifePauseMs = 60'000;

  using Kind = SessionAction::Kind;
  using Outcome = Waiter::Outcome;

  // Lines for the log. They are written without the lock, since the log's reader may be waiting for one of our pages.
  struct Remarks {
    std::vector<std::string> warnings;
    std::vector<std::string> infos;
    void Log() const;
  };

  SessionDriver* driver() const { return driver_.load(std::memory_order_acquire); }
  void WakeDriver() const {
    if (SessionDriver* const driver = this->driver(); driver != nullptr) driver->Wake();
  }
  // Sets how much room is kept there for later use, by all that is known of the server.
  void SetPressedLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsUsableLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool IsAwayTooLongLocked(int64_t now_ns) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  bool HasLeaseRunOutLocked(int64_t now_ns) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Notices changes since the last look. The caller cuts the connections of the returned life, without the lock.
  ServerLife* LookLocked(int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void GoDownLocked(bool reconnect, int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static void Cut(ServerLife* life);
  // Resumes waiters that queued before this call, for kResumeTurnMs at most.
  void ResumeDue();
  // Nothing if the waiter must wait on. `may_take`: no other waiter for room stands before it.
  std::optional<Outcome> JudgeLocked(Waiter* waiter, int64_t now_ns, bool may_take) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountWaitersLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void WantLook();
  void HearSoonLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  SessionAction StartActionLocked(Kind kind, int64_t now_ns, int64_t timeout_ms) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SessionAction ChooseLocked(int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SessionAction ChooseBringUpLocked(int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // kNone if nothing is to be asked of the server for room, or freed there.
  SessionAction ChooseAskLocked(int64_t now_ns, int64_t timeout_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  SessionAction ChooseDeferredLocked(int64_t now_ns, int64_t timeout_ms) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t PingTimeLocked() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  int64_t WakeTimeLocked(int64_t now_ns) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  // Each ends one kind of action.
  // The caller cuts the connections of the returned life, without the lock.
  ServerLife* EndBringUpLocked(const SessionAction& action, SessionOutcome* outcome, int64_t now_ns, Remarks* remarks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The server's new life. Returns the former one, whose connections are to be cut.
  ServerLife* EnterLifeLocked(SessionOutcome* outcome, int64_t now_ns, Remarks* remarks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The lease as it was granted is the present one.
  void EnterLeaseLocked(const SessionAction& action) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void ComeUpLocked(const SessionAction& action, int64_t now_ns, Remarks* remarks) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndRenewLocked(const SessionAction& action, const SessionOutcome& outcome, int64_t now_ns, Remarks* remarks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndAskLocked(const SessionAction& action, const SessionOutcome& outcome, int64_t now_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void EndDeferredLocked(const SessionAction& action, const SessionOutcome& outcome, int64_t now_ns, Remarks* remarks)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // `look`: from before the server was asked; none: its answer about the room may be old already.
  void NoteLeaseLocked(const LeaseInfo& info, std::optional<uint64_t> look, int64_t asked_ns)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void RememberLocked(const DeferredDestroys::Destroy& destroy) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const uint16_t index_;
  const Endpoint endpoint_;
  const std::string name_;
  const LeaseId lease_;
  const PoolOptions& options_;
  Environment* const environment_;
  std::atomic<SessionDriver*> driver_{nullptr};
  Waker* waker_ = nullptr;
  Claims* claims_ = nullptr;
  const std::atomic<int64_t>* fleet_ = nullptr;
  std::atomic<uint16_t> twin_{kNoServer};
  std::atomic<bool> removed_{false};  // written under mu_

  std::atomic<bool> up_{false};        // written under mu_
  std::atomic<uint32_t> times_up_{0};  // how often the server has come up; written under mu_
  std::atomic<ServerLife*> life_{nullptr};
  std::atomic<uint32_t> host_{0};
  std::atomic<uint32_t> domain_{0};
  std::atomic<int64_t> silent_ns_{-kSilentNs};
  std::atomic<bool> hears_soon_{false};  // a renewal is due, to learn how much the server asks for

  Room room_;
  Reserver reserver_;  // guarded by mu_, except for its thread-safe functions
  std::atomic<bool> look_wanted_{false};
  std::atomic<uint32_t> room_waiters_{0};  // those in the queue; written under mu_
  std::atomic<uint32_t> return_waiters_{0};
  std::atomic<uint64_t> returns_{0};

  mutable Mutex mu_;
  CondVar changed_;  // up or down, or an undo is done
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool in_action_ ABSL_GUARDED_BY(mu_) = false;
  bool lease_ended_ ABSL_GUARDED_BY(mu_) = false;
  int64_t down_since_ns_ ABSL_GUARDED_BY(mu_);
  int64_t alive_ns_ ABSL_GUARDED_BY(mu_) = 0;  // when the lease last was known to live
  int64_t lease_ttl_ms_ ABSL_GUARDED_BY(mu_) = 1'000;
  absl::Status last_error_ ABSL_GUARDED_BY(mu_);
  ServerCapacity capacity_ ABSL_GUARDED_BY(mu_);
  Asked asked_ ABSL_GUARDED_BY(mu_);
  int64_t renewed_ns_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t hear_again_ms_ ABSL_GUARDED_BY(mu_) = kRenewAskedMs;  // as it last said
  ServerHost host_state_ ABSL_GUARDED_BY(mu_);
  std::string data_plane_ ABSL_GUARDED_BY(mu_);
  std::vector<std::unique_ptr<ServerLife>> lives_ ABSL_GUARDED_BY(mu_);  // former ones too: calls may still name them
  RetryQueue queue_ ABSL_GUARDED_BY(mu_);
  uint64_t room_failed_before_ ABSL_GUARDED_BY(mu_) = 0;   // room waiters before this number: no answer
  uint64_t room_asked_number_ ABSL_GUARDED_BY(mu_) = 0;    // the room waiter for whom the server is asked
  uint64_t room_refused_number_ ABSL_GUARDED_BY(mu_) = 0;  // the room waiter whose wish alone was refused
  DeferredDestroys deferred_ ABSL_GUARDED_BY(mu_);
  bool deferred_first_ ABSL_GUARDED_BY(mu_) = false;  // room and deferred destroys take turns
  int64_t next_renew_ns_ ABSL_GUARDED_BY(mu_) = 0;
  CopiesReport copies_ ABSL_GUARDED_BY(mu_);

  BringUp bring_up_ ABSL_GUARDED_BY(mu_);
  bool is_kept_out_ ABSL_GUARDED_BY(mu_) = false;  // the last attempt was, because of this client's identity
  bool was_up_ ABSL_GUARDED_BY(mu_) = false;       // before the present attempts to come up, of which none was logged
  bool ended_ ABSL_GUARDED_BY(mu_) = false;        // the lease was given up
  int64_t next_life_ns_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t log_again_ns_ ABSL_GUARDED_BY(mu_) = 0;
  bool forgot_destroys_ ABSL_GUARDED_BY(mu_) = false;  // and the log does not say so yet
  SlowWaits waits_ ABSL_GUARDED_BY(mu_);
  std::string tenant_ ABSL_GUARDED_BY(mu_);
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_SERVER_SESSION_H_
