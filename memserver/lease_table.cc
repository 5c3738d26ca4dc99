#include "memserver/lease_table.h"

#include <glog/logging.h>

#include "absl/strings/str_cat.h"

namespace nram {

bool Lease::Bind(int connection_class, uint64_t generation, LeaseConnection* connection) {
  MutexLock lock(&mu_);
  Bound& bound = bound_[connection_class];
  if (generation <= bound.generation) return false;
  if (bound.connection != nullptr) bound.connection->Fence();
  bound = {generation, connection};
  return true;
}

void Lease::Unbind(int connection_class, const LeaseConnection* connection) {
  MutexLock lock(&mu_);
  Bound& bound = bound_[connection_class];
  if (bound.connection == connection) bound.connection = nullptr;
}

absl::StatusOr<std::shared_ptr<Lease>> LeaseTable::Grant(LeaseId id, const std::string& owner, int64_t ttl_ms) {
  if (Raw(id) == 0) return absl::InvalidArgumentError("lease id 0");
  ttl_ms = ttl_ms <= 0 ? ttl_ms_ : std::min(ttl_ms, ttl_ms_ * kTtlFactorMax);
  MutexLock lock(&mu_);
  auto it = leases_.find(Raw(id));
  const bool begins = it == leases_.end() || !it->second->live();
  if (begins && live_count_ >= kLeasesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("this server already serves ", kLeasesMax, " clients"));
  }
  if (it == leases_.end()) it = leases_.emplace(Raw(id), std::make_shared<Lease>(id, owner)).first;
  Lease* const lease = it->second.get();
  lease->ttl_ms_ = ttl_ms;
  lease->expires_ns_ = clock_->NowNs() + ttl_ms * kNsPerMs;
  if (begins) {
    ++live_count_;
    lease->term_ = ++terms_;
    arena_->OpenPromise(&lease->promise);
    lease->live_ = true;
  }
  return it->second;
}

absl::StatusOr<std::shared_ptr<Lease>> LeaseTable::Renew(LeaseId id) {
  MutexLock lock(&mu_);
  const auto it = leases_.find(Raw(id));
  if (it == leases_.end() || !it->second->live()) {
    return absl::NotFoundError(absl::StrCat("no live lease ", FormatId(Raw(id)), ": it ended or the server restarted"));
  }
  it->second->expires_ns_ = clock_->NowNs() + it->second->ttl_ms_ * kNsPerMs;
  return it->second;
}

std::shared_ptr<Lease> LeaseTable::Find(LeaseId id) const {
  MutexLock lock(&mu_);
  const auto it = leases_.find(Raw(id));
  return it == leases_.end() ? nullptr : it->second;
}

void LeaseTable::EndLocked(Lease* lease) {
  lease->live_ = false;
  lease->term_ = ++terms_;
  --live_count_;
  arena_->ClosePromise(&lease->promise);
}

std::shared_ptr<Lease> LeaseTable::End(LeaseId id) {
  MutexLock lock(&mu_);
  const auto it = leases_.find(Raw(id));
  if (it == leases_.end() || !it->second->live()) return nullptr;
  EndLocked(it->second.get());
  return it->second;
}

std::vector<std::shared_ptr<Lease>> LeaseTable::EndExpired() {
  std::vector<std::shared_ptr<Lease>> ended;
  MutexLock lock(&mu_);
  const int64_t now_ns = clock_->NowNs();
  for (auto it = leases_.begin(); it != leases_.end();) {
    const std::shared_ptr<Lease>& lease = it->second;
    if (lease->live() && lease->expires_ns_ <= now_ns) {
      EndLocked(lease.get());
      ended.push_back(lease);
      ++it;
    } else if (!lease->live() && lease->regions == 0 && lease.use_count() == 1) {
      leases_.erase(it++);
    } else {
      ++it;
    }
  }
  return ended;
}

void LeaseTable::Extend(int64_t ns) {
  MutexLock lock(&mu_);
  for (const auto& [id, lease] : leases_) lease->expires_ns_ += ns;
}

size_t LeaseTable::live_count() const {
  MutexLock lock(&mu_);
  return live_count_;
}

LeaseTable::IdSet LeaseTable::LiveIds() const {
  MutexLock lock(&mu_);
  IdSet ids;
  for (const auto& [id, lease] : leases_) {
    if (lease->live()) ids.insert(id);
  }
  return ids;
}

}  // namespace nram
