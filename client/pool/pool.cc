#include "client/pool/pool.h"

#include <glog/logging.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/host/host_memory.h"
#include "base/status.h"
#include "base/utf8.h"
#include "client/pool/thread_driver.h"
#include "client/pool/waking.h"

namespace nram {
namespace {

constexpr size_t kClientNameBytesMax = 255;  // as servers keep them
constexpr size_t kMissingTold = 16;
constexpr int64_t kOthersOfManyMs = 300;
constexpr int64_t kAwaitAllMs = 2'000;

std::string DefaultClientName() {
  char host[256] = "?";
  gethostname(host, sizeof host - 1);
  const auto command = ReadFile("/proc/self/comm");
  const std::string name = command.ok() ? command->substr(0, command->find('\n')) : "?";
  return absl::StrCat(name, " on ", host, ", pid ", getpid());
}

PoolOptions WithDefaults(PoolOptions options) {
  if (options.client_name.empty()) options.client_name = DefaultClientName();
  options.client_name = Printable(options.client_name, kClientNameBytesMax);
  return options;
}

absl::Status CheckOptions(const RegionOptions& options) {
  if (options.copies < 1 || options.copies > kReplicasMax) {
    return absl::InvalidArgumentError(absl::StrCat("copies=", options.copies, " is not 1 to ", kReplicasMax));
  }
  if (options.name.size() > 255) return absl::InvalidArgumentError("a region's name is at most 255 bytes");
  if (!IsPrintable(options.name)) {
    return absl::InvalidArgumentError(absl::StrCat("a region's name is UTF-8 without control characters, and \"",
                                                   Printable(options.name, 1000), "\" is not"));
  }
  if (options.size_bytes > kRegionBytesMax) return absl::InvalidArgumentError("a region has at most 2^62 bytes");
  return absl::OkStatus();
}

}  // namespace

bool Pool::IsLocal(const PoolOptions& options) {
  if (options.members != nullptr && options.members->may_be_remote()) return false;
  return std::all_of(options.servers.begin(), options.servers.end(), IsThisMachine);
}

bool Pool::WouldSeal(const PoolOptions& options) {
  if (options.seal != Seal::kAuto) return options.seal == Seal::kYes;
  return !IsLocal(options);
}

Pool::Pool(PoolOptions options, std::unique_ptr<SealSecret> secret, std::unique_ptr<PoolEdge> edge)
    : options_(WithDefaults(std::move(options))),
      seals_(WouldSeal(options_)),
      secret_(std::move(secret)),
      sealers_(secret_ == nullptr ? nullptr : std::make_unique<Sealers>()),
      edge_(std::move(edge)),
      sessions_(edge_->gate(), options_.members == nullptr ? options_.servers.size() : kPoolServersMax),
      home_{&sessions_, edge_->environment(), &options_, &copied_regions_, &membership_},
      repairer_(&home_),
      kept_names_(&sessions_, edge_->environment(), &options_),
      membership_(&home_, &repairer_, &kept_names_),
      named_seals_(&options_, secret_.get(), sealers_.get(), edge_->environment()),
      named_regions_(&home_, &membership_, &named_seals_, &kept_names_),
      versions_(&home_, &named_seals_) {
  for (const Endpoint& server : options_.servers) AddSession(server);
  // A simulation has no threads, and few servers.
  const bool has_threads = edge_->poller() != nullptr;
  if (has_threads && (options_.members != nullptr || options_.servers.size() > kAllAwakeMax)) {
    live_members_ =
        std::make_unique<LiveMembers>(&sessions_, options_.members, edge_->environment(), static_cast<Host*>(this));
    for (const auto& session : sessions_) SetWaker(session.get());
    live_members_->Begin();
  } else {
    for (const auto& session : sessions_) Drive(session.get());
  }
  edge_->SetTicked(&repairer_);
}

void Pool::SetWaker(ServerSession* session) {
  // A list that never changes is the user's own: nothing checks whether two of its names mean one server.
  session->SetWaker(live_members_.get(), options_.members == nullptr ? nullptr : &claims_);
}

bool Pool::Accepts(const Endpoint& server, std::string* why) const {
  if (IsThisMachine(server) || !IsLocal(options_) || options_.seal != Seal::kAuto) return true;
  *why = "this program opened the pool with local servers only, so its pages are not sealed; restart the program";
  return false;
}

ServerSession* Pool::AddSession(const Endpoint& server) {
  // A lease's id is a secret: each server has one that it has in common with no other.
  const LeaseId lease{edge_->environment()->RandomId()};
  auto session = std::make_unique<ServerSession>(static_cast<uint16_t>(sessions_.size()), server, lease, options_,
                                                 edge_->environment());
  ServerSession* const added = session.get();
  if (live_members_ != nullptr) SetWaker(added);
  sessions_.Add(std::move(session));
  return added;
}

bool Pool::Drive(ServerSession* session) {
  std::unique_ptr<SessionDriver> driver = edge_->Drive(session);
  if (driver == nullptr) {
    LOG_EVERY_N(WARNING, 100) << "memory server " << session->name()
                              << " is not contacted now: no more threads can be started";
    return false;
  }
  sessions_.NoteAwake();
  drivers_.push_back(std::move(driver));
  return true;
}

Pool::~Pool() {
  if (live_members_ != nullptr) live_members_->Stop();
  edge_->SetTicked(nullptr);
  repairer_.BeginStop();
  for (const auto& session : sessions_) session->BeginStop();  // all at once, then one after the other
  for (const auto& driver : drivers_) driver->Join();
  repairer_.AwaitStopped();
  drivers_.clear();
}

absl::StatusOr<std::unique_ptr<Pool>> Pool::Make(PoolOptions options, std::unique_ptr<PoolEdge> edge) {
  if (options.servers.empty()) return absl::InvalidArgumentError("a pool needs at least one server");
  const size_t most = options.members == nullptr ? kNoServer - 1 : kPoolServersMax;
  if (options.servers.size() > most) {
    return absl::InvalidArgumentError(absl::StrCat(options.servers.size(), " servers are more than ", most));
  }
  std::unique_ptr<SealSecret> secret;
  if (!options.key_file.empty()) {
    NRAM_ASSIGN_OR_RETURN(secret, SealSecret::Read(options.key_file));
  }
  std::unique_ptr<Pool> pool(new Pool(std::move(options), std::move(secret), std::move(edge)));
  // Sessions that sleep in a large pool are woken later.
  if (pool->live_members_ == nullptr &&
      absl::c_any_of(pool->sessions_, [](const auto& session) { return session->asleep(); })) {
    return absl::ResourceExhaustedError("no more threads can be started, and each memory server needs one (ulimit -u)");
  }
  // A key that lacks something is refused here, and not with the first region.
  if (pool->seals_) NRAM_RETURN_IF_ERROR(pool->PrepareSealers(0));
  return pool;
}

absl::StatusOr<std::unique_ptr<Pool>> Pool::Open(PoolOptions options) {
  std::unique_ptr<PoolEdge> edge = NewThreadEdge(options);
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<Pool> pool, Make(std::move(options), std::move(edge)));
  const int64_t now_ns = pool->edge_->environment()->NowNs();
  const int64_t deadline_ns = now_ns + pool->options_.open_timeout_ms * kNsPerMs;
  pool->AwaitOne(deadline_ns, now_ns + pool->options_.io_timeout_ms * kNsPerMs);
  std::vector<std::string> missing = pool->AwaitOthers(deadline_ns);
  const bool is_any_up = absl::c_any_of(pool->sessions_, [](const auto& session) { return session->up(); });
  if (missing.size() > kMissingTold) {
    const size_t more = missing.size() - kMissingTold;
    missing.resize(kMissingTold);
    missing.push_back(absl::StrCat("and ", more, " more"));
  }
  if (!is_any_up && !missing.empty()) {
    return absl::UnavailableError(absl::StrCat("no memory server of the pool answers: ", absl::StrJoin(missing, "; ")));
  }
  for (const std::string& why : missing) LOG(WARNING) << "not used for now: " << why;
  return pool;
}

