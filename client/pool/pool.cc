#include "client/pool/pool.h"

#include <errno.h>
#include <glog/logging.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/clock.h"
#include "base/host_memory.h"
#include "base/status.h"
#include "base/utf8.h"

namespace nram {
namespace {

uint64_t RandomId() {
  // Of the kernel's each time: a generator of ours would go on alike in both after a fork.
  uint64_t id = 0;
  while (id == 0) PCHECK(getrandom(&id, sizeof id, 0) == sizeof id || errno == EINTR);
  return id;
}

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
  options.owner = ToUtf8(options.owner, kOwnerBytesMax);
  return options;
}

absl::Status CheckOptions(const RegionOptions& options) {
  if (options.replicas != 1) {
    return absl::UnimplementedError(absl::StrCat("replicas=", options.replicas, ": only 1 is there yet"));
  }
  if (options.name.size() > 255) return absl::InvalidArgumentError("a region's name is at most 255 bytes");
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

RegionId Pool::NewRegionId() { return RegionId{RandomId()}; }

std::vector<PlacementCandidate> Pool::Candidates() const {
  std::vector<PlacementCandidate> candidates;
  candidates.reserve(links_.size());
  for (const auto& link : links_) {
    if (!link->up()) continue;
    const ServerCapacity capacity = link->capacity();
    const uint64_t room = static_cast<uint64_t>(std::max<int64_t>(link->room_bytes(), 0));
    uint64_t weight = room;
    // What the server said last may be old: as long as it has not refused, it is worth asking.
    if (!link->refused() && !capacity.draining) weight += std::max(capacity.free_bytes, kSpanBytes);
    if (capacity.draining || (link->refused() && room < kPagesPerFrame * ServerLink::kRoomBytesPerPage)) weight = 0;
    if (weight > 0) candidates.push_back({link->index(), link->host(), weight, link->was_silent()});
  }
  // Servers that share a host are different hosts to a client that asks for one replica; the placement minds it when it
  // is not.
  return candidates;
}

absl::StatusOr<std::unique_ptr<Region>> Pool::CreateRegion(const RegionOptions& options) {
  NRAM_RETURN_IF_ERROR(CheckOptions(options));
  std::unique_ptr<Region> region(new Region(this, NewRegionId(), Epoch{1}, options, /*read_only=*/false));
  if (!options.name.empty()) NRAM_RETURN_IF_ERROR(CreateNamed(region->id(), options, region.get()));
  return region;
}

// A named region is created everywhere at once, and every server keeps the list of those lives of servers that it is
// on, so that whoever attaches it later can tell a hole from a loss.
absl::Status Pool::CreateNamed(RegionId id, const RegionOptions& options, Region* region) {
  const int64_t deadline_ns = DeadlineAfterMs(options_.io_timeout_ms);
  CreateRegionArgs args{lease_, id, region->epoch_, options.gc, options.name, {}, options.size_bytes};
  std::vector<ServerLink*> used;
  for (const auto& link : links_) {
    if (!link->up()) continue;
    used.push_back(link.get());
    args.incarnations.push_back(link->incarnation());
  }
  for (size_t i = 0; i < used.size(); ++i) {
    const absl::Status status = used[i]->control()->CreateRegion(args, deadline_ns);
    if (status.ok()) {
      region->NoteCreated(used[i]->index(), args.incarnations[i]);
      continue;
    }
    for (size_t j = 0; j < i; ++j) (void)used[j]->control()->DestroyRegion(lease_, id, false, deadline_ns);
    return status;
  }
  return used.empty() ? absl::UnavailableError("no memory server of the pool answers") : absl::OkStatus();
}

// What each server that answers knows of the region of that name, by server; empty infos where it is not.
absl::StatusOr<std::vector<RegionInfo>> Pool::FindNamed(const std::string& name, int64_t deadline_ns) {
  std::vector<RegionInfo> infos(links_.size());
  absl::flat_hash_set<uint64_t> alive;  // lives of servers that have the region
  const RegionInfo* any = nullptr;
  std::string silent;
  for (size_t i = 0; i < links_.size(); ++i) {
    if (!links_[i]->up()) {
      silent = links_[i]->name();
      continue;
    }
    const uint64_t incarnation = links_[i]->incarnation();
    AttachRegionArgs args;
    args.name = name;
    args.read_only = true;
    absl::StatusOr<RegionInfo> info = links_[i]->control()->AttachRegion(args, deadline_ns);
    if (info.ok()) {
      alive.insert(incarnation);
      infos[i] = *std::move(info);
      if (any == nullptr || Raw(infos[i].epoch) > Raw(any->epoch)) any = &infos[i];
    } else if (info.status().code() != absl::StatusCode::kNotFound) {
      return info.status();
    }
  }
  if (any == nullptr) {
    if (!silent.empty()) {
      return absl::UnavailableError(
          absl::StrCat("no server that answers has a region named \"", name, "\", and ", silent, " does not answer"));
    }
    return absl::NotFoundError(absl::StrCat("no region named \"", name, "\""));
  }
  for (const uint64_t incarnation : any->incarnations) {
    if (alive.contains(incarnation)) continue;
    if (!silent.empty()) {
      return absl::UnavailableError(
          absl::StrCat("region \"", name, "\" is partly on a server that does not answer (", silent, ")"));
    }
    return absl::DataLossError(
        absl::StrCat("region \"", name, "\" was partly on a server that has restarted since, or has freed its part"));
  }
  return infos;
}

absl::StatusOr<std::unique_ptr<Region>> Pool::AttachRegion(const std::string& name, AttachMode mode) {
  const int64_t deadline_ns = DeadlineAfterMs(options_.io_timeout_ms);
  NRAM_ASSIGN_OR_RETURN(const std::vector<RegionInfo> infos, FindNamed(name, deadline_ns));
  const RegionInfo& newest = *std::max_element(
      infos.begin(), infos.end(), [](const RegionInfo& a, const RegionInfo& b) { return Raw(a.epoch) < Raw(b.epoch); });
  const bool read_only = mode == AttachMode::kReadOnly;
  RegionOptions options;
  options.gc = newest.gc;
  options.name = name;
  options.size_bytes = newest.size_bytes;
  // Before any server lets go of the present owner: one may have ended its lease for a moment, and the others not.
  for (const RegionInfo& info : infos) {
    if (mode == AttachMode::kOwner && Raw(info.id) != 0 && !info.orphan && info.lease != lease_) {
      return absl::FailedPreconditionError(absl::StrCat("region \"", name, "\" is in use by ", info.owner));
    }
  }
  // A reader sends epoch 0: it reads whoever owns the region.
  const Epoch epoch{read_only ? 0 : Raw(newest.epoch) + 1};
  std::unique_ptr<Region> region(new Region(this, newest.id, epoch, options, read_only));
  for (size_t i = 0; i < infos.size(); ++i) {
    if (Raw(infos[i].id) == 0) continue;
    if (!read_only) {
      AttachRegionArgs args{lease_, newest.id, "", false, epoch, mode == AttachMode::kTakeOver};
      NRAM_RETURN_IF_ERROR(links_[i]->control()->AttachRegion(args, deadline_ns).status());
    }
    region->NoteCreated(static_cast<uint16_t>(i), links_[i]->incarnation());
  }
  // After the former owner is shut out, so that no span is missed.
  NRAM_RETURN_IF_ERROR(LoadSpans(region.get(), deadline_ns));
  return region;
}

absl::Status Pool::LoadSpans(Region* region, int64_t deadline_ns) {
  for (const auto& link : links_) {
    {
      GateLock lock(&region->mu_);
      if (region->PresenceLocked(link->index())->incarnation == 0) continue;
    }
    NRAM_ASSIGN_OR_RETURN(const std::vector<uint64_t> spans, link->control()->ListSpans(region->id(), deadline_ns));
    GateLock lock(&region->mu_);
    for (const uint64_t span : spans) {
      SpanPlacement placement;
      placement.servers[0] = link->index();
      region->spans_.Set(span, placement);
    }
  }
  return absl::OkStatus();
}

}  // namespace nram
