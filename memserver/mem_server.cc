#include "memserver/mem_server.h"

#include <glog/logging.h>
#include <malloc.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "memserver/control_connections.h"
#include "memserver/control_server.h"
#include "memserver/listen.h"

namespace nram {
namespace {

uint64_t RandomIncarnation() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

// gRPC's threads and buffers grow after the start: measured at 6 MiB under load; answers that clients do not take add
// to it. Connections are counted by themselves.
constexpr uint64_t kGrowthBytes = 16 * kMiB;

// Descriptors that are no connections: listeners, gRPC's own, files; some that are being closed; and four for a bulk
// and an urgent worker.
constexpr int kOtherDescriptors = 128;
constexpr int kDescriptorsPerWorkers = 4;

}  // namespace

MemServer::MemServer(const MemServerOptions& options, const Clock* clock) : options_(options), clock_(clock) {}

absl::StatusOr<std::unique_ptr<MemServer>> MemServer::Start(const MemServerOptions& options, const Clock* clock) {
  NRAM_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<MemServer> server(new MemServer(options, clock));
  NRAM_RETURN_IF_ERROR(server->Init());
  return server;
}

absl::StatusOr<uint64_t> MemServer::CeilingNow() const {
  NRAM_ASSIGN_OR_RETURN(const HostMemory host, ReadHostMemory());
  if (!options_.donate_auto) {
    if (options_.donate_bytes > host.total_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("--donate: ", FormatByteSize(options_.donate_bytes),
                                                     " is more than this host has (", FormatByteSize(host.total_bytes),
                                                     ")"));
    }
    return options_.donate_bytes;
  }
  // What the server already holds counts as available: it is its own to give.
  uint64_t available = host.available_bytes;
  if (arena_ != nullptr) {
    const ArenaUsage usage = arena_->usage();
    available += usage.extent_bytes + usage.index_bytes;
  }
  return available > reserve_bytes_ ? available - reserve_bytes_ : 0;
}

absl::Status MemServer::Init() {
  NRAM_ASSIGN_OR_RETURN(const HostMemory host, ReadHostMemory());
  reserve_bytes_ = options_.reserve_bytes != 0 ? options_.reserve_bytes : std::max(host.total_bytes / 10, kGiB);
  NRAM_ASSIGN_OR_RETURN(const uint64_t ceiling, CeilingNow());
  if (ceiling < MemServerOptions::kDonateMinBytes) {
    return absl::ResourceExhaustedError(absl::StrCat("--donate=auto: ", FormatByteSize(host.available_bytes),
                                                     " are available and ", FormatByteSize(reserve_bytes_),
                                                     " are reserved for the host, which leaves too little to lend; "
                                                     "see --reserve"));
  }
  if (ceiling > host.available_bytes) {
    LOG(WARNING) << "--donate=" << FormatByteSize(ceiling) << " is more than this host has available now ("
                 << FormatByteSize(host.available_bytes) << "); it may have to swap";
  }
  incarnation_ = RandomIncarnation();

  DataServerOptions data;
  data.address = options_.listen;
  data.port = options_.data_port >= 0 ? options_.data_port : options_.port == 0 ? 0 : options_.port + 1;
  if (data.port > 65535) return absl::InvalidArgumentError("--port=65535 needs --data-port as well");
  data.socket_path = data_socket();
  data.workers_per_class = options_.workers_per_class != 0
                               ? options_.workers_per_class
                               : std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
  data.connections_max = options_.connections_max;
  // Who has more clients than this has them connect anew for their next call.
  int control_max = std::clamp(options_.connections_max / 2 + 32, 64, 1024);
  const int others = kOtherDescriptors + kDescriptorsPerWorkers * data.workers_per_class;
  const auto wanted = static_cast<uint64_t>(data.connections_max + 2 * control_max + others);
  if (const uint64_t open_max = RaiseDescriptorLimit(wanted); open_max < wanted) {
    const int left = std::max(static_cast<int>(open_max) - others, 16);
    control_max = std::min(control_max, left / 6);
    data.connections_max = std::min(data.connections_max, left - 2 * control_max);
    LOG(WARNING) << "the limit of open files, " << open_max << ", lets this server have " << data.connections_max
                 << " data connections and " << control_max << " control connections; " << wanted
                 << " are needed for --connections=" << options_.connections_max;
  }
  data.spin = options_.spin;

  const uint64_t baseline = options_.baseline_bytes_for_test >= 0
                                ? static_cast<uint64_t>(options_.baseline_bytes_for_test)
                                : ReadProcessMemory().anonymous_bytes;
  const uint64_t fixed = baseline + DataServer::FixedBytes(data) + LeaseTable::kFixedBytes +
                         ControlConnections::kFixedBytes + kGrowthBytes;
  NRAM_ASSIGN_OR_RETURN(arena_, FrameArena::Create(ceiling, fixed));
  leases_ = std::make_unique<LeaseTable>(arena_.get(), clock_, options_.lease_ttl_ms);
  store_ = std::make_unique<PageStore>(arena_.get(), leases_.get());
  SetDraining(options_.drain);
  landing_ = std::make_unique<LandingFrames>(arena_.get(), std::clamp<size_t>(ceiling / 64 / kPageBytes, 128, 2048));
  if (landing_->size() < 2 * kPagesPerMessage) {
    return absl::InvalidArgumentError(
        absl::StrCat("a ceiling of ", FormatByteSize(ceiling), " leaves nothing to lend"));
  }
  context_ = {store_.get(), leases_.get(), landing_.get(), incarnation_, CreditWindow{256, 4096}};
  NRAM_ASSIGN_OR_RETURN(data_, DataServer::Start(data, context_));
  NRAM_ASSIGN_OR_RETURN(control_, ControlServer::Start(this, static_cast<size_t>(control_max)));
  collector_ = std::thread([this] { CollectorLoop(); });
  LOG(INFO) << "lending " << FormatByteSize(ceiling) << "; control port " << control_port() << ", data port "
            << data_port();
  return absl::OkStatus();
}

