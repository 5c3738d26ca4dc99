#include "memserver/lease_table.h"

#include <glog/logging.h>

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/plant.h"

namespace nram {

bool Lease::Bind(int connection_class, uint64_t generation, LeaseConnection* connection) {
  MutexLock lock(&mu_);
  Bound& bound = bound_[connection_class];
  if (generation <= bound.generation || generation > kGenerationMax) return false;
  if (bound.connection != nullptr && !NRAM_PLANTED(no_fence_on_hello)) bound.connection->Fence();
  bound = {generation, connection};
  return true;
}

void Lease::Unbind(int connection_class, const LeaseConnection* connection) {
  MutexLock lock(&mu_);
  Bound& bound = bound_[connection_class];
  if (bound.connection == connection) bound.connection = nullptr;
}

LeaseTable::~LeaseTable() {
  MutexLock lock(&mu_);
  while (!leases_.empty()) ForgetLocked(leases_.begin());
}

void LeaseTable::CountUnchargedLocked(Lease* lease, int more) {
  uncharged_count_ += more;
  lease->tenant->uncharged_leases += more;
}

bool LeaseTable::IsWithinShareLocked(const Tenant& tenant) const {
  if (uncharged_count_ > kUnchargedMax) return false;
  return tenant.uncharged_leases <= std::max<size_t>(1, 3 * (kUnchargedMax - uncharged_count_));
}

bool LeaseTable::ChargeLocked(Lease* lease) {
  if (lease->charged_) return true;
  if (!lease->tenant->account.ChargeIndex(CostBytes(*lease))) return false;
  lease->charged_ = true;
  CountUnchargedLocked(lease, -1);
  return true;
}

bool LeaseTable::Charge(Lease* lease, Lease* former) {
  if (lease->charged_.load(std::memory_order_acquire)) return true;
  MutexLock lock(&mu_);
  if (ChargeLocked(lease)) return true;
  if (former == nullptr || former->live() || !former->charged_ || former->tenant != lease->tenant) return false;
  ArenaAccount& account = lease->tenant->account;
  const uint64_t had = CostBytes(*former);
  const uint64_t needs = CostBytes(*lease);
  if (needs > had && !account.ChargeIndex(needs - had)) return false;
  if (needs < had) account.ReleaseIndex(had - needs);
  // As many are uncharged as before.
  former->charged_ = false;
  lease->charged_ = true;
  return true;
}

void LeaseTable::ListLocked(Lease* lease) {
  if (lease->listed_ns_ != 0 && lease->listed_ns_ <= lease->expires_ns_) return;
  if (lease->listed_ns_ != 0) by_end_.erase({lease->listed_ns_, Raw(lease->id)});
  lease->listed_ns_ = lease->expires_ns_;
  by_end_.emplace(lease->listed_ns_, Raw(lease->id));
}

absl::StatusOr<std::shared_ptr<Lease>> LeaseTable::Grant(const Wish& wish) {
  if (Raw(wish.id) == 0) return absl::InvalidArgumentError("lease id 0");
  const int64_t ttl_ms = wish.ttl_ms <= 0 ? ttl_ms_ : std::min(wish.ttl_ms, ttl_ms_ * kTtlFactorMax);
  MutexLock lock(&mu_);
  auto it = leases_.find(Raw(wish.id));
  if (it != leases_.end() && it->second->tenant != wish.tenant) {
    return absl::PermissionDeniedError("the lease is another tenant's");
  }
  const bool begins = it == leases_.end() || !it->second->live();
  if (begins && by_end_.size() >= kLeasesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("this server already serves ", kLeasesMax, " clients"));
  }
  Quota& quota = wish.tenant->leases;
  QuotaShare share(begins && quota.Take() ? &quota : nullptr);  // of a live lease
  if (begins && !share.taken()) {
    return absl::ResourceExhaustedError(absl::StrCat("the tenant has ", quota.limit(), " leases, its maximum"));
  }
  if (it == leases_.end()) {
    auto lease = std::make_shared<Lease>(wish.tenant, wish.id, wish.client_name.substr(0, kClientNameBytesMax),
                                         wish.identity.substr(0, kIdentityBytesMax));
    it = leases_.emplace(Raw(wish.id), std::move(lease)).first;
    CountUnchargedLocked(it->second.get(), 1);
    if (!ChargeLocked(it->second.get()) && !IsWithinShareLocked(*wish.tenant)) {
      ForgetLocked(it);
      return absl::ResourceExhaustedError("the server is full: it has no room for one more client");
    }
  }
  Lease* const lease = it->second.get();
  lease->ttl_ms_ = ttl_ms;
  lease->expendable = wish.expendable;
  lease->expires_ns_ = NowLocked() + ttl_ms * kNsPerMs;
  ListLocked(lease);
  if (begins) {
    lease->term_ = ++terms_;
    lease->refused = false;
    arena_->OpenReservation(&lease->reservation);
    lease->live_ = true;
    share.Keep();
  }
  return it->second;
}

