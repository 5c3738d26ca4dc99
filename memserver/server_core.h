#ifndef NRAM_MEMSERVER_SERVER_CORE_H_
#define NRAM_MEMSERVER_SERVER_CORE_H_

// A memory server without threads, sockets and gRPC: its regions, leases and memory. The data plane drives sessions
// over ContextOf, the control plane drives a ControlService, and a thread calls Tick. A simulation does all
// three in one thread.

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "memserver/frame_arena.h"
#include "memserver/give_back.h"
#include "memserver/landing_frames.h"
#include "memserver/lease_table.h"
#include "memserver/page_store.h"
#include "memserver/session.h"

namespace nram {

struct ServerCoreOptions {
  uint64_t incarnation = 0;    // names this life of the server; not zero, and never the same again
  uint64_t ceiling_bytes = 0;  // bounds all memory of the server
  uint64_t fixed_bytes = 0;    // the part of the ceiling that the process and the buffers of both planes take
  int64_t lease_ttl_ms = 10'000;
  bool drain = false;
  GiveBackOptions give_back;
};

// Thread-safe, but for Tick.
class ServerCore {
 public:
  // The period of Tick. After a longer pause than kStoppedMs between two ticks the server counts as stopped.
  static constexpr int64_t kTickMs = 100;
  static constexpr int64_t kStoppedMs = 1'000;
  // For how long a tick collects, and goes on with the pending work of versions.
  static constexpr int64_t kCollectMs = 25;
  static constexpr int64_t kVersionsMs = 25;

  // `clock` tells leases the time, and Tick how long it has worked; it must outlive the core. INVALID_ARGUMENT: the
  // ceiling leaves nothing to lend.
  static absl::StatusOr<std::unique_ptr<ServerCore>> Create(const ServerCoreOptions& options, const Clock* clock);
  // All sessions must be gone. Stored data is gone.
  ~ServerCore() = default;
  ServerCore(const ServerCore&) = delete;
  ServerCore& operator=(const ServerCore&) = delete;

  uint64_t incarnation() const { return context_.incarnation; }
  // For sessions of a tenant; valid while the core lives.
  SessionContext ContextOf(Tenant* tenant) const {
    SessionContext context = context_;
    context.tenant = tenant;
    return context;
  }
  Tenants& tenants() { return tenants_; }
  PageStore& store() { return store_; }
  LeaseTable& leases() { return leases_; }
  FrameArena& arena() { return *arena_; }
  const LandingFrames& landing() const { return landing_; }
  GiveBack& give_back() { return give_back_; }
  const GiveBack& give_back() const { return give_back_; }

  // `leaving`: clients are asked to move their data, too. `urgent`: the process is about to end.
  void SetDraining(bool draining, bool leaving = false, bool urgent = false);
  bool draining() const { return draining_; }
  bool leaving() const { return leaving_; }
  bool urgent() const { return urgent_; }

  using Leases = std::vector<std::shared_ptr<Lease>>;
  // The regular round, one caller at a time. Gives all leases the time for which the server was stopped, collects for a
  // bounded time, and goes on with the pending work of versions; the next tick does the rest. `lease_now_ns` is the
  // clock's time. `now_ns` is the monotonic time, read after it: a stop between the two ends no lease, and the next
  // tick adds it. `worked_ns`: the processor time that the caller's thread has taken, read before `now_ns`. The server
  // was not stopped meanwhile. Returns the leases that have ended.
  Leases Tick(int64_t lease_now_ns, int64_t now_ns, int64_t worked_ns = 0);
  // Ends the leases whose time is up, and unlinks the GC regions that they owned. Returns these leases.
  Leases Collect(int64_t lease_now_ns);

 private:
  ServerCore(const ServerCoreOptions& options, std::unique_ptr<FrameArena> arena, const Clock* clock);
  Leases End(int64_t lease_now_ns);

  const Clock* const clock_;
  const std::unique_ptr<FrameArena> arena_;
  Tenants tenants_;
  LeaseTable leases_;
  PageStore store_;
  LandingFrames landing_;
  GiveBack give_back_;
  const SessionContext context_;
  std::atomic<bool> draining_{false};
  std::atomic<bool> leaving_{false};
  std::atomic<bool> urgent_{false};
  // Tick's own: the times of the last tick; 0 before the first.
  int64_t ticked_ns_ = 0;
  int64_t worked_ns_ = 0;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_SERVER_CORE_H_
