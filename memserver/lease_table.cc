#include "memserver/lease_table.h"

#include <glog/logging.h>

#include <algorithm>
#include <limits>

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
  if (ttl_ms <= 0 || ttl_ms > ttl_max_ms_) ttl_ms = ttl_max_ms_;
  MutexLock lock(&mu_);
  auto it = leases_.find(Raw(id));
  if (it == leases_.end()) {
    if (leases_.size() >= kLeasesMax) {
      return absl::ResourceExhaustedError(absl::StrCat("this server already serves ", kLeasesMax, " clients"));
    }
    it = leases_.emplace(Raw(id), Entry{std::make_shared<Lease>(id, owner), ttl_ms}).first;
  }
  it->second.ttl_ms = ttl_ms;
  it->second.lease->expires_ns_ = clock_->NowNs() + ttl_ms * kNsPerMs;
  it->second.lease->live_ = true;
  return it->second.lease;
}

absl::StatusOr<std::shared_ptr<Lease>> LeaseTable::Renew(LeaseId id) {
  MutexLock lock(&mu_);
  const auto it = leases_.find(Raw(id));
  if (it == leases_.end() || !it->second.lease->live()) {
    return absl::NotFoundError(absl::StrCat("no live lease ", FormatId(Raw(id)), ": it ended or the server restarted"));
  }
  it->second.lease->expires_ns_ = clock_->NowNs() + it->second.ttl_ms * kNsPerMs;
  return it->second.lease;
}

std::shared_ptr<Lease> LeaseTable::Find(LeaseId id) const {
  MutexLock lock(&mu_);
  const auto it = leases_.find(Raw(id));
  return it == leases_.end() ? nullptr : it->second.lease;
}

void LeaseTable::EndLocked(Lease* lease) {
  lease->live_ = false;
  arena_->Unpromise(std::numeric_limits<uint64_t>::max(), &lease->promise);
}

std::shared_ptr<Lease> LeaseTable::End(LeaseId id) {
  MutexLock lock(&mu_);
  const auto it = leases_.find(Raw(id));
  if (it == leases_.end() || !it->second.lease->live()) return nullptr;
  EndLocked(it->second.lease.get());
  return it->second.lease;
}

std::vector<std::shared_ptr<Lease>> LeaseTable::EndExpired() {
  std::vector<std::shared_ptr<Lease>> ended;
  MutexLock lock(&mu_);
  const int64_t now_ns = clock_->NowNs();
  for (auto it = leases_.begin(); it != leases_.end();) {
    const std::shared_ptr<Lease>& lease = it->second.lease;
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

size_t LeaseTable::live_count() const {
  MutexLock lock(&mu_);
  return std::count_if(leases_.begin(), leases_.end(), [](const auto& entry) { return entry.second.lease->live(); });
}

}  // namespace nram
