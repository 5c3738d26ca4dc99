#include "client/pool/pool.h"

#include <errno.h>
#include <glog/logging.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/memory/memory.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/host_memory.h"
#include "base/status.h"
#include "base/utf8.h"

namespace nram {
namespace {

constexpr size_t kOwnerBytesMax = 255;  // as servers keep them

std::string DefaultOwner() {
  char host[256] = "?";
  gethostname(host, sizeof host - 1);
  const auto command = ReadFile("/proc/self/comm");
  const std::string name = command.ok() ? command->substr(0, command->find('\n')) : "?";
  return absl::StrCat(name, " on ", host, ", pid ", getpid());
}

PoolOptions WithDefaults(PoolOptions options) {
  if (options.owner.empty()) options.owner = DefaultOwner();
  options.owner = Printable(options.owner, kOwnerBytesMax);
  return options;
}

absl::Status CheckOptions(const RegionOptions& options) {
  if (options.replicas != 1) {
    return absl::UnimplementedError(absl::StrCat("replicas=", options.replicas, ": only 1 is there yet"));
  }
  if (options.name.size() > 255) return absl::InvalidArgumentError("a region's name is at most 255 bytes");
  if (!IsPrintable(options.name)) {
    return absl::InvalidArgumentError(absl::StrCat("a region's name is UTF-8 without control characters, and \"",
                                                   Printable(options.name, 1000), "\" is not"));
  }
  if (options.size_bytes > kRegionBytesMax) return absl::InvalidArgumentError("a region has at most 2^62 bytes");
  return absl::OkStatus();
}

// Until one is up, or until the first deadline and nobody may still answer, or until the second.
void AwaitOne(const std::vector<std::unique_ptr<ServerLink>>& links, int64_t usual_ns, int64_t latest_ns) {
  constexpr int64_t kTurnMs = 20;
  while (MonotonicNs() < std::max(usual_ns, latest_ns)) {
    bool slow = false;
    for (const auto& link : links) {
      if (link->up()) return;
      slow = slow || link->may_be_slow();
    }
    if (MonotonicNs() >= usual_ns && !slow) return;
    (void)links.front()->AwaitUp(DeadlineAfterMs(kTurnMs));
  }
}

}  // namespace

Pool::Pool(PoolOptions options)
    : options_(WithDefaults(std::move(options))),
      lease_(LeaseId{RandomId()}),
      wake_latency_(options_.fast_wake, options_.wake_device),
      poller_(options_.spin) {
  for (const Endpoint& server : options_.servers) {
    links_.push_back(std::make_unique<ServerLink>(static_cast<uint16_t>(links_.size()), server, lease_, options_,
                                                  &poller_, &wake_latency_));
  }
}

Pool::~Pool() {
  for (const auto& link : links_) link->BeginStop();  // all at once, then one after the other
}

absl::StatusOr<std::unique_ptr<Pool>> Pool::Open(PoolOptions options) {
  if (options.servers.empty()) return absl::InvalidArgumentError("a pool needs at least one server");
  if (options.servers.size() >= kNoServer) return absl::InvalidArgumentError("too many servers");
  std::unique_ptr<Pool> pool(new Pool(std::move(options)));
  for (const auto& link : pool->links_) link->Start();
  const int64_t deadline_ns = DeadlineAfterMs(pool->options_.open_timeout_ms);
  AwaitOne(pool->links_, deadline_ns, DeadlineAfterMs(pool->options_.io_timeout_ms));
  std::vector<std::string> missing;
  for (const auto& link : pool->links_) {
    const absl::Status status = link->AwaitUp(deadline_ns);
    if (!status.ok()) missing.push_back(std::string(status.message()));
  }
  if (missing.size() == pool->links_.size()) {
    return absl::UnavailableError(absl::StrCat("no memory server of the pool answers: ", absl::StrJoin(missing, "; ")));
  }
  for (const std::string& why : missing) LOG(WARNING) << "left out for now: " << why;
  return pool;
}

uint64_t Pool::RandomId() {
  // Of the kernel's each time: a generator of ours would go on alike in both after a fork.
  uint64_t id = 0;
  while (id == 0) PCHECK(getrandom(&id, sizeof id, 0) == sizeof id || errno == EINTR);
  return id;
}

std::vector<PlacementCandidate> Pool::Candidates() const {
  std::vector<PlacementCandidate> candidates;
  candidates.reserve(links_.size());
  for (const auto& link : links_) {
    if (!link->up()) continue;
    const ServerCapacity capacity = link->capacity();
    const uint64_t room = static_cast<uint64_t>(std::max<int64_t>(link->room()->free_bytes(), 0));
    uint64_t weight = room;
    // What the server said last may be old: as long as it has not refused, it is worth asking.
    if (!link->refused() && !capacity.draining) weight += std::max(capacity.free_bytes, kSpanBytes);
    if (capacity.draining || (link->refused() && room < kPagesPerMessage * Room::kBytesPerPage)) weight = 0;
    if (weight > 0) candidates.push_back({link->index(), link->host(), weight, link->was_silent()});
  }
  // Servers that share a host are different hosts to a client that asks for one replica; the placement minds it when it
  // is not.
  return candidates;
}

absl::StatusOr<std::unique_ptr<Region>> Pool::CreateRegion(const RegionOptions& options) {
  NRAM_RETURN_IF_ERROR(CheckOptions(options));
  if (!options.name.empty()) return CreateNamed(options);
  return absl::WrapUnique(new Region(this, RegionId{RandomId()}, Epoch{1}, options, /*read_only=*/false));
}

}  // namespace nram
