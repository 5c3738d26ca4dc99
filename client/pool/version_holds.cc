#include "client/pool/version_holds.h"

#include <glog/logging.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace nram {

VersionHolds::~VersionHolds() {
  MutexLock lock(&mu_);
  CHECK(entries_.empty()) << "a version's handle outlives its pool";
}

VersionHolds::Entry* VersionHolds::BeginTurnLocked(const Key& key, int64_t deadline_ns) {
  // It may go while this waits.
  while (entries_[key].busy) {
    if (environment_->NowNs() >= deadline_ns) return nullptr;
    changed_.WaitUntil(&mu_, MonotonicNs() + kTurnMs * kNsPerMs);
  }
  Entry* const entry = &entries_[key];
  entry->busy = true;
  return entry;
}

void VersionHolds::EndTurnLocked(const Key& key, Entry* entry) {
  entry->busy = false;
  if (entry->handles == 0) entries_.erase(key);
  changed_.SignalAll();
}

absl::Status VersionHolds::Send(const Key& key, bool release, int64_t deadline_ns) const {
  const absl::StatusOr<uint64_t> incarnation =
      key.session->control()->HoldVersion(key.session->lease(), key.region, key.version, release, deadline_ns);
  if (!incarnation.ok()) return incarnation.status();
  if (*incarnation == key.incarnation) return absl::OkStatus();
  return absl::NotFoundError(absl::StrCat("memory server ", key.session->name(), " has restarted"));
}

bool VersionHolds::SendRelease(const Key& key, Entry* entry, int64_t deadline_ns) {
  absl::Status status = absl::UnavailableError("it is away");
  if (key.session->usable()) status = Send(key, /*release=*/true, deadline_ns);
  MutexLock lock(&mu_);
  EndTurnLocked(key, entry);
  return !OweLocked(key, status);
}

void VersionHolds::PayOwed(ServerSession* session, int64_t deadline_ns) {
  deadline_ns = std::min(deadline_ns, environment_->NowNs() + kReleaseMs * kNsPerMs);
  while (session->usable() && environment_->NowNs() < deadline_ns) {
    Key key;
    Entry* entry = nullptr;
    {
      MutexLock lock(&mu_);
      // In another life it has none.
      std::erase_if(owed_, [session, life = session->incarnation()](const Key& owed) {
        return owed.session == session && owed.incarnation != life;
      });
      auto it = owed_.lower_bound(Key{.session = session});
      while (it != owed_.end() && it->session == session && entries_.contains(*it)) ++it;
      if (it == owed_.end() || it->session != session) return;
      key = *it;
      owed_.erase(it);
      entry = BeginTurnLocked(key, deadline_ns);  // no thread has it
    }
    if (!SendRelease(key, entry, deadline_ns)) return;
  }
}

bool VersionHolds::OweLocked(const Key& key, const absl::Status& status) {
  const bool unanswered = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  if (unanswered && owed_.size() < kOwedMax && !entries_.contains(key)) owed_.insert(key);
  return unanswered;
}

absl::StatusOr<VersionHolds::Hold> VersionHolds::Take(ServerSession* session, uint64_t incarnation, RegionId region,
                                                      VersionNumber version, int64_t deadline_ns) {
  PayOwed(session, deadline_ns);
  const Key key{session, incarnation, region, version};
  Entry* entry = nullptr;
  {
    MutexLock lock(&mu_);
    entry = BeginTurnLocked(key, deadline_ns);
  }
  if (entry == nullptr) {
    return absl::DeadlineExceededError(absl::StrCat("memory server ", session->name(), " is being asked already"));
  }
  // Also if there is one: the lease may have ended since, and that with it.
  const absl::Status status = Send(key, /*release=*/false, deadline_ns);
  MutexLock lock(&mu_);
  if (status.ok()) ++entry->handles;
  EndTurnLocked(key, entry);
  // A hold released during this request still owes its release, unless there is a handle again.
  if (status.ok()) {
    owed_.erase(key);
    return Hold(this, key);
  }
  (void)OweLocked(key, status);  // it may have done it
  return status;
}

void VersionHolds::Release(const Key& key) {
  const int64_t deadline_ns = environment_->NowNs() + kReleaseMs * kNsPerMs;
  Entry* entry = nullptr;
  {
    MutexLock lock(&mu_);
    entry = BeginTurnLocked(key, deadline_ns);
    if (entry == nullptr) {
      // Another thread asks for it, and has no answer.
      if (--entries_[key].handles == 0 && owed_.size() < kOwedMax) owed_.insert(key);
      return;
    }
    if (--entry->handles > 0) return EndTurnLocked(key, entry);
  }
  if (SendRelease(key, entry, deadline_ns)) PayOwed(key.session, deadline_ns);
}

}  // namespace nram
