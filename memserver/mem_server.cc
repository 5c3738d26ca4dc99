#include "memserver/mem_server.h"

#include <glog/logging.h>
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <random>

#include "absl/strings/str_cat.h"
#include "base/host/donors_here.h"
#include "base/metrics/metrics_server.h"
#include "base/status.h"
#include "memserver/call_threads.h"
#include "memserver/control_connections.h"
#include "memserver/control_server.h"
#include "memserver/control_service.h"
#include "memserver/listen.h"
#include "memserver/server_figures.h"

namespace nram {
namespace {

uint64_t RandomIncarnation() {
  std::random_device device;
  return (uint64_t{device()} << 32 | device()) | 1;
}

std::string Hostname() {
  char name[256] = "unknown";
  gethostname(name, sizeof name - 1);
  return name;
}

// gRPC's threads and buffers grow after the start: by 6 MiB under load, measured. Answers that clients do not take add
// to it. Connections are counted separately.
constexpr uint64_t kGrowthBytes = 16 * kMiB;

// Descriptors besides the open connections: listeners, gRPC's own, files, connections that are being closed. A bulk and
// an urgent worker together have four more.
constexpr int kOtherDescriptors = 128;

// The cost of the edge from the start: handshakes that are under way, and the pump for prepaid control connections.
uint64_t EdgeBytes(const ControlServerOptions& control) {
  const size_t pumped = std::min(control.connections_max, ControlConnections::kPrepaid);
  return (control.has_tls ? HandshakesOptions().most * Handshakes::kBytesEach : 0) +
         pumped * Pump::LinkBytes(control.has_tls);
}
constexpr int kDescriptorsPerWorkers = 4;
// In this time clients hear the demand, and begin to give.
constexpr int64_t kEmptyRestNs = 300 * kNsPerMs;
constexpr int64_t kCountSharersNs = 5 * kNsPerSecond;
// Everything that leases own is kept for this time after a changed rule has shut their client out.
constexpr int64_t kRefusedHoldMs = 3'600'000;

}  // namespace

MemServer::MemServer(const MemServerOptions& options, const Clock* clock)
    : options_(options), clock_(clock), hostname_(Hostname()) {}

absl::StatusOr<std::unique_ptr<MemServer>> MemServer::Start(const MemServerOptions& options, const Clock* clock) {
  NRAM_RETURN_IF_ERROR(options.Validate());
  std::unique_ptr<MemServer> server(new MemServer(options, clock));
  NRAM_RETURN_IF_ERROR(server->Init());
  return server;
}

absl::StatusOr<uint64_t> MemServer::CeilingAtStart(const HostMemory& host) const {
  if (!options_.donate_auto) {
    if (options_.donate_bytes > host.total_bytes) {
      return absl::InvalidArgumentError(absl::StrCat("--donate: ", FormatByteSize(options_.donate_bytes),
                                                     " is more than this host has (", FormatByteSize(host.total_bytes),
                                                     ")"));
    }
    return options_.donate_bytes;
  }
  const uint64_t all = host.available_bytes > reserve_bytes_ ? host.available_bytes - reserve_bytes_ : 0;
  return options_.auto_ceiling_bytes == 0 ? all : std::min(all, options_.auto_ceiling_bytes);
}

uint64_t MemServer::AllowedNow() {
  if (!balance_.has_value()) return options_.donate_bytes;
  const absl::StatusOr<HostMemory> host = ReadHostMemory();
  if (!host.ok()) return balance_->answer_bytes();
  MemorySample sample;
  sample.now_ns = MonotonicNs();
  sample.total_bytes = host->total_bytes;
  sample.available_bytes = host->available_bytes;
  // Memory that the server already holds counts as available.
  const ArenaUsage usage = core_->arena().usage();
  sample.own_bytes = usage.extent_bytes + usage.index_bytes;
  sample.stalled = stalls_.Share(ReadMemoryStalls(), sample.now_ns);
  if (sample.now_ns >= count_sharers_ns_) {
    sharers_ = CountDonorsHere(getpid());
    count_sharers_ns_ = sample.now_ns + kCountSharersNs;
  }
  sample.sharers = sharers_;
  return balance_->Update(sample);
}

absl::Status MemServer::Init() {
  NRAM_ASSIGN_OR_RETURN(const HostMemory host, ReadHostMemory());
  reserve_bytes_ = options_.reserve_bytes != 0 ? options_.reserve_bytes : std::max(host.total_bytes / 10, kGiB);
  NRAM_ASSIGN_OR_RETURN(const uint64_t ceiling, CeilingAtStart(host));
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

  NRAM_RETURN_IF_ERROR(InitHandshakes());
  DataServerOptions data;
  data.address = options_.listen == MemServerOptions::kNoTcp ? "" : options_.listen;
  data.port = options_.data_port >= 0 ? options_.data_port : options_.port == 0 ? 0 : options_.port + 1;
  if (data.port > 65535) return absl::InvalidArgumentError("--port=65535 needs --data-port as well");
  data.socket_path = data_socket();
  data.workers_per_class = options_.workers_per_class != 0
                               ? options_.workers_per_class
                               : std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()), 1, 8);
  data.spin = options_.spin;
  data.handshakes = HasTls() ? handshakes_.get() : nullptr;
  ControlServerOptions control;
  control.address = data.address;
  control.port = options_.port;
  control.socket_path = options_.socket_path;
  control.handshakes = handshakes_.get();
  control.has_tls = HasTls();
  LimitConnections(&data, &control);

  const uint64_t baseline = options_.baseline_bytes_for_test >= 0
                                ? static_cast<uint64_t>(options_.baseline_bytes_for_test)
                                : ReadProcessMemory().anonymous_bytes;
  ServerCoreOptions core;
  core.incarnation = RandomIncarnation();
  core.ceiling_bytes = ceiling;
  core.fixed_bytes = baseline + DataServer::FixedBytes(data) + ControlConnections::kFixedBytes + kGrowthBytes +
                     EdgeBytes(control) + (options_.metrics.empty() ? 0 : MetricsServer::kBytes);
  core.lease_ttl_ms = options_.lease_ttl_ms;
  core.drain = options_.drain;
  core.give_back.mode = options_.GiveBackMode();
  core.give_back.drops_orphans = options_.drops_orphans;
  core.give_back.spills_to_swap = options_.spills_to_swap;
  NRAM_ASSIGN_OR_RETURN(core_, ServerCore::Create(core, clock_));
  NRAM_RETURN_IF_ERROR(InitAccess(static_cast<uint64_t>(data.connections_max)));
  data.access = control.access = access_.get();
  data.tenants = &core_->tenants();
  NRAM_ASSIGN_OR_RETURN(data_, DataServer::Start(data, core_->ContextOf(/*tenant=*/nullptr)));
  NRAM_ASSIGN_OR_RETURN(control_, ControlServer::Start(control, core_.get(), [this] { return Look(); }));
  if (options_.donate_auto || options_.GiveBackMode() != GiveBackOptions::Mode::kOff) {
    MemoryBalanceOptions balance;
    balance.reserve_bytes = reserve_bytes_;
    balance.floor_bytes = options_.auto_floor_bytes;
    balance.empty_rest_ns = kEmptyRestNs;
    // The arena's own ceiling is the memory that was available at the start.
    balance.ceiling_bytes = ceiling;
    balance_.emplace(balance);
  }
  StartCollector(ceiling);
  NRAM_RETURN_IF_ERROR(InitMetrics());
  LOG(INFO) << "lending " << FormatByteSize(ceiling) << "; control port " << control_port() << ", data port "
            << data_port();
  return absl::OkStatus();
}