absl::StatusOr<std::shared_ptr<Lease>> LeaseTable::Renew(const Tenant& tenant, LeaseId id) {
  MutexLock lock(&mu_);
  const auto it = leases_.find(Raw(id));
  if (it == leases_.end() || it->second->tenant != &tenant || !it->second->live()) {
    return absl::NotFoundError("no such live lease: it ended or the server restarted");
  }
  Lease* const lease = it->second.get();
  const int64_t end_ns = NowLocked() + lease->ttl_ms_ * kNsPerMs;
  // A ping may come before the refused client's connection is closed.
  lease->expires_ns_ = lease->refused ? std::max(lease->expires_ns_, end_ns) : end_ns;
  ListLocked(lease);  // Hold may have listed it for later
  return it->second;
}

std::shared_ptr<Lease> LeaseTable::Find(LeaseId id) const {
  MutexLock lock(&mu_);
  const auto it = leases_.find(Raw(id));
  return it == leases_.end() ? nullptr : it->second;
}

void LeaseTable::EndLocked(Lease* lease) {
  by_end_.erase({std::exchange(lease->listed_ns_, 0), Raw(lease->id)});
  lease->live_ = false;
  lease->tenant->leases.Give();
  lease->term_ = ++terms_;
  if (!NRAM_PLANTED(lease_end_keeps_reservation)) arena_->CloseReservation(&lease->reservation);
  NoteEndingLocked(lease);
}

std::shared_ptr<Lease> LeaseTable::End(LeaseId id, const Tenant* tenant) {
  MutexLock lock(&mu_);
  const auto it = leases_.find(Raw(id));
  if (it == leases_.end() || !it->second->live()) return nullptr;
  if (tenant != nullptr && it->second->tenant != tenant) return nullptr;
  EndLocked(it->second.get());
  return it->second;
}

std::vector<std::shared_ptr<Lease>> LeaseTable::EndExpired(int64_t now_ns) {
  std::vector<std::shared_ptr<Lease>> ended;
  MutexLock lock(&mu_);
  now_ns -= extended_ns_;
  while (!by_end_.empty() && by_end_.begin()->first <= now_ns) {
    ++looked_at_;
    const std::shared_ptr<Lease>& lease = leases_.at(by_end_.begin()->second);
    if (lease->expires_ns_ <= now_ns) {
      EndLocked(lease.get());
      ended.push_back(lease);
    } else {
      // The lease was renewed since.
      by_end_.erase(by_end_.begin());
      lease->listed_ns_ = 0;
      ListLocked(lease.get());
    }
  }
  ForgetEndedLocked();
  return ended;
}

void LeaseTable::NoteEndingLocked(Lease* lease) {
  if (!std::exchange(lease->ending_, true)) ending_.push_back(Raw(lease->id));
}

void LeaseTable::ForgetEndedLocked() {
  // A lease that a connection holds is looked at again. There are no more of these than connections.
  std::erase_if(ending_, [this](uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    ++looked_at_;
    const auto it = leases_.find(id);
    const std::shared_ptr<Lease>& lease = it->second;
    const bool wanted = lease->live() || lease->regions > 0;
    if (!wanted && lease.use_count() > 1) return false;
    lease->ending_ = false;
    if (!wanted) ForgetLocked(it);
    return true;
  });
}

void LeaseTable::ForgetLocked(Table::iterator it) {
  Lease& lease = *it->second;
  if (lease.charged_) {
    lease.tenant->account.ReleaseIndex(CostBytes(lease));
  } else {
    CountUnchargedLocked(&lease, -1);
  }
  if (lease.live_) lease.tenant->leases.Give();
  leases_.erase(it);
}

