#ifndef NRAM_CLIENT_POOL_SERVER_LINK_H_
#define NRAM_CLIENT_POOL_SERVER_LINK_H_

// A pool client's standing with one server: its lease there, two data connections (urgent and bulk), the room it has
// reserved, and the thread that keeps all of that up: renews the lease, reconnects, reserves ahead.

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/poller.h"
#include "base/sync.h"
#include "base/units.h"
#include "client/pool/options.h"
#include "client/pool/room.h"
#include "client/transport/control_client.h"
#include "client/transport/transport.h"

namespace nram {

struct IoPart;

// Thread-safe.
class ServerLink {
 public:
  ServerLink(uint16_t index, const Endpoint& endpoint, LeaseId lease, const PoolOptions& options, Poller* poller,
             WakeLatency* wake_latency);
  ~ServerLink();

  // Starts the thread, which connects; AwaitUp tells when.
  void Start();
  // The thread is to end; the destructor waits for it. It ends the lease if the server answers within a second.
  void BeginStop();

  // Blocks until the server can be used or `deadline_ns`. The error is that of the last attempt.
  absl::Status AwaitUp(int64_t deadline_ns);
  // Like AwaitUp, but fails at once if the server has been away longer than fail_fast_after_ms.
  absl::Status AwaitUsable(int64_t deadline_ns);
  // Away for longer than fail_fast_after_ms.
  bool hopeless() const {
    MutexLock lock(&mu_);
    return !up() && MonotonicNs() - down_since_ns_ > options_.fail_fast_after_ms * kNsPerMs;
  }
  // It has not come up, but not because somebody said no: an attempt took long, or the first is still under way.
  bool may_be_slow() const {
    MutexLock lock(&mu_);
    return may_be_slow_;
  }
  bool up() const { return up_.load(std::memory_order_acquire); }
  // The server's life that this link is connected to; 0 before the first. Changes when the server has restarted.
  uint64_t incarnation() const { return incarnation_.load(std::memory_order_acquire); }
  // Something failed: look at the connections and the lease now, not at the next turn.
  void Suspect();
  // The server has said that the lease has ended.
  void NoteLeaseEnded() {
    alive_ns_ = 0;
    Suspect();
  }

  // The connection of the class; null before the first connect. It may be broken. Stays valid while the link lives.
  Transport* transport(IoClass io_class) const {
    return transports_[io_class == IoClass::kUrgent ? 1 : 0].load(std::memory_order_acquire);
  }

  // Whether what changes pages may be started. A connection that broke may have left a request at the server, to be
  // executed until its successor says hello; nothing must overtake it on the other one.
  bool MayChange() const { return DataConnected(); }

  // Room for `bytes`; if not that much is free, asks the server for more, which blocks until `deadline_ns` at most.
  // RESOURCE_EXHAUSTED: the server has not that much.
  absl::StatusOr<Room::Grant> TakeRoom(uint64_t bytes, int64_t deadline_ns);
  // Without blocking: nothing if not that much is free now.
  Room::Grant TryTakeRoom(uint64_t bytes);
  // What was granted here, or to a region, ends with Room's or RegionRoom's own calls. After those that may have left
  // more free than is kept: the server has it back soon.
  Room* room() { return &room_; }
  const Room* room() const { return &room_; }
  void NoteRoom() {
    if (room_.free_bytes() > kStepsKept * static_cast<int64_t>(options_.reserve_step_bytes)) WantLook();
  }
  // This client freed something there: it is worth asking for room again.
  void NoteFreed() {
    freed_events_.fetch_add(1, std::memory_order_relaxed);
    refused_.store(false, std::memory_order_relaxed);
  }
  // The server has no room beyond what is reserved.
  bool refused() const { return refused_.load(std::memory_order_relaxed); }

  // An operation there was not answered in time; and whether that was a moment ago. What is new then better goes
  // elsewhere, although the server says that it is there.
  void NoteSilence() { silent_ns_ = MonotonicNs(); }
  bool was_silent() const { return MonotonicNs() < silent_ns_ + kSilentNs; }