absl::Status MemServer::InitMetrics() {
  if (options_.metrics.empty()) return absl::OkStatus();
  NRAM_ASSIGN_OR_RETURN(metrics_, MetricsServer::Start(options_.metrics, [this](Figures* out) { Tell(out); }));
  LOG(INFO) << "figures on port " << metrics_port() << ", /metrics";
  return absl::OkStatus();
}

absl::Status MemServer::InitAccess(uint64_t connections) {
  // Without certificates, every user of this machine reaches a port of loopback.
  const bool has_tcp = options_.listen != MemServerOptions::kNoTcp;
  NRAM_ASSIGN_OR_RETURN(const bool loopback, has_tcp ? IsLoopback(options_.listen) : absl::StatusOr<bool>(false));
  const bool has_tls = !options_.tls_dir.empty();
  const bool lets_anyone_in = options_.allow_unauthenticated || (loopback && !has_tls);
  Access::Options access{.file = options_.access_file, .uid = geteuid(), .lets_anyone_in = lets_anyone_in};
  access.whole = {.connections = connections, .leases = LeaseTable::kLeasesMax, .calls = CallThreads::kQuickWaitingMax};
  access.declare = [this](TenantNumber number, const std::string& name, const TenantLimits& limits) {
    core_->tenants().Set(number, name, limits);
  };
  NRAM_ASSIGN_OR_RETURN(access_, Access::Create(access));
  rules_version_ = access_->version();
  return absl::OkStatus();
}

