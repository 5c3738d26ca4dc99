#include "client/pool/kept_names.h"

#include <glog/logging.h>
#include <pthread.h>

#include <algorithm>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/utf8.h"
#include "client/transport/control_client.h"

namespace nram {

KeptNames::KeptNames(const Sessions* sessions, Environment* environment, const PoolOptions* options)
    : sessions_(sessions),
      environment_(environment),
      options_(options),
      arbiter_(options->members == nullptr ? nullptr : options->members->OpenNames()) {}

KeptNames::~KeptNames() {
  std::thread thread;
  {
    MutexLock lock(&mu_);
    stops_ = true;
    thread = std::move(thread_);
    changed_.SignalAll();
  }
  if (thread.joinable()) thread.join();
}

std::string KeptNames::Tenant() const {
  for (const auto& session : *sessions_) {
    std::string tenant = session->tenant();
    if (!tenant.empty()) return tenant;
  }
  return "";
}

// --- A name is given.

absl::StatusOr<KeptNames::Claim> KeptNames::Begin(const std::string& name, RegionId id, std::vector<Endpoint> servers,
                                                  int64_t deadline_ns) {
  Claim claim{{Tenant(), name}, {id, std::move(servers), options_->client_name}};
  if (arbiter_ == nullptr) return claim;
  for (int i = 0; i < kTries; ++i) {
    const absl::StatusOr<NameArbiter::Standing> standing = arbiter_->Claim(claim.name, claim.region, claim.revision);
    if (!standing.ok()) {
      LOG(WARNING) << "cannot check whether another region is named " << Quoted(name) << ": "
                   << standing.status().message();
      NoteAway();
      claim.late = true;
      return claim;
    }
    claim.revision = standing->revision;
    claim.won = standing->won;
    if (claim.won) return claim;
    if (claim.revision != 0) NRAM_RETURN_IF_ERROR(CheckGone(claim.name, *standing, deadline_ns));
  }
  return absl::UnavailableError(
      absl::StrCat("the name ", Quoted(name), " is being assigned to other regions: ", arbiter_->PlaceOf(claim.name)));
}

absl::Status KeptNames::CheckGone(const KeptName& name, const NameArbiter::Standing& standing,
                                  int64_t deadline_ns) const {
  std::set<std::string> asked;
  const auto check = [&](const Endpoint& server) {
    if (!asked.insert(server.ToString()).second) return absl::OkStatus();
    const absl::Status status = AskServer(server, name.name, deadline_ns);
    if (absl::IsNotFound(status)) return absl::OkStatus();
    if (status.ok()) {
      return absl::AlreadyExistsError(
          absl::StrCat("memory server ", server.ToString(), " has a region named ", Quoted(name.name)));
    }
    return absl::UnavailableError(absl::StrCat("the name ", Quoted(name.name), " was assigned before; memory server ",
                                               server.ToString(), " may have that region, but does not answer (",
                                               status.message(), "). If that server is gone for good, delete the key ",
                                               arbiter_->PlaceOf(name)));
  };
  for (const auto& session : *sessions_) {
    const bool is_member = !session->removed() && session->twin() == kNoServer;
    if (is_member) NRAM_RETURN_IF_ERROR(check(session->endpoint()));
  }
  for (const Endpoint& server : standing.members) NRAM_RETURN_IF_ERROR(check(server));
  for (const Endpoint& server : standing.holder.servers) NRAM_RETURN_IF_ERROR(check(server));
  if (standing.trouble.ok()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the name ", Quoted(name.name), " was assigned before, and the servers of that region are unknown (",
      standing.trouble.message(), "). If the region is gone for good, delete the key ", arbiter_->PlaceOf(name)));
}

absl::Status KeptNames::AskServer(const Endpoint& server, const std::string& name, int64_t deadline_ns) const {
  AttachRegionArgs args;
  args.name = name;
  args.read_only = true;
  deadline_ns = std::min(deadline_ns, environment_->NowNs() + kAskMs * kNsPerMs);
  for (const auto& session : *sessions_) {
    if (session->endpoint() == server && session->up()) {
      return session->control()->AttachRegion(args, deadline_ns).status();
    }
  }
  return ControlClient::Create(server, options_->tls)->AttachRegion(args, deadline_ns).status();
}

absl::Status KeptNames::Confirm(Claim claim) {
  if (arbiter_ == nullptr) return absl::OkStatus();
  for (int i = 0; i < kTries && !claim.late; ++i) {
    // That changes the key: a client that has looked for the region too early then does not replace the key.
    const absl::StatusOr<NameArbiter::Standing> standing = arbiter_->Claim(claim.name, claim.region, claim.revision);
    if (standing.ok() && standing->won) return absl::OkStatus();
    if (standing.ok() && standing->revision != 0) {
      return absl::AlreadyExistsError(
          absl::StrCat("the name ", Quoted(claim.name.name),
                       " was assigned to another region meanwhile: ", arbiter_->PlaceOf(claim.name)));
    }
    if (standing.ok()) {
      claim.revision = 0;  // the key was deleted
      continue;
    }
    LOG(WARNING) << "the name of region " << Quoted(claim.name.name)
                 << " is not confirmed: " << standing.status().message();
    NoteAway();
    break;
  }
  AddLate({std::move(claim.name), std::move(claim.region)});
  return absl::OkStatus();
}

void KeptNames::GiveUp(const Claim& claim) {
  if (arbiter_ == nullptr || claim.late) return;
  // If the key remains, the next creator replaces it.
  (void)arbiter_->Release(claim.name, claim.region.id);
}

void KeptNames::NoteDestroyed(const std::string& name, RegionId id) {
  if (arbiter_ == nullptr) return;
  ForgetLate(id);
  const KeptName kept{Tenant(), name};
  const absl::Status status = IsAway() ? absl::UnavailableError("no answer a moment ago") : arbiter_->Release(kept, id);
  LOG_IF(INFO, !status.ok()) << "region " << Quoted(name) << " is destroyed; its key remains until its name is used "
                             << "again (" << status.message() << "): " << arbiter_->PlaceOf(kept);
}

void KeptNames::SetServers(const std::string& name, RegionId id, Epoch epoch, std::vector<Endpoint> servers) {
  if (arbiter_ == nullptr) return;
  Late late{{Tenant(), name}, {id, std::move(servers), options_->client_name, epoch}, /*has_name=*/true};
  if (ChangeLate(late.region)) return;
  if (!IsAway()) {
    const absl::Status status = arbiter_->SetServers(late.name, late.region);
    if (status.ok() || absl::IsNotFound(status)) return;
    NoteAway();
    LOG(WARNING) << "the servers of region " << Quoted(name) << " are not yet registered at "
                 << arbiter_->PlaceOf(late.name) << ": " << status.message();
  }
  AddLate(std::move(late));
}

// --- Late entries.

void KeptNames::NoteAway() {
  MutexLock lock(&mu_);
  away_until_ns_ = environment_->NowNs() + kAwayMs * kNsPerMs;
}

bool KeptNames::IsAway() const {
  MutexLock lock(&mu_);
  return environment_->NowNs() < away_until_ns_;
}

void KeptNames::AddLate(Late late) {
  MutexLock lock(&mu_);
  if (late_.size() >= kLateMax) {
    LOG_EVERY_N(WARNING, 100) << "too many names are not registered yet: giving up that of region "
                              << Quoted(late.name.name);
    return;
  }
  late.change = ++changes_;
  late_.push_back(std::move(late));
  changed_.SignalAll();
  if (thread_.joinable() || stops_) return;
  thread_ = std::thread([this] { Run(); });
  pthread_setname_np(thread_.native_handle(), "nram-names");
}

bool KeptNames::ChangeLate(const NamedRegion& region) {
  MutexLock lock(&mu_);
  const auto late = absl::c_find_if(late_, [&](const Late& other) { return other.region.id == region.id; });
  if (late == late_.end()) return false;
  late->region = region;
  late->change = ++changes_;
  return true;
}

void KeptNames::ForgetLate(RegionId id) {
  MutexLock lock(&mu_);
  late_.remove_if([&](const Late& late) { return late.region.id == id; });
}

void KeptNames::Run() {
  while (true) {
    std::list<Late> round;
    {
      MutexLock lock(&mu_);
      while (!stops_ && late_.empty()) changed_.WaitUntil(&mu_, DeadlineAfterMs(kIdleMs));
      const int64_t next_ns = DeadlineAfterMs(kLateMs);
      while (!stops_ && MonotonicNs() < next_ns) changed_.WaitUntil(&mu_, next_ns);
      if (stops_) return;
      round = late_;
    }
    for (const Late& late : round) {
      if (!IsLate(late.region.id)) continue;
      if (!CatchUp(late)) break;
      if (!NoteDone(late)) (void)arbiter_->Release(late.name, late.region.id);  // it was destroyed meanwhile
    }
  }
}

bool KeptNames::IsLate(RegionId id) const {
  MutexLock lock(&mu_);
  return !stops_ && absl::c_any_of(late_, [&](const Late& late) { return late.region.id == id; });
}

bool KeptNames::NoteDone(const Late& done) {
  MutexLock lock(&mu_);
  away_until_ns_ = INT64_MIN;
  const auto now = absl::c_find_if(late_, [&](const Late& late) { return late.region.id == done.region.id; });
  if (now == late_.end()) return false;
  if (now->change == done.change) {
    late_.erase(now);
  } else {
    now->has_name = true;  // its servers have changed meanwhile
  }
  return true;
}

bool KeptNames::CatchUp(const Late& late) {
  const std::string name = Quoted(late.name.name);
  if (late.has_name) {
    const absl::Status status = arbiter_->SetServers(late.name, late.region);
    return status.ok() || absl::IsNotFound(status);
  }
  const absl::StatusOr<NameArbiter::Standing> standing = arbiter_->Claim(late.name, late.region, /*revision=*/0);
  if (!standing.ok()) return false;
  if (standing->won) {
    LOG(INFO) << "region " << name << " is now registered at " << arbiter_->PlaceOf(late.name);
    // It may have had it before, with other servers.
    const absl::Status status = arbiter_->SetServers(late.name, late.region);
    return status.ok() || absl::IsNotFound(status);
  }
  const std::string other = standing->trouble.ok()
                                ? absl::StrCat(FormatId(Raw(standing->holder.id)), ", of ", standing->holder.client)
                                : "an unreadable one";
  LOG(ERROR) << "two regions may have the name " << name << ": " << FormatId(Raw(late.region.id))
             << ", of this client, and " << other << " (" << arbiter_->PlaceOf(late.name)
             << "). Both are kept. Destroy the wrong one: nram regions --destroy=ID";
  return true;
}

}  // namespace nram