  // Where the data connections go: "10.0.0.7:7071" or "unix:/path"; empty before the first.
  std::string data_plane() const {
    MutexLock lock(&mu_);
    return data_plane_;
  }
  // As of the last word from the server.
  ServerCapacity capacity() const;
  uint32_t host() const { return host_.load(); }
  ServerHost host_state() const;

  // `part` failed and may succeed once the server is back, or others have returned room: starts it again then, or ends
  // it at its deadline.
  void RetryLater(IoPart* part);

  // What a server that does not answer keeps of a destroyed region is freed when it is back, unless it has restarted.
  // A bounded number waits; what is beyond goes with the lease.
  void DestroyLater(RegionId region, Epoch epoch, uint64_t incarnation);

  // A named region that was being created here under `lease`, which is its own, and is not to be. The link's thread
  // ends that lease, after which the server executes no create under it, and destroys the region: as soon as it can,
  // unless the server has restarted.
  struct Undo {
    std::string name;
    RegionId region;
    LeaseId lease;
    uint64_t incarnation;
  };
  void UndoCreate(Undo undo);
  // Whether one more is remembered.
  bool MayUndo() const;
  // Blocks until nothing of that name is to be undone here. False if `deadline_ns` passed, or the server is away.
  bool AwaitUndone(const std::string& name, int64_t deadline_ns);

  uint16_t index() const { return index_; }
  const std::string& name() const { return name_; }
  ControlClient* control() { return control_.get(); }
  LeaseId lease() const { return lease_; }

 private:
  static constexpr int64_t kControlTimeoutMs = 2'000;
  static constexpr int64_t kSlowAttemptNs = 500 * kNsPerMs;  // longer than any refusal takes
  static constexpr int64_t kEndTimeoutMs = 1'000;
  static constexpr int64_t kBackoffMinMs = 10;
  static constexpr int64_t kRetryTurnMs = 50;
  static constexpr int64_t kRetryPauseMs = 1;
  static constexpr int64_t kBackoffMaxMs = 1'000;
  static constexpr int64_t kRenewAgainMs = 500;
  static constexpr int64_t kSilenceMinMs = 1'000;
  static constexpr int64_t kSilentNs = 10 * kNsPerSecond;
  // Room beyond so many steps is given back, down to one.
  static constexpr int64_t kStepsKept = 2;
  static constexpr size_t kDestroysMax = 1 << 18;
  static constexpr size_t kDestroysAtOnce = 64;
  static constexpr size_t kUndosMax = 1024;
  static constexpr int64_t kLogBrokenMs = 1'000;
  // Each costs two transports, which stay: after so many restarts a server's next life is taken in once a minute.
  static constexpr int kLivesMax = 4096;
  static constexpr int64_t kLifePauseMs = 60'000;
  // A server that refuses no more than this is full.
  static constexpr uint64_t kRefusedBytes = 2 * kSpanBytes;

  void Run();
  // Waits for the thread's next work, until `wake_ns` at most. False: it is to end.
  bool AwaitWork(int64_t wake_ns, int64_t* next_renew_ns);
  // One attempt to have lease and connections.
  absl::Status BringUp();
  absl::Status Greet();
  // A lease's third at most.
  absl::Status ConnectBoth(int64_t timeout_ms);
  absl::Status ConnectData(const ServerHello& hello);
  // Renews the lease over the data plane if the control plane is late in doing so.
  void Ping();
  // Of a call that must not keep the thread from renewing the lease in time.
  int64_t ControlDeadline();
  // False: it must be tried again soon.
  bool Renew();
  // `look`: from before the server was asked; none: what it says of the room may be old already.
  void NoteLease(const LeaseInfo& info, std::optional<uint64_t> look);
  void ReserveAhead();
  // Blocks for a control call, if there is more than enough.
  void GiveBackRoom();
  // Has the thread look at the room.
  void WantLook();
  // Blocks until `deadline_ns` at most. UNAVAILABLE: the server does not answer. RESOURCE_EXHAUSTED: it has no more.
  absl::Status Reserve(uint64_t bytes, int64_t deadline_ns);
  absl::Status AskForRoom(uint64_t bytes, int64_t deadline_ns);
  // Sends one reservation (or the return of one, or nothing to see the former through); the caller has reserving_.
  // Without an answer nothing that the server says of the room counts until another one is answered: only then is it
  // known that the first is not executed any more.
  absl::StatusOr<LeaseInfo> SendReserve(int64_t pages, int64_t deadline_ns);
  // Has the server answer one, if the last has none.
  void SettleReserve();
  bool BeginReserving();
  void EndReserving();
  bool DataConnected() const;
  void RunRetries();
  // Blocks for some 50 ms, or until the connection breaks.
  void RunDestroys();
  // One, which may take two control calls; this client's own lease must not end meanwhile.
  void RunUndo();