void MemServer::LookAtRules() {
  access_->Reload();
  if (std::exchange(rules_version_, access_->version()) == access_->version()) return;
  const auto is_refused = [&](const Lease& lease) {
    const Principal who = access_->Judge(lease.identity);
    return !Access::Check(who, Action::kLease).ok() || who.tenant != lease.tenant->number;
  };
  core_->leases().Hold(is_refused, kRefusedHoldMs * kNsPerMs);
}

absl::Status MemServer::InitHandshakes() {
  std::shared_ptr<TlsContext> context;
  if (HasTls()) {
    NRAM_ASSIGN_OR_RETURN(const TlsFiles files, TlsFiles::In(options_.tls_dir, TlsRole::kServer));
    NRAM_ASSIGN_OR_RETURN(context, TlsContext::Load(files, TlsRole::kServer));
  }
  HandshakesOptions handshakes;
  // No peer comes before the rules are there.
  handshakes.admit = [this](const TlsPeer& peer) {
    return Access::Check(access_->Judge(peer.identity()), Action::kHello);
  };
  handshakes.refused = [this](const Peer& peer, const absl::Status& why) {
    refusals_.Post(absl::StrCat("refusing ", peer.name, ": ", why.message()));
  };
  handshakes_ = std::make_unique<Handshakes>(std::move(context), std::move(handshakes));
  return absl::OkStatus();
}

void MemServer::LimitConnections(DataServerOptions* data, ControlServerOptions* control) const {
  data->connections_max = options_.connections_max;
  // If there are more clients, some of them connect anew for their next call.
  int control_max = std::clamp(options_.connections_max / 2 + 32, 64, 1024);
  const int watching = options_.metrics.empty() ? 0 : MetricsServer::kDescriptors;
  const int others = kOtherDescriptors + kDescriptorsPerWorkers * data->workers_per_class + watching;
  constexpr int each = 4;  // as ControlConnections says
  const auto shaking = static_cast<int>(HandshakesOptions().most);
  const auto wanted = static_cast<uint64_t>(data->connections_max + each * control_max + others + shaking);
  if (const uint64_t open_max = RaiseDescriptorLimit(wanted); open_max < wanted) {
    const int left = std::max(static_cast<int>(open_max) - others - shaking, 16);
    control_max = std::min(control_max, left / (3 * each));
    data->connections_max = std::min(data->connections_max, left - each * control_max);
    LOG(WARNING) << "the limit of open files, " << open_max << ", lets this server have " << data->connections_max
                 << " data connections and " << control_max << " control connections; " << wanted
                 << " are needed for --connections=" << options_.connections_max;
  }
  control->connections_max = static_cast<size_t>(control_max);
}

MemServer::~MemServer() {
  metrics_.reset();
  {
    MutexLock lock(&mu_);
    stopping_ = true;
    wake_collector_.SignalAll();
  }
  if (collector_.joinable()) collector_.join();
  if (handshakes_ != nullptr) handshakes_->Stop();
  control_.reset();
  data_.reset();
}

int MemServer::control_port() const { return control_->port(); }

void MemServer::StopControlForTest() {
  if (handshakes_ != nullptr) handshakes_->Stop();  // they would call it
  control_.reset();
}

std::string MemServer::data_socket() const {
  return options_.socket_path.empty() ? "" : absl::StrCat(options_.socket_path, ".data");
}

Surroundings MemServer::Look() const {
  Surroundings around;
  around.data_port = data_port();
  around.data_socket = data_socket();
  around.pid = static_cast<uint64_t>(getpid());
  around.uptime_ms = static_cast<uint64_t>((MonotonicNs() - started_ns_) / kNsPerMs);
  around.resident_bytes = ReadProcessMemory().resident_bytes;
  around.connections = static_cast<uint64_t>(data_->counters().open);
  around.connections_closed_for_error = data_->counters().closed_for_error;
  around.boot_id = boot_id_;
  around.hostname = hostname_;
  around.pretended_host = options_.pretended_host;
  around.domain = options_.domain;
  around.reserve_bytes = reserve_bytes_;
  if (const auto memory = ReadHostMemory(); memory.ok()) around.memory = *memory;
  return around;
}

int MemServer::metrics_port() const { return metrics_ == nullptr ? 0 : metrics_->port(); }

void MemServer::Tell(Figures* figures) const {
  v1::Statistics statistics;
  ControlService service(core_.get(), [this] { return Look(); });
  if (!service.GetStatistics(Caller{}, v1::GetStatisticsRequest(), &statistics).ok()) return;
  const LeaseTable& leases = core_->leases();
  AddServerFigures(statistics, {leases.CountLate(), leases_expired_, leases.ttl_ms()}, figures);
}

