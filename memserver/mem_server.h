#ifndef NRAM_MEMSERVER_MEM_SERVER_H_
#define NRAM_MEMSERVER_MEM_SERVER_H_

// A whole memory server: its core (memserver/server_core.h), both planes over it, and the thread that makes it tick.

#include <glog/logging.h>

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/host_memory.h"
#include "base/sync.h"
#include "memserver/data_server.h"
#include "memserver/late_log.h"
#include "memserver/options.h"
#include "memserver/server_core.h"
#include "memserver/surroundings.h"

namespace nram {

class ControlServer;
struct ControlServerOptions;

// Thread-safe.
class MemServer {
 public:
  // Starts everything; serves when it returns. Errors say which flag or address is at fault. `clock` tells leases the
  // time.
  static absl::StatusOr<std::unique_ptr<MemServer>> Start(const MemServerOptions& options,
                                                          const Clock* clock = Clock::Real());
  // Ends connections and threads. What was stored is gone.
  ~MemServer();

  uint64_t incarnation() const { return core_->incarnation(); }
  int control_port() const;
  int data_port() const { return data_->port(); }
  std::string data_socket() const;

  ServerCore& core() { return *core_; }
  PageStore& store() { return core_->store(); }
  LeaseTable& leases() { return core_->leases(); }
  FrameArena& arena() { return core_->arena(); }
  const DataServerCounters& connections() const { return data_->counters(); }

  void SetDraining(bool draining) { core_->SetDraining(draining); }

  // As if the control plane could not be reached any more.
  void StopControlForTest();
  // Ends leases whose time is up and collects what they owned, as the collector thread does; for tests.
  void CollectOnce() {
    LogEnded(core_->Collect(clock_->NowNs()));
    core_->store().FreeSome(std::numeric_limits<int64_t>::max());
  }

 private:
  // For how long a round frees what destroyed regions have left behind.
  static constexpr int64_t kFreeMs = 50;
  // Memory that is free for so long, or up to twice, goes back to the host.
  static constexpr int64_t kReleaseIdleMs = 5'000;
  static constexpr uint64_t kIndexTrimBytes = 8 * kMiB;

  MemServer(const MemServerOptions& options, const Clock* clock);
  absl::Status Init();
  // How many connections each plane may have, as far as the limit of open files lets it.
  void LimitConnections(DataServerOptions* data, ControlServerOptions* control) const;
  // What `--donate` comes to on this host now, in bytes.
  absl::StatusOr<uint64_t> CeilingNow() const;
  // What control tells of this process and its host.
  Surroundings Look() const;
  void LogEnded(const ServerCore::Leases& ended);
  void CollectorLoop();
  // What the index gave back to malloc is room for data already: it must not stay with malloc.
  void ReleaseIndexMemory();

  const MemServerOptions options_;
  const Clock* const clock_;
  const int64_t started_ns_ = MonotonicNs();
  const std::string boot_id_ = BootId();
  const std::string hostname_;
  uint64_t reserve_bytes_ = 0;  // what the host always keeps
  LateLog log_{[](const std::string& line) { LOG(INFO) << line; }};
  std::unique_ptr<ServerCore> core_;
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