std::vector<std::string> Pool::AwaitOthers(int64_t deadline_ns) {
  // A large pool uses other servers in place of the slow ones.
  const bool is_large = sessions_.size() > kAllAwakeMax;
  if (is_large) deadline_ns = std::min(deadline_ns, edge_->environment()->NowNs() + kOthersOfManyMs * kNsPerMs);
  std::vector<std::string> missing;
  for (const auto& session : sessions_) {
    if (session->asleep()) continue;
    const bool waits = !session->keeps_out() && (!is_large || session->may_be_slow());
    const absl::Status status = session->up() ? absl::OkStatus()
                                : waits       ? session->AwaitUp(deadline_ns)
                                              : session->last_error();
    if (!status.ok()) missing.push_back(std::string(status.message()));
  }
  return missing;
}

void Pool::AwaitAll() {
  if (live_members_ == nullptr) return;
  if (absl::c_none_of(sessions_, [](const auto& session) { return session->asleep(); })) return;
  live_members_->WakeAll();
  const int64_t deadline_ns = edge_->environment()->NowNs() + kAwaitAllMs * kNsPerMs;
  for (const auto& session : sessions_) {
    if (!session->up() && session->may_be_slow()) (void)session->AwaitUp(deadline_ns);
  }
}

void Pool::AwaitOne(int64_t usual_ns, int64_t latest_ns) {
  constexpr int64_t kTurnNs = 20 * kNsPerMs;
  Environment* const environment = edge_->environment();
  while (environment->NowNs() < std::max(usual_ns, latest_ns)) {
    bool slow = false;
    bool all_refuse = true;
    for (const auto& session : sessions_) {
      if (session->up()) return;
      if (session->asleep()) continue;
      slow = slow || session->may_be_slow();
      all_refuse = all_refuse && session->keeps_out();
    }
    if (all_refuse) return;
    if (environment->NowNs() >= usual_ns && !slow) return;
    (void)sessions_.at(0)->AwaitUp(environment->NowNs() + kTurnNs);
  }
}