  const uint16_t index_;
  const Endpoint endpoint_;
  const std::string name_;
  const LeaseId lease_;
  const PoolOptions& options_;  // the pool's
  Poller* const poller_;
  WakeLatency* const wake_latency_;
  const std::unique_ptr<ControlClient> control_;

  std::atomic<bool> up_{false};
  std::atomic<int64_t> alive_ns_{0};  // when the lease last was known to live
  std::atomic<uint64_t> incarnation_{0};
  std::atomic<uint32_t> host_{0};
  std::atomic<Transport*> transports_[2] = {nullptr, nullptr};

  Room room_;
  std::atomic<bool> written_to_{false};           // reserving ahead is worth it
  std::atomic<uint64_t> freed_events_{0};
  std::atomic<bool> refused_{false};  // the last reservation was; until the server says that there is room again
  std::atomic<int64_t> silent_ns_{-kSilentNs};
  Mutex reserve_mu_;
  CondVar reserve_ended_;
  bool reserving_ ABSL_GUARDED_BY(reserve_mu_) = false;         // one reservation at a time, or return of one
  std::atomic<bool> giving_back_{false};                        // written under reserve_mu_
  uint64_t reserve_order_ = 0;                                  // of the last request; of whoever has reserving_
  int64_t reserve_failed_ns_ ABSL_GUARDED_BY(reserve_mu_) = 0;  // the last time that it did not answer

  mutable Mutex mu_;
  CondVar changed_;  // up or down, or work for the thread
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  bool suspect_ ABSL_GUARDED_BY(mu_) = false;
  bool want_look_ ABSL_GUARDED_BY(mu_) = false;
  int64_t down_since_ns_ ABSL_GUARDED_BY(mu_);
  int64_t lease_ttl_ms_ ABSL_GUARDED_BY(mu_) = 1'000;
  absl::Status last_error_ ABSL_GUARDED_BY(mu_);
  bool may_be_slow_ ABSL_GUARDED_BY(mu_) = true;
  ServerCapacity capacity_ ABSL_GUARDED_BY(mu_);
  ServerHost host_state_ ABSL_GUARDED_BY(mu_);
  std::string data_plane_ ABSL_GUARDED_BY(mu_);
  IoPart* retries_ ABSL_GUARDED_BY(mu_) = nullptr;
  struct Destroyed {
    RegionId region;
    Epoch epoch;
    uint64_t incarnation;
  };
  std::vector<Destroyed> destroys_ ABSL_GUARDED_BY(mu_);
  std::vector<Undo> undos_ ABSL_GUARDED_BY(mu_);

  // The thread's own.
  std::vector<std::unique_ptr<Transport>>
      owned_transports_;  // those of former addresses too: calls may still name them
  int64_t reserve_ahead_after_ns_ = 0;
  int64_t give_back_after_ns_ = 0;
  int64_t undo_after_ns_ = 0;
  int64_t settle_after_ns_ = 0;
  int64_t log_broken_after_ns_ = 0;
  int lives_ = 0;  // of the server, as it says
  int64_t next_life_ns_ = 0;
  std::string said_of_socket_;  // the last that was logged
  std::thread thread_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_POOL_SERVER_LINK_H_
