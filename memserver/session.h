#ifndef NRAM_MEMSERVER_SESSION_H_
#define NRAM_MEMSERVER_SESSION_H_

// What one data connection is to the server, apart from its socket: the lease it is bound to, the order of its
// requests, the frame that lands now. The socket connection and the in-process transport both drive one.

#include <array>
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
#include "proto/frame.h"
#include "proto/frame_service.h"

namespace nram {

// What all sessions of a server share. Nothing is owned.
struct SessionContext {
  PageStore* store = nullptr;
  LeaseTable* leases = nullptr;
  LandingFrames* landing = nullptr;
  uint64_t incarnation = 0;
  CreditWindow window{256, 4096};
};

// Used by one thread at a time, but for Fence.
class Session : public FrameService, public LeaseConnection {
 public:
  explicit Session(const SessionContext& context) : context_(context) {}
  ~Session() override;

  absl::StatusOr<bool> Begin(const FrameHeader& request, absl::Span<const ChunkMask> masks, size_t reply_room,
                             Landing* landing) override;
  absl::Status Execute(const FrameHeader& request, absl::Span<const uint32_t> page_crcs, ReplyBuffer* reply) override;

  // All replies are on their way: the time to prepare for the next request.
  void Replied();

  // Waits for the request that executes now, if any; later ones are refused.
  void Fence() override;

  bool bound() const { return lease_ != nullptr; }
  // Whether its client still counts as alive. Only if bound.
  bool live() const { return lease_->live(); }
  bool urgent() const { return connection_class_ == 1; }

 private:
  absl::Status Hello(const FrameHeader& request, FrameHeader* reply);
  // A reply from here on is worth sending from where it lies.
  static constexpr uint64_t kDirectBytes = 32 * 1024;

  void ReadInto(const FrameHeader& request, FrameHeader* header, ReplyBuffer* reply);
  absl::Status ReadDirect(const FrameHeader& request, FrameHeader* header, ReplyBuffer* reply);
  void ReturnLanding();

  const SessionContext context_;
  std::shared_ptr<Lease> lease_;
  int connection_class_ = 0;
  uint64_t term_ = 0;  // the lease's at hello
  uint64_t last_request_id_ = 0;

  // The write that lands now.
  std::array<FrameLoc, kPagesPerFrame> landed_;
  size_t landed_count_ = 0;
  bool displaced_ = false;  // a frame that is likely to be cold is the next one to land in
  std::array<ChunkMask, kPagesPerFrame> masks_;
  size_t mask_count_ = 0;

  Mutex busy_mu_;
  bool fenced_ ABSL_GUARDED_BY(busy_mu_) = false;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_SESSION_H_
