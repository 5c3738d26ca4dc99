#include "client/pool/region_map.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/plant.h"

namespace nram {

absl::Status RegionMap::CheckUsable() const {
  if (fenced_) {
    return absl::FailedPreconditionError(
        absl::StrCat("another client has taken region ", FormatId(Raw(key_.id)), " over"));
  }
  GateLock lock(&mu_);
  if (!destroyed_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("region ", FormatId(Raw(key_.id)), " was destroyed"));
}

const RegionMap::ReplicaHost* RegionMap::FindReplicaHostLocked(uint16_t server) const {
  for (const ReplicaHost& replica_host : replica_hosts_) {
    if (replica_host.server == server) return &replica_host;
  }
  return nullptr;
}

RegionMap::ReplicaHost* RegionMap::ReplicaHostLocked(uint16_t server) {
  if (const ReplicaHost* present = FindReplicaHostLocked(server)) return const_cast<ReplicaHost*>(present);
  replica_hosts_.push_back({server});
  return &replica_hosts_.back();
}

RegionMap::Target RegionMap::TargetOf(const ReplicaHost& replica_host) {
  Target target;
  target.server = replica_host.server;
  target.incarnation = replica_host.incarnation;
  if (replica_host.incarnation != 0) target.known = replica_host.unsure ? Known::kPerhaps : Known::kCreated;
  // Where the region is only perhaps, a write may have to pay for it again.
  target.paid_for = target.known == Known::kCreated || replica_host.room.bytes() > 0;
  return target;
}

RegionMap::Target RegionMap::TargetLocked(const SpanPlacement& placement) const {
  if (!placement.placed()) return {};
  if (const ReplicaHost* replica_host = FindReplicaHostLocked(placement.servers[0])) return TargetOf(*replica_host);
  Target target;
  target.server = placement.servers[0];
  return target;
}

absl::Status RegionMap::Find(uint64_t span, Target* target) const {
  {
    GateLock lock(&mu_);
    if (!destroyed_) {
      *target = TargetLocked(spans_.Find(span));
      return absl::OkStatus();
    }
  }
  return CheckUsable();
}

RegionMap::Target RegionMap::Place(uint64_t span, const SpanPlacement& placement) {
  GateLock lock(&mu_);
  const SpanPlacement present = spans_.Find(span);
  if (present.placed() && !NRAM_PLANTED(span_placed_twice)) return TargetLocked(present);
  spans_.Set(span, placement);
  return TargetLocked(placement);
}

std::vector<RegionMap::Target> RegionMap::Whereabouts() const {
  std::vector<Target> targets;
  if (copied_ != nullptr) {
    for (const CopyMap::Whereabout& at : copied_->map.Whereabouts()) {
      targets.push_back({.server = at.life.server, .known = at.known, .incarnation = at.life.incarnation});
    }
    return targets;
  }
  GateLock lock(&mu_);
  for (const ReplicaHost& replica_host : replica_hosts_) {
    if (replica_host.incarnation != 0) targets.push_back(TargetOf(replica_host));
  }
  return targets;
}

std::vector<RegionMap::Target> RegionMap::Whereabouts(uint64_t first_span, uint64_t end_span) const {
  std::vector<Target> targets = Whereabouts();
  if (end_span - first_span > kSpansLookedAt) return targets;
  GateLock lock(&mu_);
  std::erase_if(targets, [&](const Target& target) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (target.known == Known::kPerhaps) return false;
    for (uint64_t span = first_span; span < end_span; ++span) {
      if (spans_.Find(span).servers[0] == target.server) return false;
    }
    return true;
  });
  return targets;
}

bool RegionMap::NoteCreated(uint16_t server, uint64_t incarnation) {
  GateLock lock(&mu_);
  ReplicaHost* const replica_host = ReplicaHostLocked(server);
  // The first life counts. If it is not the server's present life, its data is lost, and remains lost.
  if (replica_host->incarnation == 0 || replica_host->unsure) replica_host->incarnation = incarnation;
  replica_host->unsure = false;
  return replica_host->incarnation == incarnation;
}

