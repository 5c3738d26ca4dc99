#ifndef NRAM_CLIENT_TRANSPORT_SOCKET_TRANSPORT_H_
#define NRAM_CLIENT_TRANSPORT_SOCKET_TRANSPORT_H_

// Transport over TCP and Unix sockets.
//
// Nobody owns the traffic: there is a sending role and a receiving role, each held by one thread at a time. Whoever
// starts a call sends what is queued if nobody is sending, unless he drives the poller and sends for all that he
// started before he waits. Whoever waits receives for all if nobody is receiving; the others sleep until their call is
// done or the role is theirs. On the latency path there is therefore no hand-over between threads. Calls that nobody
// waits for are received by the poller. Locks are never held across a system call that could wait.

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "base/fd.h"
#include "base/poller.h"
#include "base/spin.h"
#include "base/sync.h"
#include "base/units.h"
#include "base/wake_latency.h"
#include "client/transport/endpoint.h"
#include "client/transport/transport.h"
#include "proto/message_reader.h"
#include "proto/wire.h"

namespace nram {

struct SocketTransportOptions {
  LeaseId lease{};
  bool urgent = false;
  // If not zero, hello fails with FAILED_PRECONDITION unless the server is this one.
  uint64_t incarnation = 0;
  SpinOptions spin;
  // If not zero, a machine that cannot be reached for so long breaks the connection.
  int64_t silence_timeout_ms = 0;
  // Who must listen at the other end of a Unix socket; PERMISSION_DENIED else. Not set: anybody.
  std::optional<uid_t> peer = std::nullopt;
  // Counts threads that sleep for replies. May be null; else it outlives the transport.
  WakeLatency* wake_latency = nullptr;
  // Of the wire: what control's hello chose.
  uint32_t version = kWireVersion;
};

class SocketTransport : public Transport, private MessageReader::Handler, private Poller::Client {
 public:
  // `poller` must outlive the transport.
  SocketTransport(const SocketAddress& address, const SocketTransportOptions& options, Poller* poller);
  // No call may be under way that another thread waits for; others are completed with kUnavailable.
  ~SocketTransport() override;

  absl::Status Connect(int64_t deadline_ns) override ABSL_LOCKS_EXCLUDED(mu_);
  bool connected() const override { return connected_.load(std::memory_order_acquire); }
  void Start(Call* call) override ABSL_LOCKS_EXCLUDED(mu_);
  void Wait(Call* call) override ABSL_LOCKS_EXCLUDED(mu_);
  void Disconnect() override ABSL_LOCKS_EXCLUDED(mu_);
  std::string TakeBreakReason() override ABSL_LOCKS_EXCLUDED(mu_);

 private:
  static constexpr uint32_t kSlots = 256;
  static constexpr int kPollerRoundsMax = 64;
  static constexpr int kBatchCallsMax = 16;
  static constexpr uint32_t kHoldFrom = 8;
  static constexpr size_t kBatchPiecesMax = 512;
  // A thread that comes to Wait when the deadline is over, or nearly, reads what is there before it judges.
  static constexpr int64_t kCatchUpNs = 20 * kNsPerMs;

  // FIFO of calls, linked through them.
  struct CallQueue {
    Call* head = nullptr;
    Call* tail = nullptr;
    void Push(Call* call);
    Call* Pop();
  };

  // What is being sent: encoded headers, masks and chunks of a few calls. Only the holder of the sending role touches
  // it.
  struct Batch {
    std::array<std::array<std::byte, kMessageHeaderBytes>, kBatchCallsMax> headers;
    std::array<iovec, kBatchPiecesMax> pieces;
    std::array<size_t, kBatchCallsMax> end_piece;  // where each call's pieces end
    size_t calls = 0;
    size_t calls_sent = 0;  // whole
    size_t piece_count = 0;
    size_t next_piece = 0;

    bool empty() const { return next_piece == piece_count; }
    void Add(const void* data, size_t bytes);
    void Advance(size_t bytes);
  };

  // MessageReader::Handler, on the thread that holds the receiving role.
  absl::StatusOr<bool> OnHeader(const MessageHeader& reply, absl::Span<const ChunkMask> masks,
                                Landing* landing) override;
  absl::Status OnMessage(const MessageHeader& reply, absl::Span<const uint32_t> page_crcs) override;
  void OnCorrupt(const MessageHeader& reply) override;
  // Poller::Client.
  void OnReady() override;
  void OnTick(int64_t now_ns) override;
  void OnFlush() override;

