#ifndef NRAM_MEMSERVER_SESSION_H_
#define NRAM_MEMSERVER_SESSION_H_

// The server's end of one data connection: its lease, the order of its requests, and the frames that a payload lands
// in. A Connection drives it over a socket; the in-process transport drives it directly.

#include <glog/logging.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/sync.h"
#include "memserver/landing_frames.h"
#include "memserver/lease_table.h"
#include "memserver/page_store.h"
#include "proto/message.h"
#include "proto/message_service.h"

namespace nram {

// The context of a session. All but the tenant is the server's. Owns nothing.
struct SessionContext {
  PageStore* store = nullptr;
  LeaseTable* leases = nullptr;
  LandingFrames* landing = nullptr;
  uint64_t incarnation = 0;
  Credit credit{256, 4096};
  // Called between two steps of a request, with no lock held. Null except in tests.
  void (*between_steps_for_test)() = nullptr;
  Tenant* tenant = nullptr;  // whose connection it is; not null in a session
};

// Used by one thread at a time, except for Fence.
//
// Trims, destroys and drops of versions proceed in steps (64 spans at most, some milliseconds). Fence waits for one
// step at most, and no further step is executed after it.
class Session : public MessageService, public LeaseConnection {
 public:
  // `takes_turns`: Execute returns after kTurnNs and a step at the latest. If busy(), the caller serves other
  // connections of its thread and then calls Continue. Otherwise Execute returns when the request is done.
  explicit Session(const SessionContext& context, bool takes_turns = false)
      : context_(context), takes_turns_(takes_turns) {
    CHECK(context.tenant != nullptr);
  }
  // If a destroy is not complete, the store's FreeSome frees the rest of its region later.
  ~Session() override;

  static constexpr int64_t kTurnNs = 1'000'000;

  absl::StatusOr<bool> Begin(const MessageHeader& request, const PayloadTables& tables, size_t reply_room,
                             Landing* landing) override;
  absl::Status Execute(const MessageHeader& request, absl::Span<const uint32_t> page_crcs, ReplyBuffer* reply) override;
  // A request is in the middle of its steps. It has no reply yet, and Begin accepts no other.
  bool busy() const { return busy_; }
  // Goes on with that request for another turn. `reply` needs room for a header. An error means: close the connection.
  absl::Status Continue(ReplyBuffer* reply);

  // All replies are on their way: there is time to prepare for the next request.
  void Replied();

  // Waits for the request that executes now, if any, or for its present step. Later requests are refused.
  void Fence() override;

  bool bound() const { return lease_ != nullptr; }
  // A newer connection has taken this one's place: no request is executed any more.
  bool fenced() const { return fenced_.load(std::memory_order_relaxed); }
  // Valid while the session lives. Null before hello.
  const Lease* lease() const { return lease_.get(); }
  // A write's payload lands in frames of the server.
  bool lands() const { return landed_count_ > 0; }
  // Begin has said "not now" for want of landing frames.
  void NoteWaits(int64_t now_ns) { context_.tenant->landing_waited_ns = now_ns; }
  // Whether the lease lives. The session must be bound.
  bool live() const { return lease_->live(); }
  bool urgent() const { return connection_class_ == 1; }
  const Tenant* tenant() const { return context_.tenant; }

 private:
  MessageHeader Hello(const MessageHeader& request);
  MessageHeader WriteLocked(const MessageHeader& request, absl::Span<const uint32_t> page_crcs)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(busy_mu_);
  MessageHeader CreateLocked(const MessageHeader& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(busy_mu_);
  MessageHeader SealLocked(const MessageHeader& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(busy_mu_);
  // The reply to `request`, without a payload.
  template <MessageBody Reply>
  MessageHeader ReplyTo(const MessageHeader& request, const Reply& body, Reason reason = Reason::kOk) const;
  static void AppendReply(const MessageHeader& header, ReplyBuffer* reply);
  // ABORTED if no request of this connection may be executed any more.
  absl::Status CheckMayExecute() ABSL_EXCLUSIVE_LOCKS_REQUIRED(busy_mu_);
  // Executes one step of `pending_`. True: the request is complete, and *reply is its reply.
  bool StepLocked(MessageHeader* reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(busy_mu_);
  bool TrimStepLocked(MessageHeader* reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(busy_mu_);
  bool DestroyStepLocked(MessageHeader* reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(busy_mu_);
  bool DropStepLocked(MessageHeader* reply) ABSL_EXCLUSIVE_LOCKS_REQUIRED(busy_mu_);
  // Some 20 ms.
  static constexpr int kDropStepsMax = 16;
  // A reply of at least this size is worth sending from where it lies.
  static constexpr uint64_t kDirectBytes = 32 * 1024;

  void ReadInto(const MessageHeader& request, ReplyBuffer* reply);
  absl::Status ReadDirect(const MessageHeader& request, ReplyBuffer* reply);
  void ReturnLanding();
  LandingTaker Taker() const { return {&context_.tenant->landing, &lease_->landing, urgent()}; }

  const SessionContext context_;
  const bool takes_turns_;
  std::shared_ptr<Lease> lease_;
  int connection_class_ = 0;
  uint64_t term_ = 0;  // the lease's at hello
  uint64_t last_request_id_ = 0;

  // The write whose payload lands now.
  std::array<FrameLoc, kPagesPerMessage> landed_;
  size_t landed_count_ = 0;
  bool displaced_ = false;  // the next write lands in a displaced frame, which is likely to be cold
  std::array<ChunkMask, kPagesPerMessage> masks_;
  size_t mask_count_ = 0;
  std::array<PageSeal, kPagesPerMessage> seals_;
  size_t seal_count_ = 0;

  // The trim, destroy or drop of versions whose steps are under way.
  bool busy_ = false;
  MessageHeader pending_;
  uint64_t next_page_ = 0;              // of a trim
  uint64_t kept_bytes_ = 0;             // of a trim
  PageStore::Doomed doomed_;            // of a destroy: unlinked, but not free yet
  Reason unlink_reason_ = Reason::kOk;  // of a destroy
  uint8_t drop_steps_ = 0;              // at kDropStepsMax it is answered, and the server frees the rest
  bool is_first_step_ = false;          // of a drop
  DropVersionReply dropped_;            // of a drop: by all steps

  Mutex busy_mu_;  // held while a request, or a step of one, executes
  std::atomic<bool> fenced_{false};
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_SESSION_H_