void RegionMap::NotePerhapsCreated(uint16_t server, uint64_t incarnation) {
  GateLock lock(&mu_);
  ReplicaHost* const replica_host = ReplicaHostLocked(server);
  if (replica_host->incarnation != 0 && !replica_host->unsure) return;
  replica_host->incarnation = incarnation;
  replica_host->unsure = true;
}

bool RegionMap::NoteDestroyed() {
  GateLock lock(&mu_);
  return !std::exchange(destroyed_, true);
}

bool RegionMap::is_destroyed() const {
  GateLock lock(&mu_);
  return destroyed_;
}

RegionMap::Versions* RegionMap::VersionsLocked() {
  if (copied_->versions == nullptr) copied_->versions = std::make_unique<Versions>();
  return copied_->versions.get();
}

VersionNumber RegionMap::TakeVersionNumber() {
  GateLock lock(&mu_);
  Versions* const versions = VersionsLocked();
  if (versions->newest >= kVersionNumberMax) return VersionNumber{};
  versions->newest = VersionNumber{Raw(versions->newest) + 1};
  return versions->newest;
}

void RegionMap::NoteVersion(VersionNumber number) {
  if (copied_ == nullptr || number == VersionNumber{}) return;
  GateLock lock(&mu_);
  Versions* const versions = VersionsLocked();
  versions->newest = std::max(versions->newest, number);
}

VersionNumber RegionMap::newest_version() const {
  GateLock lock(&mu_);
  return copied_ == nullptr || copied_->versions == nullptr ? VersionNumber{} : copied_->versions->newest;
}

void RegionMap::NoteRefuser(uint64_t incarnation) {
  GateLock lock(&mu_);
  std::vector<uint64_t>& refusers = VersionsLocked()->refusers;
  if (refusers.size() < kVersionDebtsMax) refusers.push_back(incarnation);
}

bool RegionMap::IsRefuser(uint64_t incarnation) const {
  GateLock lock(&mu_);
  if (copied_->versions == nullptr) return false;
  const std::vector<uint64_t>& refusers = copied_->versions->refusers;
  return std::find(refusers.begin(), refusers.end(), incarnation) != refusers.end();
}

void RegionMap::AddVersionDebt(const VersionDebt& debt) {
  GateLock lock(&mu_);
  std::vector<VersionDebt>& debts = VersionsLocked()->debts;
  if (debts.size() == kVersionDebtsMax) debts.erase(debts.begin());
  debts.push_back(debt);
}

std::vector<VersionDebt> RegionMap::TakeVersionDebts() {
  GateLock lock(&mu_);
  if (copied_->versions == nullptr) return {};
  return std::exchange(copied_->versions->debts, {});
}

Room::Grant RegionMap::TakeReserved(uint16_t server, Room* room, uint64_t least_bytes, uint64_t most_bytes) {
  GateLock lock(&mu_);
  for (ReplicaHost& replica_host : replica_hosts_) {
    if (replica_host.server == server) return replica_host.room.TryTake(room, least_bytes, most_bytes);
  }
  return {};
}

void RegionMap::EndReserved(uint16_t server, Room* room, Room::Grant grant, uint64_t used_bytes) {
  GateLock lock(&mu_);
  RegionRoom& purse = ReplicaHostLocked(server)->room;
  purse.Used(room, std::move(grant), used_bytes);
  if (closed_) purse.Close(room);  // repair had begun that before
}

void RegionMap::EndUnknown(uint16_t server, Room* room, Room::Grant grant) {
  GateLock lock(&mu_);
  RegionRoom& purse = ReplicaHostLocked(server)->room;
  purse.Unknown(room, std::move(grant));
  if (closed_) purse.Close(room);
}

