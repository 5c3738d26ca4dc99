#ifndef NRAM_MEMSERVER_MEM_SERVER_H_
#define NRAM_MEMSERVER_MEM_SERVER_H_

// A whole memory server: its core (memserver/server_core.h), both planes over it, and the thread that makes the core
// tick.

#include <glog/logging.h>

#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/host/host_memory.h"
#include "base/host/memory_balance.h"
#include "base/host/memory_pressure.h"
#include "base/late_log.h"
#include "base/metrics/figures.h"
#include "base/sync.h"
#include "memserver/access.h"
#include "memserver/data_server.h"
#include "memserver/handshakes.h"
#include "memserver/options.h"
#include "memserver/resident_watch.h"
#include "memserver/server_core.h"
#include "memserver/surroundings.h"

namespace nram {

class ControlServer;
struct ControlServerOptions;
class MetricsServer;

// Thread-safe.
class MemServer {
 public:
  // Starts everything. The server serves when Start returns. Errors name the flag or address at fault. `clock` tells
  // leases the time.
  static absl::StatusOr<std::unique_ptr<MemServer>> Start(const MemServerOptions& options,
                                                          const Clock* clock = Clock::Real());
  // Ends connections and threads. Stored data is gone.
  ~MemServer();

  uint64_t incarnation() const { return core_->incarnation(); }
  int control_port() const;
  int data_port() const { return data_->port(); }
  std::string data_socket() const;
  int metrics_port() const;  // 0: there is none

  ServerCore& core() { return *core_; }
  PageStore& store() { return core_->store(); }
  LeaseTable& leases() { return core_->leases(); }
  FrameArena& arena() { return core_->arena(); }
  const DataServerCounters& connections() const { return data_->counters(); }

  void SetDraining(bool draining) { core_->SetDraining(draining); }
  // Asks all clients to move their data to other servers, soon. Blocks until none is left that could move, nothing has
  // moved for a while, `deadline_ns` has passed, or `is_over` says so, which it asks often.
  void Leave(int64_t deadline_ns, absl::FunctionRef<bool()> is_over);

  // As if the control plane could not be reached any more.
  void StopControlForTest();
  // Ends leases whose time is up and collects their GC regions, as the collector thread does. For tests.
  void CollectOnce() {
    LogEnded(core_->Collect(clock_->NowNs()));
    core_->store().FreeSome(std::numeric_limits<int64_t>::max());
  }

 private:
  // For how long a round frees the memory of destroyed regions. The bounded parts leave some of the period to the rest.
  static constexpr int64_t kFreeMs = 30;
  static_assert(ServerCore::kCollectMs + ServerCore::kVersionsMs + kFreeMs <= ServerCore::kTickMs * 8 / 10);
  // The host gets free memory back after this time, or after up to twice as much.
  static constexpr int64_t kReleaseIdleMs = 5'000;
  static constexpr uint64_t kIndexTrimBytes = 8 * kMiB;

  MemServer(const MemServerOptions& options, const Clock* clock);
  absl::Status Init();
  // Which clients may come in, and how.
  absl::Status InitAccess(uint64_t connections);
  absl::Status InitHandshakes();
  bool HasTls() const { return !options_.tls_dir.empty() && options_.listen != MemServerOptions::kNoTcp; }
  absl::Status InitMetrics();
  // Takes changed rules.
  void LookAtRules();
  // Bounds the connections of each plane by the limit of open files.
  void LimitConnections(DataServerOptions* data, ControlServerOptions* control) const;
  // The value of `--donate` on this host at the start, in bytes.
  absl::StatusOr<uint64_t> CeilingAtStart(const HostMemory& host) const;
  // How much the server may hold now.
  uint64_t AllowedNow();
  // The state of this process and its host, for the control plane.
  Surroundings Look() const;
  // The figures of now, for /metrics.
  void Tell(Figures* figures) const;
  void LogEnded(const ServerCore::Leases& ended);
  void CollectorLoop();
  void StartCollector(uint64_t ceiling_bytes);
  // Lends less where the rest of the process has grown, and gives back memory that the host needs.
  void HoldToCeiling();
  // Makes malloc give back the memory that the index has freed: the arena counts it as free for data already.
  void ReleaseIndexMemory();

  const MemServerOptions options_;
  const Clock* const clock_;
  const int64_t started_ns_ = MonotonicNs();
  const std::string boot_id_ = BootId();
  const std::string hostname_;
  uint64_t reserve_bytes_ = 0;  // the host reserve
  LateLog log_{[](const std::string& line) { LOG(INFO) << line; }};
  LateLog refusals_{nullptr, LateLog::kRefusalPeriodMs};
  std::unique_ptr<Access> access_;
  uint64_t rules_version_ = 0;  // the collector's: that leases were judged by
  std::unique_ptr<Handshakes> handshakes_;
  std::unique_ptr<ServerCore> core_;
  std::unique_ptr<DataServer> data_;
  std::unique_ptr<ControlServer> control_;
  std::atomic<uint64_t> leases_expired_{0};
  std::unique_ptr<MetricsServer> metrics_;  // null: no --metrics

  Mutex mu_;
  CondVar wake_collector_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  // The collector's own.
  uint64_t index_peak_bytes_ = 0;
  std::optional<ResidentWatch> resident_;  // none: not of a process of its own
  uint64_t ceiling_bytes_ = 0;
  std::optional<MemoryBalance> balance_;  // none: the host's memory is not looked at
  int sharers_ = 1;                       // CountDonorsHere, as it was lately
  int64_t count_sharers_ns_ = 0;          // when it is to be counted again
  StallMeter stalls_;
  std::thread collector_;
};

}  // namespace nram

#endif  // NRAM_MEMSERVER_MEM_SERVER_H_