  absl::StatusOr<Credit> SayHello(int fd, int64_t deadline_ns);

  // Takes calls from the queue into the batch, as far as credit and room go. False if there is nothing to send.
  bool FillBatchLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AppendToBatchLocked(Call* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends until nothing is left or the socket is full. Releases mu_ around system calls.
  void SendLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountLocked(const Call& call, int change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets the poller receive if calls are under way that nobody waits for and nobody receives. It stays armed until
  // somebody else is to receive: a stream of such calls costs nothing here.
  void ArmIfNeededLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DisarmLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Receives, holding the role, until `call` is done (null: until the socket is empty) or its deadline passes; then
  // what has arrived by then is read, for kCatchUpNs at most, before the connection counts as silent.
  void ReceiveFor(Call* call) ABSL_LOCKS_EXCLUDED(mu_);
  // On the poller's thread: receives what is there.
  void Look() ABSL_LOCKS_EXCLUDED(mu_);
  // A thread is about to sleep for a reply, or has been woken by one.
  void CountSleep() {
    if (options_.wake_latency != nullptr) options_.wake_latency->Count();
  }
  // Waits for the socket; false if `deadline_ns` passed.
  bool WaitReadable(int64_t deadline_ns) ABSL_LOCKS_EXCLUDED(mu_);
  void ReleaseReceivingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SleepAsFollower(Call* call) ABSL_LOCKS_EXCLUDED(mu_);
  // Marks the connection broken; whoever holds the receiving role fails the calls.
  void BreakLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Completes all calls of a broken connection, when nobody sends from their buffers any more. The caller holds the
  // receiving role.
  void FailAll() ABSL_LOCKS_EXCLUDED(mu_);
  void FailIfIdleAndBroken() ABSL_LOCKS_EXCLUDED(mu_);
  bool HasExpiredLocked(int64_t now_ns) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SocketAddress address_;
  const SocketTransportOptions options_;
  Poller* const poller_;

  Mutex connect_mu_;  // serialises Connect; taken before mu_

  mutable Mutex mu_;
  CondVar roles_free_;
  std::atomic<bool> connected_{false};  // written under mu_
  UniqueFd fd_;                         // exchanged only while nobody holds a role; shut down under mu_
  Credit credit_ ABSL_GUARDED_BY(mu_);
  CallQueue queue_ ABSL_GUARDED_BY(mu_);
  int queued_ ABSL_GUARDED_BY(mu_) = 0;
  std::array<Call*, kSlots> slots_ ABSL_GUARDED_BY(mu_){};
  uint64_t next_request_id_ ABSL_GUARDED_BY(mu_) = 2;  // hello was 1
  uint64_t last_sent_id_ ABSL_GUARDED_BY(mu_) = 1;     // of those that were sent whole
  uint32_t requests_out_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t credit_out_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int unwaited_ ABSL_GUARDED_BY(mu_) = 0;  // calls with `done`, queued or sent, that the poller receives
  int lazy_ ABSL_GUARDED_BY(mu_) = 0;      // those with wait_expected or may_wait_late
  bool sending_ ABSL_GUARDED_BY(mu_) = false;
  bool send_blocked_ ABSL_GUARDED_BY(mu_) = false;
  bool receiving_ ABSL_GUARDED_BY(mu_) = false;
  std::string break_reason_ ABSL_GUARDED_BY(mu_);
  bool reply_waits_ ABSL_GUARDED_BY(mu_) = false;  // for the sender's notice that its request was sent
  bool armed_ ABSL_GUARDED_BY(mu_) = false;
  bool armed_for_output_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Call*> followers_ ABSL_GUARDED_BY(mu_);  // capacity kept

  // Of the sending role.
  Batch batch_;
  // Of the receiving role.
  std::optional<MessageReader> reader_;
  Call* landing_call_ = nullptr;
  Call* garbled_call_ = nullptr;  // whose reply broke the connection
  SpinPolicy spin_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_TRANSPORT_SOCKET_TRANSPORT_H_
