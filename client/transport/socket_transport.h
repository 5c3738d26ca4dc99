#ifndef NRAM_CLIENT_TRANSPORT_SOCKET_TRANSPORT_H_
#define NRAM_CLIENT_TRANSPORT_SOCKET_TRANSPORT_H_

// Transport over TCP and Unix sockets.
//
// No thread owns the traffic. There is a sending role and a receiving role; one thread at a time holds each.
//   Sending    A thread that starts a call sends all queued calls, if no thread is sending. A thread that drives the
//              poller sends later: before it waits, it sends all calls that it has started.
//   Receiving  A thread that waits receives for all, if no thread is receiving. The others sleep until their call is
//              done or they get the role. The poller receives the calls that no thread waits for.
// So a call on the latency path is not handed from thread to thread. No lock is held across a system call that could
// wait.

#include <sys/uio.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/endpoint.h"
#include "base/fd.h"
#include "base/host/wake_latency.h"
#include "base/poller.h"
#include "base/spin.h"
#include "base/sync.h"
#include "base/tls/channel.h"
#include "base/tls/context.h"
#include "base/units.h"
#include "client/transport/transport.h"
#include "proto/message_reader.h"
#include "proto/wire.h"

namespace nram {

struct SocketTransportOptions {
  LeaseId lease{};
  bool urgent = false;
  // If not zero, hello fails with FAILED_PRECONDITION unless the server has this incarnation.
  uint64_t incarnation = 0;
  SpinOptions spin;
  // If not zero, the connection breaks when the other machine cannot be reached for this time.
  int64_t silence_timeout_ms = 0;
  // If not zero, the connection breaks when calls are under way and nothing has come for this time: the server's
  // process stands still, or the way to it is cut.
  int64_t silence_limit_ms = 0;
  // The user whose process must listen at the other end of a Unix socket; PERMISSION_DENIED if it is another's. Not
  // set: any user.
  std::optional<uid_t> peer = std::nullopt;
  // Null: plain. Else the server's certificate must be for `host`, the name or address that was dialled.
  std::shared_ptr<TlsContext> tls = nullptr;
  std::string host = "";
  // Counts threads that sleep for replies. May be null. Outlives the transport.
  WakeLatency* wake_latency = nullptr;
  // The version of the wire, as control's hello chose it.
  uint32_t version = kWireVersion;
};

class SocketTransport : public Transport, private MessageReader::Handler, private Poller::Client {
 public:
  // `poller` must outlive the transport.
  SocketTransport(const SocketAddress& address, const SocketTransportOptions& options, Poller* poller);
  // No thread may be waiting for a call. Calls under way end with kUnavailable.
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
  // The time for a thread that calls Wait after the deadline, or just before it, to read the received data.
  static constexpr int64_t kCatchUpNs = 20 * kNsPerMs;
  static constexpr int64_t kTickLateNs = 200 * kNsPerMs;

  // A FIFO of calls, linked through the calls.
  struct CallQueue {
    Call* head = nullptr;
    Call* tail = nullptr;
    void Push(Call* call);
    Call* Pop();
  };

  // The calls that are being sent: their encoded headers, masks and chunks. Only the holder of the sending role touches
  // it.
  struct Batch {
    std::array<std::array<std::byte, kMessageHeaderBytes>, kBatchCallsMax> headers;
    std::array<iovec, kBatchPiecesMax> pieces;
    std::array<size_t, kBatchCallsMax> end_piece;  // where each call's pieces end
    size_t calls = 0;
    size_t calls_sent = 0;  // those that were sent whole
    size_t piece_count = 0;
    size_t next_piece = 0;

    bool empty() const { return next_piece == piece_count; }
    void Add(const void* data, size_t bytes);
    void Advance(size_t bytes);
  };

  // MessageReader::Handler, on the thread that holds the receiving role.
  absl::StatusOr<bool> OnHeader(const MessageHeader& reply, const PayloadTables& tables, Landing* landing) override;
  absl::Status OnMessage(const MessageHeader& reply, absl::Span<const uint32_t> page_crcs) override;
  void OnCorrupt(const MessageHeader& reply) override;
  // Poller::Client.
  void OnReady() override;
  void OnTick(int64_t now_ns) override;
  // Nothing has come for silence_limit_ms although something should.
  bool HasFallenSilentLocked(int64_t now_ns) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnFlush() override;