RegionMap::Reserved RegionMap::LookForReserved(uint16_t server, uint64_t had_bytes) const {
  GateLock lock(&mu_);
  const ReplicaHost* const replica_host = FindReplicaHostLocked(server);
  if (replica_host == nullptr) return Reserved::kNoMore;
  if (replica_host->room.bytes() > static_cast<int64_t>(had_bytes)) return Reserved::kMore;
  return replica_host->room.is_lent() ? Reserved::kLent : Reserved::kNoMore;
}

bool RegionMap::AddReserved(uint16_t server, Room* room, Room::Grant grant) {
  GateLock lock(&mu_);
  if (closed_) return room->Unused(std::move(grant)), false;
  has_room_ = true;
  return ReplicaHostLocked(server)->room.Add(room, std::move(grant));
}

uint64_t RegionMap::ReleaseReserved(uint16_t server, Room* room, uint64_t most_bytes) {
  GateLock lock(&mu_);
  return closed_ ? 0 : ReplicaHostLocked(server)->room.Release(room, most_bytes);
}

uint64_t RegionMap::reserved_bytes(std::optional<uint16_t> server) const {
  GateLock lock(&mu_);
  int64_t bytes = 0;
  for (const ReplicaHost& replica_host : replica_hosts_) {
    if (!server.has_value() || replica_host.server == *server) bytes += std::max<int64_t>(replica_host.room.bytes(), 0);
  }
  return static_cast<uint64_t>(bytes);
}

bool RegionMap::holds_room() const {
  GateLock lock(&mu_);
  for (const ReplicaHost& replica_host : replica_hosts_) {
    if (replica_host.room.bytes() > 0 || replica_host.room.is_lent()) return true;
  }
  return false;
}

RegionRoom::Trim RegionMap::BeginTrim(uint16_t server, Room* room) {
  has_room_ = true;
  GateLock lock(&mu_);
  return ReplicaHostLocked(server)->room.BeginTrim(room);
}

void RegionMap::EndTrim(uint16_t server, Room* room, const RegionRoom::Trim& trim, const RegionRoom::TrimEnd& end) {
  GateLock lock(&mu_);
  RegionRoom& purse = ReplicaHostLocked(server)->room;
  purse.EndTrim(room, trim, end);
  if (closed_) purse.Close(room);
}

void RegionMap::CloseRooms(absl::FunctionRef<Room*(uint16_t)> room_of) {
  GateLock lock(&mu_);
  closed_ = true;
  has_room_ = false;
  for (ReplicaHost& replica_host : replica_hosts_) replica_host.room.Close(room_of(replica_host.server));
}

std::vector<uint16_t> RegionMap::servers() const {
  GateLock lock(&mu_);
  std::vector<uint16_t> servers;
  for (const ReplicaHost& replica_host : replica_hosts_) servers.push_back(replica_host.server);
  return servers;
}

bool RegionMap::Load(uint64_t span, uint16_t server, size_t bytes_max) {
  SpanPlacement placement;
  placement.servers[0] = server;
  GateLock lock(&mu_);
  spans_.Set(span, placement);
  return spans_.memory_bytes() <= bytes_max;
}

size_t RegionMap::memory_bytes() const {
  GateLock lock(&mu_);
  const size_t sealed_bytes = seal() == nullptr ? 0 : sizeof *seal() + seal()->versions()->memory_bytes();
  const size_t version_bytes = copied_ == nullptr || copied_->versions == nullptr
                                   ? 0
                                   : sizeof(Versions) + copied_->versions->debts.capacity() * sizeof(VersionDebt);
  return sealed_bytes + version_bytes + (copied_ == nullptr ? 0 : copied_->map.memory_bytes()) + spans_.memory_bytes() +
         (replica_hosts_.capacity() > 1 ? replica_hosts_.capacity() * sizeof(ReplicaHost) : 0);
}

}  // namespace nram