PoolCapacity Pool::Capacity() const {
  PoolCapacity sum;
  for (const auto& session : sessions_) {
    if (!session->up()) continue;
    const ServerCapacity capacity = session->capacity();
    const uint64_t donated_bytes = capacity.donated_bytes - std::min(capacity.donated_bytes, capacity.overhead_bytes);
    sum.total_bytes += capacity.quota_bytes > 0 ? std::min(donated_bytes, capacity.quota_bytes) : donated_bytes;
    if (!capacity.draining) sum.free_bytes += capacity.free_bytes;
    sum.free_bytes += static_cast<uint64_t>(std::max<int64_t>(session->room()->free_bytes(), 0));
  }
  return sum;
}

int Pool::CountHosts(bool with_away) const {
  absl::flat_hash_set<uint32_t> hosts;
  int away = 0;
  for (const auto& session : sessions_) {
    if (session->removed() || session->twin() != kNoServer) continue;
    if (session->up()) {
      hosts.insert(session->host());
    } else {
      ++away;
    }
  }
  return static_cast<int>(hosts.size()) + (with_away ? away : 0);
}

absl::StatusOr<std::unique_ptr<Region>> Pool::CreateRegion(const RegionOptions& options) {
  NRAM_RETURN_IF_ERROR(CheckOptions(options));
  if (!options.name.empty()) {
    AwaitAll();
    return named_regions_.Create(options);
  }
  std::unique_ptr<RegionSeal> seal;
  if (options.seal == Seal::kYes || (options.seal == Seal::kAuto && seals_)) {
    NRAM_ASSIGN_OR_RETURN(seal, MakeSeal());
  }
  RegionKey key{RegionId{edge_->environment()->RandomId()}, Epoch{1}, options.gc, /*named=*/false, options.placement,
                static_cast<uint8_t>(options.copies)};
  // Servers on one machine have nothing to give each other.
  key.moves = options_.moves.value_or(!IsLocal(options_));
  key.versioned = options.versioned;
  auto region = std::make_unique<Region>(&home_, key, options, /*read_only=*/false, std::move(seal));
  region->BeginRepair();
  return region;
}

absl::Status Pool::MakeKeyLocked() {
  if (sealers_ == nullptr) sealers_ = std::make_unique<Sealers>();
  if (!keys_.empty() && last_number_ < UINT32_MAX) return absl::OkStatus();
  NRAM_ASSIGN_OR_RETURN(std::unique_ptr<SealKey> key, SealKey::Random());
  keys_.push_back(std::move(key));
  last_number_ = 0;
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<RegionSeal>> Pool::MakeSeal() {
  MutexLock lock(&seal_mu_);
  NRAM_RETURN_IF_ERROR(MakeKeyLocked());
  return std::make_unique<RegionSeal>(sealers_.get(), keys_.back().get(), ++last_number_);
}

absl::Status Pool::PrepareSealers(size_t messages) {
  MutexLock lock(&seal_mu_);
  NRAM_RETURN_IF_ERROR(MakeKeyLocked());
  if (messages > 0) sealers_->Prepare(messages);
  return absl::OkStatus();
}

absl::Status CheckHosts(const Pool& pool, int copies, absl::string_view setting) {
  const int most = pool.CountHosts(/*with_away=*/true);
  if (copies <= most) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(setting, "=", copies, ": each copy needs its own host, and ",
                                                   "the pool has ", most, most == 1 ? " host" : " hosts",
                                                   ": add servers on other hosts, or ask for fewer copies"));
}

}  // namespace nram