  absl::StatusOr<std::unique_ptr<Channel>> MakeChannel(int fd, int64_t deadline_ns) const;
  absl::StatusOr<Credit> SayHello(Channel* channel, int64_t deadline_ns) const;

  // Takes calls from the queue into the batch, as far as the credit and the batch allow. False: there is nothing to
  // send.
  bool FillBatchLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void AppendToBatchLocked(Call* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Sends until nothing is queued or the socket is full. Releases mu_ around system calls.
  void SendLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void CountLocked(const Call& call, int change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Lets the poller receive if calls are under way that no thread waits for, and no thread is receiving. The poller
  // stays armed until another thread is to receive, so a stream of such calls costs nothing here.
  void ArmIfNeededLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void DisarmLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Receives until `call` is done (null: until the socket is empty) or its deadline passes. After the deadline it reads
  // the received data, for kCatchUpNs at most, before it breaks the connection. The caller holds the receiving role.
  void ReceiveFor(Call* call) ABSL_LOCKS_EXCLUDED(mu_);
  // Reads the received data. On the poller's thread.
  void Look() ABSL_LOCKS_EXCLUDED(mu_);
  // A thread is about to sleep until a reply comes, or a reply has woken it.
  void CountSleep() {
    if (options_.wake_latency != nullptr) options_.wake_latency->Count();
  }
  // Waits for the socket; false if `deadline_ns` passed.
  bool WaitReadable(int64_t deadline_ns) ABSL_LOCKS_EXCLUDED(mu_);
  void ReleaseReceivingLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void SleepAsFollower(Call* call) ABSL_LOCKS_EXCLUDED(mu_);
  // Marks the connection broken. The holder of the receiving role fails the calls.
  void BreakLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Ends all calls of a broken connection when no thread sends from their buffers any more. The caller holds the
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
  // Both are replaced and closed only while no other thread holds a role; the descriptor is shut down under mu_.
  UniqueFd fd_;
  std::unique_ptr<Channel> channel_;
  Credit credit_ ABSL_GUARDED_BY(mu_);
  CallQueue queue_ ABSL_GUARDED_BY(mu_);
  int queued_ ABSL_GUARDED_BY(mu_) = 0;
  std::array<Call*, kSlots> slots_ ABSL_GUARDED_BY(mu_){};
  uint64_t next_request_id_ ABSL_GUARDED_BY(mu_) = 2;  // hello was 1
  uint64_t last_sent_id_ ABSL_GUARDED_BY(mu_) = 1;     // the last request that was sent whole
  uint32_t requests_out_ ABSL_GUARDED_BY(mu_) = 0;
  std::atomic<bool> heard_{false};  // something came since the last tick
  int64_t heard_ns_ ABSL_GUARDED_BY(mu_) = 0;
  int64_t ticked_ns_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t credit_out_bytes_ ABSL_GUARDED_BY(mu_) = 0;
  int unwaited_ ABSL_GUARDED_BY(mu_) = 0;  // calls with `done`, queued or sent, that the poller receives
  int lazy_ ABSL_GUARDED_BY(mu_) = 0;      // calls with wait_expected or may_wait_late
  bool sending_ ABSL_GUARDED_BY(mu_) = false;
  bool send_blocked_ ABSL_GUARDED_BY(mu_) = false;
  bool receiving_ ABSL_GUARDED_BY(mu_) = false;
  std::string break_reason_ ABSL_GUARDED_BY(mu_);
  bool reply_waits_ ABSL_GUARDED_BY(mu_) = false;  // until the sender has noted that the request was sent
  bool armed_ ABSL_GUARDED_BY(mu_) = false;
  bool armed_for_output_ ABSL_GUARDED_BY(mu_) = false;
  std::vector<Call*> followers_ ABSL_GUARDED_BY(mu_);  // capacity kept

  // Of the sending role.
  Batch batch_;
  // Of the receiving role.
  std::optional<MessageReader> reader_;
  Call* landing_call_ = nullptr;
  Call* garbled_call_ = nullptr;  // its reply broke the connection
  SpinPolicy spin_;
};

}  // namespace nram

#endif  // NRAM_CLIENT_TRANSPORT_SOCKET_TRANSPORT_H_
