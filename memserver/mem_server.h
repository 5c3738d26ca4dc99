#ifndef NRAM_MEMSERVER_MEM_SERVER_H_
#define NRAM_MEMSERVER_MEM_SERVER_H_

// A whole memory server: arena, store, leases, both planes, and the thread that collects what nobody owns any more.

#include <glog/logging.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/host_memory.h"
#include "base/sync.h"
#include "memserver/data_server.h"
#include "memserver/frame_arena.h"
#include "memserver/landing_frames.h"
#include "memserver/late_log.h"
#include "memserver/lease_table.h"
#include "memserver/options.h"
#include "memserver/page_store.h"
#include "memserver/session.h"

namespace nram {

class ControlServer;

// Thread-safe.
class MemServer {
 public:
  // Starts everything; serves when it returns. Errors say which flag or address is at fault. `clock` tells leases the
  // time.
  static absl::StatusOr<std::unique_ptr<MemServer>> Start(const MemServerOptions& options,
                                                          const Clock* clock = Clock::Real());
  // Ends connections and threads. What was stored is gone.
  ~MemServer();

  uint64_t incarnation() const { return incarnation_; }
  int control_port() const;
  int data_port() const { return data_->port(); }
  std::string data_socket() const;

  // For a data plane without sockets; valid while the server lives.
  const SessionContext& session_context() const { return context_; }
  PageStore& store() { return *store_; }
  LeaseTable& leases() { return *leases_; }
  FrameArena& arena() { return *arena_; }
  const DataServerCounters& connections() const { return data_->counters(); }
  const MemServerOptions& options() const { return options_; }

  void SetDraining(bool draining);
  bool draining() const { return draining_; }
  // What the host would always keep.
  uint64_t reserve_bytes() const { return reserve_bytes_; }
  int64_t uptime_ms() const { return (MonotonicNs() - started_ns_) / kNsPerMs; }

  // As if the control plane could not be reached any more.
  void StopControlForTest();
  // Ends leases whose time is up and collects what they owned; the collector thread's step, callable for tests.
  void CollectOnce();

 private:
  static constexpr int64_t kCollectIntervalMs = 100;
  // For how long a round frees what destroyed regions have left behind.
  static constexpr int64_t kFreeMs = 50;
  // Without a round for so long, the server itself has been stopped.
  static constexpr int64_t kStoppedMs = 1'000;
  // Memory that is free for so long, or up to twice, goes back to the host.
  static constexpr int64_t kReleaseIdleMs = 5'000;
  static constexpr uint64_t kIndexTrimBytes = 8 * kMiB;

  MemServer(const MemServerOptions& options, const Clock* clock);
  absl::Status Init();
  // What `--donate` comes to on this host now, in bytes.
  absl::StatusOr<uint64_t> CeilingNow() const;
  // `now_ns`: by the leases' clock.
  void Collect(int64_t now_ns);
  void CollectorLoop();
  // What the index gave back to malloc is room for data already: it must not stay with malloc.
  void ReleaseIndexMemory();

  const MemServerOptions options_;
  const Clock* const clock_;
  const int64_t started_ns_ = MonotonicNs();
  uint64_t incarnation_ = 0;
  uint64_t reserve_bytes_ = 0;
  std::atomic<bool> draining_{false};
  LateLog log_{[](const std::string& line) { LOG(INFO) << line; }};
  std::unique_ptr<FrameArena> arena_;
  std::unique_ptr<LeaseTable> leases_;
  std::unique_ptr<PageStore> store_;
  std::unique_ptr<LandingFrames> landing_;
  SessionContext context_;
  std::unique_ptr<DataServer> data_;
  std::unique_ptr<ControlServer> control_;

  Mutex mu_;
  CondVar wake_collector_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t index_peak_bytes_ = 0;  // the collector's own
  std::thread collector_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_MEM_SERVER_H_