void LeaseTable::Unname(Lease* lease) {
  // A thread that ends or holds the lease after this finds that no region names it.
  if (lease->regions.fetch_sub(1) > 1 || (lease->live() && !lease->refused)) return;
  MutexLock lock(&mu_);
  if (!lease->live()) return NoteEndingLocked(lease);
  if (!lease->refused) return;
  lease->expires_ns_ = std::min(lease->expires_ns_, NowLocked());
  ListLocked(lease);
}

void LeaseTable::Extend(int64_t ns) {
  MutexLock lock(&mu_);
  extended_ns_ += ns;
  // A lease that was renewed after the stop, and before this, does not end later.
  for (const auto& [id, lease] : leases_) {
    if (!lease->live()) continue;
    lease->expires_ns_ = std::min(lease->expires_ns_, NowLocked() + lease->ttl_ms_ * kNsPerMs);
    ListLocked(lease.get());
  }
}

void LeaseTable::Hold(absl::FunctionRef<bool(const Lease& lease)> is_refused, int64_t ns) {
  std::vector<std::shared_ptr<Lease>> live;
  {
    MutexLock lock(&mu_);
    for (const auto& [id, lease] : leases_) {
      if (lease->live()) live.push_back(lease);
    }
  }
  // A judgement compares an identity with thousands of rules.
  std::erase_if(live, [&](const std::shared_ptr<Lease>& lease) {
    lease->refused = is_refused(*lease);
    return !lease->refused;
  });
  MutexLock lock(&mu_);
  for (const std::shared_ptr<Lease>& lease : live) {
    if (!lease->live() || lease->regions == 0) continue;
    lease->expires_ns_ = std::max(lease->expires_ns_, NowLocked() + ns);
    ListLocked(lease.get());
  }
}

size_t LeaseTable::live_count() const {
  MutexLock lock(&mu_);
  return by_end_.size();
}

size_t LeaseTable::CountLate() const {
  MutexLock lock(&mu_);
  const int64_t now_ns = NowLocked();
  size_t late = 0;
  for (const auto& [end_ns, id] : by_end_) {
    const auto it = leases_.find(id);
    if (it == leases_.end()) continue;
    const Lease& lease = *it->second;
    late += lease.expires_ns_ - now_ns < lease.ttl_ms() * kNsPerMs / 2 ? 1 : 0;
  }
  return late;
}

size_t LeaseTable::count() const {
  MutexLock lock(&mu_);
  return leases_.size();
}

uint64_t LeaseTable::looked_at() const {
  MutexLock lock(&mu_);
  return looked_at_;
}

std::vector<std::shared_ptr<Lease>> LeaseTable::Expendable() const {
  std::vector<std::shared_ptr<Lease>> expendable;
  MutexLock lock(&mu_);
  for (const auto& [id, lease] : leases_) {
    if (lease->live() && lease->expendable) expendable.push_back(lease);
  }
  return expendable;
}

std::vector<std::shared_ptr<Lease>> LeaseTable::WithCopies(size_t most, const Tenant* of) const {
  // Each with its turn. The order is each tenant's first lease, then each tenant's second one, and so on.
  std::vector<std::pair<size_t, std::shared_ptr<Lease>>> turns;
  {
    MutexLock lock(&mu_);
    absl::flat_hash_map<const Tenant*, size_t> told;
    for (const auto& [end_ns, id] : by_end_) {
      const auto it = leases_.find(id);
      if (it == leases_.end() || (of != nullptr && it->second->tenant != of)) continue;
      if (it->second->copies().client != 0) turns.emplace_back(told[it->second->tenant]++, it->second);
    }
  }
  absl::c_stable_sort(turns, [](const auto& a, const auto& b) { return a.first < b.first; });
  turns.resize(std::min(turns.size(), most));
  std::vector<std::shared_ptr<Lease>> leases;
  for (auto& [turn, lease] : turns) leases.push_back(std::move(lease));
  return leases;
}

LeaseTable::IdSet LeaseTable::LiveIds() const {
  MutexLock lock(&mu_);
  IdSet ids;
  for (const auto& [end_ns, id] : by_end_) ids.insert(id);
  return ids;
}

}  // namespace nram