MemServer::~MemServer() {
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wake_collector_.SignalAll();
  }
  if (collector_.joinable()) collector_.join();
  control_.reset();
  data_.reset();
}

void MemServer::SetDraining(bool draining) {
  draining_ = draining;
  store_->SetDraining(draining);
}

void MemServer::StopControlForTest() { control_.reset(); }

int MemServer::control_port() const { return control_->port(); }

std::string MemServer::data_socket() const {
  return options_.socket_path.empty() ? "" : absl::StrCat(options_.socket_path, ".data");
}

void MemServer::CollectOnce() { Collect(clock_->NowNs()); }

void MemServer::Collect(int64_t now_ns) {
  for (const std::shared_ptr<Lease>& lease : leases_->EndExpired(now_ns)) {
    log_.Post(absl::StrCat("a lease of ", lease->owner, " ended: not renewed"));
    store_->CollectLease(*lease);
  }
}

void MemServer::ReleaseIndexMemory() {
  const uint64_t now_bytes = arena_->usage().index_bytes;
  index_peak_bytes_ = std::max(index_peak_bytes_, now_bytes);
  if (index_peak_bytes_ - now_bytes < kIndexTrimBytes) return;
  store_->ShrinkTables();
  malloc_trim(0);
  index_peak_bytes_ = now_bytes;
}

void MemServer::CollectorLoop() {
  int64_t rounds = 0;
  int64_t looked_ns = MonotonicNs();
  MutexLock lock(&mu_);
  while (!stopping_) {
    wake_collector_.WaitUntil(&mu_, DeadlineAfterMs(kCollectIntervalMs));
    if (stopping_) return;
    mu_.Unlock();
    // Renewals that came while it was stopped are still to be read. The leases' time is looked at first, so that they
    // do not end by a stop that comes from here on; the next round adds that.
    const int64_t lease_now_ns = clock_->NowNs();
    const int64_t now_ns = MonotonicNs();
    if (now_ns - looked_ns > kStoppedMs * kNsPerMs) leases_->Extend(now_ns - looked_ns);
    looked_ns = now_ns;
    Collect(lease_now_ns);
    store_->FreeSome(DeadlineAfterMs(kFreeMs));
    ++rounds;
    ReleaseIndexMemory();
    arena_->ReleaseIdle(/*period_ends=*/rounds % (kReleaseIdleMs / kCollectIntervalMs) == 0);
    if (options_.donate_auto && rounds % 10 == 0) {
      if (const auto ceiling = CeilingNow(); ceiling.ok()) arena_->SetCeiling(*ceiling);
    }
    mu_.Lock();
  }
}

}  // namespace nram
