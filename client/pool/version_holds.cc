#include "client/pool/version_holds.h"

#include <glog/logging.h>

#include <algorithm>
#include <iterator>

#include "absl/strings/str_cat.h"
#include "base/clock.h"

namespace nram {

VersionHolds::~VersionHolds() {
  MutexLock lock(&mu_);
  CHECK(entries_.empty()) << "a version's handle outlives its pool";
}

VersionHolds::Entry* VersionHolds::BeginTurnLocked(const Key& key) {
  // It may go while this waits.
  while (entries_[key].busy) changed_.WaitUntil(&mu_, MonotonicNs() + kTurnMs * kNsPerMs);
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

void VersionHolds::PayOwed(ServerSession* session) {
  std::vector<Key> owed;
  {
    MutexLock lock(&mu_);
    if (!session->usable()) return;
    const uint64_t incarnation = session->incarnation();
    const auto is_its = [&](const Key& key) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
      return key.session == session && !entries_.contains(key);
    };
    std::copy_if(owed_.begin(), owed_.end(), std::back_inserter(owed), is_its);
    std::erase_if(owed_, is_its);
    // In another life it has none.
    std::erase_if(owed, [&](const Key& key) { return key.incarnation != incarnation; });
  }
  // One that is not answered is owed again.
  for (const Key& key : owed) Release(key, /*owed=*/true);
}

void VersionHolds::OweLocked(const Key& key, const absl::Status& status) {
  const bool is_owed = absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status);
  if (is_owed && owed_.size() < kOwedMax && !entries_.contains(key)) owed_.push_back(key);
}

absl::StatusOr<VersionHolds::Hold> VersionHolds::Take(ServerSession* session, uint64_t incarnation, RegionId region,
                                                      VersionNumber version, int64_t deadline_ns) {
  PayOwed(session);
  const Key key{session, incarnation, region, version};
  Entry* entry = nullptr;
  {
    MutexLock lock(&mu_);
    entry = BeginTurnLocked(key);
  }
  // Also if there is one: the lease may have ended since, and that with it.
  const absl::Status status = Send(key, /*release=*/false, deadline_ns);
  MutexLock lock(&mu_);
  if (status.ok()) ++entry->handles;
  EndTurnLocked(key, entry);
  std::erase(owed_, key);
  if (status.ok()) return Hold(this, key);
  OweLocked(key, status);  // it may have done it
  return status;
}

void VersionHolds::Release(const Key& key, bool owed) {
  Entry* entry = nullptr;
  {
    MutexLock lock(&mu_);
    entry = BeginTurnLocked(key);
    if (!owed) --entry->handles;
    if (entry->handles > 0) return EndTurnLocked(key, entry);
  }
  absl::Status status = absl::UnavailableError("it is away");
  if (key.session->usable()) status = Send(key, /*release=*/true, environment_->NowNs() + kReleaseMs * kNsPerMs);
  MutexLock lock(&mu_);
  EndTurnLocked(key, entry);
  OweLocked(key, status);
}

}  // namespace nram