void MemServer::LogEnded(const ServerCore::Leases& ended) {
  leases_expired_.fetch_add(ended.size(), std::memory_order_relaxed);
  for (const auto& lease : ended) log_.Post(absl::StrCat("a lease of ", lease->client_name, " ended: not renewed"));
}

void MemServer::Leave(int64_t deadline_ns, absl::FunctionRef<bool()> is_over) {
  constexpr int64_t kTellNs = 5 * kNsPerSecond;
  // Clients leave a server that did not take a span alone for some seconds.
  constexpr int64_t kPatienceNs = 15 * kNsPerSecond;
  constexpr int64_t kLookMs = 100;
  core_->SetDraining(/*draining=*/true, /*leaving=*/true, /*urgent=*/true);
  const auto stored_pages = [&] { return core_->store().counters().pages.load(); };
  uint64_t pages = stored_pages();
  int64_t moved_ns = MonotonicNs();
  int64_t tell_ns = moved_ns;
  while (!is_over()) {
    const int64_t now_ns = MonotonicNs();
    const uint64_t left = stored_pages();
    if (left < std::exchange(pages, left)) moved_ns = now_ns;
    if (left == 0 || core_->leases().live_count() == 0 || now_ns >= deadline_ns) return;
    if (now_ns - moved_ns >= kPatienceNs) {
      LOG(INFO) << "nothing has moved for " << kPatienceNs / kNsPerSecond << " s: the remaining pages cannot be moved";
      return;
    }
    if (now_ns >= tell_ns) {
      LOG(INFO) << "leaving: clients are moving " << FormatByteSize(left * kPageBytes) << " to other servers";
      tell_ns = now_ns + kTellNs;
    }
    MutexLock lock(&mu_);
    wake_collector_.WaitUntil(&mu_, DeadlineAfterMs(kLookMs));
  }
}

void MemServer::ReleaseIndexMemory() {
  const uint64_t now_bytes = core_->arena().usage().index_bytes;
  index_peak_bytes_ = std::max(index_peak_bytes_, now_bytes);
  if (index_peak_bytes_ - now_bytes < kIndexTrimBytes) return;
  core_->store().ShrinkTables();
  malloc_trim(0);
  index_peak_bytes_ = now_bytes;
}

void MemServer::StartCollector(uint64_t ceiling_bytes) {
  ceiling_bytes_ = ceiling_bytes;
  if (options_.watches_resident) {
    resident_.emplace(ResidentWatchOptions{
        .read_resident = [] { return ReadProcessMemory().resident_bytes; },
        // A connection that makes gRPC grow has some MiB; others have little.
        .close_control = [this](uint64_t bytes) { control_->CutNewest(bytes / kMiB + 1); },
        .trim_heap = [] { malloc_trim(0); },
    });
  }
  collector_ = std::thread([this] { CollectorLoop(); });
  pthread_setname_np(collector_.native_handle(), "nram-tick");
}

void MemServer::HoldToCeiling() {
  uint64_t most_bytes = ceiling_bytes_;
  if (resident_.has_value()) {
    const ArenaUsage usage = core_->arena().usage();
    const uint64_t held_bytes = usage.extent_bytes + usage.index_bytes;
    most_bytes -= std::min(most_bytes, resident_->Look({ceiling_bytes_, usage.fixed_bytes, held_bytes}));
  }
  if (balance_.has_value()) {
    std::vector<std::string> remarks;
    core_->give_back().Tick(std::min(AllowedNow(), most_bytes), MonotonicNs(), &remarks);
    for (std::string& remark : remarks) log_.Post(std::move(remark));
  } else if (resident_.has_value()) {
    (void)core_->arena().SetCeiling(most_bytes);  // data beyond it stays: this server gives none back
  }
}

void MemServer::CollectorLoop() {
  int64_t rounds = 0;
  MutexLock lock(&mu_);
  while (!stopping_) {
    mu_.Unlock();
    const int64_t lease_now_ns = clock_->NowNs();
    const int64_t worked_ns = ThreadWorkedNs();
    LogEnded(core_->Tick(lease_now_ns, MonotonicNs(), worked_ns));
    core_->store().FreeSome(DeadlineAfterMs(kFreeMs));
    ++rounds;
    ReleaseIndexMemory();
    core_->arena().ReleaseIdle(/*period_ends=*/rounds % (kReleaseIdleMs / ServerCore::kTickMs) == 0);
    if (rounds % 10 == 0) LookAtRules();
    HoldToCeiling();
    mu_.Lock();
    if (!stopping_) wake_collector_.WaitUntil(&mu_, DeadlineAfterMs(ServerCore::kTickMs));
  }
}

}  // namespace nram
